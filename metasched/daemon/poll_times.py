"""Wall time of the steps of a poll, for the metrics."""

from __future__ import annotations

import time
from collections.abc import Mapping


class PollTimes:
    """Measures the steps of the present poll, and has those of the last whole poll."""

    def __init__(self) -> None:
        self._marked = time.perf_counter()
        self._present: dict[str, float] = {}
        self.last: Mapping[str, float] = {}

    @property
    def elapsed(self) -> float:
        """Seconds of the steps of the present poll that have ended."""
        return sum(self._present.values())

    def begin(self) -> None:
        """Begin a poll; what was measured of the poll before becomes ``last``."""
        self.last, self._present = self._present or self.last, {}
        self._marked = time.perf_counter()

    def mark(self, step: str) -> None:
        """End a step, which began at the end of the step before."""
        now = time.perf_counter()
        self._present[step] = self._present.get(step, 0.0) + now - self._marked
        self._marked = now
