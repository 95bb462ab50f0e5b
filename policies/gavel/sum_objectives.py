"""Objectives that are sums over the jobs: FIFO, shortest job first, throughput, and what it costs (section 4.2)."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from policies.gavel.problem import Floats, Problem
from policies.gavel.solve import SLACK, UnsolvedError, earlier, inverse, max_min, maximise


def in_order(problem: Problem, order: Floats) -> Floats:
    """FIFO (section 4.2): maximise the sum of throughput / throughput(X^fastest) x (M - m) x scale_factor.

    The paper has no scale factor here: eight jobs of one GPU would go before one of eight that came first. So a GPU's
    time counts by the place in the queue of whose it is, however many GPUs that job has.

    It is a sum: a job may have less, such as a slower type, where that gives those behind it more than it loses,
    counted so. Jobs are served strictly in order where types are alike and nobody shares GPUs.

    Args:
        problem: the jobs and GPUs; each class is one job.
        order: position of each job in the queue, from 0, shape (M,). By arrival it is FIFO; by duration on the fastest
            type it stands for shortest job first, of which the paper's own program minimises the duration of the
            shortest alone, and says nothing of the others.

    Returns:
        The variables.

    Raises:
        UnsolvedError: HiGHS gave up.
    """
    return _largest(problem, (len(order) - order) * problem.scale * inverse(problem.fastest))


def most(problem: Problem, worth: Floats) -> Floats:
    """Maximise the sum of all jobs' ``worth * throughput``, worth being of one job of each class, shape (M,).

    Of two that are worth the same, the one that came first goes first.

    Raises:
        UnsolvedError: HiGHS gave up.
    """
    return _largest(problem, worth * earlier(problem))


def _largest(problem: Problem, worth: Floats) -> Floats:
    found = maximise(problem.throughput.T @ (worth * problem.counts), problem.limits)
    if found is None:
        raise UnsolvedError("not even an empty allocation is possible")
    return found.x


def least_cost(problem: Problem, prices: Floats, needs: Floats, *, together: bool = False) -> tuple[Floats, Floats]:
    """Maximise throughput by cost, subject to what the jobs need (section 4.2).

    Throughputs are taken relative to the fastest type, so that a step of one job can be added to another's. A job that
    needs more than it can have alone is let off; where all needs together are not possible, each gets the largest
    common part of its own. Of two that are worth the same, the one that came first goes first.

    Args:
        problem: the jobs and GPUs.
        prices: of one GPU of each type for an hour, above 0; shape (J,).
        needs: throughput that one job of each class needs to meet its SLO, steps/s, 0.0 for none; shape (M,).
        together: whether it is the sum of throughputs over the sum of costs, the paper's formula; else the sum over all
            jobs of their throughput over its cost.

    Returns:
        The variables, and the needs that they meet.

    Raises:
        UnsolvedError: HiGHS gave up.
    """
    price = prices[problem.gpu_type]
    cost = price * problem.gpus
    worth = inverse(problem.fastest) * problem.counts
    gain, first = problem.throughput.T @ worth, problem.throughput.T @ (worth * earlier(problem))
    possible = np.minimum(needs, problem.fastest) * (needs <= problem.fastest * (1 + 1e-9))
    for part in (1.0, *_parts(problem, possible)):
        met = possible * part
        if together:
            x = _ratio(problem, gain, first, cost, met)
        else:
            found = maximise(first / (price * problem.width), problem.limits, (problem.throughput, met))
            x = None if found is None else found.x
        if x is not None:
            return x, met
    raise UnsolvedError("not even an allocation without needs is possible")


def _ratio(problem: Problem, gain: Floats, first: Floats, cost: Floats, needs: Floats) -> Floats | None:
    """The x >= 0 of the best ``gain @ x / cost @ x`` that is valid and meets the needs; None if there is none.

    Of all with this ratio it is the one with the most ``first @ x``.

    That is a ratio of linear functions; with y = x / cost and s = 1 / cost it is a linear program (Charnes and Cooper).
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
    found = maximise(np.append(gain, 0.0), (limits, at_most), (rows, np.zeros(len(needs))))
    if found is None:
        return None
    best = sp.csr_array((gain - found.value * (1.0 - SLACK) * cost)[None, :])
    rows = sp.csr_array(sp.vstack([problem.throughput, best]))
    largest = maximise(first, problem.limits, (rows, np.append(needs * (1.0 - SLACK), 0.0)))
    return None if largest is None else largest.x


def _parts(problem: Problem, needs: Floats) -> tuple[float, ...]:
    """The largest common part of all needs that is possible, and nothing."""
    asked = needs > 0
    if not asked.any():
        return (0.0,)
    return (min(1.0, max_min(problem, inverse(needs), among=asked).value) * (1 - 1e-6), 0.0)
