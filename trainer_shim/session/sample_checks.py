"""The comparison of some samples between the ranks, and with the checkpoint, before the training."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from trainer_shim.data.sample_fingerprints import Fingerprint, Fingerprints, differing, fingerprint_samples
from trainer_shim.errors import CheckpointError, UsageError

if TYPE_CHECKING:
    from trainer_shim.checkpointing.formats.script_checkpoints import ScriptCheckpoint
    from trainer_shim.data.sample_order import SampleOrder
    from trainer_shim.process_groups.rank_group import RankGroup

_SWITCH_OFF = "ctx.loader(..., check_samples=False)"

log = logging.getLogger("trainer_shim")


def check_samples(
    dataset: Any,
    order: SampleOrder,
    options: dict[str, Any],
    group: RankGroup,
    resumed: ScriptCheckpoint | None,
) -> dict[int, Fingerprint]:
    """Check that some samples are the same on all ranks, and as in the checkpoint; return fingerprints. Collective.

    Args:
        dataset: a map-style data set.
        order: the order of its samples.
        options: the options of the DataLoader.
        group: the ranks.
        resumed: the checkpoint from which the training resumes, None for a fresh start.

    Returns:
        The fingerprints of rank 0, empty where the samples cannot be compared.

    Raises:
        UsageError: a rank has other samples than rank 0; raised on all ranks.
        CheckpointError: rank 0 has other samples than the checkpoint; raised on all ranks.
    """
    own = fingerprint_samples(dataset, order.size, order.seed, options)
    first: Fingerprints = group.on_rank_zero(lambda: own)
    wrong = differing(own.found, first.found)
    flags = group.sum([float(rank == group.rank and bool(wrong)) for rank in range(group.size)])
    ranks = [str(rank) for rank, flag in enumerate(flags) if flag]
    if ranks:
        here = f"; on this rank, {_named(wrong)}" if wrong else ""
        raise UsageError(
            f"rank {', '.join(ranks)} has other training samples than rank 0{here}: give every rank the same data set "
            "in the same order, such as random_split(..., generator=torch.Generator().manual_seed(1)) and sorted file "
            f"lists; {_SWITCH_OFF} switches this comparison off"
        )
    saved = {} if resumed is None else resumed.samples
    changed = differing(first.found, {index: Fingerprint(int(found[0]), *found[1:]) for index, found in saved.items()})
    if changed and resumed is not None:
        raise CheckpointError(
            f"{resumed.data}: was made with other training samples: {_named(changed)}. Give the same data set in the "
            "same order at every start (seeded splits, sorted file lists), or use another checkpoint directory; if the "
            f"samples were changed on purpose, pass {_SWITCH_OFF} at this start"
        )
    if first.why_none is not None and group.rank == 0:
        log.info("training samples are not compared between ranks and restarts: %s", first.why_none)
    return first.found


def _named(indices: list[int]) -> str:
    return f"sample {', '.join(map(str, indices))} {'differs' if len(indices) == 1 else 'differ'}"
