"""The loader workers of an evaluation: they ignore the stop signals, and note what they fetch, as training's do."""

from __future__ import annotations

import contextlib
import weakref
from typing import TYPE_CHECKING, Any

import torch.utils.data
from torch.utils.data import DataLoader, Dataset, IterableDataset

from trainer_shim.data.loader_workers import DatasetWrapper, workers_ignoring_signals
from trainer_shim.data.prefetch import Prefetcher
from trainer_shim.data.worker_progress import NO_EPOCH, WorkerProgress

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

# of loaders whose workers live on, because the workers note in the same memory in each evaluation
_progress: weakref.WeakKeyDictionary[DataLoader[Any], WorkerProgress] = weakref.WeakKeyDictionary()


def prefetch_evaluation(batches: Iterable[Any], signals: tuple[int, ...]) -> Prefetcher[Any]:
    """Begin to iterate over the batches of an evaluation, in a thread where they are those of loader workers.

    Args:
        batches: a DataLoader of the script, or any other iterable.
        signals: the stop signals, which the workers ignore.
    """
    if not (isinstance(batches, DataLoader) and batches.num_workers):
        return Prefetcher(iter(batches), waits=False)
    lives = batches.persistent_workers and getattr(batches, "_iterator", None) is not None
    progress = _progress.get(batches) if lives else None
    if progress is None:
        progress = WorkerProgress(batches.num_workers, batches.multiprocessing_context)
        _progress[batches] = progress
    own, dataset = batches.worker_init_fn, batches.dataset
    batches.worker_init_fn = workers_ignoring_signals(signals, own)
    with contextlib.ExitStack() as stack:
        stack.callback(setattr, batches, "worker_init_fn", own)
        noting = _noting(dataset, progress)
        if noting is not None and "dataset" in vars(batches):
            # a DataLoader refuses another data set, and gives the present one to its workers here
            stack.callback(object.__setattr__, batches, "dataset", dataset)
            object.__setattr__(batches, "dataset", noting)
        return Prefetcher(iter(batches), waits=True, progress=progress)


def _noting(dataset: Any, progress: WorkerProgress) -> Any:
    """Return the data set with samples noted in the workers; None for a data pipe, which torch handles by its type."""
    pipes = [getattr(torch.utils.data, name, ()) for name in ("IterDataPipe", "MapDataPipe")]
    if any(isinstance(dataset, pipe) for pipe in pipes):
        return None
    if isinstance(dataset, IterableDataset):
        return _NotingStream(dataset, progress)
    return (_NotingBatches if getattr(dataset, "__getitems__", None) else _NotingSamples)(dataset, progress)


class _NotingSamples(DatasetWrapper, Dataset[Any]):
    """A data set whose samples are noted by their indices as they are fetched."""

    def __getitem__(self, index: Any) -> Any:
        self.progress.note_sample(NO_EPOCH, _number(index))
        try:
            return self.dataset[index]
        finally:
            self.progress.note_idle()


class _NotingBatches(_NotingSamples):
    """A data set that returns several samples at once, of which the first is noted."""

    def __getitems__(self, indices: Any) -> Any:
        self.progress.note_sample(NO_EPOCH, _number(indices[0]))
        try:
            return self.dataset.__getitems__(indices)
        finally:
            self.progress.note_idle()


class _NotingStream(DatasetWrapper, IterableDataset[Any]):
    """A stream whose samples are noted by their positions in the worker's own part."""

    def __iter__(self) -> Iterator[Any]:
        samples, position = iter(self.dataset), 0
        while True:
            self.progress.note_sample(NO_EPOCH, position)
            try:
                sample = next(samples)
            except StopIteration:
                return
            finally:
                self.progress.note_idle()
            yield sample
            position += 1


def _number(index: Any) -> int:
    """Return a sample's index for the notes; -1 for a key that is no number."""
    return index if isinstance(index, int) else -1
