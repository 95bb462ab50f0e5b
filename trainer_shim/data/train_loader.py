"""The training loader: this rank's micro-batches, each with its data."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Callable, Protocol

from torch.utils.data import DataLoader, Dataset

from trainer_shim.data.loader_workers import DatasetWrapper, LoaderReads, progress_of
from trainer_shim.data.plan_switch import PlanSwitch
from trainer_shim.data.prefetch import Prefetcher
from trainer_shim.data.sample_order import StreamOrder, micro_batches
from trainer_shim.data.seeding import derive_seed, seed_generators

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from trainer_shim.batch import BatchPlan
    from trainer_shim.data.random_batches import DrawOrder
    from trainer_shim.data.sample_order import MicroBatch, SampleOrder
    from trainer_shim.data.worker_progress import WorkerProgress


class TrainLoader:
    """The iterable of the training loop: this rank's micro-batches, from the training's position on.

    Args:
        order: the order of the samples.
        plan: the first split of a global batch over the ranks.
        source: the source of the micro-batches.
        iterate: makes the iterator of a loop over the loader.
        first_batch: the global batch that the script has chosen.

    Attributes:
        order: the order of the samples.
        plan: the split of the present global batch over the ranks.
        first_batch: the global batch that the script has chosen, in samples.
        is_stream: whether only the data tell where an epoch ends, so that the ranks have to agree on it.
    """

    def __init__(
        self,
        order: SampleOrder | StreamOrder | DrawOrder,
        plan: BatchPlan,
        source: Source,
        iterate: Callable[[TrainLoader], Iterator[Any]],
        first_batch: int,
    ) -> None:
        self.order = order
        self.plan = plan
        self.first_batch = first_batch
        self.is_stream = isinstance(order, StreamOrder)
        self._source = source
        self._iterate = iterate

    def __iter__(self) -> Iterator[Any]:
        return self._iterate(self)

    def __len__(self) -> int:
        raise TypeError(
            "a training loader has no length, which would depend on the world size and on the training's position: "
            "use loader.steps_per_epoch"
        )

    def __bool__(self) -> bool:
        return True

    @property
    def samples_per_epoch(self) -> int | None:
        """Samples that are trained in an epoch; None for a stream without a length."""
        return self._source.size

    @property
    def steps_per_epoch(self) -> int | None:
        """Optimizer steps in an epoch, the same at every world size; None for a stream without a length.

        Where the batch adapts, these are steps at the first batch.
        """
        samples = self.samples_per_epoch
        return None if samples is None else -(-samples // self.first_batch)

    def is_pass_over(self, cursor: int) -> bool:
        """Return whether a read of a data set from `cursor` on, at the newest plan, would yield nothing."""
        return self._map_source.is_over(cursor)

    def start_with(self, plan: BatchPlan) -> None:
        """Use `plan` in reads of a data set that begin from now on."""
        self.plan = self._map_source.plan = plan

    def switch(self, plan: BatchPlan, latest: Callable[[int], int]) -> None:
        """Use `plan` beyond what any rank has requested of a data set; see `PlanSwitch.switch`. Collective."""
        self._map_source.switch(plan, latest)

    @property
    def dataset(self) -> Any:
        """The script's data set, as `ctx.loader` was given it."""
        wrapper: Any = self._source.loader.dataset
        return wrapper.dataset

    @property
    def progress(self) -> WorkerProgress:
        """What the loader's workers do now."""
        return self._source.progress

    @property
    def _map_source(self) -> MapSource:
        assert isinstance(self._source, MapSource)  # noqa: S101  the batches of streams do not adapt
        return self._source

    def micro_batches(
        self, epoch: int, cursor: int, await_data: Callable[[Prefetcher[tuple[MicroBatch, Any]]], None]
    ) -> Generator[tuple[MicroBatch, Any], None, None]:
        """Yield each micro-batch of an epoch with its data, from `cursor` on.

        The global generators of this process are seeded for each micro-batch by its position, so a restart draws the
        same numbers without a generator's state in the checkpoint.

        Args:
            epoch: the epoch, from 0.
            cursor: the samples of the epoch that have been trained on.
            await_data: called with the source of the data before each global batch and at the end of the epoch.
        """
        source, loader = self._source, self._source.loader
        prefetcher = Prefetcher(
            source.read_from(epoch, cursor),
            waits=loader.num_workers > 0,
            progress=source.progress,
            again=lambda: source.read_again(epoch, cursor) if boundary else None,
        )
        boundary = True
        try:
            while True:
                if boundary:
                    await_data(prefetcher)
                try:
                    micro, batch = prefetcher.pop()
                except StopIteration:
                    return
                boundary = micro.last
                cursor += micro.global_samples if boundary else 0
                # The word makes this seed differ from a sample's seed with the same numbers.
                seed_generators(derive_seed(self.order.seed, epoch, micro.position, "micro-batch"))
                yield micro, batch
        except GeneratorExit:  # the script has left its loop
            prefetcher.close(wait=loader.persistent_workers)  # such workers serve the next epoch, too
            raise


