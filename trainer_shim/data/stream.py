"""Streams: data sets that can only be read in their own order, from the beginning.

Every process reads the whole stream of an epoch, counts the samples, and keeps its own by position. So a cursor has the
same meaning at every world size. Where skipping a sample costs as much as reading it, that is expensive: an iterator
may have a method `skip(n)` that skips samples in a cheaper way.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Callable

import torch
import torch.utils.data._utils.worker as torch_worker
from torch.utils.data import DataLoader, IterableDataset, default_collate, get_worker_info

from trainer_shim.data.loader_workers import DatasetWrapper, LoaderReads, progress_of
from trainer_shim.data.sample_order import MicroBatch
from trainer_shim.data.seeding import derive_seed, seed_generators
from trainer_shim.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainer_shim.batch import BatchPlan
    from trainer_shim.data.prefetch import Prefetcher
    from trainer_shim.data.sample_order import StreamOrder
    from trainer_shim.data.worker_progress import WorkerProgress


class StreamSource:
    """The micro-batches of a stream; with `drop_last`, of full global batches only."""

    def __init__(
        self, stream: Any, order: StreamOrder, plan: BatchPlan, rank: int, options: dict[str, Any], *, drop_last: bool
    ) -> None:
        try:
            self.size: int | None = plan.samples_in_full_batches(len(stream)) if drop_last else len(stream)
        except TypeError:
            self.size = None
        collate = options.get("collate_fn") or default_collate
        self._position = torch.zeros(2, dtype=torch.int64)  # (epoch, cursor)
        if options.get("num_workers"):  # workers may live for several epochs
            self._position.share_memory_()  # type: ignore[no-untyped-call]
        self.progress = progress_of(options)
        least = plan.global_batch if drop_last else 1
        self.loader: DataLoader[Any] = DataLoader(
            _RankStream(stream, order, plan, rank, self._position, least=least, progress=self.progress),
            batch_size=None,
            **{**options, "collate_fn": functools.partial(_collated, collate)},
        )
        self._reads = LoaderReads(self.loader, self.progress)

    def read_from(self, epoch: int, cursor: int) -> Iterator[tuple[MicroBatch, Any]]:
        """Return this rank's micro-batches of an epoch with their data, from `cursor` on."""
        self._position.copy_(torch.tensor([epoch, cursor]))
        return self._reads.start()

    def read_again(self, epoch: int, cursor: int) -> Iterator[tuple[MicroBatch, Any]]:
        """Kill the loader's workers, and return the rest of the present read."""
        self._reads.end_workers()
        return self.read_from(epoch, cursor)


class _RankStream(DatasetWrapper, IterableDataset[Any]):
    """A rank's micro-batches before collation; several loader workers take turns with them.

    Global batches of fewer than `least` samples are left out.
    """

    def __init__(
        self,
        stream: Any,
        order: StreamOrder,
        plan: BatchPlan,
        rank: int,
        where: torch.Tensor,
        *,
        least: int,
        progress: WorkerProgress,
    ) -> None:
        super().__init__(stream, progress)
        self._seed = order.seed
        self._plan = plan
        # The pieces of a full global batch. A smaller last batch is cut alike, and may leave later ranks without
        # samples; otherwise all ranks would wait until its size is known.
        self._pieces = plan.micro_batches(rank, plan.global_batch)
        self._first = plan.micro_batches(0, plan.global_batch)  # rank 0's: the most of a smaller batch
        self._position = where
        self._least = least
        self._turn: tuple[int, int] | None = None

    def __iter__(self) -> Iterator[tuple[MicroBatch, list[Any]]]:
        if self._turn is None:
            info = get_worker_info()
            self._turn = (info.id, info.num_workers) if info else (0, 1)
            # A stream may give each of several workers a part only. Here all workers read the whole stream.
            torch_worker._worker_info = None  # noqa: SLF001  torch has no function for that
        own_turn, turns = self._turn
        epoch, cursor = self._position.tolist()
        reader = _StreamReader(self.dataset, self._seed, epoch, self.progress)
        reader.skip(cursor)
        spare = reader.peek()  # for fillers
        done = 0  # the rank's micro-batches so far
        while True:
            start = reader.position
            held = []
            for number, piece in enumerate(self._pieces):
                if (done + number) % turns == own_turn:
                    reader.skip(start + piece.start - reader.position)
                    held.append((number, piece, reader.read(len(piece))))
            reader.skip(start + self._plan.global_batch - reader.position)
            size = reader.position - start
            if size < self._least:
                return
            self.progress.note_idle()
            own, count = (sum(piece.start < size for piece in pieces) for pieces in (self._pieces, self._first))
            for number, piece, samples in held:
                if samples:
                    last = number == count - 1
                    yield self._micro_batch(start + piece.start, samples, last=last, size=size), samples
            for number in range(own, count):
                if (done + number) % turns == own_turn:
                    last = number == count - 1
                    filler = MicroBatch(start, [], 0, 0.0, last=last, global_samples=size, plan=self._plan)
                    yield filler, spare * self._plan.multiple_of
            done += count

    def _micro_batch(self, position: int, samples: list[Any], *, last: bool, size: int) -> MicroBatch:
        weight = self._plan.weight(len(samples), size)
        return MicroBatch(position, [], len(samples), weight, last=last, global_samples=size, plan=self._plan)


