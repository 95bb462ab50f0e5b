"""Limits on the GPUs of Ares's jobs of unknown demand, by the nodes that jobs can use (section 3.5)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from metasched.capacity.capacity_pool import CapacityPool
from metasched.capacity.max_min import max_min_bottlenecks
from metasched.capacity.shapes import NodeSet
from metasched.core.model import Job
from policies.ares.scaling import CLOSE


class PoolLimits:
    """Limits on the GPUs that the pool of unknown demand has before jobs of known demand are served.

    By weighted max-min fairness over the nodes that jobs can use, each job has a part of the GPUs. There is a limit on
    each set of nodes that a job of known demand can use, and on all nodes for which jobs compete, directly or through
    other jobs. Within such a set the pool leaves the parts of those jobs of known demand that can use no other nodes.
    The limit is rounded up, and the first job that is served there may always have its ``min_gpus``. With one set of
    nodes, the pool has GPUs in proportion to its weight among all live jobs.

    Args:
        capacity_pool: capacity of the snapshot's nodes.
        node_sets: by uid, the groups of nodes that a job can use.
        known: the jobs of known demand.
        unknown: the jobs of the pool.
    """

    def __init__(
        self,
        capacity_pool: CapacityPool,
        node_sets: Mapping[str, NodeSet],
        known: Sequence[Job],
        unknown: Sequence[Job],
    ) -> None:
        self._capacity_pool = capacity_pool
        weights: dict[NodeSet, float] = {}
        known_weights: dict[NodeSet, float] = {}
        for job in unknown:
            weights[node_sets[job.uid]] = weights.get(node_sets[job.uid], 0) + job.weight
        for job in known:
            known_weights[node_sets[job.uid]] = known_weights.get(node_sets[job.uid], 0) + job.weight
        for node_set, weight in known_weights.items():
            weights[node_set] = weights.get(node_set, 0) + weight
        gpus = {group: sum(node.gpus for node in nodes) for group, nodes in capacity_pool.groups.items()}
        bottlenecks = max_min_bottlenecks(weights, gpus)
        parts = {node_set: bottlenecks[node_set].part(weight) for node_set, weight in known_weights.items()}
        self._left: dict[NodeSet, int] = {}
        for node_set in {*known_weights, *_connected(weights)} if unknown else ():
            total = sum(amount for group, amount in gpus.items() if group & node_set)
            known_part = sum(part for subset, part in parts.items() if subset & node_set == subset)
            self._left[node_set] = math.ceil(total - known_part - CLOSE)
        self._served: set[NodeSet] = set()  # in which a job of the pool has been served, but for retained ones
        for job in unknown:
            self.charge(job)
        self._served.clear()

    def most(self, job: Job, gpu_type: str) -> int:
        """GPUs of a type that a job of the pool may have; all, if its nodes accept no other jobs."""
        node_set = self._capacity_pool.node_set(job, gpu_type)
        limits = (
            left if limit in self._served else max(left, job.min_gpus)
            for limit, left in self._left.items()
            if node_set and node_set & limit == node_set
        )
        return min(limits, default=job.max_gpus)

    def charge(self, job: Job) -> None:
        """Charge a job of the pool for the GPUs that it has been assigned."""
        self._charge(job, 1)

    def credit(self, job: Job) -> None:
        """Take back the charge for the GPUs that a job of the pool has been assigned, before it is assigned others."""
        self._charge(job, -1)

    def _charge(self, job: Job, times: int) -> None:
        for node_set, gpus, _ in self._capacity_pool.assigned_costs(job):
            for limit in self._left:
                if node_set & limit == node_set:
                    self._left[limit] -= times * gpus
                    self._served.add(limit)


def _connected(node_sets: Iterable[NodeSet]) -> list[NodeSet]:
    """The unions of node sets that overlap, directly or through others."""
    unions: list[NodeSet] = []
    for node_set in node_sets:
        overlapping = [union for union in unions if union & node_set]
        unions = [union for union in unions if not union & node_set]
        unions.append(node_set | sum(overlapping))
    return unions
