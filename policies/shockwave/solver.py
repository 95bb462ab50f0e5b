"""The schedule of a window: counts of rounds, laid out (Shockwave, NSDI 2023, section 6.1, Appendices G and H).

Always a schedule, and a bound that no schedule exceeds. Work is limited by counts, never by seconds: equal arguments
give equal schedules on any machine.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from policies.shockwave.layout import Layout
from policies.shockwave.market import Bools, Floats, Ints, Market
from policies.shockwave.round_counts import PRECISION, RoundCounts, round_counts

CLOSE = 1e-3
"""A schedule whose gap is at most this is not improved further."""

MOST_TRIALS, MOST_PLACEMENTS = 100, 20_000
"""Layouts that are tried for an improvement, and jobs that are placed in them, at most."""


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


def solve(market: Market, last: Schedule | None = None, elapsed: int = 0) -> Schedule:
    """The best schedule found.

    Args:
        market: the window.
        last: the schedule of an earlier window; jobs that it lacks or that are gone do not matter.
        elapsed: rounds between the begins of both windows.

    Returns:
        A schedule that leaves nothing free that a job could use. It is ``last``, continued and completed, unless the
        new one is better.
    """
    pinned = Layout(market)
    pinned.pin()
    supply = np.maximum(pinned.free, 0.0).sum(axis=0)
    start = None if last is None else np.append(last.prices, last.load_share)
    counts = round_counts(market, supply, pinned.progress(), start)
    found = [] if last is None else [_continued(market, last, elapsed)]
    begins = _planned_begins(market, last, elapsed)
    for order in _orders(market, counts):
        layout = Layout(market)
        layout.pin()
        layout.lay_out(counts.rows, counts.rounds, order, begins)
        found.append(layout)
    for layout in found:
        layout.fill(counts.prices, counts.load_share)
    best = max(found, key=Layout.objective)
    if counts.bound - best.objective() > CLOSE * abs(best.objective()):
        best = _improved(market, counts, best, begins)
    return Schedule(
        market.keys,
        tuple(market.mode[best.rows].tolist()),
        best.runs,
        best.objective(),
        counts.bound,
        counts.prices,
        counts.load_share,
    )


def _orders(market: Market, counts: RoundCounts) -> tuple[Ints, Ints]:
    """Two orders in which jobs get their rounds: by what they need in a round, and by what their last round is worth.

    In the first one narrow jobs fit around wide ones; in the second one what does not fit is worth little. Before all
    others are the jobs of which one round fewer would raise the longest remaining run time.
    """
    rows, jobs = counts.rows, np.arange(len(market.keys))
    needs = (market.needs / np.maximum(market.capacity, np.finfo(float).tiny)).max(axis=1, initial=0.0)[rows]
    starts = np.where(market.running[rows], 0.0, market.restart_seconds[rows])
    rounds = counts.rounds[:, None] - [[1, 0]]
    progress = market.progress(rows, np.maximum(rounds * market.window.round_seconds - starts[:, None], 0.0))
    welfare = market.welfare(jobs, progress)
    worth = (welfare[:, 1] - welfare[:, 0]) / np.maximum(needs, np.finfo(float).tiny)
    not_urgent = market.remaining(jobs, progress)[:, 0] <= (counts.longest)
    waits = ~market.running[rows]
    return (
        np.lexsort((-market.budgets, waits, -needs, not_urgent)),
        np.lexsort((-market.budgets, waits, -worth, not_urgent)),
    )


def _planned_begins(market: Market, last: Schedule | None, elapsed: int) -> Ints:
    """By job, the round in which it is to begin: at once if it runs now, else as planned; -1 where nothing is planned.

    Without that, a schedule that is made anew each round could put off the same job again and again.
    """
    begins = np.where(np.bincount(market.job[market.running], minlength=len(market.keys)) > 0, 0, -1)
    if last is not None and elapsed < last.runs.shape[1]:
        left = last.runs[:, max(elapsed, 0) :]
        planned = dict(zip(last.keys, np.where(left.any(axis=1), left.argmax(axis=1), -1).tolist(), strict=True))
        found = np.array([planned.get(key, -1) for key in market.keys], dtype=np.int64)
        begins = np.where(begins < 0, found, begins)
    return np.asarray(begins)


def _improved(market: Market, counts: RoundCounts, layout: Layout, begins: Ints) -> Layout:
    """A layout that is improved by letting single jobs make another choice, before all others.

    It matters for small windows alone, in which single rounds and gangs that do not fit together count for much.
    """
    choices, every = counts.choices, np.arange(len(counts.choices.jobs))
    trials = min(MOST_TRIALS, MOST_PLACEMENTS // max(len(every), 1))
    better = True
    while better and trials > 0:
        better = False
        rounds = layout.runs.sum(axis=1)
        same = (
            np.isfinite(counts.scores)
            & (choices.rows == layout.rows[choices.jobs][:, None])
            & (choices.rounds == rounds[choices.jobs][:, None])
        )
        current = np.where(same.any(axis=1), same.argmax(axis=1), choices.idle)
        same |= (choices.rounds == 0) & (rounds[choices.jobs] == 0)[:, None]
        gains = np.where(same, -np.inf, counts.scores) - counts.scores[every, current][:, None]
        order = np.argsort(-gains, axis=None, kind="stable")[:trials]
        objective = layout.objective()
        for position in order[np.isfinite(gains.ravel()[order])].tolist():
            trials -= 1
            trial = _with_choice(market, counts, layout, begins, position)
            if trial.objective() > objective + PRECISION:
                layout, better = trial, True
                break
    return layout


def _with_choice(market: Market, counts: RoundCounts, layout: Layout, begins: Ints, choice: int) -> Layout:
    """A layout in which one job makes another choice, before all others; it is completed.

    Args:
        market: the window.
        counts: what jobs can choose.
        layout: the layout that is changed.
        begins: by job, the round in which it is to begin.
        choice: the number of the choice in the flattened tables of ``counts.choices``.
    """
    job, column = divmod(choice, counts.scores.shape[1])
    chooser = int(counts.choices.jobs[job])
    rows, rounds = layout.rows.copy(), np.where(market.pinned, 0, layout.runs.sum(axis=1))
    rows[chooser], rounds[chooser] = counts.choices.rows[job, column], counts.choices.rounds[job, column]
    order = _orders(market, counts._replace(rows=rows, rounds=rounds))[0]
    trial = Layout(market)
    trial.pin()
    trial.lay_out(rows, rounds, np.append(chooser, order[order != chooser]), begins)
    trial.fill(counts.prices, counts.load_share)
    return trial


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
