"""The order of the samples: one global cursor over each epoch's order, at every world size.

The order of an epoch is a permutation fixed by (seed, epoch), or that of a stream (see `stream`). A step takes the next
`global_batch` samples of the order, and splits them over the ranks. So a position in an epoch is one number, with the
same meaning at every world size and every global batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from trainer_shim.data.seeding import derive_seed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainer_shim.batch import BatchPlan
    from trainer_shim.data.plan_switch import PlanSwitch


class SampleOrder(NamedTuple):
    """The parameters of a data set's order; a checkpoint is continued only with the same parameters.

    Attributes:
        seed: the seed of the permutations.
        size: the number of samples.
        shuffle: whether each epoch has a permutation of its own.
    """

    seed: int
    size: int
    shuffle: bool

    def epoch_indices(self, epoch: int) -> torch.Tensor:
        """Return the data set's indices in the order of an epoch, int64 of shape (size,)."""
        if not self.shuffle:
            return torch.arange(self.size)
        generator = torch.Generator().manual_seed(derive_seed(self.seed, epoch))
        return torch.randperm(self.size, generator=generator)


class StreamOrder(NamedTuple):
    """The parameters of a stream's order: the stream determines the order, and its end the length."""

    seed: int
    stream: bool = True


class MicroBatch(NamedTuple):
    """The samples of one forward and backward pass of one rank.

    Attributes:
        position: the position of the first sample in the epoch's order.
        indices: the samples' indices in a map-style data set, empty for a stream.
        samples: the number of samples, 0 for a filler: a rank with fewer samples than the other ranks have
            micro-batches takes part in their collectives with a filler of weight 0.
        weight: the factor on the mean loss.
        last: whether this is the rank's last micro-batch of its global batch.
        global_samples: the number of samples in the global batch.
        plan: the split of the global batch.
    """

    position: int
    indices: list[int]
    samples: int
    weight: float
    last: bool
    global_samples: int
    plan: BatchPlan


def micro_batches(
    order: torch.Tensor, cursor: int, plans: PlanSwitch, rank: int, *, drop_last: bool = False
) -> Iterator[MicroBatch]:
    """Yield a rank's micro-batches from `cursor` to the end of the order.

    Every rank has the same number of micro-batches of a global batch.

    Args:
        order: the indices of an epoch in their order.
        cursor: the position in the order.
        plans: the batch plan of each position.
        rank: the rank.
        drop_last: whether a last global batch that is not full is left out.
    """
    before: tuple[BatchPlan, int] | None = None  # plan and size of the last global batch; the next one usually has them
    count, pieces = 0, list[range]()
    start = cursor
    while start < len(order):
        plan = plans.plan_at(start, len(order))
        size = min(plan.global_batch, len(order) - start)
        if drop_last and size < plan.global_batch:
            return
        if (plan, size) != before:
            before, count, pieces = (plan, size), plan.micro_batch_count(size), plan.micro_batches(rank, size)
        for number, piece in enumerate(pieces, start=1):
            indices = order[start + piece.start : start + piece.stop].tolist()
            weight, last = plan.weight(len(piece), size), number == count
            yield MicroBatch(
                start + piece.start, indices, len(indices), weight, last=last, global_samples=size, plan=plan
            )
        if len(pieces) < count:
            filler = order[start : start + plan.multiple_of].tolist()
            yield MicroBatch(start, filler, 0, 0.0, last=True, global_samples=size, plan=plan)
        start += size
