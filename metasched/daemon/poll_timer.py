"""The daemon's timer: calls one function again and again, after a pause that is computed after each call."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable

from apscheduler.schedulers.blocking import BlockingScheduler
from apscheduler.triggers.base import BaseTrigger

TICK_SECONDS = 0.5
"""Longest pause between two calls: signals only set flags, and the call reads them."""


class VariablePause(BaseTrigger):  # type: ignore[misc]  # apscheduler has no types
    """A trigger that fires ``pause()`` seconds after each run; None ends it."""

    def __init__(self, pause: Callable[[], float | None]) -> None:
        self._pause = pause

    def get_next_fire_time(self, previous: dt.datetime | None, now: dt.datetime) -> dt.datetime | None:
        """Return the next instant, counted from the present, because ``now`` is from before the last run."""
        del previous, now
        pause = self._pause()
        return None if pause is None else dt.datetime.now(dt.UTC) + dt.timedelta(seconds=max(pause, 0.001))


class ClockTolerantScheduler(BlockingScheduler):  # type: ignore[misc]  # apscheduler has no types
    """A scheduler that runs its jobs also after the wall clock was set back; others wait until it is as late again."""

    def _process_jobs(self) -> float | None:
        wait: float | None = super()._process_jobs()
        if wait is None or wait <= 2 * TICK_SECONDS:
            return wait
        for job in self.get_jobs():
            job.modify(next_run_time=dt.datetime.now(dt.UTC))
        return 0.0
