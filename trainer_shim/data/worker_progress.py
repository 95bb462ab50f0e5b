"""What each loader worker does now, in memory that the trainer reads: the sample that is fetched, and how many were."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch.multiprocessing

if TYPE_CHECKING:
    from multiprocessing.context import BaseContext

_FIELDS = 5
NO_EPOCH = -1  # of a sample of an evaluation


class WorkerState(NamedTuple):
    """The state of a loader worker.

    Attributes:
        pid: the worker's process, 0 before the worker has come up.
        fetching: 1 while the worker fetches a sample, else 0.
        epoch: the epoch of the sample, `NO_EPOCH` in an evaluation.
        sample: the index of the sample in a data set, the position in a stream.
        begun: the samples that the worker has begun to fetch.
    """

    pid: int = 0
    fetching: int = 0
    epoch: int = 0
    sample: int = 0
    begun: int = 0

    def bytes_read(self) -> int:
        """Return the bytes that the worker has read from files and sockets, 0 where that is not known."""
        try:
            lines = Path(f"/proc/{self.pid}/io").read_text(encoding="ascii").splitlines()
            return sum(int(line.split()[1]) for line in lines if line.startswith(("rchar", "read_bytes")))
        except (OSError, ValueError, IndexError):
            return 0


class WorkerProgress:
    """The states of the workers of one loader, written by the workers.

    Args:
        workers: the number of workers; with 0 nothing is noted.
        context: the way in which the loader starts workers, None for torch's default.

    Attributes:
        forks: whether workers are forked, and so come up at once.
    """

    def __init__(self, workers: int, context: BaseContext | str | None = None) -> None:
        if context is None or isinstance(context, str):
            context = torch.multiprocessing.get_context(context)
        self.forks = context.get_start_method() == "fork"
        self._workers = workers
        self._own: int | None = None  # in a worker, its number
        self._values: Any = context.RawArray(ctypes.c_int64, _FIELDS * workers) if workers else None

    def reset(self) -> None:
        """Forget the workers, before others are started."""
        for index in range(_FIELDS * self._workers):
            self._values[index] = 0

    def states(self) -> list[WorkerState]:
        """Return the present state of each worker, by its number."""
        return [WorkerState(*self._values[at : at + _FIELDS]) for at in range(0, _FIELDS * self._workers, _FIELDS)]

    def note_start(self, worker: int) -> None:
        """Note, in a worker, that this worker has come up."""
        if worker < self._workers:
            self._own = worker
            self._values[_FIELDS * worker] = os.getpid()

    def note_sample(self, epoch: int, sample: int) -> None:
        """Note, in a worker, that a sample is fetched from now on; does nothing elsewhere."""
        if self._own is None:
            return
        at, values = _FIELDS * self._own, self._values
        values[at + 2], values[at + 3] = epoch, sample
        values[at + 4] += 1
        values[at + 1] = 1

    def note_idle(self) -> None:
        """Note, in a worker, that no sample is fetched from now on; does nothing elsewhere."""
        if self._own is not None:
            self._values[_FIELDS * self._own + 1] = 0
