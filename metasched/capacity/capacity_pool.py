"""What a round has to give, for each job as far as the job can use it; and which amounts it can be given at all.

Nodes that no job tells apart are one group, and the groups that suit a job are its reach. What a job is given comes off
its reach as a whole, since on which groups it will be is the placement's business. So much is left for a job as is left
on its reach, and on every wider one, beside what was given to jobs that can be nowhere else. That is exact where of any
two reaches one holds the other, or they have nothing in common (Hall's theorem on matchings). Where they overlap in
another way, the room may seem larger than it is, and the placement tells; it never seems smaller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import NamedTuple

from metasched.core.model import Job, Node, Placement, Snapshot
from metasched.core.retention import is_non_preemptible, suspended_by_daemon

CPU_ONLY = ""
"""The GPU type of jobs without GPUs."""

NodeSet = int
"""A set of groups: bit i stands for group i."""


class GpuAmount(NamedTuple):
    """An amount given to a job: GPUs of a type (CPU-only: 0 of ``CPU_ONLY``)."""

    gpus: int
    gpu_type: str


class CapacityCost(NamedTuple):
    """What a share takes somewhere."""

    reach: NodeSet
    gpus: int
    cpus: int


class ShapeCapacity:
    """Where jobs of one kind could be, on the nodes that accept jobs, if those were empty.

    Attributes:
        units: by GPU type, the GPUs (CPU-only: 1) that each node has for such a job, descending.
        widest: by GPU type, the most GPUs of such a job on one node.
        reach: by GPU type, the groups that suit such a job.
    """

    def __init__(
        self, job: Job, units: Mapping[str, Sequence[int]], reach: Mapping[str, NodeSet], *, uneven: bool
    ) -> None:
        self.units = units
        self.reach = reach
        self.widest = {kind: found[0] for kind, found in units.items() if found and found[0] > 0}
        self._job = job  # one of them
        self._uneven = uneven and job.gpus > 0 and job.nodes is None and job.max_nodes is None
        self._spreads: dict[tuple[str, int], tuple[int, ...] | None] = {}

    def spread(self, kind: str, gpus: int) -> tuple[int, ...] | None:
        """So many GPUs on as few nodes as can be; None where no nodes hold them."""
        key = kind, gpus
        if key not in self._spreads:
            self._spreads[key] = self._find(self.units.get(kind, ()), gpus)
        return self._spreads[key]

    def whole(self, kind: str, gpus: int) -> bool:
        """Whether an amount is on one node, or fills nodes, so that it leaves no fragments."""
        most = self.widest[kind]
        return self._uneven or gpus <= most or gpus % most == 0

    def _find(self, units: Sequence[int], gpus: int) -> tuple[int, ...] | None:
        if self._uneven:
            parts: list[int] = []
            for most in units:
                parts.append(min(most, gpus - sum(parts)))
                if sum(parts) == gpus:
                    return tuple(parts)
            return None
        return next(((g,) * k for k, g in even_ways(self._job, gpus, units)), None)


class _Stock:
    """Amounts of one thing, by group, and what is left of them."""

    def __init__(self, amounts: Sequence[int]) -> None:
        self._amounts = amounts
        self._given: dict[NodeSet, int] = {}
        self._left: dict[NodeSet, int] = {}  # on a reach, beside what was given to jobs that can be nowhere else
        self._wider: dict[NodeSet, list[NodeSet]] = {}  # those that hold a reach, itself among them

    def left(self, reach: NodeSet) -> int:
        """What is left on a reach; one that was asked for once counts for all that lie within it."""
        wider = self._wider.get(reach) or self._look_at(reach)
        return self._left[reach] if len(wider) == 1 else min([self._left[one] for one in wider])

    def take(self, reach: NodeSet, amount: int) -> None:
        for wider in self._wider.get(reach) or self._look_at(reach):
            self._left[wider] -= amount
        self._given[reach] += amount

    def _look_at(self, reach: NodeSet) -> list[NodeSet]:
        there = sum(amount for i, amount in enumerate(self._amounts) if reach >> i & 1)
        self._left[reach] = there - sum(given for within, given in self._given.items() if within & reach == within)
        self._given[reach] = 0
        self._wider[reach] = []
        for other, wider in self._wider.items():
            if other & reach == other:
                wider.append(reach)
            elif other & reach == reach:
                self._wider[reach].append(other)
        return self._wider[reach]


class CapacityPool:
    """What is left to give: GPUs and CPUs of nodes that accept jobs.

    Attributes:
        shares: by uid, what was given. Jobs that stay where they are have theirs from the beginning.
    """

    def __init__(self, snapshot: Snapshot, is_retained: Callable[[Job], bool] = is_non_preemptible) -> None:
        """Begin a round; ``is_retained`` says which jobs keep what they hold."""
        self._snapshot = snapshot
        self._is_retained = is_retained
        self._groups = {1 << i: nodes for i, nodes in enumerate(alike(snapshot.nodes, named_nodes(snapshot.jobs)))}
        self._bit = {node.name: bit for bit, nodes in self._groups.items() for node in nodes}
        self._gpus = _Stock([sum(node.gpus for node in nodes) for nodes in self._groups.values()])
        self._cpus = _Stock([sum(node.cpus for node in nodes) for nodes in self._groups.values()])
        types: dict[str, NodeSet] = {}
        for bit, nodes in self._groups.items():
            if (gpu_type := nodes[0].gpu_type) is not None:
                types[gpu_type] = types.get(gpu_type, 0) | bit
        self._types = tuple(types.values())
        for reach in self._types:  # the widest count for all, also where others overlap in part
            self._gpus.left(reach)
        self._cpus.left(sum(self._groups))
        self._sites: dict[object, ShapeCapacity] = {}
        self._site: dict[str, ShapeCapacity] = {}  # by uid
        self._costs: dict[str, Sequence[CapacityCost]] = {}
        self.shares: dict[str, GpuAmount] = {}
        free = {node.name: (node.gpus, node.cpus) for nodes in self._groups.values() for node in nodes}
        for job in snapshot.jobs:
            place = _holds(job)
            if place is not None and self._is_retained(job):
                share = GpuAmount(place.gpus, place.gpu_type or CPU_ONLY)
                self._put(job, share, self._staying(job, place, free))

    # -- an empty cluster -----------------------------------------------------------------------------------------

    def site(self, job: Job) -> ShapeCapacity:
        """Where it could be; jobs that are alike in that share one."""
        site = self._site.get(job.uid)
        if site is None:
            key = (job.gpus > 0, job.constraints, job.cpus_per_unit, job.memory_per_unit, job.nodes, job.max_nodes)
            if key not in self._sites:
                self._sites[key] = self._find_site(job)
            site = self._site[job.uid] = self._sites[key]
        return site

    def _find_site(self, job: Job) -> ShapeCapacity:
        units: dict[str, list[int]] = {}
        reach: dict[str, NodeSet] = {}
        for bit, nodes in self._groups.items():
            if job.matches(nodes[0]):
                kind = (nodes[0].gpu_type or CPU_ONLY) if job.gpus else CPU_ONLY
                reach[kind] = reach.get(kind, 0) | bit
                units.setdefault(kind, []).extend(units_of(job, node) for node in nodes)
        for found in units.values():
            found.sort(reverse=True)
        return ShapeCapacity(job, units, reach, uneven=self._snapshot.uneven)

    # -- what is left ---------------------------------------------------------------------------------------------

    def reach(self, job: Job, gpu_type: str) -> NodeSet:
        """The groups of a GPU type that suit it; a CPU-only job's may have GPUs or none."""
        return self.site(job).reach.get(gpu_type, 0)

    def left(self, reach: NodeSet) -> int:
        """GPUs that are left to give to jobs of that reach, which is of one type."""
        return self._gpus.left(reach)

    def cpus_left(self, reach: NodeSet) -> int:
        """CPUs that are left to give to jobs of that reach."""
        return self._cpus.left(reach)

    @property
    def used_up(self) -> bool:
        """Whether no GPUs are left."""
        return all(self._gpus.left(reach) <= 0 for reach in self._types)

    def fits(self, job: Job, share: GpuAmount) -> bool:
        """Whether so much is left, beside what it has been given already."""
        return self._fitting(job, self.costs(job, share))

    def give(self, job: Job, share: GpuAmount, reserved: NodeSet = 0) -> bool:
        """Give it that instead of what it has been given, if so much is left beside groups to be ``reserved``."""
        costs = self.costs(job, share, reserved)
        fits = self._fitting(job, costs)
        if fits:
            self._put(job, share, costs)
        return fits

    def costs(self, job: Job, share: GpuAmount, reserved: NodeSet = 0) -> Sequence[CapacityCost]:
        """What a share takes: what the job holds already on nodes that accept no jobs takes nothing."""
        reach = self.reach(job, share.gpu_type)
        held = job.placement if job.active else None
        if held is not None and held.gpus == share.gpus and (held.gpu_type or CPU_ONLY) == share.gpu_type:
            parts = []
            for name, gpus in held.node_gpus:
                if (bit := self._bit.get(name)) is not None:
                    parts.append(CapacityCost(reach & ~reserved if bit & reach else bit, gpus, job.node_cpus(gpus)))
            return _sums(parts)
        units = share.gpus if job.gpus else (job.nodes or 1)
        return (CapacityCost(reach & ~reserved, share.gpus, units * job.cpus_per_unit),)

    def taken(self, job: Job) -> Sequence[CapacityCost]:
        """What was taken for what it has been given."""
        return self._costs.get(job.uid, ())

    def _staying(self, job: Job, place: Placement, free: dict[str, tuple[int, int]]) -> Sequence[CapacityCost]:
        """What it holds where it is, no more of a node than is ``free`` there, which is taken off."""
        gpus_too = not self._counted_already(job, place)
        parts = []
        for name, gpus in place.node_gpus:
            if name in free:
                left_gpus, left_cpus = free[name]
                part = CapacityCost(
                    self._bit[name], min(gpus * gpus_too, left_gpus), min(job.node_cpus(gpus), left_cpus)
                )
                free[name] = left_gpus - part.gpus, left_cpus - part.cpus
                parts.append(part)
        return _sums(parts)

    def _counted_already(self, job: Job, place: Placement) -> bool:
        """Whether another one that stays has the same GPUs, and they count as that one's."""
        other = None if job.co_runner is None else self._snapshot.job.get(job.co_runner)
        if other is None or not (self._is_retained(job) and self._is_retained(other)):
            return False
        return other.uid < job.uid and _holds(other) == place

    def _fitting(self, job: Job, costs: Sequence[CapacityCost]) -> bool:
        """Whether so much is left beside what others have been given."""
        before = self._costs.get(job.uid)
        if before is None:
            return self._has(costs)
        self._take(before, -1)
        fits = self._has(costs)
        self._take(before, 1)
        return fits

    def _has(self, costs: Sequence[CapacityCost]) -> bool:
        for reach, gpus, cpus in costs:
            if not reach or (gpus and gpus > self._gpus.left(reach)) or (cpus and cpus > self._cpus.left(reach)):
                return False
        return True

    def _put(self, job: Job, share: GpuAmount, costs: Sequence[CapacityCost]) -> None:
        self._take(self.taken(job), -1)
        self._take(costs, 1)
        self._costs[job.uid] = costs
        self.shares[job.uid] = share

    def _take(self, costs: Sequence[CapacityCost], sign: int) -> None:
        for reach, gpus, cpus in costs:
            if gpus:
                self._gpus.take(reach, sign * gpus)
            if cpus:
                self._cpus.take(reach, sign * cpus)


