"""Random batches without an end: a function of the script draws each sample anew.

A sample's random numbers depend on (seed, position) alone. So the global batch of a step is the same at every world
size, and a restart continues at the position of its checkpoint, without a generator's state.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Callable, NamedTuple

import torch
from torch.utils.data import DataLoader, Dataset

from trainer_shim.data.loader_workers import DatasetWrapper, LoaderReads, progress_of
from trainer_shim.data.sample_order import MicroBatch
from trainer_shim.data.seeding import derive_seed, seed_generators
from trainer_shim.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainer_shim.batch import BatchPlan
    from trainer_shim.data.worker_progress import WorkerProgress


class DrawOrder(NamedTuple):
    """The parameters of random batches; a checkpoint is continued only with the same parameters."""

    seed: int
    random_batches: bool = True


class RandomSource:
    """This rank's micro-batches of random global batches, all of them full.

    Args:
        draw: returns as many random samples as it is asked for, along the first dimension of one tensor or array, or
            of a tuple, list or dict of them. It is asked for one sample at a time, in a loader worker or here.
        order: the parameters of the random numbers.
        plan: the split of a global batch.
        rank: this process's number.
        options: options of torch's DataLoader.

    Attributes:
        size: None, because there is no end.
    """

    size: int | None = None

    def __init__(
        self, draw: Callable[[int], Any], order: DrawOrder, plan: BatchPlan, rank: int, options: dict[str, Any]
    ) -> None:
        self._plan = plan
        self._rank = rank
        self._requests = _Requests()
        self.progress = progress_of(options)
        self.loader: DataLoader[Any] = DataLoader(
            _Draws(draw, order.seed, self.progress),
            batch_sampler=self._requests,
            collate_fn=join_samples,
            **options,
        )
        self._reads = LoaderReads(self.loader, self.progress)

    def read_from(self, epoch: int, cursor: int) -> Iterator[tuple[MicroBatch, Any]]:
        """Return this rank's micro-batches with their data, from the sample `cursor` on."""
        del epoch  # there is one, without an end
        requested, expected = itertools.tee(endless_micro_batches(self._plan, self._rank, cursor))
        self._requests.batches = (micro.indices for micro in requested)
        return ((micro, batch) for batch, micro in zip(self._reads.start(), expected))

    def read_again(self, epoch: int, cursor: int) -> Iterator[tuple[MicroBatch, Any]]:
        """Kill the loader's workers, and return the rest of the present read by new ones."""
        self._reads.end_workers()
        return self.read_from(epoch, cursor)


def endless_micro_batches(plan: BatchPlan, rank: int, cursor: int) -> Iterator[MicroBatch]:
    """Yield a rank's micro-batches from the sample `cursor` on, without an end; `indices` are positions.

    Every rank has the same number of micro-batches of a global batch.
    """
    size = plan.global_batch
    count, pieces = plan.micro_batch_count(size), plan.micro_batches(rank, size)
    for start in itertools.count(cursor, size):
        for number, piece in enumerate(pieces, start=1):
            positions = [start + place for place in piece]
            weight, last = plan.weight(len(piece), size), number == count
            yield MicroBatch(positions[0], positions, len(piece), weight, last=last, global_samples=size, plan=plan)
        if len(pieces) < count:
            filler = list(range(start, start + plan.multiple_of))
            yield MicroBatch(start, filler, 0, 0.0, last=True, global_samples=size, plan=plan)


def join_samples(drawn: list[Any]) -> Any:
    """Return one batch of several batches of one sample each.

    Raises:
        UsageError: a batch has not one sample, or is of another type than those that `RandomSource` names.
    """
    first = drawn[0]
    if isinstance(first, dict):
        return {key: join_samples([each[key] for each in drawn]) for key in first}
    if isinstance(first, (tuple, list)):
        joined = [join_samples(list(part)) for part in zip(*drawn)]
        return type(first)(*joined) if hasattr(first, "_fields") else type(first)(joined)
    shape = getattr(first, "shape", None)
    if not shape:
        raise UsageError(
            f"ctx.random_batches(draw): draw(1) returned a {type(first).__name__}: return tensors, or a tuple, list or "
            "dict of tensors, whose first dimension counts the samples"
        )
    if shape[0] != 1:
        raise UsageError(
            f"ctx.random_batches(draw): draw(1) returned {shape[0]} samples: return as many as it is asked for"
        )
    return torch.cat([torch.as_tensor(each) for each in drawn])


class _Requests:
    """A batch sampler of positions, one for all reads, because loader workers may live for several reads."""

    def __init__(self) -> None:
        self.batches: Iterator[list[int]] = iter(())

    def __iter__(self) -> Iterator[list[int]]:
        return self.batches


class _Draws(DatasetWrapper, Dataset[Any]):
    """The script's function as a data set of positions, each sample with random numbers of its own."""

    def __init__(self, draw: Callable[[int], Any], seed: int, progress: WorkerProgress) -> None:
        super().__init__(draw, progress)
        self._seed = seed

    def __getitems__(self, positions: list[int]) -> list[Any]:
        drawn = []
        for position in positions:
            self.progress.note_sample(0, position)
            seed_generators(derive_seed(self._seed, position, "draw"))
            drawn.append(self.dataset(1))
        self.progress.note_idle()
        return drawn
