"""The cluster-wide allocation problem of one round as arrays: which job gets how many GPUs on which nodes.

An allocation is a matrix of GPUs by job and node (A of Pollux, OSDI 2021, section 4.2). Its constraints: the nodes'
GPUs; one GPU type a job; at most one job over several nodes on a node (interference avoidance); each job's least and
most GPUs (twice as many as it ever held, section 4.1) and most nodes; pinned jobs; quotas; and, where the cluster
realises nothing else, the same number of GPUs on each node of a job.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from policies.pollux.fitness import LEAST_SPEEDUP, contributions, fitness
from policies.pollux.speedup_table import MULTI_NODE, ONE_NODE

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


UNLIMITED = 2**31
"""A number of GPUs that is no limit."""


class JobQuota(NamedTuple):
    """A limit on the GPUs, or on the running jobs, of some jobs together.

    Attributes:
        members: J, whether each job counts.
        left: what the members may have together, pinned jobs included.
        of_jobs: whether running jobs count instead of GPUs.
        gpu_type: the index of the only GPU type that counts; None for all types.
    """

    members: Bools
    left: int
    of_jobs: bool = False
    gpu_type: int | None = None

    def use(self, gpus: Ints, gpu_types: Ints) -> Ints:
        """What jobs with these numbers of GPUs and types use of the quota; the last axis is that of the jobs."""
        counted = (gpus > 0) if self.of_jobs else gpus
        return np.asarray(counted * self.members * (True if self.gpu_type is None else gpu_types == self.gpu_type))


@dataclass(frozen=True, eq=False)
class AllocationProblem:
    """One problem. Arrays are by job (J), node (N), GPU type (T) and GPUs (0 to G).

    Attributes:
        keys: J unique names of the jobs. Searches order the jobs by them, so that answers do not depend on the order.
        speedups: J x T x 2 x (G + 1) speed-ups over the fair share, as ``speedup_table`` returns them.
        node_gpus: N numbers of GPUs.
        node_types: N indices of GPU types.
        node_limits: J x N, the most GPUs that a job can have on a node; 0 where it cannot run.
        present: J x N, the GPUs that the jobs hold now.
        factors: J factors of the speed-up on any other allocation than the present one (REALLOC_FACTOR). That of a
            waiting job counts for its start, so that a swap of equal jobs gains nothing; it should be above 0.
        weights: J weights of the jobs in the fitness, above 0.
        least_gpus: J, the fewest GPUs of a job that runs.
        most_gpus: J, the most GPUs.
        most_nodes: J, the most nodes.
        pinned: J, whether the job keeps its present allocation in any case.
        uneven: whether a job can have different numbers of GPUs on its nodes.
        avoid_interference: whether at most one job over several nodes is allowed on a node.
        p: the exponent of the fitness, finite.
        quotas: limits on several jobs together.
    """

    keys: tuple[str, ...]
    speedups: Floats
    node_gpus: Ints
    node_types: Ints
    node_limits: Ints
    present: Ints
    factors: Floats
    weights: Floats
    least_gpus: Ints
    most_gpus: Ints
    most_nodes: Ints
    pinned: Bools
    uneven: bool = False
    avoid_interference: bool = True
    p: float = -1.0
    quotas: tuple[JobQuota, ...] = ()

    def __post_init__(self) -> None:
        if not np.isfinite(self.p):
            raise ValueError(f"p is {self.p}; give a finite exponent, such as -1")
        if len(set(self.keys)) != len(self.keys):
            raise ValueError("two jobs have the same key; give each job another one")

    def reordered(self, order: Ints) -> Self:
        """The same problem with its jobs in another order."""
        by_job = {name: getattr(self, name)[order] for name in _BY_JOB}
        quotas = tuple(quota._replace(members=quota.members[order]) for quota in self.quotas)
        return replace(self, keys=tuple(self.keys[job] for job in order), quotas=quotas, **by_job)

    def speedups_of(self, allocation: Ints) -> Floats:
        """The jobs' speed-ups under an allocation, multiplied with the factors of those that change.

        Args:
            allocation: GPUs by job and node; more axes may come before these two.
        """
        gpus, nodes = allocation.sum(axis=-1), np.count_nonzero(allocation, axis=-1)
        gpus = np.minimum(gpus, self.speedups.shape[-1] - 1)  # of pinned jobs beyond the table
        types = self.node_types[np.argmax(allocation > 0, axis=-1)]
        found = self.speedups[np.arange(len(self.keys)), types, np.where(nodes > 1, MULTI_NODE, ONE_NODE), gpus]
        changed = (allocation != self.present).any(axis=-1)
        return np.asarray(found * np.where(changed, self.factors, 1.0))

    def fitness(self, allocation: Ints) -> float:
        """The fitness of an allocation (Eq. 14)."""
        return float(fitness(self.speedups_of(allocation), self.p, self.weights))

    def faults(self, allocation: Ints) -> list[str]:
        """The constraints that an allocation violates, in words; pinned jobs must only be as they are."""
        free = ~self.pinned
        each = allocation[free]
        gpus, nodes = each.sum(axis=1), np.count_nonzero(each, axis=1)
        lowest = np.where(each > 0, self.node_types, UNLIMITED).min(axis=1, initial=UNLIMITED)
        mixed = np.where(each > 0, self.node_types, -1).max(axis=1, initial=-1) != lowest
        uneven = each.max(axis=1, initial=0) * nodes != gpus
        distributed = (allocation > 0) & (np.count_nonzero(allocation, axis=1) > 1)[:, None]
        met = (distributed.sum(axis=0) > 1) & (distributed & free[:, None]).any(axis=0)
        limits = self.least_gpus[free], self.most_gpus[free], self.most_nodes[free], self.node_limits[free]
        checks = {
            "a node has fewer GPUs": (allocation.sum(axis=0) > self.node_gpus).any(),
            "a number is negative": (allocation < 0).any(),
            "a pinned job changes": (allocation[self.pinned] != self.present[self.pinned]).any(),
            "a job has too few GPUs": ((gpus > 0) & (gpus < limits[0])).any(),
            "a job has too many GPUs": (gpus > limits[1]).any(),
            "a job has too many nodes": (nodes > limits[2]).any(),
            "a job has too many GPUs on a node": (each > limits[3]).any(),
            "a job has two GPU types": (mixed & (gpus > 0)).any(),
            "a job is uneven": not self.uneven and uneven.any(),
            "two jobs over several nodes meet": self.avoid_interference and met.any(),
            "a quota is exceeded": any(self._exceeds(quota, allocation) for quota in self.quotas),
        }
        return [words for words, violated in checks.items() if violated]

    def _exceeds(self, quota: JobQuota, allocation: Ints) -> bool:
        used = quota.use(allocation.sum(axis=1), self.node_types[np.argmax(allocation > 0, axis=1)])
        return bool(used.sum() > quota.left and used[~self.pinned].any())

    @cached_property
    def values(self) -> Floats:
        """J x T x 2 x (G + 1), what each allocation other than the present one adds to the sum to be maximised.

        Allocations beyond the job's own limits are -infinity; so are those on which the job does not run.
        """
        speedups = self.speedups * self.factors[:, None, None, None]
        values = self.weights[:, None, None, None] * contributions(speedups, self.p)
        gpus = np.arange(self.speedups.shape[-1])
        outside = (gpus < np.maximum(self.least_gpus, 1)[:, None]) | (gpus > self.most_gpus[:, None])
        values[np.broadcast_to(outside[:, None, None, :], values.shape) | (self.speedups <= 0)] = -np.inf
        values[self.most_nodes <= 1, :, MULTI_NODE] = -np.inf
        return np.asarray(values)

    @cached_property
    def idle_values(self) -> Floats:
        """J, what each job adds without GPUs."""
        return np.asarray(self.weights * contributions(np.array(LEAST_SPEEDUP), self.p))

    @cached_property
    def present_values(self) -> Floats:
        """J, what each job adds on its present allocation; -infinity where that is beyond the job's own limits."""
        values = self.weights * contributions(self.speedups_of(self.present), self.p)
        gpus, nodes = self.present.sum(axis=1), np.count_nonzero(self.present, axis=1)
        allowed = (self.present <= self.node_limits).all(axis=1) & (nodes <= self.most_nodes)
        allowed &= (gpus >= self.least_gpus) & (gpus <= self.most_gpus)
        if not self.uneven:
            allowed &= self.present.max(axis=1, initial=0) * nodes == gpus
        return np.asarray(np.where(allowed & (gpus > 0), values, -np.inf))


_BY_JOB = (
    "speedups",
    "node_limits",
    "present",
    "factors",
    "weights",
    "least_gpus",
    "most_gpus",
    "most_nodes",
    "pinned",
)
