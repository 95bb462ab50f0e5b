"""How many rounds of the window each job runs: the dual of the market (Shockwave, NSDI 2023, Eq. 11).

Regimes come in order, so a job's progress in the window depends on its mode and on how many rounds it runs, not on
which ones. That leaves one small choice a job. Jobs are coupled by the resources' capacity, and by the makespan bound,
the larger one of the mean remaining time (its *load*) and of the longest. Both couplings are relaxed: resources have
prices, and the load has a share of the makespan's weight. The dual is convex in them, has few dimensions, and bounds
every schedule. It is minimised by cutting planes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy import optimize

from policies.shockwave.market import Floats, Ints, Market

MOST_PLANES = 120
"""Prices that are tried, at most."""

PRECISION = 1e-7
"""The search for prices ends where the dual is known up to this."""

INWARD = 0.4
"""The part of the way back from the lowest point of the planes to the best prices so far, against oscillation."""

CHEAPER = 0.99
"""The factor of the prices of what is left, at which jobs choose again, so that those that are indifferent change."""

PASSES = 8
"""How often all jobs choose again."""

LONGEST_TRIED = 3
"""Longest remaining run times that are tried, at most."""

HIGHEST_FACTOR, HALVINGS = 2.0**40, 20
"""How far prices are raised until choices fit, and how often that range is then halved."""

TIE = 1e-12
"""What a round costs besides its price, for a budget of 1: of choices with equal progress, jobs prefer the shortest."""


@dataclass(frozen=True, eq=False)
class Choices:
    """What each job can choose: a mode and a number of rounds; jobs x choices, by descending remaining run time.

    Rows are padded at their begin by choices that are impossible.

    Attributes:
        jobs: the indices of the jobs in the market.
        rows: the market's row of each choice; padding repeats a row of the job.
        rounds: the number of rounds.
        welfare: what the choice contributes to the welfare; -infinity for padding.
        remaining: seconds of run time that remain; infinity for padding.
        work: the job's part of the cluster's time for them, in seconds.
        spending: jobs x choices x resources, parts of the resource's supply in the window.
    """

    jobs: Ints
    rows: Ints
    rounds: Ints
    welfare: Floats
    remaining: Floats
    work: Floats
    spending: Floats

    @classmethod
    def of(cls, market: Market, supply: Floats) -> Choices:
        """The choices of all jobs that are not pinned.

        Args:
            market: the market.
            supply: amounts of each resource in the whole window that pinned jobs leave.
        """
        jobs = np.flatnonzero(~market.pinned)
        ends = np.append(market.first_row[1:], len(market.job))[jobs]
        most = int((ends - market.first_row[jobs]).max(initial=1))
        rows = market.first_row[jobs][:, None] + np.arange(most)
        padding = rows >= ends[:, None]
        rows = np.where(padding, market.first_row[jobs][:, None], rows).ravel()
        owner, counts = market.job[rows], np.arange(market.window.rounds + 1)
        starts = np.where(market.running[rows], 0.0, market.restart_seconds[rows])
        seconds = np.maximum(counts * market.window.round_seconds - starts[:, None], 0.0)
        progress = market.progress(rows, seconds)
        remaining = market.remaining(owner, progress)
        needs = market.needs[rows]
        impossible = (needs > market.capacity).any(axis=1) | (needs[:, supply <= 0] > 0).any(axis=1)
        impossible = (impossible[:, None] & (counts > 0)) | padding.reshape(-1, 1)
        spending = (needs / np.where(supply > 0, supply, np.inf))[:, None, :] * counts[:, None]
        ties = TIE * market.budgets[owner][:, None] * counts
        tables = {
            "rows": np.broadcast_to(rows[:, None], seconds.shape),
            "rounds": np.broadcast_to(counts, seconds.shape),
            "welfare": np.where(impossible, -np.inf, market.welfare(owner, progress) - ties),
            "remaining": np.where(padding.reshape(-1, 1), np.inf, remaining),
            "work": market.work_seconds(owner, remaining),
        }
        by_job = {name: table.reshape(len(jobs), most * len(counts)) for name, table in tables.items()}
        order = np.argsort(-by_job["remaining"], axis=1, kind="stable")
        by_job = {name: np.take_along_axis(table, order, axis=1) for name, table in by_job.items()}
        spending = spending.reshape(len(jobs), most * len(counts), len(supply))
        return cls(jobs, spending=np.take_along_axis(spending, order[:, :, None], axis=1), **by_job)

    @property
    def idle(self) -> Ints:
        """By job, the choice of no rounds."""
        return np.asarray(np.argmax((self.rounds == 0) & np.isfinite(self.welfare), axis=1))

    def take(self, chosen: Ints) -> Taken:
        """The sums of one choice a job."""
        every = np.arange(len(self.jobs))
        return Taken(
            chosen,
            float(self.welfare[every, chosen].sum()),
            float(self.remaining[every, chosen].max(initial=0.0)),
            float(self.work[every, chosen].sum()),
            self.spending[every, chosen].sum(axis=0),
        )


class Taken(NamedTuple):
    """One choice of each job, and the sums over the jobs, in the terms of ``Choices``."""

    chosen: Ints
    welfare: float
    longest: float
    work: float
    spending: Floats


class RoundCounts(NamedTuple):
    """A mode and a number of rounds for each job that is not pinned, and the dual.

    Attributes:
        rows: by job of the market, the row; a job without rounds has its first row.
        rounds: by job of the market, the number of rounds; 0 for pinned jobs.
        prices: for each resource, the price of its whole supply in the window.
        load_share: the part of the makespan's weight that the load has, 0 to 1.
        bound: an objective that no schedule exceeds.
        longest: the longest remaining run time that the counts leave, in seconds; infinity where it does not matter.
        choices: what jobs can choose.
        scores: jobs x choices of ``choices``, what each choice is worth beyond its price; -infinity where impossible.
    """

    rows: Ints
    rounds: Ints
    prices: Floats
    load_share: float
    bound: float
    longest: float
    choices: Choices
    scores: Floats


def round_counts(market: Market, supply: Floats, pinned_progress: Floats, start: Floats | None = None) -> RoundCounts:
    """The counts of rounds with the highest objective, and the prices.

    Args:
        market: the market.
        supply: amounts of each resource in the whole window that pinned jobs leave.
        pinned_progress: by job, the progress of pinned jobs in the window.
        start: prices and load share of an earlier solution, in one array, to begin with; None without one.
    """
    dual = _Dual(market, supply, pinned_progress)
    best = dual.minimum(start)
    rows, rounds = market.first_row.copy(), np.zeros(len(market.keys), dtype=np.int64)
    every, taken = np.arange(len(dual.choices.jobs)), dual.affordable(best)
    rows[dual.choices.jobs] = dual.choices.rows[every, taken.chosen]
    rounds[dual.choices.jobs] = dual.choices.rounds[every, taken.chosen]
    longest = taken.longest if market.makespan_weight * (1.0 - best.point[-1]) > 0 else math.inf
    prices, share = best.point[:-1], float(best.point[-1])
    return RoundCounts(rows, rounds, prices, share, float(best.value), longest, dual.choices, dual.scores(best.point))


class _Plane(NamedTuple):
    """The dual at one point: prices and load share. Its value, its slope, the jobs' choices."""

    point: Floats
    value: float
    slope: Floats
    taken: Taken
    longest: float


