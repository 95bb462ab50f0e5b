"""The allocation problem of a round: jobs and nodes of a snapshot as arrays, and allocations back as placements."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from metasched.core.model import Job, Node, Placement, Quota, Snapshot
from metasched.core.retention import holds_unassignable_nodes, is_non_preemptible
from metasched.throughput.goodput import Goodput
from metasched.throughput.job_goodput import job_goodput
from policies.pollux.allocation_problem import UNLIMITED, AllocationProblem, Ints, JobQuota
from policies.pollux.fitness import reallocation_factor
from policies.pollux.speedup_table import goodput_table, most_gpus_of_a_node, speedup_table

GROWTH = 2
"""A job has at most this many times the GPUs that it ever had (section 4.1)."""
LEAST_FACTOR = 0.05
"""The least factor of a job's speed-up on another allocation: a job that was often moved may still be moved."""

Rows = Mapping[str, Mapping[str, int]]
"""GPUs by node name, by uid."""


@dataclass(frozen=True, eq=False)
class RoundProblem:
    """The problem of one round, with the jobs and nodes of its arrays.

    Attributes:
        jobs: the jobs that need GPUs.
        nodes: the nodes with GPUs.
        types: the GPU types.
        goodput: the goodput of each job by GPU type.
        problem: the problem.
    """

    jobs: tuple[Job, ...]
    nodes: tuple[Node, ...]
    types: tuple[str, ...]
    goodput: tuple[Mapping[str, Goodput], ...]
    problem: AllocationProblem

    def matrix(self, rows: Rows) -> Ints:
        """An allocation as an array; nodes and jobs that are gone are left out."""
        found = np.zeros_like(self.problem.present)
        column = {node.name: number for number, node in enumerate(self.nodes)}
        for number, job in enumerate(self.jobs):
            row = rows.get(job.uid, {})
            if all(name in column for name in row):
                for name, gpus in row.items():
                    found[number, column[name]] = gpus
        return found

    def rows(self, allocation: Ints) -> dict[str, dict[str, int]]:
        """An allocation as GPUs by uid and node name, without the jobs that wait."""
        return {
            job.uid: {self.nodes[number].name: int(row[number]) for number in np.flatnonzero(row)}
            for job, row in zip(self.jobs, allocation, strict=True)
            if row.any()
        }

    def realisable(self, allocation: Ints) -> Ints:
        """An allocation without the rows of jobs that need another number of nodes."""
        found = allocation.copy()
        for number, job in enumerate(self.jobs):
            if job.nodes not in (None, np.count_nonzero(found[number])) and not self.problem.pinned[number]:
                found[number] = 0
        return found

    def placement(self, row: Ints) -> Placement:
        """The placement of one job's row, which is not empty."""
        numbers = np.flatnonzero(row)
        counts = tuple(int(row[number]) for number in numbers)
        names = tuple(self.nodes[number].name for number in numbers)
        uneven = counts if min(counts) < max(counts) else ()
        return Placement(names, max(counts), self.nodes[numbers[0]].gpu_type, uneven)


def round_problem(
    snapshot: Snapshot, *, p: float, avoid_interference: bool, restart_seconds: float, growth: int = 1
) -> RoundProblem:
    """Build the problem of a round.

    Args:
        snapshot: the round's jobs and nodes.
        p: the exponent of the fitness.
        avoid_interference: whether at most one job over several nodes is allowed on a node.
        restart_seconds: the cost of a re-allocation of a job of which none was measured.
        growth: how many times as large a cluster the table of speed-ups and the limits of jobs suit.
    """
    jobs = tuple(job for job in snapshot.jobs if job.gpus)
    nodes = tuple(node for node in snapshot.nodes if node.gpus and node.gpu_type is not None)
    types = tuple(sorted({node.gpu_type or "" for node in nodes}))
    node_gpus = np.array([node.gpus for node in nodes], dtype=np.int64)
    node_types = np.array([types.index(node.gpu_type or "") for node in nodes], dtype=np.int64)
    present = _present(jobs, nodes)
    limits = _node_limits(jobs, nodes)
    pinned = np.array([bool(present[i].any()) and _is_kept(job, snapshot) for i, job in enumerate(jobs)], dtype=bool)
    limits[[is_non_preemptible(job) and not pinned[i] for i, job in enumerate(jobs)]] = 0  # its nodes are not listed
    least = np.array([job.min_gpus for job in jobs], dtype=np.int64)
    most = np.array([_most_gpus(job) for job in jobs], dtype=np.int64)
    widest = most_gpus_of_a_node(node_gpus, node_types, len(types))
    gpus = np.bincount(node_types, weights=node_gpus, minlength=len(types)).astype(np.int64)
    largest = int(
        min(max(most.max(initial=1), present.sum(axis=1).max(initial=1)), max(growth * gpus.max(initial=1), 1))
    )
    suited = tuple(map(job_goodput, jobs, _types(limits, nodes)))
    speedups = speedup_table(goodput_table(suited, types, widest, largest), gpus, widest)
    problem = AllocationProblem(
        keys=tuple(job.uid for job in jobs),
        speedups=speedups,
        node_gpus=node_gpus,
        node_types=node_types,
        node_limits=limits,
        present=present,
        factors=_factors(jobs, snapshot.now, restart_seconds),
        weights=np.array([job.weight for job in jobs]),
        least_gpus=least,
        most_gpus=most,
        most_nodes=np.array([_most_nodes(job, growth * len(nodes)) for job in jobs], dtype=np.int64),
        pinned=pinned,
        uneven=snapshot.uneven,
        avoid_interference=avoid_interference,
        p=p,
        quotas=tuple(_job_quota(quota, jobs, types) for quota in snapshot.quotas),
    )
    return RoundProblem(jobs, nodes, types, suited, problem)


