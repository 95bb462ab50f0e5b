"""Max-min fairness and what is built of it: LAS, makespan, finish-time fairness, water filling, hierarchies."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import scipy.sparse as sp

from policies.gavel.problem import Bools, Floats, Problem
from policies.gavel.solve import SLACK, Solution, UnsolvedError, make_the_most, max_min, maximise

Weights = Callable[[Floats], Floats]

CLOSE = 1e-6
"""Relative precision of the throughputs that a finish-time fairness asks for."""
TURNS = 100
"""Of Newton's method, at most; it takes about five."""


def shares(problem: Problem, weights: Floats) -> Floats:
    """What a step/s is worth under max-min fairness: scale_factor / (weight x throughput(X^equal)); section 4.1."""
    with np.errstate(divide="ignore"):
        worth = problem.scale / (weights * problem.equal)
    return np.where(np.isfinite(worth), worth, 0.0)


def max_min_fairness(problem: Problem, weights: Floats) -> Floats:
    """LAS with weights (section 4.1): the least weighted share is as large as it can be; then the sum of all shares.

    Args:
        problem: the jobs and GPUs.
        weights: of one job of each class, shape (M,), above 0.

    Returns:
        The variables.
    """
    return _two_stages(problem, shares(problem, weights))


def makespan(problem: Problem, steps: Floats) -> Floats:
    """Minimise the longest duration (section 4.2): ``steps`` are left of one job of each class, shape (M,)."""
    with np.errstate(divide="ignore"):
        worth = np.where(steps > 0, 1.0 / steps, 0.0)
    return _two_stages(problem, worth)


def _two_stages(problem: Problem, worth: Floats) -> Floats:
    able = problem.fastest * worth > 0
    first = max_min(problem, worth, among=able)
    with np.errstate(divide="ignore", invalid="ignore"):
        floors = np.where(able, np.minimum(first.value / worth, problem.throughput @ first.x), 0.0)
    return make_the_most(problem, floors, worth)


def finish_time_fairness(problem: Problem, steps: Floats, elapsed: Floats, isolated_elapsed: Floats) -> Floats:
    """Minimise the largest rho (section 4.2, after Themis).

    rho = (elapsed + steps / throughput(X)) / (isolated_elapsed + steps / throughput(X^isolated)), X^isolated being 1/n
    of the cluster for each of the n jobs. The throughput that a rho asks for is convex in rho, so a linear program with
    its tangents gives a lower bound of the optimum, where the next tangents are taken: Newton's method, from below.

    Args:
        problem: the jobs and GPUs.
        steps: left of one job of each class, shape (M,).
        elapsed: seconds since its start, shape (M,).
        isolated_elapsed: the same, had it had 1/n of the cluster, shape (M,).

    Returns:
        The variables.
    """
    able = (problem.fastest > 0) & (steps > 0)
    if not able.any():
        return make_the_most(problem, np.zeros(len(steps)), np.zeros(len(steps)))
    ideal = (isolated_elapsed + steps / np.where(able, isolated(problem), 1.0))[able]
    left, gone = steps[able], elapsed[able]
    matrix, bounds = problem.limits
    wider = sp.csr_array(sp.hstack([matrix, sp.csr_array((matrix.shape[0], 1))])), bounds
    throughput = problem.throughput[np.nonzero(able)[0]]
    gain = np.zeros(throughput.shape[1] + 1)
    gain[-1] = -1.0
    x = np.zeros(len(gain))
    rho = float(np.max((gone + left / problem.fastest[able]) / ideal))
    for _ in range(TURNS):
        needed = left / (rho * ideal - gone)
        slope = -needed * ideal / (rho * ideal - gone)
        unit = 1.0 / needed
        rows = sp.csr_array(sp.hstack([throughput.multiply(unit[:, None]), sp.csr_array((-slope * unit)[:, None])]))
        found = maximise(gain, wider, (rows, (needed - slope * rho) * unit))
        if found is None:
            raise UnsolvedError("no finish-time fairness is possible at all")
        rho, x = max(rho, -found.value), found.x
        if (throughput @ x[:-1] >= left / (rho * ideal - gone) * (1.0 - CLOSE)).all():
            break
    floors = np.zeros(len(steps))
    floors[able] = np.minimum(left / (rho * ideal - gone), throughput @ x[:-1])
    return make_the_most(problem, floors, np.where(able, 1.0 / np.where(floors > 0, floors, 1.0), 0.0))


def isolated(problem: Problem) -> Floats:
    """Throughput of one job with 1/n of every type's GPUs, n being the number of jobs, steps/s, shape (M,)."""
    share = problem.capacity[None, :] / problem.counts.sum() / problem.scale[:, None]
    time = share.sum(axis=1, keepdims=True)
    return np.asarray((problem.rates * share / np.maximum(time, 1.0)).sum(axis=1))


def water_filling(problem: Problem, weights: Weights) -> Floats:
    """Max-min fairness until nothing can grow (section 4.3): raise all, take out who is stuck, and again.

    A class whose price is positive in a max-min program is at the same level in all of its optima, so it cannot grow
    without another one's loss: no integer program is needed to find the bottlenecks, and every turn finds one.

    Args:
        problem: the jobs and GPUs.
        weights: given which classes still grow, shape (M,), 1.0 or 0.0, the weight of one job of each; a class with
            weight 0 keeps what it has until it is given one.

    Returns:
        The variables. The allocation is Pareto efficient.
    """
    growing = (problem.fastest > 0).astype(float)
    level = np.zeros(len(growing))  # throughput of one job, steps/s
    x = np.zeros(len(problem.columns[0]))
    while growing.any():
        weight = weights(growing)
        now = (growing > 0) & (weight > 0)
        if not now.any():
            break
        found = _raise(problem, level, weight, now)
        x = found.x
        gained = np.where(now, found.value / np.where(now, shares(problem, np.where(now, weight, 1.0)), 1.0), 0.0)
        level = level + np.maximum(gained, 0.0)
        stuck = now & (found.prices > SLACK)
        if not stuck.any():
            stuck = now
        growing = np.where(stuck, 0.0, growing)
    return x


def _raise(problem: Problem, level: Floats, weight: Floats, now: Bools) -> Solution:
    worth = shares(problem, np.where(now, weight, 1.0))
    return max_min(problem, worth, base=level * worth, among=now)
