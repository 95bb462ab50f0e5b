"""When and how a trainer saves: in the background while training goes on, or at once where the trainer ends."""

from __future__ import annotations

import collections
import logging
import math
import threading
import time
from typing import TYPE_CHECKING, Any, Callable

from trainer_shim.checkpointing.checkpoint_store import Progress
from trainer_shim.checkpointing.cpu_copy import snapshot
from trainer_shim.errors import SupersededError
from trainer_shim.preemption.stop_requests import RECENT

if TYPE_CHECKING:
    from trainer_shim.checkpointing.checkpoint_store import Checkpoint, CheckpointStore, States
    from trainer_shim.reporting.report_writer import Reporter

log = logging.getLogger("trainer_shim")


class Saver:
    """Saves one incarnation's states, one at a time. Lives in the main thread; `check` must do in any thread.

    Rank 0 saves alone, and decides. Where states are sharded (`together`) all ranks save: each of them makes the same
    calls with the same positions, and the outcomes are the same. An `idle` one saves nothing.
    """

    def __init__(
        self,
        store: CheckpointStore,
        incarnation: int,
        resumed: Checkpoint | None,
        check: Callable[[], None],
        report: Reporter,
        *,
        first: bool = True,
        idle: bool = False,
    ) -> None:
        self.together = False
        self._first = first
        self._idle = idle
        self._store = store
        self._incarnation = incarnation
        self._check = check
        self._report = report
        self._write: _Write | None = None
        self._tried = time.monotonic()
        self._saved_at = self._tried if resumed else None
        self.saved = resumed.progress if resumed else Progress()  # what the newest checkpoint says
        self._durations: collections.deque[float] = collections.deque(maxlen=RECENT)

    @property
    def age(self) -> float:
        """Seconds since the newest checkpoint was there, or was resumed from; infinite where there is none."""
        return math.inf if self._saved_at is None else time.monotonic() - self._saved_at

    @property
    def slowest(self) -> float | None:
        """The most seconds that one of the last saves took from its beginning to its end, None before the first."""
        return max(self._durations, default=None)

    def due(self, every: float) -> bool:
        """Whether the last save ended so many seconds ago."""
        return self._write is None and time.monotonic() - self._tried >= every

    def covers(self, progress: Progress) -> bool:
        """Whether a checkpoint says this, or one that is being written will."""
        return progress == self.saved or (self._write is not None and self._write.progress == progress)

    def begin(self, states: Callable[[], States], progress: Progress, order: dict[str, Any]) -> None:
        """Copy the states to CPU memory, and write them in the background; first awaits a save that is under way.

        One that fails is an error in the log, when it is settled.
        """
        self.settle()
        started = self._tried = time.monotonic()
        if progress == self.saved or not self._takes_part:
            return
        now = states()
        copied = now._replace(whole=snapshot(now.whole), sharded=snapshot(now.sharded))

        def write() -> int:
            return self._store.save(copied, self._incarnation, progress, order, self._check)

        self._write = _Write(write, progress, started)

    def settle(self, *, wait: bool = True) -> None:
        """Note how the save under way has ended, if it has; else await it or leave it at that.

        Raises:
            Exception: what the save raised, where that was neither the disk's fault nor a newer incarnation's.
        """
        write = self._write
        if write is None or (not wait and not write.ended):
            return
        self._write = None
        self._tried = time.monotonic()
        try:
            size = write.result()
        except SupersededError:
            return  # the next vote ends it
        except OSError as error:
            if self._first:
                log.error("no checkpoint at step %d, the last one stays: %s", write.progress.step, error)  # noqa: TRY400
            return
        self._note(write.progress, write.seconds, size, "periodic", write.stall)

    def save(self, states: Callable[[], States], progress: Progress, order: dict[str, Any], cause: str) -> None:
        """Save now, unless the newest checkpoint says the same; first awaits a save that is under way.

        Raises:
            SupersededError: a newer incarnation has started.
            OSError: it could not be written.
        """
        self.settle()
        if progress == self.saved or not self._takes_part:
            return
        self._tried = started = time.monotonic()
        size = self._store.save(states(), self._incarnation, progress, order, self._check)
        self._tried = time.monotonic()
        seconds = self._tried - started
        self._note(progress, seconds, size, cause, seconds)

    @property
    def _takes_part(self) -> bool:
        return (self._first or self.together) and not self._idle

    def _note(self, progress: Progress, seconds: float, size: int, cause: str, stall: float) -> None:
        self.saved = progress
        self._saved_at = time.monotonic()
        self._durations.append(seconds)
        self._report.emit(
            "checkpoint", step=progress.step, seconds=seconds, bytes=size, cause=cause, stall_seconds=stall
        )


class _Write:
    """A save under way. `stall` is how long the training stood still for it, `seconds` how long it took in all."""

    def __init__(self, write: Callable[[], int], progress: Progress, started: float) -> None:
        self.progress = progress
        self.stall = time.monotonic() - started
        self.seconds = self.stall
        self._write = write
        self._started = started
        self._size = 0
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="trainer_shim checkpoint", daemon=True)
        self._thread.start()

    @property
    def ended(self) -> bool:
        return not self._thread.is_alive()

    def result(self) -> int:
        """The checkpoint's size in bytes; raises what writing it raised."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._size

    def _run(self) -> None:
        try:
            self._size = self._write()
        except BaseException as error:  # noqa: BLE001  it is raised again in the main thread
            self._error = error
        self.seconds = time.monotonic() - self._started
