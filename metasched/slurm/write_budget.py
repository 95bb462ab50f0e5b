"""The budget of those writes to Slurm in one poll that a later poll may as well make."""

from __future__ import annotations

import time
from collections.abc import Callable

MOST_WRITES = 400
"""Most writes of one poll; the command line client makes about 1,000 a second."""
MOST_SECONDS = 0.3
"""Time from the first write of a poll after which the poll makes no further write of the budget."""


class WriteBudget:
    """Counts and times the writes of a poll, so that decisions, starts and the status do not wait for all of them.

    Args:
        timer: returns seconds of a clock that is never set back.

    Attributes:
        exhausted: whether this poll has left writes to the next one.
    """

    def __init__(self, timer: Callable[[], float] = time.monotonic) -> None:
        self.exhausted = False
        self._timer = timer
        self._writes = 0
        self._begun: float | None = None

    def renew(self) -> None:
        """Begin a poll, with the whole budget left."""
        self.exhausted = False
        self._writes = 0
        self._begun = None

    def admits(self) -> bool:
        """Count one more write, and return whether this poll may make it."""
        now = self._timer()
        self._begun = now if self._begun is None else self._begun
        if self._writes >= MOST_WRITES or now - self._begun > MOST_SECONDS:
            self.exhausted = True
            return False
        self._writes += 1
        return True