class _Dual:
    """The dual function: the highest objective, if capacity and load are paid for instead of limited."""

    def __init__(self, market: Market, supply: Floats, pinned_progress: Floats) -> None:
        self.choices = Choices.of(market, supply)
        self._weight = market.makespan_weight
        pinned = np.flatnonzero(market.pinned)
        progress = pinned_progress[pinned][:, None]
        remaining = market.remaining(pinned, progress)
        self._pinned_welfare = float(market.welfare(pinned, progress).sum())
        self._pinned_work = float(market.work_seconds(pinned, remaining).sum())
        possible = np.where(np.isfinite(self.choices.welfare), self.choices.remaining, np.inf)
        shortest = possible.min(axis=1, initial=np.inf).max(initial=0.0)
        self._least_longest = max(float(shortest), float(remaining.max(initial=0.0)))
        self._planes: list[_Plane] = []

    def minimum(self, start: Floats | None) -> _Plane:
        """The point where the dual is lowest: the equilibrium."""
        resources = self.choices.spending.shape[2]
        free = self._plane(np.append(np.zeros(resources), 1.0))
        idle = self.choices.take(self.choices.idle)
        idle_value = (
            idle.welfare + self._pinned_welfare - self._weight * max(idle.work + self._pinned_work, idle.longest)
        )
        # No price is higher in the minimum: at once the value of doing nothing and all prices together are below it.
        highest = max(free.value - min(idle_value, free.value), PRECISION)
        if start is not None and len(start) == resources + 1 and np.isfinite(start).all():
            self._plane(np.clip(start, 0.0, [*[highest] * resources, 1.0]))
        bounds = [(0.0, highest)] * resources + [(0.0, 1.0), (None, None)]
        while len(self._planes) < MOST_PLANES:
            best = min(self._planes, key=lambda plane: plane.value)
            lowest, value = self._lowest_of_planes(bounds)
            if best.value - value <= PRECISION:
                break
            self._plane(lowest + INWARD * (best.point - lowest))
        return min(self._planes, key=lambda plane: plane.value)

    def _lowest_of_planes(self, bounds: list[tuple[float | None, float | None]]) -> tuple[Floats, float]:
        slopes = np.array([plane.slope for plane in self._planes])
        heights = np.array([plane.value - plane.slope @ plane.point for plane in self._planes])
        found = optimize.linprog(
            [*[0.0] * slopes.shape[1], 1.0],
            A_ub=np.column_stack([slopes, np.full(len(slopes), -1.0)]),
            b_ub=-heights,
            bounds=bounds,
            method="highs",
        )
        return found.x[:-1], float(found.x[-1])

    def scores(self, point: Floats) -> Floats:
        """What each choice is worth beyond its price, at prices and a load share."""
        choices = self.choices
        return np.asarray(choices.welfare - self._weight * point[-1] * choices.work - choices.spending @ point[:-1])

    def _plane(self, point: Floats) -> _Plane:
        """The dual at a point, recorded among the planes."""
        prices, load = point[:-1], self._weight * point[-1]
        choices, scores = self.choices, self.scores(point)
        chosen, longest, lost = self._shortened(scores, self._weight - load)
        taken = choices.take(chosen)
        value = float(scores.max(axis=1).sum()) - lost + float(prices.sum()) + self._pinned_welfare
        value -= load * self._pinned_work
        slope = np.append(1.0 - taken.spending, self._weight * (longest - taken.work - self._pinned_work))
        plane = _Plane(point, value, slope, taken, longest)
        self._planes.append(plane)
        return plane

    def _shortened(self, scores: Floats, weight: float) -> tuple[Ints, float, float]:
        """The choices with the highest sum of scores minus ``weight`` times the longest remaining run time.

        Returns:
            The choices, the longest remaining run time, and by how much the sum is below that of the best scores.
        """
        chosen = scores.argmax(axis=1)
        remaining = self.choices.remaining
        left = remaining[np.arange(len(chosen)), chosen]
        longest = max(float(left.max(initial=0.0)), self._least_longest)
        long = np.flatnonzero(left > self._least_longest)
        if weight <= 0 or not len(long):
            return chosen, longest, max(weight, 0.0) * longest
        # By job, the best score if at most as much remains; each step of it is lost below its remaining run time.
        best = np.maximum.accumulate(scores[long][:, ::-1], axis=1)[:, ::-1]
        former, later = best[:, :-1], best[:, 1:]
        steps = np.subtract(former, later, out=np.zeros_like(later), where=np.isfinite(later))
        counts = steps > 0
        at = np.append(remaining[long][:, :-1][counts], self._least_longest)
        size = np.append(steps[counts], 0.0)
        order = np.argsort(-at, kind="stable")
        lost = np.cumsum(size[order]) - size[order] + weight * at[order]
        lost[at[order] < self._least_longest] = np.inf
        first = int(np.argmin(lost))
        longest = float(at[order][first])
        chosen[long] = np.where(remaining[long] <= longest, scores[long], -np.inf).argmax(axis=1)
        return chosen, longest, float(lost[first])

    def affordable(self, best: _Plane) -> Taken:
        """Choices near the minimum that do not exceed the supply.

        The longest remaining run time is that of one of the best planes; those that differ are tried.
        """
        longest: list[float] = []
        for plane in sorted(self._planes, key=lambda plane: plane.value):
            matters = self._weight * (1.0 - plane.point[-1]) > 0
            longest.append(plane.longest if matters else math.inf)
        tried = list(dict.fromkeys(longest))[:LONGEST_TRIED]
        found = [self._within_supply(best, each) for each in tried]
        return max(filter(None, found), key=self._objective, default=self.choices.take(self.choices.idle))

    def _within_supply(self, best: _Plane, longest: float) -> Taken | None:
        """Choices that do not exceed the supply, with a given longest remaining run time; None where there are none.

        Prices are raised until the choices fit. Then the jobs that lose most by that choose again, one by one, among
        what is left, where what is left over is cheaper.
        """
        choices, every, prices = self.choices, np.arange(len(self.choices.jobs)), best.point[:-1]
        values = choices.welfare - self._weight * best.point[-1] * choices.work
        values = np.where(choices.remaining <= longest, values, -np.inf)

        def chosen_at(factor: float) -> Taken:
            return choices.take((values - choices.spending @ (factor * prices)).argmax(axis=1))

        low, high = 0.0, 1.0
        while (chosen_at(high).spending > 1.0 + PRECISION).any():
            low, high = high, 2.0 * high
            if high > HIGHEST_FACTOR:
                return None
        for _ in range(HALVINGS if low > 0 else 0):
            middle = 0.5 * (low + high)
            low, high = (low, middle) if (chosen_at(middle).spending <= 1.0 + PRECISION).all() else (middle, high)
        begin = chosen_at(high)
        chosen, left = begin.chosen.copy(), 1.0 - begin.spending
        for _ in range(PASSES):
            scores = values - choices.spending @ np.where(left > PRECISION, CHEAPER * prices, prices)
            lost = scores.max(axis=1) - scores[every, chosen]
            for job in np.argsort(-lost, kind="stable")[: np.count_nonzero(lost > 0)].tolist():
                free = left + choices.spending[job, chosen[job]]
                fits = (choices.spending[job] <= free + PRECISION**2).all(axis=1)
                chosen[job] = int(np.where(fits, scores[job], -np.inf).argmax())
                left = free - choices.spending[job, chosen[job]]
        return max(begin, choices.take(chosen), key=self._objective)

    def _objective(self, taken: Taken) -> float:
        """The objective of choices that do not exceed the supply, up to a constant."""
        return taken.welfare - self._weight * max(taken.work + self._pinned_work, taken.longest, self._least_longest)
