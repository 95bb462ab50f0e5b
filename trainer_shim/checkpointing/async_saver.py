"""When and how a trainer saves: in the background while training goes on, or at once where the trainer ends."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Any, Callable

from trainer_shim.checkpointing.cpu_copy import cpu_copy
from trainer_shim.checkpointing.formats.script_checkpoints import Progress
from trainer_shim.errors import SupersededError

if TYPE_CHECKING:
    from trainer_shim.checkpointing.formats.script_checkpoints import ScriptCheckpoint, ScriptCheckpoints, States
    from trainer_shim.checkpointing.save_history import SaveHistory
    from trainer_shim.reporting.report_writer import ReportWriter

log = logging.getLogger("trainer_shim")


class AsyncSaver:
    """Saves one generation's states, one at a time. It lives in the main thread; any thread calls `check`.

    Rank 0 saves alone, and decides. Where states are sharded (`collective`) all ranks save: each of them makes the same
    calls with the same positions, and the outcomes are the same. A `disabled` saver saves nothing.
    """

    def __init__(
        self,
        store: ScriptCheckpoints,
        generation: int,
        resumed: ScriptCheckpoint | None,
        check: Callable[[], None],
        report: ReportWriter,
        *,
        history: SaveHistory,
        is_rank_zero: bool = True,
        disabled: bool = False,
    ) -> None:
        self.collective = False
        self._is_rank_zero = is_rank_zero
        self._disabled = disabled
        self._store = store
        self._generation = generation
        self._check = check
        self._report = report
        self._pending: _PendingWrite | None = None
        self._history = history
        self.saved_progress = resumed.progress if resumed else Progress()  # what the newest checkpoint says

    def covers(self, progress: Progress) -> bool:
        """Whether a checkpoint holds this progress, or one that is being written will."""
        return progress == self.saved_progress or (self._pending is not None and self._pending.progress == progress)

    def start(self, states: Callable[[], States], progress: Progress, order: dict[str, Any]) -> None:
        """Copy the states to CPU memory, and write them in the background; first awaits a save that is under way.

        One that fails is an error in the log, when it is settled.
        """
        self.settle()
        started = time.monotonic()
        self._history.note_attempt()
        if progress == self.saved_progress or not self._saves:
            return
        now = states()
        copied = now._replace(unsharded=cpu_copy(now.unsharded), sharded=cpu_copy(now.sharded))

        def write() -> int:
            return self._store.save(copied, self._generation, progress, order, self._check)

        self._pending = _PendingWrite(write, progress, started)
        self._history.in_progress = True

    def settle(self, *, wait: bool = True) -> None:
        """Note how the save under way has ended, if it has; else await it or leave it at that.

        Raises:
            Exception: what the save raised, where that was neither the disk's fault nor a newer generation's.
        """
        write = self._pending
        if write is None or (not wait and not write.ended):
            return
        self._pending = None
        self._history.in_progress = False
        self._history.note_attempt()
        try:
            size = write.result()
        except SupersededError:
            return  # the next vote ends it
        except OSError as error:
            if self._is_rank_zero:
                log.error("no checkpoint at step %d, the last one stays: %s", write.progress.step, error)  # noqa: TRY400
            return
        self._record(write.progress, write.seconds, size, "periodic", write.stall)

    def save(self, states: Callable[[], States], progress: Progress, order: dict[str, Any], cause: str) -> None:
        """Save now, unless the newest checkpoint says the same; first awaits a save that is under way.

        Raises:
            SupersededError: a newer generation has started.
            OSError: it could not be written.
        """
        self.settle()
        if progress == self.saved_progress or not self._saves:
            return
        started = time.monotonic()
        self._history.note_attempt()
        size = self._store.save(states(), self._generation, progress, order, self._check)
        seconds = time.monotonic() - started
        self._history.note_attempt()
        self._record(progress, seconds, size, cause, seconds)

    @property
    def _saves(self) -> bool:
        return (self._is_rank_zero or self.collective) and not self._disabled

    def _record(self, progress: Progress, seconds: float, size: int, cause: str, stall: float) -> None:
        self.saved_progress = progress
        self._history.note_save(seconds)
        self._report.emit(
            "checkpoint", step=progress.step, seconds=seconds, bytes=size, cause=cause, stall_seconds=stall
        )


class _PendingWrite:
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
