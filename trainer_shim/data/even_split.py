"""Even splits of a global batch, and the order of the samples under them, for frameworks that know no uneven ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from torch.utils.data import Sampler

from trainer_shim.errors import BatchError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainer_shim.data.sample_order import SampleOrder


class EvenSplit(NamedTuple):
    """How a global batch is split where every micro-batch of every rank must have the same size."""

    global_batch: int
    world_size: int
    per_gpu_batch: int
    accumulation: int


def plan_even_split(global_batch: int, world_size: int, max_per_gpu: int | None) -> EvenSplit:
    """Split a global batch into equal micro-batches, as few of them as fit on a GPU.

    Raises:
        BatchError: there is no such split; the message says which batch would do.
    """
    if global_batch < 1 or (max_per_gpu is not None and max_per_gpu < 1):
        raise BatchError(f"global_batch {global_batch} and max_per_gpu {max_per_gpu}: they must be 1 or more")
    share, rest = divmod(global_batch, world_size)
    if rest:
        near = " or ".join(str(world_size * number) for number in (share, share + 1) if number)
        raise BatchError(
            f"global_batch is {global_batch}, and this framework gives every rank the same share: {world_size} ranks "
            f"need a multiple of {world_size}, such as {near}. Take one that all sizes from min_gpus to max_gpus divide"
        )
    most = share if max_per_gpu is None else min(share, max_per_gpu)
    per_gpu = next(size for size in range(most, 0, -1) if share % size == 0)
    return EvenSplit(global_batch, world_size, per_gpu, share // per_gpu)


class Position(Protocol):
    """Where the training stands: `step` counts optimizer steps over all runs."""

    rank: int
    step: int


class GlobalOrder(Sampler[int]):
    """The samples of an epoch, in the order of the whole world. The epoch is the one in which the training stands.

    What is left behind the last whole global batch is dropped: other samples in each epoch, where they are shuffled.
    """

    def __init__(self, position: Position, order: SampleOrder, samples: int, plan: EvenSplit) -> None:
        self._position = position
        self._order = order
        self.steps_per_epoch = samples // plan.global_batch
        self._whole = self.steps_per_epoch * plan.global_batch

    def __iter__(self) -> Iterator[int]:
        indices: list[int] = self._order.epoch_indices(self._position.step // self.steps_per_epoch)[
            : self._whole
        ].tolist()
        return iter(indices)

    def __len__(self) -> int:
        return self._whole


class RankBatches(Sampler[list[int]]):
    """This rank's micro-batches of what is left of the epoch in which the training stands. Its length is the epoch's.

    In a step, the global batch is the next one of the order, as in `GlobalOrder`.
    """

    def __init__(self, position: Position, order: SampleOrder, samples: int, plan: EvenSplit) -> None:
        self._position = position
        self._order = order
        self._plan = plan
        self.steps_per_epoch = samples // plan.global_batch

    def __iter__(self) -> Iterator[list[int]]:
        epoch, done = divmod(self._position.step, self.steps_per_epoch)
        size, share = self._plan.per_gpu_batch, self._plan.per_gpu_batch * self._plan.accumulation
        order = self._order.epoch_indices(epoch)
        for step in range(done, self.steps_per_epoch):
            start = step * self._plan.global_batch + self._position.rank * share
            for piece in range(start, start + share, size):
                yield order[piece : piece + size].tolist()

    def __len__(self) -> int:
        return self.steps_per_epoch * self._plan.accumulation
