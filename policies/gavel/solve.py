"""Linear programs over allocations, solved by HiGHS, in two stages.

A max-min program determines the throughput of the worst-off job alone, so its optimum depends on the solver, and GPUs
may idle. A second program keeps every class's throughput of the first and maximises the sum of all.

- ``maximise``: one linear program. ``maximise_above``: with lower bounds that an earlier program met up to rounding.
- ``max_min``: the first stage of the fairness objectives.
- ``second_stage``: the second stage, ties broken by arrival (``arrival_factor``).

HiGHS's tolerances are absolute, and weights, steps and speeds span ten orders of magnitude and more. Programs are
therefore scaled: a variable is in units of the time that its jobs need for an objective of 1 (``column_units``), and
rows are divided by the size of their right-hand sides.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from scipy.optimize import linprog

from metasched.core.errors import MetaschedError
from policies.gavel.merged_classes import MergedClasses
from policies.gavel.problem import Bools, Floats, Problem

INFEASIBLE = 2
"""SciPy's status of a program without a solution."""

SLACK = 1e-7
"""Relative shortfall against an earlier program's value that is accepted, because of the solver's rounding."""
SLACKS = (SLACK, 1e-6, 1e-5, 1e-4)
"""Shortfalls to try one after the other: the first is also HiGHS's own tolerance, so it can be too small."""

TIE = 1e-3
"""Largest relative preference of a throughput for its job's earlier arrival. With 1000 classes, each is preferred to
the next by 10 tolerances of HiGHS."""
WIDE = 1e6
"""Largest ratio of gains that is scaled to 1 and above, so that the least gain is above HiGHS's tolerance."""

SMALLEST_UNIT = 1e-6
"""Smallest unit of a variable, a fraction of the time: HiGHS takes coefficients up to 1e-9 for 0."""

GAIN = 1e-3
"""Fraction of its highest throughput that a class gains at most where it only matters whether it gains anything."""

LARGE = 500
"""Number of variables above which HiGHS's interior point method is faster than its simplex method (measured)."""
METHODS = ("highs-ds", "highs-ipm")
"""HiGHS's simplex method for small programs, and its interior point method for large ones."""


class UnsolvedError(MetaschedError):
    """HiGHS found no optimum of a program that should have one."""


class Solution(NamedTuple):
    """An optimum of a linear program.

    Attributes:
        x: the variables.
        value: value of the objective.
        prices: growth of the value per unit by which each lower bound falls (dual values); not negative; shape (rows of
            ``at_least``,).
    """

    x: Floats
    value: float
    prices: Floats


def maximise(
    gain: Floats,
    limits: tuple[sp.csr_array, Floats],
    at_least: tuple[sp.csr_array, Floats] | None = None,
    *,
    units: Floats | None = None,
    robust: bool = False,
) -> Solution | None:
    """Maximise ``gain @ x`` over x >= 0.

    Args:
        gain: the objective's coefficients, shape (variables,).
        limits: A and b of A x <= b.
        at_least: C and d of C x >= d; None for no lower bounds.
        units: unit in which HiGHS computes each variable, above 0, shape (variables,); 1 by default.
        robust: whether HiGHS's other method is used first, and then both methods without presolve.

    Returns:
        The optimum; None where no x satisfies the constraints.

    Raises:
        UnsolvedError: HiGHS gave up.
    """
    matrix, bounds = limits
    if at_least is not None:
        matrix = sp.csr_array(sp.vstack([matrix, -at_least[0]]))
        bounds = np.concatenate([bounds, -at_least[1]])
    if not len(gain):
        feasible = at_least is None or bool((at_least[1] <= 0).all())
        return Solution(np.zeros(0), 0.0, np.zeros(0 if at_least is None else len(at_least[1]))) if feasible else None
    if units is not None:
        matrix, gain = sp.csr_array(matrix.multiply(units[None, :])), gain * units
    # Rows of limits whose coefficients are all small would be met within HiGHS's tolerance by values that break them.
    rows = np.ones(len(bounds))
    rows[: limits[0].shape[0]] = _row_factors(matrix)[: limits[0].shape[0]]
    unit = _unit(gain)
    found = _solved(-gain / unit, sp.csr_array(matrix.multiply(rows[:, None])), bounds * rows, robust=robust)
    if found is None:
        return None
    prices = np.maximum(-found.ineqlin.marginals[limits[0].shape[0] :], 0.0)
    x = np.maximum(found.x, 0.0)
    return Solution(x if units is None else x * units, -found.fun * unit, prices * unit)


