"""Requests to stop: where they come from, when they were first seen, and how the process then exits."""

from __future__ import annotations

import logging
import signal
import threading
import time

from trainer_shim.errors import UsageError

# Where several causes meet, the first in this order is the one that counts.
CAUSES = ("superseded", "signal", "mailbox", "sigterm")

# One request may arrive by several signals, and be sent again; a SIGTERM this many seconds after the first signal is
# Slurm's last word before SIGKILL.
URGENT_SIGTERM_SECONDS = 2.0

POLL_INTERVAL = 0.5  # seconds between looks at the lease and at the fence
RECENT_CHECKPOINT_SECONDS = 60.0  # seconds of age up to which a checkpoint suffices for an urgent stop

CHECKPOINTED_EXIT_CODE = 85
SUPERSEDED_EXIT_CODE = 76
SIGTERM_EXIT_CODE = 128 + signal.SIGTERM

log = logging.getLogger("trainer_shim")


class StopRequests:
    """What this process has been asked. Requests are idempotent: the first of each cause counts."""

    def __init__(self) -> None:
        self._requested: dict[str, float] = {}
        self.first_signal: float | None = None  # when the first signal came, on the monotonic clock
        self.urgent = False

    def request(self, cause: str) -> None:
        """Note a request; safe inside a signal handler."""
        self._requested.setdefault(cause, time.time())

    def request_by_signal(self, cause: str) -> None:
        """Note a request that came as a signal: a SIGTERM well after the first one makes the stop urgent."""
        now = time.monotonic()
        if self.first_signal is None:
            self.first_signal = now
        self.urgent = self.urgent or (cause == "sigterm" and now - self.first_signal >= URGENT_SIGTERM_SECONDS)
        self.request(cause)

    def flags(self) -> dict[str, int]:
        """Return 0 or 1 for each of CAUSES: whether this process was asked to stop for it."""
        return {cause: int(cause in self._requested) for cause in CAUSES}

    @property
    def superseded(self) -> bool:
        """Whether this trainer must write nothing more."""
        return "superseded" in self._requested

    @property
    def noticed(self) -> float | None:
        """Unix seconds of the first request, None when there was none."""
        return min(self._requested.values(), default=None)


def has_time_to_save(left: float, slowest: float | None, age: float, *, urgent: bool) -> bool:
    """Whether a stop has time for a checkpoint, as far as the earlier ones tell; a warning says why not.

    `left` is seconds to the deadline, `slowest` what the slowest of the last checkpoints took, `age` the
    newest one's.
    """
    if slowest is not None and left < slowest:
        log.warning("no checkpoint: one took %.1f s, and the deadline is %.1f s away", slowest, left)
        return False
    if urgent and age < RECENT_CHECKPOINT_SECONDS:
        log.warning("no checkpoint: SIGTERM came after the first signal, and the last one is %.1f s old", age)
        return False
    return True


def exit_code(cause: str, configured: int | None) -> int:
    """The exit code for a stop.

    With metasched around the trainer, `configured` (METASCHED_EXIT_CODE) asks to be run again. Without it, a SIGTERM
    ends a script as it ends any program: 143.
    """
    if cause == "superseded":
        return SUPERSEDED_EXIT_CODE
    if configured is not None:
        return configured
    return SIGTERM_EXIT_CODE if cause == "sigterm" else CHECKPOINTED_EXIT_CODE


def handle_stop_signals(flag: StopRequests, preemption: signal.Signals) -> None:
    """Turn the preemption signal and SIGTERM into requests.

    Raises:
        UsageError: called outside the main thread, where Python takes no signal handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        raise UsageError("call trainer_shim.init() in the main thread: signals are handled there")
    signal.signal(signal.SIGTERM, lambda *_: flag.request_by_signal("sigterm"))
    signal.signal(preemption, lambda *_: flag.request_by_signal("signal"))


def release_stop_signals(preemption: signal.Signals) -> None:
    """Training is over and saved: a late request to checkpoint means nothing, and SIGTERM ends the script at once.

    Else a request in the interpreter's last moments, when its handlers are gone, would kill a finished trainer.
    """
    signal.signal(preemption, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def ignore_stop_signals(preemption: signal.Signals) -> None:
    """Ignore all further requests, to the very end of the process.

    `srun --kill-on-bad-exit` sends SIGTERM to the other tasks as soon as one has exited with 85. A Python handler would
    be gone in the interpreter's last moments, and a task that dies of the signal turns srun's exit code into 143.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(preemption, signal.SIG_IGN)
