"""Max-min objectives: LAS, makespan, finish-time fairness, water filling (Gavel, OSDI 2020, sections 4.1 to 4.3)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse as sp

from policies.gavel.problem import Bools, Floats, Problem
from policies.gavel.solve import (
    SLACK,
    Solution,
    UnsolvedError,
    column_units,
    first_gains,
    inverse,
    max_min,
    maximise,
    reach,
    second_stage,
)

Weights = Callable[[Floats], Floats]

CLOSE = 1e-6
"""Relative precision of the throughputs that a rho requires."""
LEAST_WEIGHT = 1e-6
"""Least weight or duration in a max-min program, relative to the largest: less is a solver's rounding."""
LEAST_TIME = 1e-9
"""Least fraction of its time that a job requires for any rho: HiGHS refuses coefficients above 1e15."""
NEWTON_STEPS = 100
"""Steps of Newton's method at most; it takes about five."""


def equal_share_factor(problem: Problem, weights: Floats) -> Floats:
    """Factor on throughput in max-min fairness, shape (M,): scale_factor / (weight x throughput(X^equal))."""
    return problem.scale * inverse(weights * problem.equal)


def with_least_weights(weights: Floats) -> Floats:
    """Weights of which none above 0 is less than ``LEAST_WEIGHT`` times the largest; shape (M,)."""
    return np.where(weights > 0, np.maximum(weights, LEAST_WEIGHT * weights.max(initial=0.0)), weights)


def max_min_fairness(problem: Problem, weights: Floats) -> Floats:
    """Maximise the minimum weighted throughput over X^equal (LAS with weights, section 4.1), then the weighted sum.

    Args:
        problem: the jobs and GPUs.
        weights: weight of one job of each class, shape (M,), above 0; as ``with_least_weights`` raises it.

    Returns:
        The variables.

    Raises:
        UnsolvedError: HiGHS gave up.
    """
    weights = with_least_weights(weights)
    return second_stage(problem, throughput_level(problem, equal_share_factor(problem, weights)), weights)


def makespan(problem: Problem, steps: Floats, tolerance: float = 0.0) -> Floats:
    """Minimise the longest remaining duration, the maximum of steps / throughput (section 4.2).

    Args:
        problem: the jobs and GPUs.
        steps: remaining steps of one job of each class, shape (M,). A job counts as having at least ``LEAST_WEIGHT`` of
            the longest duration.
        tolerance: relative excess over the shortest makespan that is accepted, to leave more to the second stage.

    Returns:
        The variables.

    Raises:
        UnsolvedError: HiGHS gave up.
    """
    return second_stage(problem, throughput_level(problem, makespan_factor(problem, steps), tolerance))


def makespan_factor(problem: Problem, steps: Floats) -> Floats:
    """Factor on throughput in the makespan: 1 / steps, or the longest duration's least fraction; shape (M,)."""
    durations = with_least_weights(steps * inverse(problem.fastest))
    return inverse(durations * problem.fastest)


def throughput_level(problem: Problem, factor: Floats, tolerance: float = 0.0) -> Floats:
    """The first stage of a max-min program: the throughput of each class at which the minimum is largest.

    Args:
        problem: the jobs and GPUs.
        factor: factor on the throughput of one job of each class, shape (M,); classes with factor 0 do not count.
        tolerance: relative shortfall of the minimum that is accepted.

    Returns:
        Throughput of one job of each class, steps/s, shape (M,).

    Raises:
        UnsolvedError: HiGHS gave up.
    """
    found = max_min(problem, factor, among=problem.fastest * factor > 0)
    return np.asarray(np.minimum(found.value * inverse(factor) / (1.0 + tolerance), problem.throughput @ found.x))


def least_throughput(problem: Problem, factor: Floats) -> Floats:
    """Maximise the minimum of ``factor * throughput`` over the classes, and nothing more.

    Args:
        problem: the jobs and GPUs.
        factor: as for ``throughput_level``.

    Returns:
        The variables.

    Raises:
        UnsolvedError: HiGHS gave up.
    """
    return max_min(problem, factor, among=problem.fastest * factor > 0).x


