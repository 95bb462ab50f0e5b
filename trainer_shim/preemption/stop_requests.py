"""Stop requests: the signals, the first request of each cause, the time left, and the exit code."""

from __future__ import annotations

import logging
import signal
import threading
import time

from trainer_shim.errors import UsageError

# Of several causes, the first in this order counts. `finish` is a request of the lease to end the training for good;
# `mailbox` is one to stop until the next run.
CAUSES = ("superseded", "finish", "signal", "mailbox", "sigterm")

# One request may arrive by several signals, and be sent again. A SIGTERM this number of seconds after the first signal
# is Slurm's last signal before SIGKILL.
URGENT_SIGTERM_SECONDS = 2.0

POLL_INTERVAL = 0.5  # seconds between two readings of the lease and of the fence
RECENT_CHECKPOINT_SECONDS = 60.0  # seconds of age up to which a checkpoint suffices for an urgent stop

CHECKPOINTED_EXIT_CODE = 85
SUPERSEDED_EXIT_CODE = 76
SIGTERM_EXIT_CODE = 128 + signal.SIGTERM

log = logging.getLogger("trainer_shim")


class StopRequests:
    """The stop requests to this process. Requests are idempotent: the first of each cause counts.

    Attributes:
        first_signal: the first stop signal in seconds on the monotonic clock, None before one.
        urgent: whether a SIGTERM has come well after the first signal.
    """

    def __init__(self) -> None:
        self._requested: dict[str, float] = {}
        self.first_signal: float | None = None
        self.urgent = False

    def request(self, cause: str) -> None:
        """Note a request; safe inside a signal handler."""
        self._requested.setdefault(cause, time.time())

    def request_by_signal(self, cause: str) -> None:
        """Note a request that came as a signal; a SIGTERM well after the first signal makes the stop urgent."""
        now = time.monotonic()
        if self.first_signal is None:
            self.first_signal = now
        self.urgent = self.urgent or (cause == "sigterm" and now - self.first_signal >= URGENT_SIGTERM_SECONDS)
        self.request(cause)

    def flags(self) -> dict[str, int]:
        """Return 1 for each of CAUSES for which a stop was requested, else 0."""
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
    """Return whether a stop has time for a checkpoint, judged by earlier checkpoints; a warning says why not.

    Args:
        left: seconds to the deadline.
        slowest: the duration of the slowest of the last checkpoints in seconds, None without one.
        age: seconds since the newest checkpoint.
        urgent: whether a SIGTERM has come well after the first signal.
    """
    if slowest is not None and left < slowest:
        log.warning("no checkpoint: one took %.1f s, and the deadline is in %.1f s", slowest, left)
        return False
    if urgent and age < RECENT_CHECKPOINT_SECONDS:
        log.warning("no checkpoint: SIGTERM came after the first signal, and the last one is %.1f s old", age)
        return False
    return True


def exit_code(cause: str, configured: int | None) -> int:
    """Return the exit code for a stop.

    Args:
        cause: the agreed cause, one of CAUSES.
        configured: METASCHED_EXIT_CODE, the code that requests another run; None without metasched: then a SIGTERM ends
            a script with 143, as it ends any program.
    """
    if cause == "superseded":
        return SUPERSEDED_EXIT_CODE
    if cause == "finish":
        return 0
    if configured is not None:
        return configured
    return SIGTERM_EXIT_CODE if cause == "sigterm" else CHECKPOINTED_EXIT_CODE


def handle_stop_signals(flag: StopRequests, preemption: signal.Signals) -> None:
    """Turn the preemption signal and SIGTERM into requests.

    Raises:
        UsageError: called outside the main thread, where Python accepts no signal handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        raise UsageError("call trainer_shim.init() in the main thread: signals are handled there")
    signal.signal(signal.SIGTERM, lambda *_: flag.request_by_signal("sigterm"))
    signal.signal(preemption, lambda *_: flag.request_by_signal("signal"))


def release_stop_signals(preemption: signal.Signals) -> None:
    """After the end of the training, ignore the preemption signal, and let SIGTERM end the script at once.

    Otherwise a request during the interpreter's teardown, when its handlers are gone, would kill a finished trainer.
    """
    signal.signal(preemption, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def ignore_stop_signals(preemption: signal.Signals) -> None:
    """Ignore all further stop signals until the process has ended.

    `srun --kill-on-bad-exit` sends SIGTERM to the other tasks as soon as one has exited with 85. A Python handler is
    gone during the interpreter's teardown, and a task that dies of the signal turns srun's exit code into 143.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(preemption, signal.SIG_IGN)