def _job_quota(quota: Quota, jobs: Sequence[Job], types: Sequence[str]) -> JobQuota:
    members = np.array([job.uid in quota.members for job in jobs], dtype=bool)
    if quota.gpu_type is None or quota.gpu_type in types:
        number = None if quota.gpu_type is None else types.index(quota.gpu_type)
        return JobQuota(members, quota.left, quota.of_jobs, number)
    return JobQuota(np.zeros(len(jobs), dtype=bool), UNLIMITED)


def _present(jobs: Sequence[Job], nodes: Sequence[Node]) -> Ints:
    """The GPUs that jobs hold, or were released for; none for a job that holds a node which is gone."""
    column = {node.name: number for number, node in enumerate(nodes)}
    found = np.zeros((len(jobs), len(nodes)), dtype=np.int64)
    for number, job in enumerate(jobs):
        place = job.placement or job.released
        if place is not None and all(name in column for name in place.nodes):
            for name, gpus in place.node_gpus:
                found[number, column[name]] = gpus
    return found


def _is_kept(job: Job, snapshot: Snapshot) -> bool:
    """Whether the job keeps what it holds: it is non-preemptible, or its nodes accept no other job."""
    return is_non_preemptible(job) or (job.active and holds_unassignable_nodes(job, snapshot.node))


def _node_limits(jobs: Sequence[Job], nodes: Sequence[Node]) -> Ints:
    """The most GPUs that each job can have on each node; thousands of jobs with equal requests are looked at once."""
    rows: dict[Hashable, list[int]] = {}
    found = np.zeros((len(jobs), len(nodes)), dtype=np.int64)
    for number, job in enumerate(jobs):
        each = None if job.nodes is None else job.gpus // job.nodes
        request = job.constraints, job.cpus_per_unit, job.memory_per_unit, each
        if request not in rows:
            rows[request] = [_most_on(job, node) for node in nodes]
        found[number] = rows[request]
    return found


def _most_on(job: Job, node: Node) -> int:
    """The most GPUs of a node that the job can have, by its constraints and the node's CPUs and memory."""
    if not node.accepts or not job.matches(node):
        return 0
    found = node.gpus
    if job.cpus_per_unit:
        found = min(found, node.cpus // job.cpus_per_unit)
    if job.memory_per_unit:
        found = min(found, node.memory // job.memory_per_unit)
    if job.nodes is not None:  # an exact number of nodes, so as many GPUs on each
        found = min(found, job.gpus // job.nodes)
    return found


def _most_gpus(job: Job) -> int:
    """The most GPUs of a job: one at first, then twice as many as it ever had."""
    return max(min(job.max_gpus, GROWTH * job.most_gpus), job.min_gpus)


def _most_nodes(job: Job, nodes: int) -> int:
    limits = [limit for limit in (job.nodes, job.max_nodes) if limit is not None]
    return min(limits, default=max(nodes, 1))


def _types(limits: Ints, nodes: Sequence[Node]) -> list[list[str]]:
    """The GPU types on which each job could have GPUs."""
    known: dict[bytes, list[str]] = {}
    found = []
    for row in limits:
        key = row.tobytes()
        if key not in known:
            known[key] = sorted({node.gpu_type or "" for node, limit in zip(nodes, row, strict=True) if limit})
        found.append(known[key])
    return found


def _factors(jobs: Sequence[Job], now: float, restart_seconds: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    ages = np.array([max(now - job.submitted, 0.0) for job in jobs])
    moves = np.array([float(max(job.run - 1, 0)) for job in jobs])
    delays = np.array([restart_seconds if job.restart_seconds is None else job.restart_seconds for job in jobs])
    return np.maximum(reallocation_factor(ages, moves, delays), LEAST_FACTOR)
