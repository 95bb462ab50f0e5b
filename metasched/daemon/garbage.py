"""Python's garbage collector in the daemon.

At 10,000 jobs the collector's search of all objects for cycles takes 0.2 s, and a round may set off several. What a
poll leaves behind lives for many polls, and is freed without the collector when a later poll replaces it. So it is
left out of the searches of later polls, but for one in a while, which finds the few cycles among it.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

ALL_SECONDS = 600.0
"""Time between two searches of all objects."""


class GarbageCollection:
    """Keeps the collector to the objects of the present poll.

    Args:
        timer: returns seconds of a clock that is never set back.
    """

    def __init__(self, timer: Callable[[], float] = time.monotonic) -> None:
        self._timer = timer
        self._searched = timer()

    def after_poll(self) -> None:
        """Leave the objects that live now out of later searches; search all where that is due."""
        if self._timer() - self._searched >= ALL_SECONDS:
            self._searched = self._timer()
            gc.unfreeze()
            gc.collect()
        gc.freeze()
