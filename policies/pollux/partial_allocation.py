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
        self._multi_node: Bools = np.asarray(np.isfinite(problem.values[:, :, MULTI_NODE]).any(axis=2))
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
        best, best_score = Option(float(self.problem.idle_values[job]), WAITS), float(self.problem.idle_values[job])
        for option in self._options(job, prices):
            gpu_type = self.problem.node_types[option.where.nodes[0]]
            score = option.value - float(prices[gpu_type]) * sum(option.where.gpus)
            if score > best_score + EPSILON * abs(best_score):
                best, best_score = option, score
        return best

    def _options(self, job: int, prices: Floats) -> Iterable[Option]:
        """The best allocations of each kind: the present one, on one node and on several nodes of each GPU type."""
        present = self._present[job]
        if np.isfinite(self.problem.present_values[job]) and self._fits(job, present):
            yield Option(float(self.problem.present_values[job]), present)
        for gpu_type, nodes in enumerate(self._of_type):
            available = np.clip(self.free[nodes], 0, self.problem.node_limits[job, nodes])
            values, price = self.problem.values[job, gpu_type], float(prices[gpu_type])
            if self.problem.quotas:
                values = values[:, : int(self._quota_left(gpu_type)[job]) + 1]
            widest = int(available.max(initial=0))
            if widest == 0 or values.shape[1] == 1:
                continue
            if (gpus := _best_amount(values[ONE_NODE, : widest + 1], price)) is not None:
                node = int(np.argmin(np.where(available >= gpus, available, widest + 1)))
                yield Option(float(values[ONE_NODE, gpus]), NodeGpus((int(nodes[node]),), (gpus,)))
            if self._multi_node[job, gpu_type]:
                if self.problem.avoid_interference:
                    available = np.where(self._distributed[nodes] > 0, 0, available)
                spread = self._uneven if self.problem.uneven else self._even
                if (found := spread(job, available, values[MULTI_NODE], price)) is not None:
                    chosen, counts = found
                    where = NodeGpus(tuple(nodes[chosen].tolist()), tuple(counts.tolist()))
                    yield Option(float(values[MULTI_NODE, sum(where.gpus)]), where)

    def _uneven(self, job: int, available: Ints, values: Floats, price: float) -> tuple[Ints, Ints] | None:
        """The best allocation over several nodes, fullest first, with any number of GPUs on each."""
        order = np.argsort(-available, kind="stable")[: int(self.problem.most_nodes[job])]
        reach = np.cumsum(available[order])
        gpus = _best_amount(values[: int(reach[-1]) + 1], price)
        if gpus is None or len(order) < 2 or not available[order[1]]:  # noqa: PLR2004  several nodes
            return None
        last = max(int(np.searchsorted(reach, gpus)), 1)
        chosen, counts = order[: last + 1], available[order[: last + 1]]
        if last == 1:
            counts[0] = min(counts[0], gpus - 1)
        counts[last] = gpus - counts[:last].sum()
        # The last node is the one that the rest fills best.
        left = np.where(available >= counts[last], available, np.iinfo(np.int64).max)
        left[chosen[:last]] = np.iinfo(np.int64).max
        chosen[last] = np.argmin(left)
        return _by_node(chosen, counts)

    def _even(self, job: int, available: Ints, values: Floats, price: float) -> tuple[Ints, Ints] | None:
        """The best allocation over several nodes with the same number of GPUs on each."""
        best: tuple[float, int, int] | None = None
        for each in range(1, int(available.max(initial=0)) + 1):
            most = min(
                int(np.count_nonzero(available >= each)), int(self.problem.most_nodes[job]), (len(values) - 1) // each
            )
            scores = values[2 * each : most * each + 1 : each] - price * each * np.arange(2, most + 1)
            if len(scores) and np.isfinite(scores.max()):
                count = int(np.argmax(scores))
                if best is None or scores[count] > best[0]:
                    best = float(scores[count]), count + 2, each
        if best is None:
            return None
        _, count, each = best
        suitable = np.flatnonzero(available >= each)
        chosen = suitable[np.argsort(available[suitable], kind="stable")[:count]]
        return _by_node(chosen, np.full(count, each))

    def fill(self, nodes: Iterable[int], before: dict[int, NodeGpus] | None = None) -> None:
        """Give the free GPUs of nodes, one node after the other, to the jobs that gain the most by each GPU.

        Args:
            nodes: the nodes.
            before: takes the former allocation of each job that changes, where it has none yet; None for no record.
        """
        for node in nodes:
            while self.free[node] > 0 and (found := self._best_growth(node)) is not None:
                job, gpus = found
                held = dict(zip(*self.where[job], strict=True))
                if before is not None:
                    before.setdefault(job, self.where[job])
                self.remove(job)
                held[node] = held.get(node, 0) + gpus
                self.place(job, NodeGpus(tuple(sorted(held)), tuple(held[each] for each in sorted(held))))

    def _best_growth(self, node: int) -> tuple[int, int] | None:
        """The job that gains the most by each of some free GPUs of a node, and their number; None if no job gains."""
        problem, gpu_type = self.problem, int(self.problem.node_types[node])
        held = np.zeros(len(self.where), dtype=np.int64)
        for job in self.residents[node]:
            held[job] = self.where[job].gpus[self.where[job].nodes.index(node)]
        multi_node, each = self._growth_forms(node, gpu_type, held > 0)
        able = (multi_node >= 0) & ~problem.pinned
        if not able.any():
            return None
        jobs = np.flatnonzero(able)
        more = np.arange(1, int(self.free[node]) + 1)
        gpus = self._gpus[jobs][:, None] + more
        allowed = more <= self._quota_left(gpu_type)[jobs][:, None]
        allowed &= (gpus < problem.speedups.shape[-1]) & (
            held[jobs][:, None] + more <= problem.node_limits[jobs, node, None]
        )
        allowed &= (each[jobs][:, None] == 0) | (each[jobs][:, None] == more)
        gpus = np.minimum(gpus, problem.speedups.shape[-1] - 1)
        after = problem.values[jobs[:, None], gpu_type, multi_node[jobs][:, None], gpus]
        gains = np.where(allowed, after - self.value[jobs][:, None], -np.inf) / more
        best = int(np.argmax(gains))
        row, column = divmod(best, len(more))
        if not gains[row, column] > EPSILON * abs(self.value[jobs[row]]):
            return None
        return int(jobs[row]), int(more[column])

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
        counts = np.array(where.gpus)
        if (counts > self.free[nodes]).any() or (counts > problem.node_limits[job, nodes]).any():
            return False
        several = len(nodes) > 1
        if several and problem.avoid_interference and self._distributed[nodes].any():
            return False
        if not problem.uneven and counts.min() != counts.max():
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


def _best_amount(values: Floats, price: float) -> int | None:
    """The number of GPUs with the highest value after its price; None where the job runs on none of them."""
    scores = values - price * np.arange(len(values))
    best = int(np.argmax(scores))
    return best if np.isfinite(scores[best]) else None


def _by_node(nodes: Ints, counts: Ints) -> tuple[Ints, Ints]:
    order = np.argsort(nodes)
    return nodes[order], counts[order]