def _solved(cost: Floats, matrix: sp.csr_array, bounds: Floats, *, robust: bool) -> Any:
    """SciPy's result for the minimum of ``cost @ x`` with ``matrix @ x <= bounds``; None where there is no such x.

    Raises:
        UnsolvedError: HiGHS gave up, with all methods that may be tried.
    """
    usual, other = METHODS if len(cost) <= LARGE else METHODS[::-1]
    attempts = [(other, {}), (usual, {"presolve": False}), (other, {"presolve": False})] if robust else [(usual, {})]
    why = ""
    for method, options in attempts:
        try:
            found = linprog(cost, A_ub=matrix, b_ub=bounds, method=method, **({"options": options} if options else {}))
        except ValueError as error:  # coefficients that are not finite
            raise UnsolvedError(f"HiGHS: {error}") from error
        if found.status == INFEASIBLE:
            return None
        if found.status == 0:
            return found
        why = found.message
    raise UnsolvedError(f"HiGHS: {why}")


def _row_factors(matrix: sp.csr_array) -> Floats:
    """Factor on each row, at least 1, by which its largest coefficient is at least 1; 1 for rows of zeros."""
    largest = abs(matrix).max(axis=1).toarray().ravel()
    return np.asarray(np.where((largest > 0) & (largest < 1), 1.0 / np.where(largest > 0, largest, 1.0), 1.0))


def _unit(gain: Floats) -> float:
    """The scale by which gains are divided, because HiGHS's tolerance is absolute."""
    size = np.abs(gain[gain != 0.0])
    return float(max(size.min(), size.max() / WIDE)) if len(size) else 1.0


def maximise_above(
    gain: Floats,
    limits: tuple[sp.csr_array, Floats],
    met: tuple[sp.csr_array, Floats],
    *,
    units: Floats | None = None,
    robust: bool = False,
) -> Solution:
    """``maximise`` with lower bounds that an earlier program met up to its rounding.

    Raises:
        UnsolvedError: HiGHS gave up, or the bounds are infeasible even with the largest of ``SLACKS``.
    """
    rows, bounds = met
    why = UnsolvedError("HiGHS: the throughputs that an earlier program reached are infeasible")
    for slack in SLACKS:
        try:
            found = maximise(gain, limits, (rows, bounds - slack * np.abs(bounds)), units=units, robust=robust)
        except UnsolvedError as error:  # HiGHS also gives up where the bounds are infeasible by about its tolerance
            why = error
            continue
        if found is not None:
            return found
    raise why


def column_units(problem: Problem, time: Floats) -> Floats:
    """Unit of each variable, shape (variables,), from the time that one job of each class has in about every optimum.

    Args:
        problem: the jobs and GPUs.
        time: fraction of its time that one job of each class has, shape (M,); up to a factor that all have in common.

    Returns:
        Units from ``SMALLEST_UNIT`` to 1. That of a pair is the geometric mean of its classes', and that of a pool's
        time the largest of its parts'.
    """
    units, pools = np.clip(time, SMALLEST_UNIT, 1.0), problem.pools
    of_pools = np.zeros(len(pools.single_kind))
    np.maximum.at(of_pools, pools.pool, units[pools.member])
    of_pairs = np.sqrt(units[problem.pairs.first] * units[problem.pairs.second])
    return np.asarray(np.concatenate([units, of_pairs, of_pools, units[pools.member]])[problem.columns[0]])


def max_min(problem: Problem, factor: Floats, base: Floats | None = None, among: Bools | None = None) -> Solution:
    """Maximise the minimum of ``factor * throughput - base`` over the classes.

    Args:
        problem: the jobs and GPUs.
        factor: factor on the throughput of one job of each class; shape (M,).
        base: value that each class has already; shape (M,); zeros by default.
        among: whether the minimum is over a class, shape (M,), bool; all by default. The others keep at least their
            base.

    Returns:
        The solution; its value is the minimum, its prices are those of the classes: a class with a price above 0 has no
        more in any optimum. Zeros where the minimum is over no class.

    Raises:
        UnsolvedError: HiGHS gave up.
    """
    size = len(factor)
    base = np.zeros(size) if base is None else base
    counted = np.ones(size) if among is None else among.astype(float)
    if not counted.any():
        return Solution(np.zeros(len(problem.columns[0])), 0.0, np.zeros(size))
    merged = MergedClasses.merge(problem, (factor, base, counted))
    if merged is not None:
        first = merged.first
        found = max_min(merged.problem, factor[first], merged.least(base), counted[first] > 0)
        return Solution(merged.spread(found.x), found.value, found.prices[merged.of])
    whole = factor * problem.fastest  # value of a job that has all of its time
    longest = float(np.max(inverse(whole), where=counted > 0, initial=0.0))
    unit = longest if 0 < longest < np.inf else 1.0
    units = column_units(problem, np.where(counted > 0, inverse(whole * unit), base * inverse(whole)))
    # A class gains at most about 1 for a unit of its time. A base that is larger, or is only kept, is brought to 1.
    sizes = np.where(counted > 0, np.maximum(base, 1.0 / unit), np.maximum(base, SMALLEST_UNIT * whole))
    rows = inverse(sizes)
    scaled = sp.csr_array(problem.throughput.multiply((factor * rows)[:, None]))
    matrix, bounds = problem.limits
    wider = sp.csr_array(sp.hstack([matrix, sp.csr_array((matrix.shape[0], 1))]))
    lower = sp.csr_array(sp.hstack([scaled, sp.csr_array((-counted * rows)[:, None])]))
    gain = np.zeros(wider.shape[1])
    gain[-1] = 1.0
    found = maximise_above(
        gain, (wider, bounds), (lower, base * rows), units=np.append(units, 1.0 / unit), robust=problem.robust
    )
    return Solution(found.x[:-1], found.value, found.prices * rows)


