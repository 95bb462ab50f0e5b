"""Max-min fairness and what is built of it: LAS, makespan, finish-time fairness, water filling, hierarchies."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import scipy.sparse as sp

from policies.gavel.problem import Bools, Floats, Problem
from policies.gavel.solve import SLACK, Solution, UnsolvedError, inverse, make_the_most, max_min, maximise

Weights = Callable[[Floats], Floats]

CLOSE = 1e-6
"""Relative precision of the throughputs that a finish-time fairness asks for."""
TURNS = 100
"""Of Newton's method, at most; it takes about five."""


def shares(problem: Problem, weights: Floats) -> Floats:
    """What a step/s is worth under max-min fairness: scale_factor / (weight x throughput(X^equal)); section 4.1."""
    return problem.scale * inverse(weights * problem.equal)


def max_min_fairness(problem: Problem, weights: Floats) -> Floats:
    """LAS with weights (section 4.1): the least weighted share is as large as it can be; the rest goes by weight, too.

    Args:
        problem: the jobs and GPUs.
        weights: of one job of each class, shape (M,), above 0.

    Returns:
        The variables.

    Raises:
        UnsolvedError: HiGHS gave up.
    """
    return make_the_most(problem, level(problem, shares(problem, weights)), weights)


def makespan(problem: Problem, steps: Floats, tolerance: float = 0.0) -> Floats:
    """Minimise the longest duration (section 4.2).

    Args:
        problem: the jobs and GPUs.
        steps: left of one job of each class, shape (M,).
        tolerance: by so much, relative, it may be longer than the least, to leave more to the second stage.

    Returns:
        The variables.

    Raises:
        UnsolvedError: HiGHS gave up.
    """
    return make_the_most(problem, level(problem, inverse(steps), tolerance))


def level(problem: Problem, worth: Floats, tolerance: float = 0.0) -> Floats:
    """The first stage of a max-min program: the throughput that each class must have for the least to be the largest.

    Args:
        problem: the jobs and GPUs.
        worth: factor on each class's throughput; shape (M,); classes of which it is 0 do not count.
        tolerance: by so much, relative, the least may be smaller.

    Returns:
        Throughput of one job of each class, steps/s, shape (M,).

    Raises:
        UnsolvedError: HiGHS gave up.
    """
    found = max_min(problem, worth, among=problem.fastest * worth > 0)
    return np.asarray(np.minimum(found.value * inverse(worth) / (1.0 + tolerance), problem.throughput @ found.x))


def finish_time_fairness(problem: Problem, steps: Floats, elapsed: Floats, isolated_elapsed: Floats) -> Floats:
    """Minimise the largest rho (section 4.2, after Themis).

    rho = (elapsed + steps / throughput(X)) / (isolated_elapsed + steps / throughput(X^isolated)), X^isolated being 1/n
    of the cluster for each of the n jobs.

    Args:
        problem: the jobs and GPUs.
        steps: left of one job of each class, shape (M,).
        elapsed: seconds since its start, shape (M,).
        isolated_elapsed: the same, had it had 1/n of the cluster, shape (M,).

    Returns:
        The variables.

    Raises:
        UnsolvedError: HiGHS gave up.
    """
    return make_the_most(problem, finish_time_level(problem, steps, elapsed, isolated_elapsed))


def finish_time_level(problem: Problem, steps: Floats, elapsed: Floats, isolated_elapsed: Floats) -> Floats:
    """The first stage of ``finish_time_fairness``, of the same arguments.

    The throughput that a rho asks for is convex in rho, so a linear program with its tangents gives a lower bound of
    the optimum, where the next tangents are taken: Newton's method, from below.

    Returns:
        Throughput of one job of each class, steps/s, shape (M,), that the least rho asks for.

    Raises:
        UnsolvedError: HiGHS gave up.
    """
    floors = np.zeros(len(steps))
    able = (problem.isolated > 0) & (steps > 0)
    if not able.any():
        return floors
    ideal = isolated_elapsed[able] + steps[able] / problem.isolated[able]
    left, gone = steps[able], elapsed[able]
    matrix, bounds = problem.limits
    wider = sp.csr_array(sp.hstack([matrix, sp.csr_array((matrix.shape[0], 1))])), bounds
    throughput = problem.throughput[np.nonzero(able)[0]]
    gain = np.zeros(throughput.shape[1] + 1)
    gain[-1] = -1.0
    rho = float(np.max((gone + left / problem.fastest[able]) / ideal))
    for _ in range(TURNS):
        needed = left / (rho * ideal - gone)
        slope = -needed * ideal / (rho * ideal - gone)
        unit = 1.0 / needed
        rows = sp.csr_array(sp.hstack([throughput.multiply(unit[:, None]), sp.csr_array((-slope * unit)[:, None])]))
        found = maximise(gain, wider, (rows, (needed - slope * rho) * unit))
        if found is None:
            raise UnsolvedError("no finish-time fairness is possible at all")
        rho = max(rho, -found.value)
        needed, reached = left / (rho * ideal - gone), throughput @ found.x[:-1]
        floors[able] = np.minimum(needed, reached)
        if (reached >= needed * (1.0 - CLOSE)).all():
            break
    return floors


def water_filling(problem: Problem, weights: Weights) -> Floats:
    """Max-min fairness until nothing can grow (section 4.3): raise all, take out who is stuck, and again.

    A class whose price is positive in a max-min program is at the same level in all of its optima, so it cannot grow
    without another one's loss: no integer program is needed to find the bottlenecks, and every turn finds one. Classes
    whose jobs are as fast as they can be at all are stuck whatever their price.

    Args:
        problem: the jobs and GPUs.
        weights: given which classes still grow, shape (M,), 1.0 or 0.0, the weight of one job of each; a class with
            weight 0 keeps what it has until it is given one.

    Returns:
        The variables. The allocation is Pareto efficient.

    Raises:
        UnsolvedError: HiGHS gave up.
    """
    growing = (problem.equal > 0).astype(float)
    reached = np.zeros(len(growing))  # throughput of one job, steps/s
    x = np.zeros(len(problem.columns[0]))
    while growing.any():
        weight = weights(growing)
        now = (growing > 0) & (weight > 0)
        if not now.any():
            break
        found = _raise(problem, reached, weight, now)
        x = found.x
        gained = found.value * inverse(shares(problem, weight))
        raised = np.minimum(reached + np.maximum(gained, 0.0), problem.throughput @ x)
        reached = np.where(now, raised, reached)
        stuck = now & ((found.prices > SLACK) | (reached >= problem.most * (1.0 - SLACK)))
        if not stuck.any():
            stuck = now
        growing = np.where(stuck, 0.0, growing)
    return x


def _raise(problem: Problem, reached: Floats, weight: Floats, now: Bools) -> Solution:
    worth = shares(problem, np.where(now, weight, 1.0))
    return max_min(problem, worth, base=reached * worth, among=now)
