"""Makes the training loader of a map-style data set or of a stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable

from torch.utils.data import IterableDataset

from trainer_shim.data.sample_order import SampleOrder, StreamOrder
from trainer_shim.data.stream import StreamSource
from trainer_shim.data.train_loader import MapSource, TrainLoader
from trainer_shim.errors import BatchError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainer_shim.batch import BatchPlan
    from trainer_shim.data.train_loader import Source

# Options of a DataLoader that determine the batches and their order, which the shim determines.
FIXED_OPTIONS = {"batch_size", "batch_sampler", "sampler", "in_order"}


def check_draw_options(options: dict[str, Any]) -> None:
    """Check the options of random batches, which are joined as they are drawn, and have no end.

    Raises:
        UsageError: an option has no meaning there.
    """
    wrong = sorted((FIXED_OPTIONS | {"collate_fn", "drop_last", "shuffle"}) & options.keys())
    if wrong:
        raise UsageError(f"ctx.random_batches({wrong[0]}=...) has no meaning: leave it out")


def check_multiple_of(multiple_of: int, dataset: Any, *, adapts: bool, drop_last: bool | None) -> None:
    """Check that all global batches of an epoch can be cut into multiples of `multiple_of` samples.

    Raises:
        BatchError: the last global batch of an epoch cannot.
        UsageError: the batch is to adapt.
    """
    if multiple_of == 1:
        return
    if adapts:
        raise UsageError("ctx.loader(max_batch=..., multiple_of=...): a batch that adapts has any size; leave one out")
    samples = len(dataset) if hasattr(dataset, "__len__") else None
    if not drop_last and (samples is None or samples % multiple_of):
        raise BatchError(
            f"multiple_of is {multiple_of}, and the last global batch of an epoch may have another number of samples: "
            "give ctx.loader(..., drop_last=True)"
        )


def make_loader(
    dataset: Any,
    iterate: Callable[[TrainLoader], Iterator[Any]],
    options: dict[str, Any],
    *,
    seed: int,
    shuffle: bool | None,
    plan: BatchPlan,
    rank: int,
    first_batch: int | None = None,
) -> TrainLoader:
    """Return the loader of a map-style data set or of a stream.

    Args:
        dataset: the data set.
        iterate: makes the iterator of a loop over the loader.
        options: options of torch's DataLoader. `drop_last` leaves out the last global batch of an epoch where it is not
            full: the same samples at every world size. A training may change it at any start, because the cursor
            keeps its meaning.
        seed: the seed of the order and of the samples' random numbers.
        shuffle: whether each epoch has an order of its own, None for the default.
        plan: the split of a global batch.
        rank: this process's number, from 0.
        first_batch: the global batch that the script has chosen, where it is not that of the plan.

    Raises:
        BatchError: `drop_last` leaves no sample.
        UsageError: an option has no meaning here.
    """
    wrong = sorted(FIXED_OPTIONS & options.keys())
    if wrong:
        raise UsageError(
            f"ctx.loader({wrong[0]}=...): the batches and their order follow from global_batch, max_per_gpu and shuffle"
        )
    drop_last = bool(options.pop("drop_last", False))
    first = first_batch or plan.global_batch
    order: SampleOrder | StreamOrder
    source: Source
    if not isinstance(dataset, IterableDataset) and hasattr(dataset, "__getitem__"):
        order = SampleOrder(seed, len(dataset), shuffle is not False)
        source = MapSource(dataset, order, plan, rank, options, first_batch=first, drop_last=drop_last)
    elif not hasattr(dataset, "__iter__"):
        raise UsageError(f"ctx.loader() was given a {type(dataset).__name__}, which has no __getitem__ and no __iter__")
    elif shuffle:
        raise UsageError("ctx.loader(shuffle=True): a stream has its own order; shuffle in its __iter__")
    else:
        order = StreamOrder(seed)
        source = StreamSource(dataset, order, plan, rank, options, drop_last=drop_last)
    if drop_last and source.size == 0:
        raise BatchError(f"drop_last=True leaves nothing of {len(dataset)} samples: global_batch is {first}, lower it")
    return TrainLoader(order, plan, source, iterate, first)
