"""The batch plan: one global batch, whatever the world size.

The gradient of a step is that of the mean loss over the global batch. DDP averages gradients over the ranks, and each
micro-batch's loss is a mean of its own, so a micro-batch of n samples is weighted with n * world_size / global samples.
"""

from __future__ import annotations

from typing import NamedTuple

from trainer_shim.errors import BatchError


class BatchPlan(NamedTuple):
    """How a global batch is split. Made by `plan_batch`, which checks it."""

    global_batch: int
    world_size: int
    max_per_gpu: int | None

    def share(self, rank: int, samples: int) -> range:
        """The positions within a global batch of `samples` samples that are `rank`'s; sizes differ by one at most."""
        least, more = divmod(samples, self.world_size)
        start = rank * least + min(rank, more)
        return range(start, start + least + (rank < more))

    def micro_batches(self, share: range) -> list[range]:
        """Cut a rank's share into the fewest micro-batches that fit on its GPU; sizes differ by one at most."""
        pieces = 1 if self.max_per_gpu is None else -(-len(share) // self.max_per_gpu)
        cut = BatchPlan(len(share), pieces, None)
        return [share[slice(piece.start, piece.stop)] for piece in (cut.share(i, len(share)) for i in range(pieces))]

    def weight(self, samples: int, global_samples: int) -> float:
        """The factor for the mean loss of a micro-batch of `samples` samples."""
        return samples * self.world_size / global_samples

    @property
    def per_gpu_batch(self) -> int:
        """The most samples that a GPU sees at once: the first rank's, or the last one's, whose share may be uncut."""
        ends = (self.share(rank, self.global_batch) for rank in (0, self.world_size - 1))
        return max(len(self.micro_batches(share)[0]) for share in ends)

    @property
    def accumulation(self) -> int:
        """The most micro-batches that a GPU works through for one optimizer step: the first rank's."""
        return len(self.micro_batches(self.share(0, self.global_batch)))


def plan_batch(global_batch: int, world_size: int, max_per_gpu: int | None) -> BatchPlan:
    """Plan a global batch.

    Raises:
        BatchError: it cannot be split.
    """
    if global_batch < world_size:
        raise BatchError(
            f"global_batch is {global_batch}, fewer samples than the {world_size} ranks: "
            "raise it, or run on fewer GPUs (max_gpus in the job's tag)"
        )
    if max_per_gpu is not None and max_per_gpu < 1:
        raise BatchError(f"max_per_gpu is {max_per_gpu}: it must be 1 or more")
    return BatchPlan(global_batch, world_size, max_per_gpu)
