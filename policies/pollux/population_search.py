"""Pollux's population-based search (Qiao et al., OSDI 2021, section 4.3), vectorised over the population.

In each generation allocations are combined job by job, perturbed, made feasible again by taking GPUs away, and grown
where GPUs are free. The best ones survive. Budgets count generations, so that equal arguments give equal answers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from policies.pollux.allocation_problem import UNLIMITED, AllocationProblem, Bools, Floats, Ints, JobQuota
from policies.pollux.speedup_table import MULTI_NODE, ONE_NODE

Population = NDArray[np.int16]
"""GPUs by individual, job and node."""

PERTURBED_JOBS = 3
"""Jobs of each child that are perturbed, on average."""

GROWTHS = 3
"""Nodes of each child whose free GPUs are given away in each generation."""


def population_search(
    problem: AllocationProblem, *, seed: int, generations: int, size: int, starts: Sequence[Ints] = ()
) -> Ints:
    """Search for the allocations with the highest fitness.

    Args:
        problem: the problem.
        seed: the seed of all random choices.
        generations: the number of generations.
        size: the number of allocations of a population, 2 or more.
        starts: allocations to begin with besides the present one, such as the survivors of the last search; what is
            infeasible of them is taken away.

    Returns:
        The survivors, different from each other, the fittest first: GPUs by individual, job and node. All are feasible,
        and the first one is at least as fit as the present allocation and every feasible start.
    """
    if not problem.present.size:
        return problem.present[None]
    order = np.array(sorted(range(len(problem.keys)), key=problem.keys.__getitem__), dtype=np.int64)
    search = _Search(problem.reordered(order), np.random.default_rng(seed))
    found = search.run([start[order] for start in starts], generations, size)
    answer = np.empty(found.shape, dtype=np.int64)
    answer[:, order] = found
    return answer


class _Search:
    """One search on a problem whose jobs are in order."""

    def __init__(self, problem: AllocationProblem, rng: np.random.Generator) -> None:
        self.problem = problem
        self.rng = rng
        self.present = problem.present.astype(np.int16)
        self.limits = np.minimum(problem.node_limits, problem.node_gpus).astype(np.int16)
        self.most = problem.speedups.shape[-1] - 1
        self.most_gpus = np.minimum(problem.most_gpus, self.most)
        self.free_jobs = np.flatnonzero(~problem.pinned)

    def run(self, starts: Sequence[Ints], generations: int, size: int) -> Population:
        """Run all generations, and return the survivors."""
        begun = np.array([self.present, np.zeros_like(self.present), *starts], dtype=np.int16)
        population = self.repaired(begun)
        values = self.values(population)
        if not len(self.free_jobs):
            return population[:1]
        for _ in range(generations):
            children = self.repaired(self.perturbed(self.children(population, size)))
            for _ in range(GROWTHS):
                self.grow(children)
            everybody = np.concatenate([population, children])
            every_value = np.concatenate([values, self.values(children)])
            best = self.fittest(everybody, every_value, size)
            population, values = everybody[best], every_value[best]
        best = self.fittest(population, values, size)
        return population[best]

    def fittest(self, population: Population, values: Floats, size: int) -> Ints:
        """The indices of the fittest individuals, fittest first, without duplicates."""
        # Differences to one of them: large contributions of jobs that wait in all of them cancel.
        totals = (values - values[0]).sum(axis=1)
        ranked = np.argsort(-totals, kind="stable")
        seen: set[bytes] = set()
        found: list[int] = []
        for index in ranked.tolist():
            row = population[index].tobytes()
            if row not in seen:
                seen.add(row)
                found.append(index)
            if len(found) == size:
                break
        return np.array(found)

    def children(self, population: Population, size: int) -> Population:
        """Children that have the allocation of each job from one of two parents."""
        # The population is in order of fitness: the lesser of two random indices is a tournament.
        parents = self.rng.integers(0, len(population), (2, 2, size)).min(axis=0)
        from_first = self.rng.random((size, self.present.shape[0])) < self.rng.random((size, 1))
        return np.asarray(np.where(from_first[:, :, None], population[parents[0]], population[parents[1]]))

    def perturbed(self, children: Population) -> Population:
        """The children with some jobs reset to their present allocation, removed, resized on a node or placed anew."""
        count = len(children) * PERTURBED_JOBS
        child = self.rng.integers(0, len(children), count)
        job = self.free_jobs[self.rng.integers(0, len(self.free_jobs), count)]
        node = self.rng.integers(0, self.present.shape[1], count)
        kind = self.rng.integers(0, 4, count)
        reset, removed, anew, resized = (kind == number for number in range(4))
        children[child[reset], job[reset]] = self.present[job[reset]]
        children[child[removed], job[removed]] = 0
        children[child[anew], job[anew]] = self._placed_anew(job[anew])
        most = self.limits[job[resized], node[resized]] + 1
        children[child[resized], job[resized], node[resized]] = self.rng.integers(0, most)
        return children

    def _placed_anew(self, jobs: Ints) -> Population:
        """For each job a random number of GPUs on each of some random nodes: more often few nodes than many."""
        nodes = self.present.shape[1]
        ranks = np.argsort(self.rng.random((len(jobs), nodes)), axis=1)
        most = np.minimum(self.problem.most_nodes[jobs], self.most_gpus[jobs])
        count = np.floor(np.maximum(most, 1) ** self.rng.random(len(jobs)) + self.rng.random(len(jobs)))
        each = self.rng.integers(1, int(self.limits.max(initial=1)) + 1, len(jobs))
        return np.where(ranks < count[:, None], each[:, None], 0).astype(np.int16)

    def repaired(self, population: Population) -> Population:
        """The population without what is infeasible: GPUs are only taken away."""
        problem = self.problem
        population = np.minimum(population, self.limits)
        population[:, problem.pinned] = self.present[problem.pinned]
        self._cut_jobs(population)
        if problem.avoid_interference:
            self._separate(population)
        self._cut_nodes(population)
        for quota in problem.quotas:
            self._cut_quota(population, quota)
        if not problem.uneven:
            self._level(population)
        gpus = population.sum(axis=2, dtype=np.int64)
        population[(gpus < problem.least_gpus) & ~problem.pinned] = 0
        return population

    def _cut_jobs(self, population: Population) -> None:
        """One GPU type for each job, and not more nodes and GPUs than it can have."""
        problem = self.problem
        nodes = np.count_nonzero(population, axis=2)
        gpus = population.sum(axis=2, dtype=np.int64)
        wrong = (nodes > problem.most_nodes) | (gpus > self.most_gpus)
        if problem.speedups.shape[1] > 1:
            wrong |= nodes > 1
        child, job = np.nonzero(wrong & ~problem.pinned)
        rows = population[child, job].astype(np.int64)
        if not len(rows):
            return
        types = problem.speedups.shape[1]
        by_type = np.stack([(rows * (problem.node_types == number)).sum(axis=1) for number in range(types)], axis=1)
        rows[problem.node_types != by_type.argmax(axis=1)[:, None]] = 0
        order = np.argsort(-rows, axis=1, kind="stable")
        ranked = np.take_along_axis(rows, order, axis=1)
        ranked[np.arange(rows.shape[1]) >= problem.most_nodes[job][:, None]] = 0
        totals = np.minimum(np.cumsum(ranked, axis=1), self.most_gpus[job][:, None])
        np.put_along_axis(rows, order, np.diff(totals, axis=1, prepend=0), axis=1)
        population[child, job] = rows

    def _separate(self, population: Population) -> None:
        """At most one job over several nodes on each node: a random one, or a pinned one."""
        distributed = np.count_nonzero(population, axis=2) > 1
        there = (population > 0) & distributed[:, :, None]
        child, node = np.nonzero(there.sum(axis=1) > 1)
        if not len(child):
            return
        jobs = there[child, :, node]
        rank = self.rng.permutation(jobs.shape[1]) + jobs.shape[1] * self.problem.pinned
        keeps = np.argmax(jobs * (rank + 1), axis=1)
        columns = population[child, :, node]
        jobs[np.arange(len(keeps)), keeps] = False
        columns[jobs & ~self.problem.pinned] = 0
        population[child, :, node] = columns

    def _cut_nodes(self, population: Population) -> None:
        """Not more GPUs on a node than it has: jobs are cut in a random order, pinned ones last."""
        used = population.sum(axis=1, dtype=np.int64)
        child, node = np.nonzero(used > self.problem.node_gpus)
        if not len(child):
            return
        order = self.rng.permutation(population.shape[1])
        order = order[np.argsort(~self.problem.pinned[order], kind="stable")]
        columns = np.cumsum(population[child, :, node][:, order], axis=1, dtype=np.int64)
        columns = np.minimum(columns, self.problem.node_gpus[node][:, None])
        cut = np.empty_like(columns)
        cut[:, order] = np.diff(columns, axis=1, prepend=0)
        population[child, :, node] = cut

    def _types(self, population: Population) -> Ints:
        """The GPU type of each job that runs."""
        return np.asarray(self.problem.node_types[np.argmax(population > 0, axis=2)])

    def _cut_quota(self, population: Population, quota: JobQuota) -> None:
        """Not more than a quota has: jobs are cut in a random order, pinned ones never."""
        used = quota.use(population.sum(axis=2, dtype=np.int64), self._types(population))
        child = np.flatnonzero(used.sum(axis=1) > quota.left)
        if not len(child):
            return
        pinned = self.problem.pinned
        order = self.rng.permutation(population.shape[1])
        order = order[np.argsort(~pinned[order], kind="stable")]
        totals = np.minimum(np.cumsum(used[child][:, order], axis=1), max(quota.left, 0))
        left = np.empty_like(totals)
        left[:, order] = np.diff(totals, axis=1, prepend=0)
        row, job = np.nonzero((left < used[child]) & ~pinned)
        rows = np.cumsum(population[child[row], job], axis=1, dtype=np.int64)
        population[child[row], job] = np.diff(np.minimum(rows, left[row, job][:, None]), axis=1, prepend=0)

    def _quota_left(self, population: Population, node_type: Ints) -> Ints:
        """For each individual and job, the GPUs of a type that it may have besides those that it has, by its quotas."""
        gpus, types = population.sum(axis=2, dtype=np.int64), self._types(population)
        found = np.full(gpus.shape, UNLIMITED)
        for quota in self.problem.quotas:
            left = np.maximum(quota.left - quota.use(gpus, types).sum(axis=1), 0)[:, None]
            limited = quota.members & ((quota.gpu_type is None) | (node_type == quota.gpu_type))
            if quota.of_jobs:
                limited = limited & (gpus == 0)
                left = np.where(left > 0, UNLIMITED, 0)
            found = np.where(limited, np.minimum(found, left), found)
        return found

    def _level(self, population: Population) -> None:
        """The same number of GPUs on each node of a job: the number that leaves the most GPUs."""
        nodes = np.count_nonzero(population, axis=2)
        widest = population.max(axis=2, initial=0)
        uneven = widest.astype(np.int64) * nodes != population.sum(axis=2, dtype=np.int64)
        child, job = np.nonzero(uneven & ~self.problem.pinned)
        if not len(child):
            return
        rows = population[child, job]
        totals = np.stack([each * (rows >= each).sum(axis=1) for each in range(1, int(rows.max()) + 1)], axis=1)
        each = (totals.argmax(axis=1) + 1)[:, None]
        population[child, job] = np.where(rows >= each, each, 0)

    def grow(self, population: Population) -> None:
        """Give the free GPUs of one random node of each individual to the job that gains the most by each."""
        problem = self.problem
        free = problem.node_gpus - population.sum(axis=1, dtype=np.int64)
        node = np.argmax(self.rng.random(free.shape) * (free > 0), axis=1)
        every = np.arange(len(population))
        free_here = free[every, node]
        held = population[every, :, node].astype(np.int64)
        gpus, nodes = population.sum(axis=2, dtype=np.int64), np.count_nonzero(population, axis=2)
        wider = (nodes > 0) & (held == 0)
        form = np.where((nodes > 1) | wider, MULTI_NODE, ONE_NODE)
        able = ~problem.pinned & (nodes + wider <= problem.most_nodes) & (free_here > 0)[:, None]
        home = np.argmax(population > 0, axis=2)
        node_type = problem.node_types[node][:, None]
        able &= (nodes == 0) | (problem.node_types[home] == node_type)
        if problem.avoid_interference:
            able &= ~wider | self._undisturbed(population, node, home, nodes)
        more = np.minimum(free_here[:, None], self.limits[:, node].T - held)
        more = np.minimum(more, self.most_gpus - gpus)
        if problem.quotas:
            more = np.minimum(more, self._quota_left(population, node_type))
        if not problem.uneven:
            each = gpus // np.maximum(nodes, 1)
            able &= ~((nodes > 1) & ~wider) & ~(wider & (each > more))
            more = np.where(wider, each, more)
        before = self.values(population)
        best, chosen = np.full(gpus.shape, -np.inf), np.zeros_like(gpus)
        for amount in (more,) if not problem.uneven else (more, np.minimum(more, 1)):
            after = problem.values[np.arange(gpus.shape[1]), node_type, form, np.clip(gpus + amount, 0, self.most)]
            runs = able & (amount > 0) & np.isfinite(after)
            gain = np.where(runs, np.where(runs, after, 0.0) - before, -np.inf) / np.maximum(amount, 1)
            best, chosen = np.maximum(gain, best), np.where(gain > best, amount, chosen)
        job = np.argmax(best, axis=1)
        grows = np.flatnonzero(best[every, job] > 0)
        population[grows, job[grows], node[grows]] += chosen[grows, job[grows]].astype(np.int16)

    def _undisturbed(self, population: Population, node: Ints, home: Ints, nodes: Ints) -> Bools:
        """Whether each job could go over several nodes with one node of each individual as the new one."""
        distributed = ((population > 0) & (nodes > 1)[:, :, None]).sum(axis=1)
        at_home = np.take_along_axis(distributed, home, axis=1) > 0
        here = distributed[np.arange(len(population)), node] > 0
        return np.asarray(~here[:, None] & ((nodes > 1) | ~at_home))

    def values(self, population: Population) -> Floats:
        """What each job of each individual adds to the sum; pinned jobs add nothing."""
        problem = self.problem
        gpus, nodes = population.sum(axis=2, dtype=np.int64), np.count_nonzero(population, axis=2)
        types = problem.node_types[np.argmax(population > 0, axis=2)]
        form = np.where(nodes > 1, MULTI_NODE, ONE_NODE)
        found = problem.values[np.arange(gpus.shape[1]), types, form, np.minimum(gpus, self.most)]
        found = np.where((gpus == 0) | ~np.isfinite(found), problem.idle_values, found)
        unchanged = (population == self.present).all(axis=2) & (gpus > 0)
        found = np.where(unchanged & np.isfinite(problem.present_values), problem.present_values, found)
        return np.where(problem.pinned, 0.0, found)
