"""Python's garbage collector in the daemon.

The collector's search of all objects for cycles takes time that grows with the number of jobs, and a round may set off
several searches. What a poll leaves behind lives for many polls, and is freed without the collector when a later poll
replaces it. So it is left out of the searches of later polls, but for one in a while, which finds the few cycles among
it. A poll makes few cycles, so its own objects are searched at its end, and during it only where it makes very many.
What a poll frees is given back to the operating system: what intake and rounds of thousands of jobs need for a moment
would else stay with the process.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import math
import time
from collections.abc import Callable

ALL_SECONDS = 600.0
"""Time between two searches of all objects."""
NEW_OBJECTS = 50_000
"""New objects that set off a search during a poll; with Python's 700, searches take 50 ms of a poll of 10,000 jobs."""


class GarbageCollection:
    """Keeps the collector to the objects of the present poll.

    Args:
        timer: returns seconds of a clock that is never set back.
        all_seconds: time between two searches of all objects.
        give_back: gives free memory back to the operating system; None for the C library's function, if it has one.
    """

    def __init__(
        self,
        timer: Callable[[], float] = time.monotonic,
        all_seconds: float = ALL_SECONDS,
        give_back: Callable[[], object] | None = None,
    ) -> None:
        self._timer = timer
        self._give_back = give_back or _trim_function()
        self._all_seconds = all_seconds
        self._searched = timer()
        self._threshold = gc.get_threshold()

    def after_poll(self) -> None:
        """Search the poll's objects, or all where due; then leave all out of later searches, and give memory back."""
        gc.set_threshold(NEW_OBJECTS, *self._threshold[1:])
        if self._timer() - self._searched >= self._all_seconds:
            self._searched = self._timer()
            gc.unfreeze()
            gc.collect()
        else:
            gc.collect(1)
        gc.freeze()
        self._give_back()

    def search_all_next(self) -> None:
        """Search all objects after the next poll; for when much that earlier polls have left is dropped."""
        self._searched = -math.inf

    def end(self) -> None:
        """Give the collector all objects and its earlier threshold back."""
        gc.set_threshold(*self._threshold)
        gc.unfreeze()


def _trim_function() -> Callable[[], object]:
    """Return glibc's ``malloc_trim``, which takes less than a millisecond; nothing with another C library."""
    with contextlib.suppress(OSError, AttributeError):
        trim = ctypes.CDLL(None).malloc_trim
        return lambda: trim(0)
    return lambda: None
