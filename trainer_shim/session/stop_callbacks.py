"""The functions that a script has registered for a stop."""

from __future__ import annotations

import logging
from typing import Callable

log = logging.getLogger("trainer_shim")

StopCallback = Callable[[str], object]


class StopCallbacks:
    """Functions that are called with the cause of a stop, before and after its checkpoint."""

    def __init__(self) -> None:
        self._before: list[StopCallback] = []
        self._after: list[StopCallback] = []

    def add(self, before: StopCallback | None, after: StopCallback | None) -> None:
        """Register a function for before, and one for after the checkpoint; None registers nothing."""
        self._before += [before] if before else []
        self._after += [after] if after else []

    def run_before(self, cause: str) -> None:
        """Call the functions that come before the checkpoint; an exception of one is logged."""
        for callback in self._before:
            _call(callback, cause)

    def run_after(self, cause: str) -> None:
        """Call the functions that come after the checkpoint; an exception of one is logged."""
        for callback in self._after:
            _call(callback, cause)


def _call(callback: StopCallback, cause: str) -> None:
    try:
        callback(cause)
    except Exception:
        log.exception("a function given to ctx.on_stop() failed")
