"""A direct search for the allocation with the highest fitness: amounts by prices first, then nodes, then improvement.

The sum that the fitness maximises is separable in the jobs. At a price of a GPU, every job has a best amount of its
own; the price at which the amounts just fit into the cluster gives amounts that are optimal but for the jobs' steps
(the Lagrangian relaxation of the nodes' capacities). Jobs are then placed on nodes, and single neighbourhoods of nodes
are emptied and filled again where that raises the sum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from policies.pollux.allocation_problem import AllocationProblem, Floats, Ints
from policies.pollux.fitness import contributions
from policies.pollux.partial_allocation import EPSILON, PartialAllocation
from policies.pollux.speedup_table import ONE_NODE

HALVINGS = 50
LEAST_PRICE = 1e-45
"""The lowest price that is told from 0, relative to the highest: contributions span many orders of magnitude."""

MOST_EMPTIED = 3
OTHERS = 3
"""A neighbourhood: the nodes that are emptied, at most, and the jobs elsewhere that are removed with theirs."""

PRICE_RANGE = (0.6, 1.4)
"""The prices at which a neighbourhood is filled again, relative to the clearing prices."""

PRICE_SWEEPS = 3
"""Sweeps over the GPU types' prices, each by bisection while the other prices hold."""


def greedy_allocation(problem: AllocationProblem, allocation: Ints | None = None) -> Ints:
    """An allocation whose free GPUs are given, node by node, to the jobs that gain the most by each of them.

    Args:
        problem: the problem.
        allocation: the allocation to begin with; rows that no longer fit are dropped. None for an empty one.
    """
    found = PartialAllocation(problem, allocation)
    found.fill(range(len(problem.node_gpus)))
    return found.matrix()


def direct_search(problem: AllocationProblem, *, seed: int, improvements: int, starts: Sequence[Ints] = ()) -> Ints:
    """The best allocation found.

    Args:
        problem: the problem.
        seed: the seed of the neighbourhoods' choice. Equal arguments give equal answers.
        improvements: how many neighbourhoods are tried.
        starts: allocations to begin with, such as the last answer; rows that do not fit are dropped.

    Returns:
        GPUs by job and node; never worse than the present allocation, ``starts`` and their greedy completions.
    """
    order = np.array(sorted(range(len(problem.keys)), key=problem.keys.__getitem__), dtype=np.int64)
    sorted_problem = problem.reordered(order)
    found = _search(sorted_problem, seed, improvements, [start[order] for start in starts])
    answer = np.empty_like(found)
    answer[order] = found
    return answer


def _search(problem: AllocationProblem, seed: int, improvements: int, starts: Sequence[Ints]) -> Ints:
    prices = clearing_prices(problem)
    begun = [_placed(problem, prices)]
    for start in (problem.present, *starts, None):
        found = PartialAllocation(problem, start)
        found.fill(range(len(problem.node_gpus)))
        begun.append(found)
    best = max(begun, key=lambda one: problem.fitness(one.matrix()))
    _improve(best, prices, np.random.default_rng(seed), improvements)
    return best.matrix()


def clearing_prices(problem: AllocationProblem) -> Floats:
    """For each GPU type, the lowest price of a GPU at which the jobs' best amounts fit into the cluster."""
    free = problem.node_gpus - problem.present[problem.pinned].sum(axis=0)
    types = problem.speedups.shape[1]
    capacity = np.bincount(problem.node_types, weights=free, minlength=types)
    amounts = _amount_values(problem)
    highest = float(np.ptp(np.where(np.isfinite(amounts), amounts, problem.idle_values[:, None, None]))) + 1.0
    prices = np.zeros(types)
    for _ in range(PRICE_SWEEPS if types > 1 else 1):
        for number in range(types):
            low, high = LEAST_PRICE * highest, highest
            prices[number] = 0.0
            if _demand(problem, amounts, prices)[number] <= capacity[number]:
                continue
            for _ in range(HALVINGS):
                prices[number] = math.sqrt(low) * math.sqrt(high)
                fits = _demand(problem, amounts, prices)[number] <= capacity[number]
                low, high = (low, prices[number]) if fits else (prices[number], high)
            prices[number] = high
    return prices


