"""The schedule of a window: counts of rounds, laid out (Shockwave, NSDI 2023, section 6.1, Appendices G and H).

Always a schedule, and a bound that no schedule exceeds. Work is limited by counts, never by seconds: equal arguments
give equal schedules on any machine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from policies.shockwave.layout import Layout
from policies.shockwave.layout_search import best_layout
from policies.shockwave.market import Bools, Floats, Market
from policies.shockwave.round_counts import round_counts


@dataclass(frozen=True, eq=False)
class Schedule:
    """Which jobs run in which rounds.

    Attributes:
        keys: the jobs' keys.
        modes: by job, the index of the mode in which it runs.
        runs: jobs x rounds, whether the job runs.
        objective: the market's objective of this schedule.
        bound: an objective that no schedule exceeds.
        prices: for each resource, the price of its whole supply in the window, where all budgets together are 1.
        load_share: the part of the makespan's weight that the load has, 0 to 1.
    """

    keys: tuple[str, ...]
    modes: tuple[int, ...]
    runs: Bools
    objective: float
    bound: float
    prices: Floats
    load_share: float

    @property
    def gap(self) -> float:
        """How far the objective is below the bound, relative to the objective."""
        difference = max(self.bound - self.objective, 0.0)
        return difference / max(abs(self.objective), np.finfo(float).tiny) if difference else 0.0


def solve(market: Market, last: Schedule | None = None, elapsed: int = 0, *, prompt: bool = False) -> Schedule:
    """The best schedule found.

    Args:
        market: the window.
        last: the schedule of an earlier window; jobs that it lacks or that are gone do not matter.
        elapsed: rounds between the begins of both windows.
        prompt: whether jobs that gain the most are to run early, which may cost a part of the objective. A plan that is
            made anew each round needs it: what it puts off, it may put off again and again.

    Returns:
        A schedule that leaves nothing free that a job could use. It is ``last``, continued and completed, unless the
        new one is better.
    """
    pinned = Layout(market)
    pinned.pin()
    supply = np.maximum(pinned.free, 0.0).sum(axis=0)
    start = None if last is None else np.append(last.prices, last.load_share)
    counts = round_counts(market, supply, pinned.progress(), start)
    continued = None if last is None else _continued(market, last, elapsed)
    best = best_layout(market, counts, continued, prompt=prompt)
    return _schedule(market, best, counts.bound, counts.prices, counts.load_share)


def continue_schedule(market: Market, last: Schedule, elapsed: int = 0) -> Schedule:
    """What is left of an earlier schedule; what it leaves free is given to those that gain most, by its prices.

    Args:
        market: the window.
        last: the schedule of an earlier window; its prices belong to this window's resources.
        elapsed: rounds between the begins of both windows.

    Returns:
        A schedule that leaves nothing free that a job could use. Its bound is not known, and so infinite.
    """
    layout = _continued(market, last, elapsed)
    layout.fill(last.prices, last.load_share)
    return _schedule(market, layout, math.inf, last.prices, last.load_share)


def _schedule(market: Market, layout: Layout, bound: float, prices: Floats, load_share: float) -> Schedule:
    """A layout as a schedule."""
    modes = tuple(market.mode[layout.rows].tolist())
    return Schedule(market.keys, modes, layout.runs, layout.objective(), bound, prices, load_share)


def _continued(market: Market, last: Schedule, elapsed: int) -> Layout:
    """What is left of an earlier schedule."""
    layout = Layout(market)
    layout.pin()
    row_of = {
        (job, mode): row for row, (job, mode) in enumerate(zip(market.job.tolist(), market.mode.tolist(), strict=True))
    }
    number = {key: job for job, key in enumerate(market.keys)}
    for key, mode, runs in zip(last.keys, last.modes, last.runs, strict=True):
        job = number.get(key)
        row = None if job is None else row_of.get((job, mode))
        if job is not None and row is not None and not market.pinned[job]:
            layout.repeat(job, row, np.flatnonzero(runs[max(elapsed, 0) :][: market.window.rounds]))
    return layout
