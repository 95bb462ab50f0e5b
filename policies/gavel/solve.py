"""Linear programs over allocations, solved by HiGHS; and the two stages that make an optimum unique enough.

A max-min program fixes only the worst job, so its optimum depends on the solver, and GPUs may idle. A second stage
keeps the first one's value and makes the most of what is left.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from scipy.optimize import linprog

from metasched.core.errors import MetaschedError
from policies.gavel.problem import Bools, Floats, Problem

SLACK = 1e-7
"""Relative: by so much a later stage may fall short of an earlier one's value; a solver's rounding asks for it."""
SLACKS = (SLACK, 1e-6, 1e-5, 1e-4)
"""One after the other: the first is also HiGHS's own tolerance, so that it can be too little."""

TIE = 1e-3
"""Relative: so much more at most a throughput counts for having come first; of 1000 classes, each 10 tolerances of
HiGHS more than the next."""
WIDE = 1e6
"""Gains that are further apart than this are taken to be so far apart: the least is to be above HiGHS's tolerance."""

LARGE = 500
"""From so many variables on, HiGHS's interior point method is faster than its simplex method (measured)."""


class UnsolvedError(MetaschedError):
    """HiGHS found no optimum of a program that has one."""


class Solution(NamedTuple):
    """An optimum.

    Attributes:
        x: the variables.
        value: of what was maximised.
        prices: how much the value would grow with each lower bound's fall; not negative; shape (rows of ``at_least``,).
    """

    x: Floats
    value: float
    prices: Floats


def maximise(
    gain: Floats, limits: tuple[sp.csr_array, Floats], at_least: tuple[sp.csr_array, Floats] | None = None
) -> Solution | None:
    """Maximise ``gain @ x`` over x >= 0 with A x <= b for ``limits``, C x >= d for ``at_least``; None if impossible.

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
    if found.status == 2:  # noqa: PLR2004  scipy's word for infeasible
        return None
    if found.status != 0:
        raise UnsolvedError(f"HiGHS: {found.message}")
    prices = np.maximum(-found.ineqlin.marginals[limits[0].shape[0] :], 0.0)
    return Solution(np.maximum(found.x, 0.0), -found.fun * unit, prices * unit)


def _unit(gain: Floats) -> float:
    """What the gains are divided by: HiGHS's tolerance is absolute, and tells no gains apart that are small to it."""
    size = np.abs(gain[gain != 0.0])
    return float(max(size.min(), size.max() / WIDE)) if len(size) else 1.0


def keeping(gain: Floats, limits: tuple[sp.csr_array, Floats], met: tuple[sp.csr_array, Floats]) -> Solution:
    """``maximise`` with lower bounds that an earlier program met, but for its rounding.

    Raises:
        UnsolvedError: HiGHS gave up, or they are not possible by far.
    """
    rows, bounds = met
    for slack in SLACKS:
        found = maximise(gain, limits, (rows, bounds - slack * np.abs(bounds)))
        if found is not None:
            return found
    raise UnsolvedError("what an earlier program met is not possible any more")


def max_min(problem: Problem, worth: Floats, base: Floats | None = None, among: Bools | None = None) -> Solution:
    """Maximise the least of ``worth * throughput - base`` over the classes, and say which of them decide.

    Args:
        problem: the jobs and GPUs.
        worth: factor on each class's throughput; shape (M,).
        base: what a class has already; shape (M,); zeros by default.
        among: whether a class counts, shape (M,), bool; all by default. The others keep at least their base.

    Returns:
        The solution; its value is the least surplus, its prices are those of the classes. Nothing, where none counts.

    Raises:
        UnsolvedError: HiGHS gave up.
    """
    size = len(worth)
    base = np.zeros(size) if base is None else base
    counted = np.ones(size) if among is None else among.astype(float)
    if not counted.any():
        return Solution(np.zeros(problem.throughput.shape[1]), 0.0, np.zeros(size))
    scaled = sp.csr_array(problem.throughput.multiply(worth[:, None]))
    matrix, bounds = problem.limits
    wider = sp.csr_array(sp.hstack([matrix, sp.csr_array((matrix.shape[0], 1))]))
    rows = sp.csr_array(sp.hstack([scaled, sp.csr_array(-counted[:, None])]))
    gain = np.zeros(wider.shape[1])
    gain[-1] = 1.0
    found = keeping(gain, (wider, bounds), (rows, base))
    return Solution(found.x[:-1], found.value, found.prices)


def make_the_most(problem: Problem, floors: Floats, weights: Floats | None = None) -> Floats:
    """The second stage: keep every class's throughput at its floor, and make the most of what is left.

    That is the largest sum of all jobs' throughputs, each relative to the job's on its fastest type and times its
    weight; of two that are worth the same, the one that came first goes first.

    Args:
        problem: the jobs and GPUs.
        floors: throughput of one job of each class, steps/s, that is possible; shape (M,).
        weights: of one job of each class, shape (M,), above 0; all the same by default.

    Returns:
        The variables.

    Raises:
        UnsolvedError: HiGHS gave up.
    """
    relative = inverse(problem.fastest)
    worth = relative * problem.counts * earlier(problem) * (1.0 if weights is None else weights)
    rows = sp.csr_array(problem.throughput.multiply(relative[:, None]))
    return keeping(problem.throughput.T @ worth, problem.limits, (rows, floors * relative)).x


def earlier(problem: Problem) -> Floats:
    """Factor on what each class gains that breaks ties by arrival, the order of the classes; shape (M,)."""
    size = len(problem.rates)
    return 1.0 + TIE * (1.0 - np.arange(size) / max(size, 1))


def inverse(values: Floats) -> Floats:
    """One over each; 0 where it is not above 0."""
    return np.where(values > 0, 1.0 / np.where(values > 0, values, 1.0), 0.0)
