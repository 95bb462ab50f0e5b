"""The worker processes of a DataLoader: they ignore the stop signals, and end with their trainer."""

from __future__ import annotations

import functools
import os
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable

from torch.utils.data import DataLoader, get_worker_info

from trainer_shim.data.prefetch import Prefetcher

if TYPE_CHECKING:
    from collections.abc import Iterable


class DatasetWrapper:
    """A data set around the script's `dataset`, for the shim's DataLoader."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset


def prefetch_ignoring_signals(batches: Iterable[Any], signals: tuple[int, ...]) -> Prefetcher[Any]:
    """Begin to iterate over `batches`; the workers of a DataLoader ignore the stop signals."""
    if not (isinstance(batches, DataLoader) and batches.num_workers):
        return Prefetcher(iter(batches), waits=False)
    own = batches.worker_init_fn
    batches.worker_init_fn = workers_ignoring_signals(signals, own)
    try:
        return Prefetcher(iter(batches), waits=True)
    finally:
        batches.worker_init_fn = own


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
    info = get_worker_info()
    if info is not None and isinstance(info.dataset, DatasetWrapper):
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