class Source(Protocol):
    """The source of a rank's micro-batches.

    Attributes:
        loader: the DataLoader that fetches their data.
        size: the samples that are trained in an epoch, None where the length is not known.
    """

    loader: DataLoader[Any]
    size: int | None

    @property
    def progress(self) -> WorkerProgress:
        """What the loader's workers do now."""

    def read_from(self, epoch: int, cursor: int) -> Iterator[tuple[MicroBatch, Any]]:
        """Return this rank's micro-batches of an epoch with their data, from `cursor` on."""

    def read_again(self, epoch: int, cursor: int) -> Iterator[tuple[MicroBatch, Any]] | None:
        """Kill the loader's workers, and return the rest of the present read by new ones; None where it cannot be."""


class MapSource:
    """The micro-batches of a map-style data set; with `drop_last`, of full global batches only.

    Attributes:
        plan: the newest batch plan, which later reads begin with.
    """

    def __init__(
        self,
        dataset: Any,
        order: SampleOrder,
        plan: BatchPlan,
        rank: int,
        options: dict[str, Any],
        *,
        first_batch: int,
        drop_last: bool,
    ) -> None:
        self.size: int | None = order.size // first_batch * first_batch if drop_last else order.size
        self.plan = plan
        self._switch = PlanSwitch(plan)
        self._order = order
        self._rank = rank
        self._drop_last = drop_last
        self._sampler = _Sampler()
        self.progress = progress_of(options)
        self.loader: DataLoader[Any] = DataLoader(
            _Seeded(dataset, order.seed, self.progress),
            batch_sampler=self._sampler,  # type: ignore[arg-type]
            **options,
        )
        self._reads = LoaderReads(self.loader, self.progress)

    def read_from(self, epoch: int, cursor: int) -> Iterator[tuple[MicroBatch, Any]]:
        """Return this rank's micro-batches of an epoch with their data, from `cursor` on."""
        order = self._order.epoch_order(epoch)
        self._switch = PlanSwitch(self.plan)
        # Two iterators, because the loader requests data long before it delivers them.
        requested, expected = itertools.tee(
            micro_batches(order, cursor, self._switch, self._rank, drop_last=self._drop_last)
        )
        self._sampler.batches = ((epoch, micro.indices) for micro in requested)
        # The loader is the first argument of `zip`, so it reaches its end, which releases the workers.
        return ((micro, batch) for batch, micro in zip(self._reads.start(), expected))

    def read_again(self, epoch: int, cursor: int) -> Iterator[tuple[MicroBatch, Any]] | None:
        """Kill the loader's workers, and return the rest of the present read; None where the plan changes in it."""
        if self._switch.changed:
            return None
        self._reads.end_workers()
        return self.read_from(epoch, cursor)

    def is_over(self, cursor: int) -> bool:
        """Return whether a read from `cursor` would yield nothing."""
        return self._order.size - cursor < (self.plan.global_batch if self._drop_last else 1)

    def switch(self, plan: BatchPlan, latest: Callable[[int], int]) -> None:
        """Change the plan of the present read, and of later ones; see `PlanSwitch.switch`."""
        self._switch.switch(plan, latest)
        self.plan = plan


class _Sampler:
    """A batch sampler of (epoch, indices), one for all epochs, because loader workers may live for several epochs."""

    def __init__(self) -> None:
        self.batches: Iterator[tuple[int, list[int]]] = iter(())

    def __iter__(self) -> Iterator[tuple[int, list[int]]]:
        return self.batches


class _Seeded(DatasetWrapper, Dataset[Any]):
    """A data set whose random numbers for a sample depend on (seed, epoch, index), and not on the process."""

    def __init__(self, dataset: Any, seed: int, progress: WorkerProgress) -> None:
        super().__init__(dataset, progress)
        self._seed = seed

    def __getitems__(self, batch: tuple[int, list[int]]) -> list[Any]:
        epoch, indices = batch
        whole = getattr(self.dataset, "__getitems__", None)
        if whole:
            self.progress.note_sample(epoch, indices[0])
            seed_generators(derive_seed(self._seed, epoch, indices[0]))
            found: list[Any] = whole(indices)
        else:
            found = []
            for index in indices:
                self.progress.note_sample(epoch, index)
                seed_generators(derive_seed(self._seed, epoch, index))
                found.append(self.dataset[index])
        self.progress.note_idle()
        return found
