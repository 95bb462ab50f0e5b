"""The GPUs and CPUs that a policy can still assign in a round: counted by sets of nodes, without choosing nodes.

Nodes that no job's constraints distinguish form one group, and the groups that suit a job are its node set. An amount
that is assigned to a job is charged to the job's node set as a whole: the placement chooses the nodes later. For a job,
the unassigned amount is the least over its node set and all known supersets, where each set is charged for the jobs
whose node sets lie within it. The count is exact where any two node sets are nested or disjoint (Hall's theorem on
matchings). Where they overlap otherwise, the count may be too high, and the placement finds no nodes; it is never too
low.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from metasched.capacity.shapes import CPU_ONLY, ClusterShapes, NodeSet, ShapeCapacity
from metasched.core.model import Job, Placement, Snapshot
from metasched.core.retention import is_non_preemptible


class GpuAmount(NamedTuple):
    """An amount assigned to a job: GPUs of a type (CPU-only: 0 of ``CPU_ONLY``)."""

    gpus: int
    gpu_type: str


class CapacityCost(NamedTuple):
    """GPUs and CPUs that an amount is charged for, and the node set to which they are charged."""

    node_set: NodeSet
    gpus: int
    cpus: int


class _ResourceCounter:
    """The amounts of one resource in each group, and how much of them is unassigned on node sets."""

    def __init__(self, amounts: Sequence[int]) -> None:
        self._amounts = amounts
        self._charged: dict[NodeSet, int] = {}
        self._unassigned: dict[NodeSet, int] = {}  # net of what is charged to the node set and its subsets
        self._supersets: dict[NodeSet, list[NodeSet]] = {}  # registered so far, the node set itself included

    def unassigned(self, node_set: NodeSet) -> int:
        """The amount that can be assigned to a job of this node set.

        From its first use on, a node set also bounds the amounts of all node sets within it.
        """
        supersets = self._supersets.get(node_set) or self._register(node_set)
        if len(supersets) == 1:
            return self._unassigned[node_set]
        return min([self._unassigned[superset] for superset in supersets])

    def charge(self, node_set: NodeSet, amount: int) -> None:
        """Charge an amount to a node set; a negative amount undoes a charge."""
        for superset in self._supersets.get(node_set) or self._register(node_set):
            self._unassigned[superset] -= amount
        self._charged[node_set] += amount

    def _register(self, node_set: NodeSet) -> list[NodeSet]:
        total = sum(amount for i, amount in enumerate(self._amounts) if node_set >> i & 1)
        within = sum(charged for subset, charged in self._charged.items() if subset & node_set == subset)
        self._unassigned[node_set] = total - within
        self._charged[node_set] = 0
        self._supersets[node_set] = []
        for other, supersets in self._supersets.items():
            if other & node_set == other:
                supersets.append(node_set)
            elif other & node_set == node_set:
                self._supersets[node_set].append(other)
        return self._supersets[node_set]


class CapacityPool:
    """GPUs and CPUs of the nodes that accept jobs, assigned and unassigned.

    Attributes:
        groups: the nodes that accept jobs, in groups of interchangeable ones; the key is the group's bit.
        assigned: by uid, the amount assigned to a job. Retained jobs have theirs from the beginning.
    """

    def __init__(self, snapshot: Snapshot, is_retained: Callable[[Job], bool] = is_non_preemptible) -> None:
        """Begin a round.

        Args:
            snapshot: the round's jobs and nodes.
            is_retained: whether a job keeps its allocation in this round, or the placement that it is released for.
        """
        self._snapshot = snapshot
        self._is_retained = is_retained
        self._shapes = ClusterShapes(snapshot.nodes, snapshot.jobs, uneven=snapshot.uneven)
        self.groups = groups = self._shapes.groups
        self._bit = {node.name: bit for bit, nodes in groups.items() for node in nodes}
        self._gpus = _ResourceCounter([sum(node.gpus for node in nodes) for nodes in groups.values()])
        self._cpus = _ResourceCounter([sum(node.cpus for node in nodes) for nodes in groups.values()])
        by_type: dict[str, NodeSet] = {}
        for bit, nodes in groups.items():
            if (gpu_type := nodes[0].gpu_type) is not None:
                by_type[gpu_type] = by_type.get(gpu_type, 0) | bit
        self._types = tuple(by_type.values())
        for node_set in self._types:  # registered first: the widest sets bound all others, also those that overlap
            self._gpus.unassigned(node_set)
        self._cpus.unassigned(sum(groups))
        self._costs: dict[str, Sequence[CapacityCost]] = {}
        self.assigned: dict[str, GpuAmount] = {}
        free = {node.name: (node.gpus, node.cpus) for nodes in groups.values() for node in nodes}
        for job in snapshot.jobs:
            place = job.held_or_released
            if place is not None and self._is_retained(job):
                amount = GpuAmount(place.gpus, place.gpu_type or CPU_ONLY)
                self._record(job, amount, self._retained_costs(job, place, free))

    def shape(self, job: Job) -> ShapeCapacity:
        """The amounts that the job could be given if the cluster were empty; one object for each shape of job."""
        return self._shapes.of(job)

    def node_set(self, job: Job, gpu_type: str) -> NodeSet:
        """The groups of a GPU type that suit the job. A CPU-only job's groups may have GPUs or none."""
        return self.shape(job).node_sets.get(gpu_type, 0)

    def unassigned_gpus(self, node_set: NodeSet) -> int:
        """GPUs that can still be assigned to jobs of a node set, which is of one GPU type."""
        return self._gpus.unassigned(node_set)

    def unassigned_cpus(self, node_set: NodeSet) -> int:
        """CPUs that can still be assigned to jobs of a node set."""
        return self._cpus.unassigned(node_set)

    @property
    def exhausted(self) -> bool:
        """Whether no GPUs of any type are unassigned."""
        return all(self._gpus.unassigned(node_set) <= 0 for node_set in self._types)

    def fits(self, job: Job, amount: GpuAmount) -> bool:
        """Whether the amount could be assigned to the job instead of its present amount."""
        return self._fits(job, self.costs(job, amount))

    def assign(self, job: Job, amount: GpuAmount, reserved: NodeSet = 0) -> bool:
        """Assign the amount to the job, instead of its present amount, if it fits.

        Args:
            job: the job.
            amount: the GPUs.
            reserved: groups that the job must not be charged to.

        Returns:
            whether it fits; if not, nothing is changed.
        """
        costs = self.costs(job, amount, reserved)
        fits = self._fits(job, costs)
        if fits:
            self._record(job, amount, costs)
        return fits

    def costs(self, job: Job, amount: GpuAmount, reserved: NodeSet = 0) -> Sequence[CapacityCost]:
        """The costs of an amount for a job. GPUs that the job holds on nodes that accept no jobs cost nothing."""
        node_set = self.node_set(job, amount.gpu_type)
        held = job.placement if job.active else None
        if held is not None and held.gpus == amount.gpus and (held.gpu_type or CPU_ONLY) == amount.gpu_type:
            costs = []
            for name, gpus in held.node_gpus:
                if (bit := self._bit.get(name)) is not None:
                    charged_to = node_set & ~reserved if bit & node_set else bit
                    costs.append(CapacityCost(charged_to, gpus, job.node_cpus(gpus)))
            return _summed(costs)
        units = amount.gpus if job.gpus else (job.nodes or 1)
        return (CapacityCost(node_set & ~reserved, amount.gpus, units * job.cpus_per_unit),)

    def assigned_costs(self, job: Job) -> Sequence[CapacityCost]:
        """The costs of the amount that is assigned to the job; empty where nothing is assigned."""
        return self._costs.get(job.uid, ())

    def _retained_costs(self, job: Job, place: Placement, free: dict[str, tuple[int, int]]) -> Sequence[CapacityCost]:
        """The costs of a retained job's placement: on each node no more than is ``free`` there, which is reduced."""
        counts_gpus = not self._counted_with_co_runner(job, place)
        costs = []
        for name, gpus in place.node_gpus:
            if name in free:
                free_gpus, free_cpus = free[name]
                charged_gpus = min(gpus, free_gpus) if counts_gpus else 0
                charged_cpus = min(job.node_cpus(gpus), free_cpus)
                free[name] = free_gpus - charged_gpus, free_cpus - charged_cpus
                costs.append(CapacityCost(self._bit[name], charged_gpus, charged_cpus))
        return _summed(costs)

    def _counted_with_co_runner(self, job: Job, place: Placement) -> bool:
        """Whether the job's GPUs are charged to its co-runner, which is retained on the same GPUs."""
        other = None if job.co_runner is None else self._snapshot.job.get(job.co_runner)
        if other is None or not (self._is_retained(job) and self._is_retained(other)):
            return False
        return other.uid < job.uid and other.held_or_released == place

    def _fits(self, job: Job, costs: Sequence[CapacityCost]) -> bool:
        """Whether the costs can be charged once those of the job's present amount are refunded."""
        before = self._costs.get(job.uid)
        if before is None:
            return self._affordable(costs)
        self._charge(before, -1)
        fits = self._affordable(costs)
        self._charge(before, 1)
        return fits

    def _affordable(self, costs: Sequence[CapacityCost]) -> bool:
        for node_set, gpus, cpus in costs:
            if not node_set or (gpus and gpus > self._gpus.unassigned(node_set)):
                return False
            if cpus and cpus > self._cpus.unassigned(node_set):
                return False
        return True

    def _record(self, job: Job, amount: GpuAmount, costs: Sequence[CapacityCost]) -> None:
        self._charge(self.assigned_costs(job), -1)
        self._charge(costs, 1)
        self._costs[job.uid] = costs
        self.assigned[job.uid] = amount

    def _charge(self, costs: Sequence[CapacityCost], sign: int) -> None:
        for node_set, gpus, cpus in costs:
            if gpus:
                self._gpus.charge(node_set, sign * gpus)
            if cpus:
                self._cpus.charge(node_set, sign * cpus)


def _summed(costs: Iterable[CapacityCost]) -> Sequence[CapacityCost]:
    """The costs, with those of one node set added up."""
    sums: dict[NodeSet, CapacityCost] = {}
    for node_set, gpus, cpus in costs:
        _, more_gpus, more_cpus = sums.get(node_set, (node_set, 0, 0))
        sums[node_set] = CapacityCost(node_set, more_gpus + gpus, more_cpus + cpus)
    return tuple(sums.values())
