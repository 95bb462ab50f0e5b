"""The order of the samples: one global cursor over each epoch's order, whatever the world size.

The order of an epoch is a permutation fixed by (seed, epoch), or that of a stream (see `stream`). A step takes the next
`global_batch` samples of it, and only then are they split over the ranks: so a position in an epoch is one number, and
means the same to every world.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from trainer_shim.data.seeding import derive_seed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainer_shim.batch import BatchPlan


class SampleOrder(NamedTuple):
    """What fixes the order of the samples; a checkpoint can only be continued under the same."""

    seed: int
    size: int
    shuffle: bool

    def epoch_indices(self, epoch: int) -> torch.Tensor:
        """The data set's indices in the order in which the epoch takes them, int64 of shape (size,)."""
        if not self.shuffle:
            return torch.arange(self.size)
        generator = torch.Generator().manual_seed(derive_seed(self.seed, epoch))
        return torch.randperm(self.size, generator=generator)


class StreamOrder(NamedTuple):
    """The same for a stream, whose order is its own, and whose length its end tells."""

    seed: int
    stream: bool = True


class MicroBatch(NamedTuple):
    """What one rank works through at once.

    `position` is where its first sample stands in the epoch, `indices` what a map-style data set calls its samples.
    `samples` is 0 for a filler, with which a rank takes part, at weight 0, where it has fewer samples than others have
    micro-batches. `last` says that it is the rank's last of a global batch, which has `global_samples` samples.
    """

    position: int
    indices: list[int]
    samples: int
    weight: float
    last: bool
    global_samples: int


def micro_batches(order: torch.Tensor, cursor: int, plan: BatchPlan, rank: int) -> Iterator[MicroBatch]:
    """A rank's micro-batches from `cursor` to the end of the order; every rank has as many of each global batch."""
    size, count, pieces = 0, 0, list[range]()  # of the batch before, which are as a rule those of the next one
    for start in range(cursor, len(order), plan.global_batch):
        left = min(plan.global_batch, len(order) - start)
        if left != size:
            size, count, pieces = left, plan.micro_batch_count(left), plan.micro_batches(rank, left)
        for number, piece in enumerate(pieces, start=1):
            indices = order[start + piece.start : start + piece.stop].tolist()
            weight, last = plan.weight(len(piece), size), number == count
            yield MicroBatch(start + piece.start, indices, len(indices), weight, last=last, global_samples=size)
        if len(pieces) < count:
            yield MicroBatch(start, order[start : start + 1].tolist(), 0, 0.0, last=True, global_samples=size)
