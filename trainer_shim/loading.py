"""Which kind of loader a data set gets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable

from torch.utils.data import IterableDataset

from trainer_shim.data import MapSource, Order, StreamOrder, TrainLoader
from trainer_shim.errors import UsageError
from trainer_shim.stream import StreamSource

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainer_shim.batch import BatchPlan

# What makes the batches and their order, which is the shim's business.
NOT_OPTIONS = {"batch_size", "batch_sampler", "sampler", "drop_last", "in_order"}


def make_loader(
    dataset: Any,
    iterate: Callable[[TrainLoader], Iterator[Any]],
    options: dict[str, Any],
    *,
    seed: int,
    shuffle: bool | None,
    plan: BatchPlan,
    rank: int,
) -> TrainLoader:
    """The loader of a map-style data set or of a stream; `options` are DataLoader's own.

    Raises:
        UsageError: an option has no meaning here.
    """
    wrong = sorted(NOT_OPTIONS & options.keys())
    if wrong:
        raise UsageError(
            f"ctx.loader({wrong[0]}=...): the batches and their order follow from global_batch, max_per_gpu and shuffle"
        )
    if not isinstance(dataset, IterableDataset) and hasattr(dataset, "__getitem__"):
        order = Order(seed, len(dataset), shuffle is not False)
        return TrainLoader(order, plan, MapSource(dataset, order, plan, rank, options), iterate)
    if not hasattr(dataset, "__iter__"):
        raise UsageError(f"ctx.loader() was given a {type(dataset).__name__}, which has no __getitem__ and no __iter__")
    if shuffle:
        raise UsageError("ctx.loader(shuffle=True): a stream has its own order; shuffle in its __iter__")
    stream = StreamOrder(seed)
    return TrainLoader(stream, plan, StreamSource(dataset, stream, plan, rank, options), iterate)
