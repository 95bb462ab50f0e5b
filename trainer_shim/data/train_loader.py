"""Data: one global cursor over each epoch's order, whatever the world size.

The order of an epoch is a permutation fixed by (seed, epoch), or that of a stream (see `stream`). A step takes the next
`global_batch` samples of it, and only then are they split over the ranks: so a position in an epoch is one number, and
means the same to every world.
"""

from __future__ import annotations

import functools
import itertools
import os
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Protocol

import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from trainer_shim.data.prefetch import Ahead
from trainer_shim.data.seeding import mix, seed_generators

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from trainer_shim.batch import BatchPlan


class Order(NamedTuple):
    """What fixes the order of the samples; a checkpoint can only be continued under the same."""

    seed: int
    size: int
    shuffle: bool

    def of_epoch(self, epoch: int) -> torch.Tensor:
        """The data set's indices in the order in which the epoch takes them, int64 of shape (size,)."""
        if not self.shuffle:
            return torch.arange(self.size)
        generator = torch.Generator().manual_seed(mix(self.seed, epoch))
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
            size, count, pieces = left, plan.count(left), plan.micro_batches(rank, left)
        for number, piece in enumerate(pieces, start=1):
            indices = order[start + piece.start : start + piece.stop].tolist()
            weight, last = plan.weight(len(piece), size), number == count
            yield MicroBatch(start + piece.start, indices, len(indices), weight, last=last, global_samples=size)
        if len(pieces) < count:
            yield MicroBatch(start, order[start : start + 1].tolist(), 0, 0.0, last=True, global_samples=size)


