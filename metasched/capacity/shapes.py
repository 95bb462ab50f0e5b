"""The amounts of GPUs that a set of nodes can hold for a job, by the job's shape: its needs on each node.

A *unit* is one GPU with the CPUs and memory that the job needs for it; of a CPU-only job, one node.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from metasched.core.model import Job, Node
from metasched.core.retention import suspended_by_daemon

CPU_ONLY = ""
"""The GPU type of jobs without GPUs."""

NodeSet = int
"""A set of groups of nodes, as a bit mask: bit i stands for group i of a ``ClusterShapes``."""


class ShapeCapacity:
    """The amounts that jobs of one shape can be given on a set of nodes, as if nothing else ran there.

    Attributes:
        units: by GPU type, the units that each suitable node has for such a job, descending.
        widest: by GPU type, the most units of such a job on one node; types without any are left out.
        node_sets: by GPU type, the groups that suit such a job.
    """

    def __init__(self, job: Job, groups: Mapping[NodeSet, Sequence[Node]], *, uneven: bool) -> None:
        """Count the units.

        Args:
            job: any job of the shape.
            groups: interchangeable nodes, each group with its own bit.
            uneven: whether the cluster can realise different numbers of GPUs on the nodes of one job.
        """
        units: dict[str, list[int]] = {}
        node_sets: dict[str, NodeSet] = {}
        for bit, nodes in groups.items():
            if job.matches(nodes[0]):
                gpu_type = (nodes[0].gpu_type or CPU_ONLY) if job.gpus else CPU_ONLY
                node_sets[gpu_type] = node_sets.get(gpu_type, 0) | bit
                units.setdefault(gpu_type, []).extend(units_of(job, node) for node in nodes)
        for each in units.values():
            each.sort(reverse=True)
        self.units: Mapping[str, Sequence[int]] = units
        self.node_sets: Mapping[str, NodeSet] = node_sets
        self.widest = {gpu_type: each[0] for gpu_type, each in units.items() if each and each[0] > 0}
        self._job = job
        self._uneven = uneven and job.gpus > 0
        self._limited = job.nodes is not None or job.max_nodes is not None
        self._consolidated: dict[tuple[str, int], tuple[int, ...] | None] = {}

    def consolidated(self, gpu_type: str, gpus: int) -> tuple[int, ...] | None:
        """That many GPUs on as few nodes as possible.

        Returns:
            GPUs on each node, descending; None where the nodes cannot hold them.
        """
        key = gpu_type, gpus
        if key not in self._consolidated:
            self._consolidated[key] = self._find_consolidated(self.units.get(gpu_type, ()), gpus)
        return self._consolidated[key]

    def scattered(self, gpu_type: str, gpus: int) -> tuple[int, ...] | None:
        """That many GPUs on as many nodes as possible; on the same number of nodes, as even as possible.

        Returns:
            GPUs on each node, descending; None where the nodes cannot hold them.
        """
        units = self.units.get(gpu_type, ())
        if self._uneven and self.consolidated(gpu_type, gpus) is not None:
            nodes = min(self._most_nodes(units), gpus, sum(most > 0 for most in units))
            return tuple(sorted(_evenly(gpus, units[:nodes]), reverse=True))
        spreads = [(g,) * k for k, g in even_spreads(self._job, gpus, units)]
        return spreads[-1] if spreads else None

    def fills_nodes(self, gpu_type: str, gpus: int) -> bool:
        """Whether an amount is on one node, or fills all of its nodes, so that it leaves no fragments."""
        most = self.widest[gpu_type]
        return (self._uneven and not self._limited) or gpus <= most or gpus % most == 0

    def _most_nodes(self, units: Sequence[int]) -> int:
        """The most of the nodes with these units on which such a job may be."""
        return self._job.nodes or (len(units) if self._job.max_nodes is None else self._job.max_nodes)

    def _find_consolidated(self, units: Sequence[int], gpus: int) -> tuple[int, ...] | None:
        even = next(((g,) * k for k, g in even_spreads(self._job, gpus, units)), None)
        if not self._uneven or (self._limited and even is not None):
            return even
        least, parts, left = self._job.nodes or 1, list[int](), gpus
        for most in units:
            reserved = max(least - len(parts) - 1, 0)  # each of the nodes that the job asks for has at least one GPU
            if not left or not most or len(parts) >= self._most_nodes(units):
                break
            parts.append(min(most, left - reserved))
            left -= parts[-1]
        return tuple(parts) if not left and len(parts) >= least and min(parts) > 0 else None


class ClusterShapes:
    """The nodes that accept jobs, in groups of interchangeable ones, and their capacity for each shape of job.

    Attributes:
        groups: interchangeable nodes; the key is the group's bit.
    """

    def __init__(self, nodes: Iterable[Node], jobs: Iterable[Job], *, uneven: bool) -> None:
        """Group the nodes.

        Args:
            nodes: nodes; those that accept no jobs are left out.
            jobs: all jobs for which ``of`` will be called.
            uneven: whether the cluster can realise different numbers of GPUs on the nodes of one job.
        """
        groups = interchangeable_nodes(nodes, nodes_named_by(jobs))
        self.groups: Mapping[NodeSet, Sequence[Node]] = {1 << i: group for i, group in enumerate(groups)}
        self._uneven = uneven
        self._by_shape: dict[Hashable, ShapeCapacity] = {}
        self._by_uid: dict[str, ShapeCapacity] = {}

    def of(self, job: Job) -> ShapeCapacity:
        """The capacity for jobs of this job's shape; one object for all of them."""
        found = self._by_uid.get(job.uid)
        if found is None:
            shape = shape_of(job)
            if shape not in self._by_shape:
                self._by_shape[shape] = ShapeCapacity(job, self.groups, uneven=self._uneven)
            found = self._by_uid[job.uid] = self._by_shape[shape]
        return found


