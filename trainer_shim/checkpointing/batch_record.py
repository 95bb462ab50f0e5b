"""The global batch in a checkpoint's manifest: a change at a resume, which bends every schedule, needs consent."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, NamedTuple

from trainer_shim.environment.job import integer
from trainer_shim.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Mapping

CONSENT_VARIABLE = "TRAINER_SHIM_BATCH_CHANGE"

log = logging.getLogger("trainer_shim")


class BatchRecord(NamedTuple):
    """The global batch that a script has given.

    Attributes:
        global_batch: samples in an optimizer step, over all ranks; the first batch, where the batch adapts.
        world_size: the number of ranks.
    """

    global_batch: int
    world_size: int

    @classmethod
    def from_json(cls, described: dict[str, Any] | None) -> BatchRecord | None:
        """Return the record in a manifest, None where an earlier version has written none.

        Raises:
            TypeError, KeyError: the description makes no sense.
        """
        return None if described is None else cls(int(described["global_batch"]), int(described["world_size"]))

    def scaled_by_ranks(self, before: BatchRecord) -> bool:
        """Return whether the batch for a rank is that of an earlier record, at another number of ranks."""
        return self.global_batch * before.world_size == before.global_batch * self.world_size


def check_batch_change(
    before: BatchRecord | None, now: BatchRecord, batch_change: int | None, environ: Mapping[str, str], checkpoint: str
) -> None:
    """Check that the global batch is that of the checkpoint, or that its change is meant.

    Args:
        before: the checkpoint's batch, None without a checkpoint or in one of an earlier version.
        now: the batch of this start.
        batch_change: the earlier global batch whose change the script consents to, None without consent.
        environ: the environment, which may have the same consent for this start.
        checkpoint: the checkpoint's path.

    Raises:
        CheckpointError: the batch has changed without consent.
        VariableError: the variable of the consent is no number.
    """
    if before is None or before.global_batch == now.global_batch:
        return
    if before.global_batch in (batch_change, integer(environ, CONSENT_VARIABLE)):
        log.warning(
            "the global batch changes from %d to %d, as the script consents: schedules that count steps do not follow",
            before.global_batch, now.global_batch,
        )  # fmt: skip
        return
    change = (
        f"{checkpoint}: made with global_batch {before.global_batch} on {before.world_size} ranks, and this script has "
        f"{now.global_batch} on {now.world_size} ranks. "
    )
    if now.scaled_by_ranks(before):
        each = now.global_batch // now.world_size
        raise CheckpointError(
            f"{change}That is a batch for each GPU ({each}) times the number of ranks, so that the training would be "
            f"another one at each size. Pass the batch of all GPUs together, a number without ctx.size: "
            f"global_batch={before.global_batch}, and max_per_gpu={each} if no more samples fit on a GPU. "
            f"{_consent(before)}"
        )
    raise CheckpointError(
        f"{change}Schedules and learning rate belong to a batch: pass global_batch={before.global_batch}. "
        f"{_consent(before)}"
    )


def _consent(before: BatchRecord) -> str:
    return (
        f"To change the batch on purpose, pass ctx.loader(..., batch_change={before.global_batch}), or set "
        f"{CONSENT_VARIABLE}={before.global_batch} for one start"
    )
