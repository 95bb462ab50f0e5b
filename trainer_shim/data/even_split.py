"""Even splits of a global batch, and samplers for them, for frameworks that support no uneven splits."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from torch.utils.data import Sampler

from trainer_shim.batch import MAX_SIZES
from trainer_shim.errors import BatchError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainer_shim.data.sample_order import SampleOrder


_LARGEST = 4096  # world sizes that `even_sizes` looks at


class EvenSplit(NamedTuple):
    """The split of a global batch into micro-batches of one size.

    Attributes:
        global_batch: the samples of an optimizer step, over all ranks.
        world_size: the number of ranks.
        per_gpu_batch: the samples of a micro-batch.
        accumulation: the micro-batches of each rank for one optimizer step.
    """

    global_batch: int
    world_size: int
    per_gpu_batch: int
    accumulation: int


def plan_even_split(global_batch: int, world_size: int, max_per_gpu: int | None) -> EvenSplit:
    """Split a global batch into equal micro-batches, as few of them as fit on a GPU.

    Raises:
        BatchError: there is no such split; the message names global batches that can be split.
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


def even_sizes(global_batch: int) -> list[int]:
    """Return the world sizes that have an even split, ascending: at most `MAX_SIZES`, the smallest ones."""
    return [size for size in range(1, min(global_batch, _LARGEST) + 1) if global_batch % size == 0][:MAX_SIZES]


class Position(Protocol):
    """A rank's position in the training; `step` counts optimizer steps over all runs."""

    rank: int
    step: int


class GlobalOrder(Sampler[int]):
    """A sampler with the indices of the present epoch, in one order for all ranks together.

    The samples after the last full global batch are dropped; with shuffling, other samples in each epoch.
    """

    def __init__(self, position: Position, order: SampleOrder, samples: int, plan: EvenSplit) -> None:
        self._position = position
        self._order = order
        self.steps_per_epoch = samples // plan.global_batch
        self._batch = plan.global_batch
        self._whole = self.steps_per_epoch * plan.global_batch

    def __iter__(self) -> Iterator[int]:
        order = self._order.epoch_order(self._position.step // self.steps_per_epoch)
        for start in range(0, self._whole, self._batch):
            yield from order[start : start + self._batch].tolist()

    def __len__(self) -> int:
        return self._whole


class RankBatches(Sampler[list[int]]):
    """A batch sampler with this rank's micro-batches from the training's position to the end of the present epoch.

    Its length is that of a full epoch. The global batches are those of `GlobalOrder`.
    """

    def __init__(self, position: Position, order: SampleOrder, samples: int, plan: EvenSplit) -> None:
        self._position = position
        self._order = order
        self._plan = plan
        self.steps_per_epoch = samples // plan.global_batch

    def __iter__(self) -> Iterator[list[int]]:
        epoch, done = divmod(self._position.step, self.steps_per_epoch)
        size, share = self._plan.per_gpu_batch, self._plan.per_gpu_batch * self._plan.accumulation
        order = self._order.epoch_order(epoch)
        for step in range(done, self.steps_per_epoch):
            start = step * self._plan.global_batch + self._position.rank * share
            for piece in range(start, start + share, size):
                yield order[piece : piece + size].tolist()

    def __len__(self) -> int:
        return self.steps_per_epoch * self._plan.accumulation
