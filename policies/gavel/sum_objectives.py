"""Objectives that are sums over jobs: FIFO, shortest job first, throughput, cost (Gavel, OSDI 2020, section 4.2)."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from policies.gavel.problem import Floats, Problem
from policies.gavel.solve import SLACK, UnsolvedError, arrival_factor, inverse, max_min, maximise


def in_order(problem: Problem, order: Floats) -> Floats:
    """FIFO (section 4.2): maximise the sum of throughput / throughput(X^fastest) x (M - m) x scale_factor.

    Deviation: the paper has no scale factor here. Without it, eight later jobs of one GPU would precede one of eight
    GPUs. With it, a GPU's time counts by its job's position in the queue, whatever the job's number of GPUs.

    The objective is a sum: a job gets a slower type where the jobs behind it gain more, counted by their factors, than
    it loses. Jobs are served strictly in order where types are alike and no GPUs are shared.

    Args:
        problem: the jobs and GPUs; each class is one job.
        order: position of each job in the queue, from 0, shape (M,). By arrival: FIFO. By duration on the fastest type:
            shortest job first, for which the paper's own program minimises the duration of the shortest job alone.

    Returns:
        The variables.

    Raises:
        UnsolvedError: HiGHS gave up.
    """
    return _largest(problem, (len(order) - order) * problem.scale * inverse(problem.fastest))


def total_throughput(problem: Problem, factor: Floats) -> Floats:
    """Maximise the sum of ``factor * throughput`` over all jobs; among equal contributions, the first to arrive.

    Args:
        problem: the jobs and GPUs.
        factor: factor on the throughput of one job of each class, shape (M,).

    Returns:
        The variables.

    Raises:
        UnsolvedError: HiGHS gave up.
    """
    return _largest(problem, factor * arrival_factor(problem))


def _largest(problem: Problem, factor: Floats) -> Floats:
    found = maximise(problem.throughput.T @ (factor * problem.counts), problem.limits, robust=problem.robust)
    if found is None:
        raise UnsolvedError("not even an empty allocation is possible")
    return found.x


def least_cost(problem: Problem, prices: Floats, needs: Floats, *, together: bool = False) -> tuple[Floats, Floats]:
    """Maximise throughput per cost, with the throughputs that deadlines require (section 4.2).

    Throughputs are relative to each job's fastest type, because steps of different jobs cannot be added. A job that
    requires more than it can have alone is exempt. Where not all requirements can be met together, each job gets the
    largest common fraction of its own. Among equal contributions, the first job to arrive is preferred.

    Args:
        problem: the jobs and GPUs.
        prices: price of one GPU of each GPU type for an hour, above 0; shape (GPU types,).
        needs: throughput that one job of each class requires to meet its SLO, steps/s, 0.0 for none; shape (M,).
        together: whether to maximise the sum of throughputs over the sum of costs, the paper's formula; else the sum
            over all jobs of throughput over cost.

    Returns:
        The variables, and the requirements that they meet, steps/s, shape (M,).

    Raises:
        UnsolvedError: HiGHS gave up.
    """
    price = prices[problem.gpu_type]
    cost = price * problem.gpus
    factor = inverse(problem.fastest) * problem.counts
    gain, first = problem.throughput.T @ factor, problem.throughput.T @ (factor * arrival_factor(problem))
    possible = np.minimum(needs, problem.fastest) * (needs <= problem.fastest * (1 + 1e-9))
    for part in (1.0, *_fractions(problem, possible)):
        met = possible * part
        if together:
            x = _ratio(problem, gain, first, cost, met)
        else:
            lower = problem.throughput, met
            found = maximise(first / (price * problem.width), problem.limits, lower, robust=problem.robust)
            x = None if found is None else found.x
        if x is not None:
            return x, met
    raise UnsolvedError("not even an allocation without needs is possible")


def _ratio(problem: Problem, gain: Floats, first: Floats, cost: Floats, needs: Floats) -> Floats | None:
    """The valid x with the largest ``gain @ x / cost @ x`` that meets the needs; None if there is none.

    Among equal ratios, the x with the largest ``first @ x``. The ratio of linear functions becomes a linear program
    with y = x / cost and s = 1 / cost (Charnes and Cooper).
    """
    if not len(gain):
        return np.zeros(0)
    matrix, bounds = problem.limits
    # A y <= b s, cost @ y = 1 (<= will do: y and s can be stretched), throughput y >= needs s
    limits = sp.csr_array(
        sp.vstack(
            [
                sp.hstack([matrix, sp.csr_array(-bounds[:, None])]),
                sp.hstack([sp.csr_array(cost[None, :]), sp.csr_array((1, 1))]),
            ]
        )
    )
    at_most = np.zeros(limits.shape[0])
    at_most[-1] = 1.0
    rows = sp.csr_array(sp.hstack([problem.throughput, sp.csr_array(-needs[:, None])]))
    lower = rows, np.zeros(len(needs))
    found = maximise(np.append(gain, 0.0), (limits, at_most), lower, robust=problem.robust)
    if found is None:
        return None
    best = sp.csr_array((gain - found.value * (1.0 - SLACK) * cost)[None, :])
    rows = sp.csr_array(sp.vstack([problem.throughput, best]))
    lower = rows, np.append(needs * (1.0 - SLACK), 0.0)
    largest = maximise(first, problem.limits, lower, robust=problem.robust)
    return None if largest is None else largest.x


def _fractions(problem: Problem, needs: Floats) -> tuple[float, ...]:
    """Fractions of all needs to try: the largest common one that is feasible, and 0."""
    asked = needs > 0
    if not asked.any():
        return (0.0,)
    return (min(1.0, max_min(problem, inverse(needs), among=asked).value) * (1 - 1e-6), 0.0)