def fitness_bound(problem: AllocationProblem) -> float:
    """A fitness that no allocation exceeds: that of the jobs' best amounts at the clearing prices (weak duality)."""
    free = problem.node_gpus - problem.present[problem.pinned].sum(axis=0)
    prices = clearing_prices(problem)
    amounts = _amount_values(problem)
    scores = (amounts - prices[:, None] * np.arange(amounts.shape[-1])).max(axis=(1, 2), initial=-np.inf)
    best = np.maximum(scores, problem.idle_values)
    pinned = problem.weights * contributions(problem.speedups_of(problem.present), problem.p)
    total = float(np.where(problem.pinned, pinned, best).sum() + prices[problem.node_types] @ free)
    mean = total / float(problem.weights.sum())
    return float(np.exp(mean)) if problem.p == 0 else float(abs(mean) ** (1.0 / problem.p))


def _amount_values(problem: AllocationProblem) -> Floats:
    """J x T x (G + 1), what each amount adds on its best placement; -infinity for pinned jobs."""
    types = problem.speedups.shape[1]
    widest = np.array([problem.node_gpus[problem.node_types == number].max(initial=0) for number in range(types)])
    gpus = np.arange(problem.speedups.shape[-1])
    on_one_node = np.where(gpus <= widest[:, None], problem.values[:, :, ONE_NODE], -np.inf)
    found = np.maximum(on_one_node, problem.values[:, :, 1 - ONE_NODE])
    found[problem.pinned] = -np.inf
    held = np.flatnonzero(~problem.pinned & np.isfinite(problem.present_values))
    held_types = problem.node_types[np.argmax(problem.present[held] > 0, axis=1)]
    amounts = problem.present[held].sum(axis=1)
    found[held, held_types, amounts] = np.maximum(found[held, held_types, amounts], problem.present_values[held])
    return np.asarray(found)


def _demand(problem: AllocationProblem, amounts: Floats, prices: Floats) -> Floats:
    """For each GPU type, the GPUs of the jobs' best amounts at prices."""
    gpus = np.arange(amounts.shape[-1])
    scores = (amounts - prices[:, None] * gpus).reshape(len(amounts), -1)
    best = np.argmax(scores, axis=1)
    runs = scores[np.arange(len(scores)), best] > problem.idle_values
    types, wanted = np.divmod(best, len(gpus))
    return np.bincount(types, weights=(wanted * runs).astype(float), minlength=len(prices)).astype(float)


def _placed(problem: AllocationProblem, prices: Floats) -> PartialAllocation:
    """Jobs placed at prices: those that keep their allocation first, then those that want the most GPUs."""
    found = PartialAllocation(problem)
    none_free = prices * 0.0
    wishes = []
    for job in np.flatnonzero(~problem.pinned).tolist():
        wish = found.best_option(job, prices)
        keeps = wish.value == problem.present_values[job]
        wishes.append((not keeps, -sum(wish.where.gpus), job))
    waiting = []
    for _, _, job in sorted(wishes):
        option = found.best_option(job, prices)
        found.place(job, option.where)
        if not option.where.nodes:
            waiting.append(job)
    for job in waiting:
        found.place(job, found.best_option(job, none_free).where)
    found.fill(range(len(problem.node_gpus)))
    return found


def _improve(found: PartialAllocation, prices: Floats, rng: np.random.Generator, improvements: int) -> None:
    """Empty and fill single neighbourhoods again.

    A change that lowers the sum is undone, and one that only moves more jobs.
    """
    problem = found.problem
    jobs, nodes = problem.present.shape
    movable = ~problem.pinned
    for _ in range(improvements if nodes and movable.any() else 0):
        chosen = rng.choice(nodes, min(int(rng.integers(1, MOST_EMPTIED + 1)), nodes), replace=False)
        removed = {job for node in chosen for job in found.residents[node]} | set(
            rng.integers(0, jobs, OTHERS).tolist()
        )
        order = sorted(job for job in removed if movable[job])
        before = {job: found.where[job] for job in order}
        values = found.value.copy()
        for job in order:
            found.remove(job)
        around = prices * rng.uniform(*PRICE_RANGE)
        for job in rng.permutation(order).tolist():
            found.place(job, found.best_option(job, around).where)
        touched = {node for where in before.values() for node in where.nodes}
        touched.update(*(found.where[job].nodes for job in order))
        found.fill(sorted(touched), before)
        changed = list(before)
        gain = float((found.value[changed] - values[changed]).sum())
        moves = sum(found.moved(job, found.where[job]) - found.moved(job, where) for job, where in before.items())
        equal = EPSILON * float(np.abs(values[changed]).sum())
        if gain < -equal or (gain <= equal and moves > 0):
            for job in changed:
                found.remove(job)
            for job, where in before.items():
                found.place(job, where)
