"""Runs saves: asynchronously while training goes on, or synchronously where the trainer ends.

The forms on disk are in `formats`. When to save is decided by `trainer_shim.session`.
"""

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
    """Saves the states of one generation, one save at a time. Its methods are called in the main thread.

    Rank 0 saves alone. Where states are sharded, all ranks save: all make the same calls with the same positions, and
    the outcomes are the same.

    Args:
        checkpoints: the checkpoints of the directory.
        generation: the fencing token of this trainer.
        resumed: the checkpoint from which the training resumes, None for a fresh start.
        check: raises SupersededError after a newer generation has started; called in any thread.
        report: the writer of the job's report file.
        history: the history of this trainer's checkpoints.
        is_rank_zero: whether this process is rank 0.
        disabled: whether nothing is saved.

    Attributes:
        collective: whether all ranks save together.
        saved_progress: the position of the newest checkpoint.
    """

    def __init__(
        self,
        checkpoints: ScriptCheckpoints,
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
        self._checkpoints = checkpoints
        self._generation = generation
        self._check = check
        self._report = report
        self._pending: _PendingWrite | None = None
        self._history = history
        self.saved_progress = resumed.progress if resumed else Progress()

    def covers(self, progress: Progress) -> bool:
        """Return whether a checkpoint holds this position, or a checkpoint under way will hold it."""
        return progress == self.saved_progress or (self._pending is not None and self._pending.progress == progress)

    def start(self, states: Callable[[], States], progress: Progress, order: dict[str, Any]) -> None:
        """Copy the states to CPU memory, and write them in the background; first awaits a save that is under way.

        `settle` logs an error of the write.
        """
        self.settle()
        started = time.monotonic()
        self._history.note_attempt()
        if progress == self.saved_progress or not self._saves:
            return
        now = states()
        copied = now._replace(unsharded=cpu_copy(now.unsharded), sharded=cpu_copy(now.sharded))

        def write() -> int:
            return self._checkpoints.save(copied, self._generation, progress, order, self._check)

        self._pending = _PendingWrite(write, progress, started)
        self._history.in_progress = True

    def settle(self, *, wait: bool = True) -> None:
        """Note the outcome of the save under way, if it has ended or is awaited.

        Args:
            wait: whether to wait for the end of the save.

        Raises:
            Exception: the error of the save, unless it is an OSError, which is logged, or a SupersededError.
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
            return  # the next vote ends the trainer
        except OSError as error:
            if self._is_rank_zero:
                log.error("no checkpoint at step %d, the last one stays: %s", write.progress.step, error)  # noqa: TRY400
            return
        self._record(write.progress, write.seconds, size, "periodic", write.stall)

    def save(self, states: Callable[[], States], progress: Progress, order: dict[str, Any], cause: str) -> None:
        """Save now, unless the newest checkpoint has the same position; first awaits a save that is under way.

        Raises:
            SupersededError: a newer generation has started.
            OSError: the checkpoint cannot be written.
        """
        self.settle()
        if progress == self.saved_progress or not self._saves:
            return
        started = time.monotonic()
        self._history.note_attempt()
        size = self._checkpoints.save(states(), self._generation, progress, order, self._check)
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
    """A save under way in a thread.

    Attributes:
        progress: the position of the checkpoint.
        stall: seconds for which the training stood still.
        seconds: seconds of the whole save.
    """

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
        """Whether the write has ended, with or without an error."""
        return not self._thread.is_alive()

    def result(self) -> int:
        """Wait for the end, and return the checkpoint's size in bytes; raises the error of the write."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._size

    def _run(self) -> None:
        try:
            self._size = self._write()
        except BaseException as error:  # noqa: BLE001  raised again in the main thread
            self._error = error
        self.seconds = time.monotonic() - self._started