class TrainLoader:
    """What the training loop iterates over: this rank's micro-batches, from where the training stands on."""

    def __init__(
        self,
        order: Order | StreamOrder,
        plan: BatchPlan,
        source: Source,
        iterate: Callable[[TrainLoader], Iterator[Any]],
    ) -> None:
        self.order = order
        self.plan = plan
        self._source = source
        self._iterate = iterate

    def __iter__(self) -> Iterator[Any]:
        return self._iterate(self)

    def __len__(self) -> int:
        raise TypeError(
            "a training loader has no length, which would depend on the world size and on where the training stands: "
            "use loader.steps_per_epoch"
        )

    def __bool__(self) -> bool:
        return True

    @property
    def is_stream(self) -> bool:
        """Whether only the data tell where an epoch ends, so that the ranks have to agree on it."""
        return isinstance(self.order, StreamOrder)

    @property
    def samples_per_epoch(self) -> int | None:
        """Samples that are trained in an epoch; None for a stream that does not tell its length."""
        return self._source.size

    @property
    def steps_per_epoch(self) -> int | None:
        """Optimizer steps in an epoch, the same at every world size: what a learning-rate schedule counts in.

        None for a stream that does not tell its length.
        """
        samples = self.samples_per_epoch
        return None if samples is None else -(-samples // self.plan.global_batch)

    def pairs(
        self, epoch: int, cursor: int, await_data: Callable[[Ahead[tuple[MicroBatch, Any]]], None]
    ) -> Iterator[tuple[MicroBatch, Any]]:
        """Each micro-batch with its data; before each global batch and at the end, `await_data` gets the data's source.

        The generators of this process start anew for each, from the seed and the position: a restart draws the same
        numbers without any generator's state in the checkpoint.
        """
        loader = self._source.loader
        ahead = Ahead(self._source.begin(epoch, cursor), waits=loader.num_workers > 0)
        boundary = True
        try:
            while True:
                if boundary:
                    await_data(ahead)
                if ahead.ended:
                    return
                micro, batch = ahead.take()
                boundary = micro.last
                # The word tells it from a sample's seed, whose numbers may be the same.
                seed_generators(mix(self.order.seed, epoch, micro.position, "micro-batch"))
                yield micro, batch
        except GeneratorExit:  # the script has left its loop
            ahead.close(wait=loader.persistent_workers)  # which serve the next epoch, too
            raise


class Source(Protocol):
    """Where a rank's micro-batches come from. `size` is what is trained in an epoch, None where nobody knows."""

    loader: DataLoader[Any]
    size: int | None

    def begin(self, epoch: int, cursor: int) -> Iterator[tuple[MicroBatch, Any]]:
        """Read on from `cursor`."""


class MapSource:
    """The micro-batches of a map-style data set; with `drop_last`, of whole global batches only."""

    def __init__(
        self, dataset: Any, order: Order, plan: BatchPlan, rank: int, options: dict[str, Any], *, drop_last: bool
    ) -> None:
        self.size: int | None = plan.whole(order.size) if drop_last else order.size
        self._order = order
        self._plan = plan
        self._rank = rank
        self._drop_last = drop_last
        self._sampler = _Sampler()
        self.loader: DataLoader[Any] = DataLoader(
            _Seeded(dataset, order.seed),
            batch_sampler=self._sampler,  # type: ignore[arg-type]
            **options,
        )

    def begin(self, epoch: int, cursor: int) -> Iterator[tuple[MicroBatch, Any]]:
        """Read on from `cursor`."""
        order = self._order.of_epoch(epoch)
        if self._drop_last:
            order = order[: cursor + self._plan.whole(len(order) - cursor)]
        # Twice the same, because the data are asked for long before they come.
        asked, expected = itertools.tee(micro_batches(order, cursor, self._plan, self._rank))
        self._sampler.batches = ((epoch, micro.indices) for micro in asked)
        # The data come first: the loader has to see its end, which lets the workers go.
        return ((micro, batch) for batch, micro in zip(self.loader, expected))


class _Sampler:
    """What is fetched next, (epoch, indices) each. One for all epochs, because loader workers may live through them."""

    def __init__(self) -> None:
        self.batches: Iterator[tuple[int, list[int]]] = iter(())

    def __iter__(self) -> Iterator[tuple[int, list[int]]]:
        return self.batches


class Wrapped:
    """What loader workers get instead of the script's `dataset`."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset


class _Seeded(Wrapped, Dataset[Any]):
    """A data set whose random numbers for a sample depend on (seed, epoch, index), and not on who fetches it."""

    def __init__(self, dataset: Any, seed: int) -> None:
        super().__init__(dataset)
        self._seed = seed

    def __getitems__(self, batch: tuple[int, list[int]]) -> list[Any]:
        epoch, indices = batch
        whole = getattr(self.dataset, "__getitems__", None)
        if whole:
            seed_generators(mix(self._seed, epoch, indices[0]))
            found: list[Any] = whole(indices)
            return found
        found = []
        for index in indices:
            seed_generators(mix(self._seed, epoch, index))
            found.append(self.dataset[index])
        return found


def deaf_iterator(batches: Iterable[Any], signals: tuple[int, ...]) -> Ahead[Any]:
    """Begin to iterate over `batches`; the workers of a DataLoader are deaf to the stop signals."""
    if not (isinstance(batches, DataLoader) and batches.num_workers):
        return Ahead(iter(batches), waits=False)
    own = batches.worker_init_fn
    batches.worker_init_fn = deaf_workers(signals, own)
    try:
        return Ahead(iter(batches), waits=True)
    finally:
        batches.worker_init_fn = own


def deaf_workers(signals: tuple[int, ...], then: Callable[[int], None] | None) -> Callable[[int], None]:
    """A `worker_init_fn` that starts workers deaf to the stop signals, and goes on with the script's own.

    The signals reach every process of a Slurm step, and a worker of torch's that exits of SIGTERM fails the trainer,
    which is about to checkpoint.
    """
    return functools.partial(_ignore_in_worker, os.getpid(), signals, then)


def _ignore_in_worker(trainer: int, signals: tuple[int, ...], then: Callable[[int], None] | None, worker: int) -> None:
    for number in signals:
        signal.signal(number, signal.SIG_IGN)
    _heed_its_end(trainer)
    info = get_worker_info()
    if info is not None and isinstance(info.dataset, Wrapped):
        object.__setattr__(info, "dataset", info.dataset.dataset)  # the script's own, as its worker_init_fn expects
    if then is not None:
        then(worker)


def _heed_its_end(trainer: int) -> None:
    """Exit on a SIGTERM from the trainer: it sends one to workers that are left when it fails, and waits for them.

    Not where other threads run already, which would take any SIGTERM first (a spawned worker that has imported NumPy):
    such a worker stays deaf.
    """
    if len(list(Path("/proc/self/task").iterdir())) > 1:
        return
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # nobody can wait for an ignored signal

    def listen() -> None:
        while signal.sigwaitinfo({signal.SIGTERM}).si_pid != trainer:
            pass
        os._exit(0)

    threading.Thread(target=listen, name="trainer_shim end", daemon=True).start()