def _sums(parts: Iterable[CapacityCost]) -> Sequence[CapacityCost]:
    """The same, one of each reach."""
    found: dict[NodeSet, CapacityCost] = {}
    for reach, gpus, cpus in parts:
        _, more_gpus, more_cpus = found.get(reach, (reach, 0, 0))
        found[reach] = CapacityCost(reach, more_gpus + gpus, more_cpus + cpus)
    return tuple(found.values())


def named_nodes(jobs: Iterable[Job]) -> frozenset[str]:
    """Names of nodes that some job calls by name."""
    named = [job.only_nodes | job.excluded_nodes for job in jobs if job.only_nodes or job.excluded_nodes]
    return frozenset[str]().union(*named)


def alike(nodes: Iterable[Node], named: AbstractSet[str]) -> list[list[Node]]:
    """Accepting nodes that no job tells apart, if the named ones are all that jobs call by name."""
    groups: dict[object, list[Node]] = {}
    for node in nodes:
        if node.accepts:
            called = node.name if node.name in named else None
            key = (node.gpu_type, node.features, node.partitions, node.reservation, node.open_seconds, called)
            groups.setdefault(key, []).append(node)
    return list(groups.values())


def without(nodes: Iterable[Node], jobs: Iterable[Job]) -> tuple[Node, ...]:
    """The nodes without what these jobs hold there. GPUs that two of them share are taken off once.

    A suspension of ours frees CPUs, and nothing else.
    """
    left = {node.name: node for node in nodes}
    counted: set[str] = set()
    for job in jobs:
        rests = suspended_by_daemon(job)
        for name, gpus in job.placement.node_gpus if job.placement is not None else ():
            if (node := left.get(name)) is not None:
                left[name] = replace(
                    node,
                    gpus=node.gpus if job.co_runner in counted else max(node.gpus - gpus, 0),
                    cpus=node.cpus if rests else max(node.cpus - job.node_cpus(gpus), 0),
                    memory=max(node.memory - job.node_memory(gpus), 0),
                )
        counted.add(job.uid)
    return tuple(left.values())


def even_ways(job: Job, gpus: int, units: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Nodes and GPUs on each, the fewest nodes first, that hold so many; ``units`` is each node's, descending."""
    return ((k, g) for k, g in job.spreads(gpus) if k <= len(units) and units[k - 1] >= max(g, 1))


def units_of(job: Job, node: Node) -> int:
    """GPUs (CPU-only: 1) that a node has for a job when it is empty."""
    gpus = node.gpus if job.gpus else 1
    cpus = node.cpus // job.cpus_per_unit if job.cpus_per_unit else gpus
    memory = node.memory // job.memory_per_unit if job.memory_per_unit else gpus
    return min(gpus, cpus, memory)


def _holds(job: Job) -> Placement | None:
    """What it has, or is about to get."""
    return job.placement or job.released
