"""Linear programs over allocations, solved by HiGHS, in two stages.

A max-min program determines the throughput of the worst-off job alone, so its optimum depends on the solver, and GPUs
may idle. A second program keeps every class's throughput of the first and maximises the sum of all.

- ``maximise``: one linear program. ``maximise_above``: with lower bounds that an earlier program met up to rounding.
- ``max_min``: the first stage of the fairness objectives.
- ``second_stage``: the second stage, ties broken by arrival (``arrival_factor``).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from scipy.optimize import linprog

from metasched.core.errors import MetaschedError
from policies.gavel.problem import Bools, Floats, Problem

SLACK = 1e-7
"""Relative shortfall against an earlier program's value that is accepted, because of the solver's rounding."""
SLACKS = (SLACK, 1e-6, 1e-5, 1e-4)
"""Shortfalls to try one after the other: the first is also HiGHS's own tolerance, so it can be too small."""

TIE = 1e-3
"""Largest relative preference of a throughput for its job's earlier arrival. With 1000 classes, each is preferred to
the next by 10 tolerances of HiGHS."""
WIDE = 1e6
"""Largest ratio of gains that is scaled to 1 and above, so that the least gain is above HiGHS's tolerance."""

LARGE = 500
"""Number of variables above which HiGHS's interior point method is faster than its simplex method (measured)."""


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
    gain: Floats, limits: tuple[sp.csr_array, Floats], at_least: tuple[sp.csr_array, Floats] | None = None
) -> Solution | None:
    """Maximise ``gain @ x`` over x >= 0.

    Args:
        gain: the objective's coefficients, shape (variables,).
        limits: A and b of A x <= b.
        at_least: C and d of C x >= d; None for no lower bounds.

    Returns:
        The optimum; None where no x satisfies the constraints.

    Raises:
        UnsolvedError: HiGHS gave up.
    """
    matrix, bounds = limits
    unit = _unit(gain)
    if at_least is not None:
        matrix = sp.csr_array(sp.vstack([matrix, -at_least[0]]))
        bounds = np.concatenate([bounds, -at_least[1]])
    if not len(gain):
        feasible = at_least is None or bool((at_least[1] <= 0).all())
        return Solution(np.zeros(0), 0.0, np.zeros(0 if at_least is None else len(at_least[1]))) if feasible else None
    found = linprog(-gain / unit, A_ub=matrix, b_ub=bounds, method="highs-ipm" if len(gain) > LARGE else "highs-ds")
    if found.status == 2:  # noqa: PLR2004  scipy's code for infeasible
        return None
    if found.status != 0:
        raise UnsolvedError(f"HiGHS: {found.message}")
    prices = np.maximum(-found.ineqlin.marginals[limits[0].shape[0] :], 0.0)
    return Solution(np.maximum(found.x, 0.0), -found.fun * unit, prices * unit)


def _unit(gain: Floats) -> float:
    """The scale by which gains are divided, because HiGHS's tolerance is absolute."""
    size = np.abs(gain[gain != 0.0])
    return float(max(size.min(), size.max() / WIDE)) if len(size) else 1.0


def maximise_above(gain: Floats, limits: tuple[sp.csr_array, Floats], met: tuple[sp.csr_array, Floats]) -> Solution:
    """``maximise`` with lower bounds that an earlier program met up to its rounding.

    Raises:
        UnsolvedError: HiGHS gave up, or the bounds are infeasible even with the largest of ``SLACKS``.
    """
    rows, bounds = met
    for slack in SLACKS:
        found = maximise(gain, limits, (rows, bounds - slack * np.abs(bounds)))
        if found is not None:
            return found
    raise UnsolvedError("HiGHS: the throughputs that an earlier program reached are infeasible")


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
        return Solution(np.zeros(problem.throughput.shape[1]), 0.0, np.zeros(size))
    scaled = sp.csr_array(problem.throughput.multiply(factor[:, None]))
    matrix, bounds = problem.limits
    wider = sp.csr_array(sp.hstack([matrix, sp.csr_array((matrix.shape[0], 1))]))
    rows = sp.csr_array(sp.hstack([scaled, sp.csr_array(-counted[:, None])]))
    gain = np.zeros(wider.shape[1])
    gain[-1] = 1.0
    found = maximise_above(gain, (wider, bounds), (rows, base))
    return Solution(found.x[:-1], found.value, found.prices)


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
    rows = sp.csr_array(problem.throughput.multiply(relative[:, None]))
    return maximise_above(problem.throughput.T @ factor, problem.limits, (rows, floors * relative)).x


def arrival_factor(problem: Problem) -> Floats:
    """Factor on each class's gain that breaks ties by arrival, which is the order of the classes; shape (M,)."""
    size = len(problem.rates)
    return 1.0 + TIE * (1.0 - np.arange(size) / max(size, 1))


def inverse(values: Floats) -> Floats:
    """1 / value of each; 0 where the value is not above 0."""
    return np.where(values > 0, 1.0 / np.where(values > 0, values, 1.0), 0.0)
