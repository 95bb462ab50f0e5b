"""The times and durations of a trainer's checkpoints, from which the next checkpoint is decided."""

from __future__ import annotations

import collections
import math
import time

REMEMBERED_SAVES = 5  # saves from which the next one's duration is estimated; older outliers are forgotten


class SaveHistory:
    """The checkpoints that one trainer has written.

    Attributes:
        in_progress: whether a checkpoint is being written in the background.
    """

    def __init__(self, *, resumed: bool) -> None:
        self.in_progress = False
        self._last_attempt = time.monotonic()
        self._saved_at = self._last_attempt if resumed else -math.inf
        self._durations: collections.deque[float] = collections.deque(maxlen=REMEMBERED_SAVES)  # seconds

    @property
    def age(self) -> float:
        """Seconds since the newest checkpoint was written or resumed from; infinite where there is none."""
        return time.monotonic() - self._saved_at

    @property
    def slowest_seconds(self) -> float | None:
        """The longest duration of the last saves in seconds, None before the first one."""
        return max(self._durations, default=None)

    def due(self, every: float) -> bool:
        """Return whether the last attempt to save ended at least `every` seconds ago."""
        return not self.in_progress and time.monotonic() - self._last_attempt >= every

    def note_attempt(self) -> None:
        """Note that an attempt to save begins or ends now."""
        self._last_attempt = time.monotonic()

    def note_save(self, seconds: float) -> None:
        """Note that a checkpoint was written just now, and its duration in seconds."""
        self._saved_at = time.monotonic()
        self._durations.append(seconds)
