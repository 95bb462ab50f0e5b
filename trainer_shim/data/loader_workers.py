"""The worker processes of a DataLoader: they ignore the stop signals, end with their trainer, and can be replaced."""

from __future__ import annotations

import faulthandler
import functools
import os
import signal
import threading
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable

from torch._C import _remove_worker_pids
from torch.utils.data import DataLoader, get_worker_info

from trainer_shim.data.data_wait import STACKS_SIGNAL
from trainer_shim.data.worker_progress import WorkerProgress

if TYPE_CHECKING:
    from collections.abc import Iterator


class DatasetWrapper:
    """A data set around the script's `dataset`, for the shim's DataLoader, whose workers note their `progress`."""

    def __init__(self, dataset: Any, progress: WorkerProgress | None = None) -> None:
        self.dataset = dataset
        self.progress = progress or WorkerProgress(0)


def progress_of(options: dict[str, Any]) -> WorkerProgress:
    """Return the progress of the workers of a DataLoader with these options."""
    return WorkerProgress(options.get("num_workers") or 0, options.get("multiprocessing_context"))


class LoaderReads:
    """The reads of a DataLoader, one after the other, whose workers can be replaced.

    Attributes:
        progress: what the workers of the present read do.
    """

    def __init__(self, loader: DataLoader[Any], progress: WorkerProgress) -> None:
        self.progress = progress
        self._loader = loader
        self._iterator: Callable[[], Any] = lambda: None  # a weak reference: the workers end with the iterator

    def start(self) -> Iterator[Any]:
        """Begin to read the loader from its beginning; workers are forked here, in the calling thread."""
        if not self._loader.persistent_workers:
            self.progress.reset()
        iterator = iter(self._loader)
        self._iterator = weakref.ref(iterator)
        return iterator

    def end_workers(self) -> None:
        """Kill the workers of the present read, also those that hang; the read is not used any more."""
        iterator = self._iterator()
        if iterator is None:
            return
        # Torch takes the death of a worker for an error of the trainer, unless torch forgets the workers first.
        if iterator._worker_pids_set:  # noqa: SLF001  torch has no function for any of this
            _remove_worker_pids(id(iterator))
            iterator._worker_pids_set = False  # noqa: SLF001
        for worker in iterator._workers:  # noqa: SLF001
            worker.kill()
        self._loader._iterator = None  # noqa: SLF001  kept for persistent workers
        self.progress.reset()


def workers_ignoring_signals(signals: tuple[int, ...], then: Callable[[int], None] | None) -> Callable[[int], None]:
    """Return a `worker_init_fn` that makes workers ignore the stop signals, and then calls the script's own function.

    The signals reach every process of a Slurm step. A worker that SIGTERM ends is an error in the trainer, which is
    about to checkpoint.
    """
    return functools.partial(_ignore_in_worker, os.getpid(), signals, then)


def _ignore_in_worker(trainer: int, signals: tuple[int, ...], then: Callable[[int], None] | None, worker: int) -> None:
    for number in signals:
        signal.signal(number, signal.SIG_IGN)
    _exit_with_trainer(trainer)
    if STACKS_SIGNAL not in signals:
        faulthandler.register(STACKS_SIGNAL, file=2)
    info = get_worker_info()
    if info is not None and isinstance(info.dataset, DatasetWrapper):
        info.dataset.progress.note_start(worker)
        object.__setattr__(info, "dataset", info.dataset.dataset)  # the script's own, as its worker_init_fn expects
    if then is not None:
        then(worker)


def _exit_with_trainer(trainer: int) -> None:
    """Exit on a SIGTERM from the trainer, which sends one to its workers when it fails, and waits for their end.

    A worker with other threads (a spawned worker that has imported NumPy) continues to ignore SIGTERM, because those
    threads would receive it first.
    """
    if len(list(Path("/proc/self/task").iterdir())) > 1:
        return
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # an ignored signal cannot be waited for

    def listen() -> None:
        while signal.sigwaitinfo({signal.SIGTERM}).si_pid != trainer:
            pass
        os._exit(0)

    threading.Thread(target=listen, name="trainer_shim end", daemon=True).start()
