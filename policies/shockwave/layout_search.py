"""The best layout of counts of rounds: several orders of the jobs, and a local search for small windows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from policies.shockwave.layout import Layout
from policies.shockwave.market import Floats, Ints, Market
from policies.shockwave.round_counts import PRECISION, RoundCounts

IMPATIENCE = 0.9
"""The part of its worth that progress loses from the begin to the end of the window, in prompt schedules."""

SPARE = 1
"""The rounds that a job can miss and is urgent all the same, so that one round more does not make it late."""

CLOSE = 1e-3
"""A layout whose gap to the bound is at most this, relative to its objective, is not improved further."""

MOST_TRIALS, LEAST_TRIALS, MOST_ROUNDS = 100, 1, 10_000
"""Layouts that are tried for an improvement, at most and at least, and the rounds of all jobs in them, at most.

Trials are compared by the objective alone, so many of them put off jobs that gain as much in a later round.
"""


def best_layout(market: Market, counts: RoundCounts, continued: Layout | None, *, prompt: bool = False) -> Layout:
    """The best layout found; it is completed.

    Args:
        market: the window.
        counts: a mode and a number of rounds for each job, and the prices.
        continued: what is left of an earlier schedule; None without one.
        prompt: whether jobs that gain the most are to run early; otherwise the objective alone counts, and other
            choices of single jobs are tried where the gap is large.
    """
    found = [] if continued is None else [continued]
    for layout in found:
        layout.fill(counts.prices, counts.load_share)
    impatience, worths = IMPATIENCE if prompt else 0.0, _round_worths(market, counts)
    found += [_completed(market, counts, order, worths, impatience) for order in _orders(market, counts, worths)]
    values = np.array([layout.objective() for layout in found])
    delays = np.array([layout.delay() for layout in found]) / market.window.rounds
    best = int((values - impatience * delays).argmax())
    if not prompt and counts.bound - values[best] > CLOSE * abs(values[best]):
        return _improved(market, counts, found[best])
    return found[best]


def _completed(market: Market, counts: RoundCounts, order: Ints, worths: _RoundWorths, impatience: float) -> Layout:
    """The layout of counts in an order; what it leaves free is given to those that gain the most.

    Args:
        market: the window.
        counts: a mode and a number of rounds for each job, and the prices.
        order: the jobs in the order in which they get their rounds.
        worths: what rounds are worth to the jobs.
        impatience: as ``IMPATIENCE``; 0 where the objective alone counts.
    """
    layout = Layout(market)
    layout.pin()
    layout.lay_out(counts.rows, counts.rounds, order, worths.objective, impatience)
    layout.fill(counts.prices, counts.load_share)
    return layout


def _orders(market: Market, counts: RoundCounts, worths: _RoundWorths) -> list[Ints]:
    """Two orders in which jobs get their rounds, each as early as it can.

    In the first one, jobs whose rounds contribute the most for their price come first. In the second one, narrow jobs
    fit around wide ones. Before all others are the jobs that need every round but ``SPARE``, lest the longest run time
    grows. Those that need fewer rounds for that can wait: a later window finds them urgent if they are not served.
    """
    needs = (market.needs / np.maximum(market.capacity, np.finfo(float).tiny)).max(axis=1, initial=0.0)[counts.rows]
    worth = worths.welfare / np.maximum(needs, np.finfo(float).tiny)
    not_urgent = (worths.late <= 0) | (counts.rounds < market.window.rounds - SPARE)
    return [np.lexsort((-worth, not_urgent)), np.lexsort((-worth, -needs, not_urgent))]


class _RoundWorths(NamedTuple):
    """What one of its rounds is worth to each job, on average over its number of rounds.

    Attributes:
        welfare: by job, what a round contributes to the welfare.
        objective: by job, what a round contributes to the objective.
        late: by job, the seconds by which the longest run time would grow with one round less.
    """

    welfare: Floats
    objective: Floats
    late: Floats


def _round_worths(market: Market, counts: RoundCounts) -> _RoundWorths:
    """What one of its rounds is worth to each job."""
    rows, jobs, length = counts.rows, np.arange(len(market.keys)), market.window.round_seconds
    starts = np.where(market.running[rows], 0.0, market.restart_seconds[rows])
    seconds = counts.rounds * length - starts
    by_seconds = np.column_stack([np.zeros_like(seconds), np.maximum(seconds, 0.0)])
    progress = market.progress(rows, by_seconds)
    work = market.work_seconds(jobs, market.remaining(jobs, progress))
    fewer = market.progress(rows, np.maximum(seconds - length, 0.0)[:, None])
    late = np.maximum(market.remaining(jobs, fewer)[:, 0] - counts.longest, 0.0)
    rounds = np.maximum(counts.rounds, 1)
    welfare, load = (np.diff(each)[:, 0] / rounds for each in (market.welfare(jobs, progress), work))
    of_makespan = (1.0 - counts.load_share) * late - counts.load_share * load
    return _RoundWorths(welfare, welfare + market.makespan_weight * of_makespan, late)


def _improved(market: Market, counts: RoundCounts, layout: Layout) -> Layout:
    """A layout that is improved by letting single jobs make another choice, before all others.

    It matters for small windows alone, in which single rounds and gangs that do not fit together count for much.
    """
    choices, every = counts.choices, np.arange(len(counts.choices.jobs))
    trials = min(MOST_TRIALS, max(MOST_ROUNDS // max(layout.runs.size, 1), LEAST_TRIALS))
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
            changed, chooser_first, worths = _with_choice(market, counts, layout, position)
            trial = _completed(market, changed, chooser_first, worths, 0.0)
            if trial.objective() > objective + PRECISION:
                layout, better = trial, True
                break
    return layout


def _with_choice(
    market: Market, counts: RoundCounts, layout: Layout, choice: int
) -> tuple[RoundCounts, Ints, _RoundWorths]:
    """The counts of a layout, in which one job makes another choice, an order in which it is the first, and worths.

    Args:
        market: the window.
        counts: what jobs can choose.
        layout: the layout.
        choice: the number of the choice in the flattened tables of ``counts.choices``.
    """
    job, column = divmod(choice, counts.scores.shape[1])
    chooser = int(counts.choices.jobs[job])
    rows, rounds = layout.rows.copy(), np.where(market.pinned, 0, layout.runs.sum(axis=1))
    rows[chooser], rounds[chooser] = counts.choices.rows[job, column], counts.choices.rounds[job, column]
    changed = counts._replace(rows=rows, rounds=rounds)
    worths = _round_worths(market, changed)
    order = _orders(market, changed, worths)[1]
    return changed, np.append(chooser, order[order != chooser]), worths
