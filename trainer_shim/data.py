"""Data: one global cursor over each epoch's order, whatever the world size.

The order of an epoch is a permutation fixed by (seed, epoch). A step takes the next `global_batch` samples of it, and
only then are they split over the ranks: so a position in an epoch is one number, and means the same to every world.
"""

from __future__ import annotations

import functools
import hashlib
import signal
from typing import TYPE_CHECKING, Any, Callable, NamedTuple

import torch
from torch.utils.data import DataLoader

from trainer_shim.ahead import Ahead

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


class MicroBatch(NamedTuple):
    """What one rank works through at once.

    `position` is where its first sample stands in the epoch. `samples` is 0 for the filler of a rank that has no share
    of a small last batch: it takes part with weight 0. `last` says that it ends the rank's share of a global batch,
    which has `global_samples` samples.
    """

    position: int
    indices: list[int]
    samples: int
    weight: float
    last: bool
    global_samples: int


def mix(*numbers: int) -> int:
    """A seed made of several numbers, that no sum or product of them leads to again."""
    digest = hashlib.blake2b(repr(numbers).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1  # torch takes 63 bits from everybody


def micro_batches(order: torch.Tensor, cursor: int, plan: BatchPlan, rank: int) -> Iterator[MicroBatch]:
    """A rank's micro-batches from `cursor` to the end of the epoch; every rank's global batches are the same ones."""
    for start in range(cursor, len(order), plan.global_batch):
        batch: list[int] = order[start : start + plan.global_batch].tolist()
        share = plan.share(rank, len(batch))
        if not share:
            yield MicroBatch(start, batch[:1], 0, 0.0, last=True, global_samples=len(batch))
            continue
        pieces = plan.micro_batches(share)
        for number, piece in enumerate(pieces, start=1):
            yield MicroBatch(
                position=start + piece.start,
                indices=batch[piece.start : piece.stop],
                samples=len(piece),
                weight=plan.weight(len(piece), len(batch)),
                last=number == len(pieces),
                global_samples=len(batch),
            )


class TrainLoader:
    """What the training loop iterates over: this rank's micro-batches, from where the training stands on."""

    def __init__(
        self,
        dataset: Any,
        order: Order,
        plan: BatchPlan,
        iterate: Callable[[TrainLoader], Iterator[Any]],
        options: dict[str, Any],
    ) -> None:
        self.order = order
        self.plan = plan
        self._dataset = dataset
        self._iterate = iterate
        self._options = options

    def __iter__(self) -> Iterator[Any]:
        return self._iterate(self)

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps in an epoch, the same at every world size: what a learning-rate schedule counts in."""
        return -(-self.order.size // self.plan.global_batch)

    def pairs(
        self, epoch: int, cursor: int, rank: int, await_data: Callable[[Ahead[Any]], None]
    ) -> Iterator[tuple[MicroBatch, Any]]:
        """Each micro-batch with its data; before each global batch, `await_data` gets the data's source.

        torch's randomness (dropout, augmentation) starts anew for each, from the seed and the position: a restart draws
        the same numbers without any generator's state in the checkpoint.
        """
        order = self.order.of_epoch(epoch)
        indices = (micro.indices for micro in micro_batches(order, cursor, self.plan, rank))
        loader = DataLoader(self._dataset, batch_sampler=indices, **self._options)
        batches = Ahead(iter(loader), waits=loader.num_workers > 0)
        first = True
        try:
            for micro in micro_batches(order, cursor, self.plan, rank):
                if first:
                    await_data(batches)
                first = micro.last
                torch.manual_seed(mix(self.order.seed, epoch, micro.position))
                yield micro, batches.take()
        except GeneratorExit:  # the script has left its loop
            batches.close(wait=False)
            raise


def deaf_iterator(batches: Iterable[Any], signals: tuple[int, ...]) -> Ahead[Any]:
    """Begin to iterate over `batches`; the workers of a DataLoader are deaf to the stop signals."""
    if not (isinstance(batches, DataLoader) and batches.num_workers):
        return Ahead(iter(batches), waits=False)
    own = batches.worker_init_fn
    batches.worker_init_fn = functools.partial(ignore_in_worker, signals, own)
    try:
        return Ahead(iter(batches), waits=True)
    finally:
        batches.worker_init_fn = own


def ignore_in_worker(signals: tuple[int, ...], then: Callable[[int], None] | None, worker: int) -> None:
    """Start a loader's worker process deaf to the stop signals, which reach every process of a Slurm step.

    torch's workers would exit on SIGTERM, and fail the trainer that is about to checkpoint.
    """
    for number in signals:
        signal.signal(number, signal.SIG_IGN)
    if then is not None:
        then(worker)
