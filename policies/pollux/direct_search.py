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

MOST_EMPTIED = 3
OTHERS = 3
"""A neighbourhood: the nodes that are emptied, at most, and the jobs elsewhere that are removed with theirs."""

PRICE_RANGE = (0.6, 1.4)
"""The prices at which a neighbourhood is filled again, relative to the clearing prices."""

LEAST_PRICE = 1e-45
"""The lowest price that is told from 0, relative to the highest: contributions span many orders of magnitude."""

PRICE_MARGIN = 1e-6
"""The part by which a price is lowered to find the jobs whose amounts change there."""

PRICE_STEP, PRICE_PRECISION = 16.0, 1.0 + 1e-9
"""The ratio by which a common price is raised until the demand fits, and that within which it is then found."""

TYPE_STEPS = tuple(2.0**-halvings for halvings in range(8))
"""The steps by which the logarithms of single GPU types' prices are varied, one after the other."""

MOST_VARIATIONS = 300
"""Variations of single types' prices, at most."""

OPTIMAL = 1e-4
"""The relative distance from a bound of all allocations at which nothing is improved any more."""

PATIENCE = 0.5
"""The part of all improvements after which, without any gain, no more are tried."""


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
        improvements: how many neighbourhoods are tried, at most: fewer where the answer is optimal, up to rounding, or
            where none of the last half has raised the fitness.
        starts: allocations to begin with, such as the last answer; rows that do not fit are dropped.

    Returns:
        GPUs by job and node; never worse than the present allocation, ``starts`` and their greedy completions.
    """
    if not problem.present.size:
        return problem.present
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


def _is_optimal(found: PartialAllocation, bound: float) -> bool:
    """Whether no allocation of the jobs that are not pinned has a noticeably higher sum; ``bound`` is their dual."""
    free = ~found.problem.pinned
    values, idle = found.value[free], found.problem.idle_values[free]
    return bound - float(values.sum()) <= OPTIMAL * float(np.abs(values[values > idle]).sum())


def clearing_prices(problem: AllocationProblem) -> Floats:
    """For each GPU type, the price of a GPU at which the jobs' best amounts (almost) fit into the cluster.

    One price for all types first, the lowest at which the amounts fit; then single types' prices are varied as long as
    that lowers the dual of the problem without nodes.
    """
    demand = _Demand(problem)
    prices = np.full(len(demand.capacity), _common_price(demand))
    if len(prices) == 1 or not prices.any():
        return prices
    lowest, variations = demand.dual(prices), 0
    directions = np.vstack([np.eye(len(prices)), -np.eye(len(prices)), np.ones(len(prices)), -np.ones(len(prices))])
    for step in TYPE_STEPS:
        better = True
        while better and variations < MOST_VARIATIONS:
            better = False
            for direction in directions:
                trial = prices * np.exp(step * direction)
                variations += 1
                if (value := demand.dual(trial)) < lowest - EPSILON * abs(lowest):
                    prices, lowest, better = trial, value, True
    return prices


def _common_price(demand: _Demand) -> float:
    """The lowest price of a GPU of any type at which as many GPUs are demanded as there are; 0 where all are plenty."""

    def fits(price: float) -> bool:
        return bool(demand.amount(np.full(len(demand.capacity), price)) <= demand.capacity.sum())

    if fits(0.0):
        return 0.0
    # Where jobs that wait count for so much more than those that run, prices that matter are near 1.
    low = high = LEAST_PRICE * (demand.highest if LEAST_PRICE * demand.highest < 1.0 else 1.0)
    while not fits(high) and math.isfinite(high):
        low, high = high, high * PRICE_STEP
    while high > low * PRICE_PRECISION:
        price = math.sqrt(low) * math.sqrt(high)
        low, high = (low, price) if fits(price) else (price, high)
    return high


def relaxed_amounts(problem: AllocationProblem) -> tuple[Ints, Ints]:
    """Each job's GPU type (an index) and GPUs at the clearing prices: an allocation of amounts, without pinned jobs.

    Equal jobs change their amounts at the same price. Those get more for which GPUs remain.
    """
    demand, prices = _Demand(problem), clearing_prices(problem)
    types, gpus = demand.best(prices)
    left = demand.capacity - np.bincount(types, weights=gpus, minlength=len(prices))
    more_types, more = demand.best(prices * (1.0 - PRICE_MARGIN))
    for job in np.flatnonzero(more > gpus).tolist():
        added = more[job] - (gpus[job] if types[job] == more_types[job] else 0)
        if added <= left[more_types[job]]:
            left[types[job]] += gpus[job]
            left[more_types[job]] -= more[job]
            types[job], gpus[job] = more_types[job], more[job]
    return types, gpus


def fitness_bound(problem: AllocationProblem) -> float:
    """A fitness that no allocation exceeds: that of the jobs' best amounts at the clearing prices (weak duality)."""
    pinned = problem.weights * contributions(problem.speedups_of(problem.present), problem.p)
    total = _Demand(problem).dual(clearing_prices(problem)) + float(pinned[problem.pinned].sum())
    mean = total / float(problem.weights.sum())
    return float(np.exp(mean)) if problem.p == 0 else float(abs(mean) ** (1.0 / problem.p))