def finish_time_fairness(problem: Problem, steps: Floats, elapsed: Floats, isolated_elapsed: Floats) -> Floats:
    """Minimise the largest rho (section 4.2, after Themis).

    rho = (elapsed + steps / throughput(X)) / (isolated_elapsed + steps / throughput(X^isolated)), X^isolated being 1/n
    of the cluster for each of the n jobs.

    Args:
        problem: the jobs and GPUs.
        steps: remaining steps of one job of each class, shape (M,).
        elapsed: seconds since its submission, shape (M,).
        isolated_elapsed: seconds that its past steps would have taken with 1/n of the cluster, shape (M,).

    Returns:
        The variables.

    Raises:
        UnsolvedError: HiGHS gave up.
    """
    return second_stage(problem, finish_time_level(problem, steps, elapsed, isolated_elapsed))


def finish_time_level(problem: Problem, steps: Floats, elapsed: Floats, isolated_elapsed: Floats) -> Floats:
    """The first stage of ``finish_time_fairness``, with the same arguments.

    The throughput that a rho requires is convex in rho. A linear program with tangents to it therefore gives a lower
    bound of the least rho, at which the next tangents are taken: Newton's method, from below.

    Returns:
        Throughput of one job of each class, steps/s, shape (M,), that the least rho requires.

    Raises:
        UnsolvedError: HiGHS gave up.
    """
    floors = np.zeros(len(steps))
    able = (problem.isolated > 0) & (steps > 0)
    if not able.any():
        return floors
    ideal = isolated_elapsed[able] + steps[able] / problem.isolated[able]
    left, gone, least = steps[able], elapsed[able], LEAST_TIME * problem.fastest[able]
    matrix, bounds = problem.limits
    wider = sp.csr_array(sp.hstack([matrix, sp.csr_array((matrix.shape[0], 1))])), bounds
    throughput = problem.throughput[np.nonzero(able)[0]]
    gain = np.zeros(throughput.shape[1] + 1)
    gain[-1] = -1.0
    rho = float(np.max((gone + left / problem.fastest[able]) / ideal))
    for _ in range(NEWTON_STEPS):
        needed = np.maximum(left / (rho * ideal - gone), least)
        # Throughputs relative to those that rho requires, and the relative growth of rho: always feasible up to 1.
        slope = rho * ideal / (rho * ideal - gone)
        rows = sp.csr_array(sp.hstack([throughput.multiply(1.0 / needed[:, None]), sp.csr_array(slope[:, None])]))
        floors[able] = needed
        units = np.append(column_units(problem, floors * inverse(problem.fastest)), 1.0)
        found = maximise(gain, wider, (rows, np.ones(len(needed))), units=units, robust=problem.robust)
        if found is None:
            raise UnsolvedError("no finish-time fairness is possible at all")
        rho *= 1.0 + max(-found.value, 0.0)
        needed, reached = np.maximum(left / (rho * ideal - gone), least), throughput @ found.x[:-1]
        floors[able] = np.minimum(needed, reached)
        if (reached >= needed * (1.0 - CLOSE)).all():
            break
    return floors


@dataclass(frozen=True)
class Filling:
    """An instant of water filling.

    Attributes:
        problem: the jobs and GPUs.
        weights: from which classes still grow (shape (M,), 1.0 or 0.0), the weight of one job of each class.
        growing: which classes still grow, shape (M,), 1.0 or 0.0.
        reached: throughput of one job of each class, steps/s, shape (M,).
    """

    problem: Problem
    weights: Weights
    growing: Floats
    reached: Floats

    def rising(self) -> tuple[Floats, Bools]:
        """The weight of one job of each class, shape (M,), and which classes rise now."""
        weight = with_least_weights(self.weights(self.growing))
        return weight, (self.growing > 0) & (weight > 0)

    def stopped(self, reached: Floats, stuck: Bools) -> Filling:
        """The instant at which these throughputs are reached, and these classes grow no more."""
        return replace(self, growing=np.where(stuck, 0.0, self.growing), reached=reached)

    def after(self, ends: int) -> Filling | None:
        """The instant at which so many more times a class has its highest throughput, if GPUs suffice; None for now."""
        found = self
        for _ in range(ends):
            weight, now = found.rising()
            if not now.any():
                break
            speed = np.where(now, inverse(equal_share_factor(self.problem, weight)), 0.0)
            left = np.maximum(self.problem.peak - found.reached, 0.0)
            level = float(np.min(left[now] / speed[now]))
            reached = np.minimum(found.reached + speed * level, np.maximum(self.problem.peak, found.reached))
            found = found.stopped(reached, now & (reached >= self.problem.peak * (1.0 - SLACK)))
        return None if found is self else found