def reach(problem: Problem, floors: Floats) -> Floats | None:
    """An allocation in which every class has at least its floor.

    Args:
        problem: the jobs and GPUs.
        floors: throughput of one job of each class, steps/s, shape (M,).

    Returns:
        The variables; None where there is no such allocation, or HiGHS finds none.
    """
    merged = MergedClasses.merge(problem, (floors,))
    if merged is not None:
        x = reach(merged.problem, merged.least(floors))
        return None if x is None else merged.spread(x)
    wanted = np.nonzero(floors > 0)[0]
    lower = sp.csr_array(problem.throughput[wanted].multiply(1.0 / floors[wanted, None]))
    units = column_units(problem, floors * inverse(problem.fastest))
    met = (lower, np.full(len(wanted), 1.0 - SLACK))
    try:
        found = maximise(np.zeros(len(units)), problem.limits, met, units=units, robust=problem.robust)
    except UnsolvedError:
        return None
    return None if found is None else found.x


def first_gains(problem: Problem, floors: Floats, growing: Bools) -> Floats:
    """Maximise the sum of gains, each up to ``GAIN``, with every class at its floor at least.

    Args:
        problem: the jobs and GPUs.
        floors: throughput of one job of each class, steps/s, shape (M,).
        growing: which classes may gain, shape (M,).

    Returns:
        What one job of each class gains, as a fraction of its highest throughput, shape (M,).

    Raises:
        UnsolvedError: HiGHS gave up.
    """
    merged = MergedClasses.merge(problem, (floors, growing.astype(float)))
    if merged is not None:
        return first_gains(merged.problem, merged.least(floors), growing[merged.first])[merged.of]
    peak, size = inverse(problem.peak), len(floors)
    matrix, bounds = problem.limits
    gainers = np.nonzero(growing)[0]
    columns = sp.csr_array((np.ones(len(gainers)), (gainers, np.arange(len(gainers)))), shape=(size, len(gainers)))
    wider = sp.csr_array(sp.block_diag([matrix, sp.eye_array(len(gainers))]))
    lower = sp.csr_array(sp.hstack([problem.throughput.multiply(peak[:, None]), -columns]))
    gain = np.concatenate([np.zeros(matrix.shape[1]), np.ones(len(gainers))])
    limits = wider, np.concatenate([bounds, np.full(len(gainers), GAIN)])
    found = maximise_above(gain, limits, (lower, floors * peak), robust=problem.robust)
    return np.asarray(columns @ found.x[matrix.shape[1] :])


def second_stage(problem: Problem, floors: Floats, weights: Floats | None = None) -> Floats:
    """Maximise the sum of all jobs' throughputs, with every class's throughput at least at its floor.

    In the sum, each throughput is relative to that on the job's fastest worker type, times the job's weight; of two
    jobs that contribute equally, the one that arrived first is preferred.

    Args:
        problem: the jobs and GPUs.
        floors: throughput of one job of each class, steps/s, that the first stage reached; shape (M,).
        weights: weight of one job of each class, shape (M,), above 0; equal by default.

    Returns:
        The variables.

    Raises:
        UnsolvedError: HiGHS gave up.
    """
    relative = inverse(problem.fastest)
    factor = relative * problem.counts * arrival_factor(problem) * (1.0 if weights is None else weights)
    # Each floor counts relative to itself, or to the least part of a job's speed that is worth keeping.
    rows = relative / np.maximum(floors * relative, SMALLEST_UNIT)
    lower = sp.csr_array(problem.throughput.multiply(rows[:, None]))
    return maximise_above(
        problem.throughput.T @ factor, problem.limits, (lower, floors * rows), robust=problem.robust
    ).x


def arrival_factor(problem: Problem) -> Floats:
    """Factor on each class's gain that breaks ties by arrival, which is the order of the classes; shape (M,)."""
    size = len(problem.rates)
    return 1.0 + TIE * (1.0 - np.arange(size) / max(size, 1))


def inverse(values: Floats) -> Floats:
    """1 / value of each; 0 where the value is not above 0."""
    return np.where(values > 0, 1.0 / np.where(values > 0, values, 1.0), 0.0)