class _Demand:
    """The jobs' best amounts at prices of GPUs.

    Attributes:
        capacity: for each GPU type, the GPUs that pinned jobs leave.
        highest: a price at which no job wants a GPU.
    """

    def __init__(self, problem: AllocationProblem) -> None:
        # A node may have fewer GPUs by now than its pinned jobs hold.
        free = np.maximum(problem.node_gpus - problem.present[problem.pinned].sum(axis=0), 0)
        self.capacity: Floats = np.bincount(
            problem.node_types, weights=free, minlength=problem.speedups.shape[1]
        ).astype(float)
        self._amounts = _amount_values(problem)[~problem.pinned]
        self._idle = problem.idle_values[~problem.pinned]
        self._gpus = np.arange(problem.speedups.shape[-1])
        wanted = np.where(np.isfinite(self._amounts), self._amounts, self._idle[:, None, None])
        self.highest = float(np.ptp(wanted)) + 1.0 if wanted.size else 1.0

    def amount(self, prices: Floats) -> int:
        """The GPUs that all jobs together want."""
        return int(self.best(prices)[1].sum())

    def best(self, prices: Floats) -> tuple[Ints, Ints]:
        """The GPU type and the GPUs that each job wants that is not pinned."""
        if not len(self._idle):
            return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        sizes = len(self._gpus)
        scores = (self._amounts - prices[:, None] * self._gpus).reshape(len(self._idle), self._amounts[0].size)
        best = scores.argmax(axis=1)
        runs = scores[np.arange(len(scores)), best] > self._idle
        return best // sizes * runs, best % sizes * runs

    def dual(self, prices: Floats) -> float:
        """The sum that no allocation of the jobs that are not pinned exceeds, by these prices."""
        scores = (self._amounts - prices[:, None] * self._gpus).max(axis=(1, 2), initial=-np.inf)
        return float(np.maximum(scores, self._idle).sum() + prices @ self.capacity)


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
    """Empty and fill single neighbourhoods again, until none raises the sum, or none can."""
    bound = _Demand(found.problem).dual(prices)
    if found.problem.pinned.all() or _is_optimal(found, bound):
        return
    last_gain = 0
    for number in range(improvements):
        if number - last_gain > PATIENCE * improvements:
            return
        if _refill(found, prices, rng):
            last_gain = number
            if _is_optimal(found, bound):
                return


def _refill(found: PartialAllocation, prices: Floats, rng: np.random.Generator) -> bool:
    """Empty and fill a random neighbourhood; returns whether the sum is higher.

    A change that lowers the sum is undone, and one that only moves more jobs.
    """
    problem = found.problem
    jobs, nodes = problem.present.shape
    chosen = rng.choice(nodes, min(int(rng.integers(1, MOST_EMPTIED + 1)), nodes), replace=False)
    removed = {job for node in chosen for job in found.residents[node]} | set(rng.integers(0, jobs, OTHERS).tolist())
    order = sorted(job for job in removed if not problem.pinned[job])
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
    # Jobs that wait before and after count for much, and change nothing.
    equal = EPSILON * float(np.abs(values[changed][found.value[changed] != values[changed]]).sum())
    if gain < -equal or (gain <= equal and moves > 0):
        for job in changed:
            found.remove(job)
        for job, where in before.items():
            found.place(job, where)
    return gain > equal
