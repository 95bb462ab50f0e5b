"""An allocation under construction: jobs are placed, removed and grown one at a time, within the constraints."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from policies.pollux.allocation_problem import UNLIMITED, AllocationProblem, Bools, Floats, Ints
from policies.pollux.speedup_table import MULTI_NODE, ONE_NODE

NOBODY = -1
EPSILON = 1e-12
"""The least relative improvement that counts as one."""


class NodeGpus(NamedTuple):
    """The GPUs of one job: nodes, and the GPUs on each of them; both empty for a job that waits."""

    nodes: tuple[int, ...]
    gpus: tuple[int, ...]


WAITS = NodeGpus((), ())


class Option(NamedTuple):
    """One allocation that a job can be given now.

    Attributes:
        value: what the job adds to the sum on this allocation.
        where: the allocation.
    """

    value: float
    where: NodeGpus


class PartialAllocation:
    """The allocations of all jobs at one point of a search. Mutable.

    Attributes:
        problem: the problem.
        where: the allocation of each job.
        free: the free GPUs of each node.
        value: what each job adds to the sum.
    """

    def __init__(self, problem: AllocationProblem, allocation: Ints | None = None) -> None:
        """Begin with the pinned jobs, and with the rows of an allocation that fit."""
        jobs, nodes = problem.present.shape
        self.problem = problem
        self.where: list[NodeGpus] = [WAITS] * jobs
        self.free = problem.node_gpus.astype(np.int64)
        self.value: Floats = problem.idle_values.copy()
        self.residents: list[set[int]] = [set() for _ in range(nodes)]
        self._distributed = np.zeros(nodes, dtype=np.int64)
        self._gpus = np.zeros(jobs, dtype=np.int64)
        self._node_count = np.zeros(jobs, dtype=np.int64)
        self._home = np.full(jobs, NOBODY)
        self._type = np.full(jobs, NOBODY)
        self._of_type = [np.flatnonzero(problem.node_types == number) for number in range(problem.speedups.shape[1])]
        self._amounts = np.arange(problem.speedups.shape[-1])
        self._left = [quota.left for quota in problem.quotas]
        self._present = _rows(problem.present)
        for job in np.flatnonzero(problem.pinned).tolist():
            self.place(job, self._present[job])
        if allocation is not None:
            rows = _rows(allocation)
            for job in np.flatnonzero(~problem.pinned).tolist():
                if self._fits(job, rows[job]):
                    self.place(job, rows[job])

    def matrix(self) -> Ints:
        """The allocation as GPUs by job and node."""
        found = np.zeros_like(self.problem.present)
        for job, where in enumerate(self.where):
            found[job, list(where.nodes)] = where.gpus
        return found

    def place(self, job: int, where: NodeGpus) -> None:
        """Give a job that waits its allocation."""
        if where == WAITS:
            return
        for node, gpus in zip(where.nodes, where.gpus, strict=True):
            self.free[node] -= gpus
            self.residents[node].add(job)
        several = len(where.nodes) > 1
        if several:
            self._distributed[list(where.nodes)] += 1
        self.where[job] = where
        self._gpus[job] = sum(where.gpus)
        self._node_count[job] = len(where.nodes)
        self._home[job] = NOBODY if several else where.nodes[0]
        self._type[job] = self.problem.node_types[where.nodes[0]]
        self.value[job] = self._value(job, where)
        self._count(job, sum(where.gpus), 1)

    def remove(self, job: int) -> None:
        """Take a job's allocation away, so that it waits."""
        where = self.where[job]
        if where == WAITS:
            return
        for node, gpus in zip(where.nodes, where.gpus, strict=True):
            self.free[node] += gpus
            self.residents[node].discard(job)
        if len(where.nodes) > 1:
            self._distributed[list(where.nodes)] -= 1
        self._count(job, sum(where.gpus), -1)
        self.where[job] = WAITS
        self._gpus[job] = self._node_count[job] = 0
        self._home[job] = self._type[job] = NOBODY
        self.value[job] = self.problem.idle_values[job]

    def _count(self, job: int, gpus: int, sign: int) -> None:
        """Count a placed or removed job in its quotas."""
        for number, quota in enumerate(self.problem.quotas):
            if quota.members[job] and quota.gpu_type in {None, int(self._type[job])}:
                self._left[number] -= sign * (1 if quota.of_jobs else gpus)

    def _quota_left(self, gpu_type: int) -> Ints:
        """For each job, the GPUs of a type that it may have besides those that it has, by its quotas."""
        found = np.full(len(self.where), UNLIMITED)
        for quota, left in zip(self.problem.quotas, self._left, strict=True):
            if quota.gpu_type in {None, gpu_type}:
                limited = quota.members & (self._node_count == 0) if quota.of_jobs else quota.members
                most = (UNLIMITED if left > 0 else 0) if quota.of_jobs else max(left, 0)
                found[limited] = np.minimum(found[limited], most)
        return found

    def best_option(self, job: int, prices: Floats) -> Option:
        """The best allocation of a job that waits, at prices.

        Args:
            job: the job.
            prices: by GPU type, what a GPU must add to the sum.
        """
        problem = self.problem
        idle, present = float(problem.idle_values[job]), self._present[job]
        best, best_score = Option(idle, WAITS), idle + EPSILON * abs(idle)
        kept = float(problem.present_values[job])
        if kept > best_score and self._fits(job, present):
            score = kept - float(prices[problem.node_types[present.nodes[0]]]) * sum(present.gpus)
            if score > best_score:
                best, best_score = Option(kept, present), score + EPSILON * abs(score)
        for gpu_type in range(len(self._of_type)):
            found = self._best_of_type(job, gpu_type, float(prices[gpu_type]), best_score)
            if found is not None:
                best, best_score = found
        return best

    def _best_of_type(self, job: int, gpu_type: int, price: float, least: float) -> tuple[Option, float] | None:
        """The best option on a GPU type, with the score that another one must exceed; None where none exceeds least."""
        problem, nodes, best = self.problem, self._of_type[gpu_type], None
        available = np.minimum(self.free[nodes], problem.node_limits[job, nodes])
        values = problem.values[job, gpu_type]
        if problem.quotas:
            values = values[:, : int(self._quota_left(gpu_type)[job]) + 1]
        scores = values - price * self._amounts[: values.shape[1]]
        widest = int(available.max(initial=0))
        if widest <= 0:
            return None
        gpus = int(scores[ONE_NODE, : widest + 1].argmax())
        if scores[ONE_NODE, gpus] > least:
            node = int(np.where(available >= gpus, available, UNLIMITED).argmin())
            score = float(scores[ONE_NODE, gpus])
            least = score + EPSILON * abs(score)
            best = Option(float(values[ONE_NODE, gpus]), NodeGpus((int(nodes[node]),), (gpus,))), least
        if not scores[MULTI_NODE].max() > least:
            return best
        if problem.avoid_interference:
            available = np.where(self._distributed[nodes] > 0, 0, available)
        spread = self._uneven if problem.uneven else self._even
        placed = spread(job, np.maximum(available, 0), scores[MULTI_NODE], least)
        if placed is None:
            return best
        chosen, counts = placed
        where = NodeGpus(tuple(nodes[chosen].tolist()), tuple(counts.tolist()))
        score = float(scores[MULTI_NODE, sum(where.gpus)])
        return Option(float(values[MULTI_NODE, sum(where.gpus)]), where), score + EPSILON * abs(score)

    def _uneven(self, job: int, available: Ints, scores: Floats, least: float) -> tuple[Ints, Ints] | None:
        """The best allocation over several nodes, fullest first, with any number of GPUs on each."""
        order = (-available).argsort(kind="stable")[: int(self.problem.most_nodes[job])]
        reach = available[order].cumsum()
        gpus = int(scores[: int(reach[-1]) + 1].argmax())
        if not scores[gpus] > least or not available[order[1:2]].any():
            return None
        last = max(int(reach.searchsorted(gpus)), 1)
        chosen, counts = order[: last + 1], available[order[: last + 1]]
        if last == 1:
            counts[0] = min(counts[0], gpus - 1)
        counts[last] = gpus - counts[:last].sum()
        # The last node is the one that the rest fills best.
        left = np.where(available >= counts[last], available, UNLIMITED)
        left[chosen[:last]] = UNLIMITED
        chosen[last] = left.argmin()
        return _by_node(chosen, counts)

    def _even(self, job: int, available: Ints, scores: Floats, least: float) -> tuple[Ints, Ints] | None:
        """The best allocation over several nodes with the same number of GPUs on each, on few nodes among equals."""
        best: tuple[int, int] | None = None
        at_least = np.bincount(available)[::-1].cumsum()[::-1]
        for each in range(1, len(at_least)):
            most = min(int(at_least[each]), int(self.problem.most_nodes[job]), (len(scores) - 1) // each)
            reached = scores[2 * each : most * each + 1 : each]
            if len(reached) and (reached.max() > least or (best is not None and reached.max() == least)):
                least = float(reached.max())
                best = int(reached.argmax()) + 2, each
        if best is None:
            return None
        count, each = best
        suitable = np.flatnonzero(available >= each)
        chosen = suitable[available[suitable].argsort(kind="stable")[:count]]
        return _by_node(chosen, np.full(count, each))

    def fill(self, nodes: Iterable[int], before: dict[int, NodeGpus] | None = None) -> None:
        """Give the free GPUs of nodes, one node after the other, to the jobs that gain the most by each GPU.

        Args:
            nodes: the nodes.
            before: takes the former allocation of each job that changes, where it has none yet; None for no record.
        """
        for node in nodes:
            if self.free[node] <= 0:
                continue
            jobs, gains = self._growth_gains(node, np.arange(len(self.where)))
            while self.free[node] > 0 and (found := self._best_growth(jobs, gains[:, : self.free[node]])) is not None:
                job, gpus = found
                held = dict(zip(*self.where[job], strict=True))
                if before is not None:
                    before.setdefault(job, self.where[job])
                self.remove(job)
                held[node] = held.get(node, 0) + gpus
                self.place(job, NodeGpus(tuple(sorted(held)), tuple(held[each] for each in sorted(held))))
                if self.problem.quotas or (self.problem.avoid_interference and len(held) > 1):
                    jobs, gains = self._growth_gains(node, jobs)  # other jobs may gain less now
                else:
                    row = int(np.searchsorted(jobs, job))
                    gains[row] = -np.inf
                    again = self._growth_gains(node, jobs[row : row + 1])[1]
                    if len(again):
                        gains[row, : again.shape[1]] = again[0]

    def _growth_gains(self, node: int, jobs: Ints) -> tuple[Ints, Floats]:
        """What jobs gain by each of some free GPUs of a node.

        Args:
            node: the node.
            jobs: the jobs, ascending.

        Returns:
            Those of the jobs that could grow here, and for each of them what it gains by each of 1, 2, ... free GPUs,
            shape (jobs, free GPUs); -inf where it cannot have so many more.
        """
        problem, gpu_type = self.problem, int(self.problem.node_types[node])
        held = np.zeros(len(self.where), dtype=np.int64)
        for job in self.residents[node]:
            held[job] = self.where[job].gpus[self.where[job].nodes.index(node)]
        multi_node, each = self._growth_forms(node, gpu_type, held > 0)
        jobs = jobs[(multi_node[jobs] >= 0) & ~problem.pinned[jobs]]
        more = np.arange(1, int(self.free[node]) + 1)
        gpus = self._gpus[jobs][:, None] + more
        allowed = more <= self._quota_left(gpu_type)[jobs][:, None]
        allowed &= (gpus < problem.speedups.shape[-1]) & (
            held[jobs][:, None] + more <= problem.node_limits[jobs, node, None]
        )
        allowed &= (each[jobs][:, None] == 0) | (each[jobs][:, None] == more)
        gpus = np.minimum(gpus, problem.speedups.shape[-1] - 1)
        after = problem.values[jobs[:, None], gpu_type, multi_node[jobs][:, None], gpus]
        return jobs, np.where(allowed, after - self.value[jobs][:, None], -np.inf) / more

    def _best_growth(self, jobs: Ints, gains: Floats) -> tuple[int, int] | None:
        """The job that gains the most by each of some free GPUs, and their number; None if no job gains."""
        if not gains.size:
            return None
        row, column = divmod(int(np.argmax(gains)), gains.shape[1])
        if not gains[row, column] > EPSILON * abs(self.value[jobs[row]]):
            return None
        return int(jobs[row]), column + 1

    def _growth_forms(self, node: int, gpu_type: int, here: Bools) -> tuple[Ints, Ints]:
        """How each job could grow on a node.

        Returns:
            For each job ``ONE_NODE`` or ``MULTI_NODE``, its placement afterwards, or -1 where it cannot grow here; and
            the number of GPUs that it must get here for an even placement, 0 for any.
        """
        problem = self.problem
        waits, alone, several = self._node_count == 0, self._node_count == 1, self._node_count > 1
        same = self._type == gpu_type
        forms = np.full(len(self.where), -1)
        forms[waits | (alone & here)] = ONE_NODE
        wider = same & ~here & (self._node_count + 1 <= problem.most_nodes) & ~waits
        if problem.avoid_interference:
            homes_free = self._distributed[self._home] == 0
            wider &= (self._distributed[node] == 0) & (several | homes_free)
        if problem.uneven:
            forms[several & here] = MULTI_NODE
            each = np.zeros(len(self.where), dtype=np.int64)
        else:
            each = np.where(wider, self._gpus // np.maximum(self._node_count, 1), 0)
        forms[wider] = MULTI_NODE
        return forms, each

    def _fits(self, job: int, where: NodeGpus) -> bool:
        """Whether a job that waits can be given an allocation now, by all constraints."""
        problem, nodes, gpus = self.problem, list(where.nodes), sum(where.gpus)
        if not nodes:
            return False
        limits = problem.node_limits[job]
        if any(count > self.free[node] or count > limits[node] for node, count in zip(*where, strict=True)):
            return False
        if len(nodes) > 1 and problem.avoid_interference and self._distributed[nodes].any():
            return False
        if not problem.uneven and min(where.gpus) != max(where.gpus):
            return False
        if problem.quotas and gpus > self._quota_left(int(problem.node_types[nodes[0]]))[job]:
            return False
        within = problem.least_gpus[job] <= gpus <= min(int(problem.most_gpus[job]), problem.speedups.shape[-1] - 1)
        one_type = len(set(problem.node_types[nodes].tolist())) == 1
        return bool(within and one_type and len(nodes) <= problem.most_nodes[job])

    def moved(self, job: int, where: NodeGpus) -> bool:
        """Whether an allocation of a job is another one than its present one."""
        return where != self._present[job]

    def _value(self, job: int, where: NodeGpus) -> float:
        if not self.moved(job, where):
            kept = float(self.problem.present_values[job])
            return kept if np.isfinite(kept) else float(self.problem.idle_values[job])
        form = MULTI_NODE if len(where.nodes) > 1 else ONE_NODE
        found = float(self.problem.values[job, self._type[job], form, sum(where.gpus)])
        return found if np.isfinite(found) else float(self.problem.idle_values[job])


def _rows(allocation: Ints) -> list[NodeGpus]:
    """The allocation of each job."""
    found = []
    for row in allocation:
        nodes = np.flatnonzero(row)
        found.append(NodeGpus(tuple(nodes.tolist()), tuple(row[nodes].tolist())))
    return found


def _by_node(nodes: Ints, counts: Ints) -> tuple[Ints, Ints]:
    order = nodes.argsort()
    return nodes[order], counts[order]