class _StreamReader:
    """Reads a stream, and counts its samples. A sample's random numbers depend on (seed, epoch, position)."""

    def __init__(self, stream: Any, seed: int, epoch: int, progress: WorkerProgress) -> None:
        self.position = 0  # the position of the next sample
        self._epoch = epoch
        self._progress = progress
        self._seed = functools.partial(derive_seed, seed, epoch)
        self._next: list[Any] = []  # the sample that `peek` has read
        if hasattr(stream, "set_epoch"):
            stream.set_epoch(epoch)
        seed_generators(self._seed())
        self._items = iter(stream)
        self._skip: Callable[[int], Any] | None = getattr(self._items, "skip", None)

    def peek(self) -> list[Any]:
        """Return the next sample in a list, without removing it; the list is empty at the end."""
        if not self._next:
            self._progress.note_sample(self._epoch, self.position)
            seed_generators(self._seed(self.position))
            self._next = [item for _, item in zip(range(1), self._items)]
        return self._next

    def read(self, count: int) -> list[Any]:
        """Read and return `count` samples, or those that are left."""
        taken: list[Any] = []
        while len(taken) < count and self.peek():
            taken += self._next
            self._next = []
            self.position += 1
        return taken

    def skip(self, count: int) -> None:
        """Skip `count` samples, or those that are left."""
        if self._next and count:
            self.read(1)
            count -= 1
        if self._skip is None:
            while count and self.read(1):
                count -= 1
            return
        if count:
            skipped = self._skip(count)
            if type(skipped) is not int or not 0 <= skipped <= count:
                kind = type(self._items).__name__
                raise UsageError(
                    f"{kind}.skip({count}) returned {skipped!r}: it must return how many samples it skipped"
                )
            self.position += skipped


def next_batch_samples(prefetcher: Prefetcher[tuple[MicroBatch, Any]]) -> int:
    """Return the number of samples in the global batch that comes next, 0 at the end of the stream; waits for it."""
    following = prefetcher.peek()
    return following[0].global_samples if following else 0


def check_same_stream(total: int, total_of_squares: int, ranks: int) -> None:
    """Check that every rank's next global batch has the same size.

    The sum of the squares of the ranks' sizes is the least that it can be only if all sizes are the same.

    Args:
        total: the sum of the sizes over the ranks.
        total_of_squares: the sum of their squares.
        ranks: the number of ranks.

    Raises:
        UsageError: the sizes differ, so the ranks have read different streams.
    """
    if ranks * total_of_squares != total * total:
        raise UsageError(
            "the training data ended on one rank and not on another: a stream must be the same, in full, on every rank "
            "(the loader shares it out), so it must not be split by rank or by worker"
        )


def _collated(collate: Callable[[list[Any]], Any], item: tuple[MicroBatch, list[Any]]) -> tuple[MicroBatch, Any]:
    micro, samples = item
    return micro, collate(samples)