def shape_of(job: Job) -> Hashable:
    """The fields on which the job's units on each node depend: jobs with equal shapes have equal capacity."""
    return job.gpus > 0, job.constraints, job.cpus_per_unit, job.memory_per_unit, job.nodes, job.max_nodes


def units_of(job: Job, node: Node) -> int:
    """Units that a node has for a job while nothing else runs on it."""
    return units_within(job, node.gpus if job.gpus else 1, node.cpus, node.memory)


def units_within(job: Job, gpus: int, cpus: int, memory: int) -> int:
    """Units of a job for which GPUs (CPU-only: 1), CPUs and bytes of memory of one node suffice."""
    by_cpus = cpus // job.cpus_per_unit if job.cpus_per_unit else gpus
    by_memory = memory // job.memory_per_unit if job.memory_per_unit else gpus
    return min(gpus, by_cpus, by_memory)


def even_spreads(job: Job, gpus: int, units: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Ways to have that many GPUs, the same number on each node.

    Args:
        job: the job; its limits on the number of nodes hold.
        gpus: GPUs in all; 0 for a CPU-only job.
        units: the units of each node, descending.

    Returns:
        (nodes, GPUs on each of them), fewest nodes first.
    """
    return ((k, g) for k, g in job.spreads(gpus) if k <= len(units) and units[k - 1] >= max(g, 1))


def _evenly(gpus: int, units: Sequence[int]) -> Sequence[int]:
    """GPUs on each of some nodes, as even as their units (descending) allow; the nodes can hold them."""
    found = []
    for number, most in enumerate(reversed(units)):
        found.append(min(most, gpus // (len(units) - number)))
        gpus -= found[-1]
    return found


def nodes_named_by(jobs: Iterable[Job]) -> frozenset[str]:
    """Names of the nodes that some job asks for or excludes by name."""
    named = [job.only_nodes | job.excluded_nodes for job in jobs if job.only_nodes or job.excluded_nodes]
    return frozenset[str]().union(*named)


def interchangeable_nodes(nodes: Iterable[Node], named: AbstractSet[str]) -> list[list[Node]]:
    """Nodes that accept jobs, in groups of nodes that suit the same jobs.

    Args:
        nodes: any nodes.
        named: names of all nodes that jobs ask for or exclude by name.
    """
    groups: dict[object, list[Node]] = {}
    for node in nodes:
        if node.accepts:
            own_name = node.name if node.name in named else None
            key = (node.gpu_type, node.features, node.partitions, node.reservation, node.open_seconds, own_name)
            groups.setdefault(key, []).append(node)
    return list(groups.values())


def without_allocations(nodes: Iterable[Node], jobs: Iterable[Job]) -> tuple[Node, ...]:
    """The nodes, reduced by the allocations of some jobs, never below zero.

    GPUs that two of the jobs share are subtracted once. A suspension by the daemon frees CPUs, but no GPUs or memory.
    """
    remaining = {node.name: node for node in nodes}
    counted: set[str] = set()
    for job in jobs:
        frees_cpus = suspended_by_daemon(job)
        for name, gpus in job.placement.node_gpus if job.placement is not None else ():
            if (node := remaining.get(name)) is not None:
                remaining[name] = replace(
                    node,
                    gpus=node.gpus if job.co_runner in counted else max(node.gpus - gpus, 0),
                    cpus=node.cpus if frees_cpus else max(node.cpus - job.node_cpus(gpus), 0),
                    memory=max(node.memory - job.node_memory(gpus), 0),
                )
        counted.add(job.uid)
    return tuple(remaining.values())