def water_filling(problem: Problem, weights: Weights, *, may_stop: bool = False) -> Floats:
    """Max-min fairness repeated among the classes that can still grow, until none can (section 4.3).

    As long as classes only reach their highest possible throughput, one after the other, the levels follow without a
    program; one tells whether many such steps together are possible. Where some classes cannot grow at all, a program
    finds all classes of which that is true.

    A class whose price is above 0 in a max-min program has the same throughput in all of its optima, so it is a
    bottleneck: it cannot grow without another's loss. Every iteration finds one, without the paper's integer program.
    Classes whose jobs have their highest possible throughput are bottlenecks whatever their price.

    Args:
        problem: the jobs and GPUs.
        weights: from which classes still grow (shape (M,), 1.0 or 0.0), the weight of one job of each class, shape
            (M,). A class of weight 0 keeps its throughput until it has a weight.
        may_stop: whether the level that has been reached is the answer where HiGHS gives up after the first iteration.

    Returns:
        The variables. The allocation is Pareto efficient, if water filling has not stopped early.

    Raises:
        UnsolvedError: HiGHS gave up.
    """
    filling = Filling(problem, weights, (problem.equal > 0).astype(float), np.zeros(len(problem.rates)))
    x = np.zeros(len(problem.columns[0]))
    ends = 1  # classes that the next step may bring to their highest possible throughput
    while filling.growing.any():
        if ends > 1 and (further := filling.after(ends)) is not None:
            if (found_x := reach(problem, further.reached)) is not None:
                filling, x, ends = further, found_x, 2 * ends
            else:
                ends //= 2
            continue
        weight, now = filling.rising()
        if not now.any():
            break
        try:
            found = _raise(problem, filling.reached, weight, now)
        except UnsolvedError:
            if may_stop and x.any():
                return x
            raise
        x = found.x
        gained = found.value * inverse(equal_share_factor(problem, weight))
        raised = np.minimum(filling.reached + np.maximum(gained, 0.0), problem.throughput @ x)
        reached = np.where(now, raised, filling.reached)
        full = now & (reached >= problem.peak * (1.0 - SLACK))
        stuck = full | (now & (found.prices > SLACK))
        if not stuck.any():
            stuck = now
        nothing_gained = bool((reached <= filling.reached + CLOSE * problem.peak)[now].all())
        filling = filling.stopped(reached, stuck)
        ends = 2 if (stuck == full).all() else 1
        if nothing_gained and filling.growing.any():
            filling = filling.stopped(reached, ~_growable(problem, reached, filling.growing > 0))
    return x


def _raise(problem: Problem, reached: Floats, weight: Floats, now: Bools) -> Solution:
    factor = equal_share_factor(problem, np.where(now, weight, 1.0))
    return max_min(problem, factor, base=reached * factor, among=now)


def _growable(problem: Problem, reached: Floats, growing: Bools) -> Bools:
    """Whether each growing class may grow, with no other class below what it has reached; shape (M,).

    Classes that can each grow can all grow at once. Every program finds some of them, as long as there are any.

    Raises:
        UnsolvedError: HiGHS gave up.
    """
    found, left = np.zeros(len(growing), dtype=bool), growing
    while left.any():
        gains = first_gains(problem, reached, left)
        grows = left & (gains > CLOSE)
        if not grows.any():
            break
        found, left = found | grows, left & ~grows
    return found
