"""The best layout of counts of rounds: several orders of the jobs, and a local search for small windows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from policies.shockwave.layout import Layout
from policies.shockwave.market import Bools, Ints, Market
from policies.shockwave.round_counts import PRECISION, RoundCounts

EQUAL = 0.01
"""Layouts whose objectives differ by less than this part of the progress of one job are equally good."""

CLOSE = 1e-3
"""A layout whose gap to the bound is at most this, relative to its objective, is not improved further."""

MOST_TRIALS, MOST_ROUNDS = 100, 40_000
"""Layouts that are tried for an improvement, and the rounds of all jobs in them, at most."""


class _Order(NamedTuple):
    """An order in which jobs get their rounds.

    Attributes:
        jobs: the jobs in order.
        early: by job, whether it begins as early as it can.
    """

    jobs: Ints
    early: Bools


def best_layout(market: Market, counts: RoundCounts, begins: Ints, continued: Layout | None) -> Layout:
    """The best layout found; it is completed.

    Among those that are equally good, what is left of an earlier schedule comes first, then that in which jobs end
    early.

    Args:
        market: the window.
        counts: a mode and a number of rounds for each job, and the prices.
        begins: by job, the round in which it is to begin; -1 for any.
        continued: what is left of an earlier schedule; None without one.
    """
    found = [] if continued is None else [continued]
    for layout in found:
        layout.fill(counts.prices, counts.load_share)
    found += [_completed(market, counts, begins, order) for order in _orders(market, counts)]
    values = np.array([layout.objective() for layout in found])
    best = int(np.argmax(values >= values.max() - EQUAL / max(len(market.keys), 1)))
    if counts.bound - values[best] > CLOSE * abs(values[best]):
        return _improved(market, counts, begins, found[best])
    return found[best]


def _completed(market: Market, counts: RoundCounts, begins: Ints, order: _Order) -> Layout:
    """The layout of counts in an order; what it leaves free is given to those that gain the most."""
    layout = Layout(market)
    layout.pin()
    layout.lay_out(counts.rows, counts.rounds, order.jobs, begins, order.early)
    layout.fill(counts.prices, counts.load_share)
    return layout


def _orders(market: Market, counts: RoundCounts) -> list[_Order]:
    """Three orders in which jobs get their rounds.

    In the first one, jobs that end in the window end early, the short ones first. In the second one, narrow jobs fit
    around wide ones. In the third one, what does not fit is worth little. Before all others are the jobs of which one
    round fewer would raise the longest remaining run time.
    """
    rows, jobs = counts.rows, np.arange(len(market.keys))
    needs = (market.needs / np.maximum(market.capacity, np.finfo(float).tiny)).max(axis=1, initial=0.0)[rows]
    starts = np.where(market.running[rows], 0.0, market.restart_seconds[rows])
    rounds = counts.rounds[:, None] - [[1, 0]]
    progress = market.progress(rows, np.maximum(rounds * market.window.round_seconds - starts[:, None], 0.0))
    welfare, remaining = market.welfare(jobs, progress), market.remaining(jobs, progress)
    worth = (welfare[:, 1] - welfare[:, 0]) / np.maximum(needs, np.finfo(float).tiny)
    not_urgent, waits = remaining[:, 0] <= counts.longest, ~market.running[rows]
    ends = remaining[:, 1] <= 0.0
    length = np.where(ends, counts.rounds, market.window.rounds)
    nobody = np.zeros(len(jobs), dtype=bool)
    return [
        _Order(np.lexsort((-market.budgets, waits, -needs, length, not_urgent)), ends),
        _Order(np.lexsort((-market.budgets, waits, -needs, not_urgent)), nobody),
        _Order(np.lexsort((-market.budgets, waits, -worth, not_urgent)), nobody),
    ]


def _improved(market: Market, counts: RoundCounts, begins: Ints, layout: Layout) -> Layout:
    """A layout that is improved by letting single jobs make another choice, before all others.

    It matters for small windows alone, in which single rounds and gangs that do not fit together count for much.
    """
    choices, every = counts.choices, np.arange(len(counts.choices.jobs))
    trials = min(MOST_TRIALS, MOST_ROUNDS // max(layout.runs.size, 1))
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
            changed, chooser_first = _with_choice(market, counts, layout, position)
            trial = _completed(market, changed, begins, chooser_first)
            if trial.objective() > objective + PRECISION:
                layout, better = trial, True
                break
    return layout


def _with_choice(market: Market, counts: RoundCounts, layout: Layout, choice: int) -> tuple[RoundCounts, _Order]:
    """The counts of a layout, in which one job makes another choice, and an order in which it is the first.

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
    order = _orders(market, changed)[1]
    return changed, order._replace(jobs=np.append(chooser, order.jobs[order.jobs != chooser]))
