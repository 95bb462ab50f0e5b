"""Allocation inputs: the jobs that can have time shares, the GPU types and speeds of each. Pure.

A *worker type* is a GPU type (a job's GPUs are consolidated), or a GPU type with the suffix ``UNCONSOLIDATED``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from metasched.capacity.quota_budget import QuotaBudget, net_of, quota_reached
from metasched.capacity.shapes import ClusterShapes, ShapeCapacity, without_allocations
from metasched.core.model import Job, Node, Quota, Snapshot, Speed, Status
from metasched.core.reasons import Reason
from metasched.core.retention import consumes_quota_under_any_decision, is_non_preemptible, runs_on_closed_nodes_only
from metasched.time_shares.round_mechanism import UNCONSOLIDATED

GpusPerNode = tuple[int, ...]
"""A placement as the number of GPUs on each of its nodes."""


@dataclass(frozen=True, slots=True)
class AllocationInputs:
    """The jobs, GPUs and speeds of a round that a time-share policy reads.

    Attributes:
        jobs: GPU jobs that can have time shares, by submission; elastic ones of which quotas allow fewer GPUs than they
            request, with that many.
        capacity: GPUs by type, without those of retained jobs.
        gpus_per_node: by uid, by GPU type, the job's placement there on the fewest nodes, as GPUs on each node,
            descending; the same number on each where the cluster realises no other. Only types that the job accepts,
            that can hold it in addition to the retained jobs, of which quotas leave it enough GPUs, and on which it is
            not known not to run.
        speeds: by uid, by the same types, steps per second on that placement; None where it is not known.
        sharing: whether two jobs can have the same GPUs.
        now: unix seconds.
        unconsolidated_speeds: by uid, by GPU type, steps per second on as many nodes as possible. Only with
            ``placement``, where that is more nodes than in ``gpus_per_node`` and the speed is known.
        node_gpus: by GPU type, the GPUs of each node that retained jobs leave; empty without ``placement``.
        retained: jobs that keep their allocations, and have no time shares.
        displaced: uids of jobs that can be placed nowhere, but could be without the retained jobs.
        quotas: the quotas that leave their members less than these ask for, net of the use by other jobs.
        over_quota: by uid of the jobs that could be placed, and that quotas leave too few GPUs on every type, the
            reason.
    """

    jobs: Sequence[Job]
    capacity: Mapping[str, int]
    gpus_per_node: Mapping[str, Mapping[str, GpusPerNode]]
    speeds: Mapping[str, Mapping[str, float | None]]
    sharing: bool
    now: float
    unconsolidated_speeds: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    node_gpus: Mapping[str, Sequence[int]] = field(default_factory=dict)
    retained: Sequence[Job] = ()
    displaced: AbstractSet[str] = frozenset()
    quotas: Sequence[Quota] = ()
    over_quota: Mapping[str, Reason] = field(default_factory=dict)

    def worker_types(self, uid: str) -> tuple[str, ...]:
        """Worker types on which the job can run, the GPU types first."""
        gpu_types = tuple(self.gpus_per_node[uid])
        if uid not in self.unconsolidated_speeds:
            return gpu_types
        return (*gpu_types, *(gpu_type + UNCONSOLIDATED for gpu_type in self.unconsolidated_speeds[uid]))

    def other_types(self, uid: str, gpu_type: str) -> tuple[str, ...]:
        """The GPU types, but for one, on which the job can run."""
        return tuple([one for one in self.gpus_per_node[uid] if one != gpu_type])

    def consolidated(self, uid: str) -> Mapping[str, GpusPerNode]:
        """The job's consolidated placement, by GPU type on which it can also run unconsolidated."""
        types = self.unconsolidated_speeds.get(uid, ())
        return {gpu_type: self.gpus_per_node[uid][gpu_type] for gpu_type in types}

    def common_types(self, one: Job, other: Job) -> list[str]:
        """GPU types on which each of two jobs can run."""
        return [gpu_type for gpu_type in self.gpus_per_node[one.uid] if gpu_type in self.gpus_per_node[other.uid]]

    def pair_types(self, one: Job, other: Job) -> list[str]:
        """GPU types on which each of two jobs can run, and on which they are not known to be unable to share GPUs."""
        return [
            gpu_type
            for gpu_type in self.common_types(one, other)
            if 0.0 not in (self.colocated_speed(one, other, gpu_type), self.colocated_speed(other, one, gpu_type))
        ]

    def speed(self, job: Job, gpu_type: str) -> float | None:
        """Steps per second of a job alone and consolidated; None where it is not known.

        Raises:
            KeyError: the job cannot run on this type.
        """
        return self.speeds[job.uid][gpu_type]

    def colocated_speed(self, job: Job, other: Job, gpu_type: str) -> float | None:
        """Steps per second of a job with another on the same GPUs; None where not known, 0.0 where they cannot share.

        Raises:
            KeyError: the job cannot run on this type.
        """
        if job.whole_gpus or other.whole_gpus:
            return 0.0
        if job.speed is None or other.speed is None:
            return None
        return job.speed.steps_per_second_with(other.speed, gpu_type, self.gpus_per_node[job.uid][gpu_type])


def allocation_inputs(snapshot: Snapshot, *, placement: bool = False) -> AllocationInputs:
    """The allocation inputs of a round.

    Args:
        snapshot: the round's jobs and nodes.
        placement: whether unconsolidated GPUs are worker types of their own.
    """
    empty = {node.name: node for node in snapshot.nodes if node.gpu_type is not None and node.accepts}
    retained = [job for job in snapshot.jobs if is_non_preemptible(job) or runs_on_closed_nodes_only(job, empty)]
    retained_uids = {job.uid for job in retained}
    jobs = [job for job in snapshot.jobs if job.gpus > 0 and job.uid not in retained_uids]
    nodes = without_allocations(empty.values(), retained)
    shapes = ClusterShapes(nodes, snapshot.jobs, uneven=snapshot.uneven)
    node_gpus: dict[str, list[int]] = {}
    for node in nodes:
        node_gpus.setdefault(node.gpu_type or "", []).append(node.gpus)
    capacity = {gpu_type: sum(gpus) for gpu_type, gpus in node_gpus.items()}
    others = [job for job in snapshot.jobs if job.uid in retained_uids or consumes_quota_under_any_decision(job)]
    budget = QuotaBudget(net_of(snapshot.quotas, others))
    jobs = [
        _sized(job, shapes.of(job), budget) if job.min_gpus < job.gpus and job.uid in budget.quotas_of else job
        for job in jobs
    ]
    by_shape: dict[object, Mapping[str, GpusPerNode]] = {}
    by_speed: dict[object, tuple[Mapping[str, GpusPerNode], Mapping[str, float | None]]] = {}
    over_quota: dict[str, Reason] = {}
    gpus_per_node, speeds, unconsolidated = {}, {}, {}
    unconsolidated_by_speed: dict[object, Mapping[str, float]] = {}
    for job in jobs:
        shape = shapes.of(job)
        if (found := by_shape.get((shape, job.gpus))) is None:
            found = by_shape[shape, job.gpus] = _consolidated(job, shape)
        held = _held_on_other_type(job, capacity, found)
        if held is not None:
            found = {**found, held[0]: held[1]}
        allowed = None
        if found and job.uid in budget.quotas_of:
            found, reached = _allowed_by_quotas(job, found, budget)
            allowed = tuple(found)
            if reached is not None:
                over_quota[job.uid] = reached
        key = shape, job.gpus, held, allowed, job.speed
        if (known := by_speed.get(key)) is None:
            known = by_speed[key] = _speeds(job.speed, found)
            if placement:
                unconsolidated_by_speed[key] = _unconsolidated_speeds(job, known[0], shape)
        gpus_per_node[job.uid], speeds[job.uid] = known
        if placement and unconsolidated_by_speed[key]:
            unconsolidated[job.uid] = unconsolidated_by_speed[key]
    unplaceable = [job for job in jobs if not gpus_per_node[job.uid] and job.uid not in over_quota]
    return AllocationInputs(
        jobs,
        capacity,
        gpus_per_node,
        speeds,
        snapshot.sharing,
        snapshot.now,
        unconsolidated_speeds=unconsolidated,
        node_gpus=node_gpus if placement else {},
        retained=retained,
        displaced=_placeable(unplaceable, empty.values(), uneven=snapshot.uneven) if retained else frozenset(),
        quotas=tuple(_binding(budget, jobs, gpus_per_node)),
        over_quota=over_quota,
    )


def _consolidated(job: Job, shape: ShapeCapacity) -> Mapping[str, GpusPerNode]:
    """By GPU type, ascending, the job's placement on the fewest nodes, as GPUs on each; types without one left out."""
    found = ((gpu_type, shape.consolidated(gpu_type, job.gpus)) for gpu_type in sorted(shape.units))
    return {gpu_type: spread for gpu_type, spread in found if spread is not None}


def _sized(job: Job, shape: ShapeCapacity, budget: QuotaBudget) -> Job:
    """The elastic job, with as many of its GPUs as quotas allow and nodes can hold; unchanged where that is too few."""
    for size in sorted(job.sizes or range(job.min_gpus, job.gpus + 1), reverse=True):
        if job.min_gpus <= size <= job.gpus:
            sized = job if size == job.gpus else job.evolve(gpus=size)
            found = _consolidated(sized, shape)
            if found and _speeds(job.speed, _allowed_by_quotas(sized, found, budget)[0])[0]:
                return sized
    return job


def _allowed_by_quotas(
    job: Job, found: Mapping[str, GpusPerNode], budget: QuotaBudget
) -> tuple[Mapping[str, GpusPerNode], Reason | None]:
    """The placements on types of which quotas leave the job enough GPUs; and the reason, if there is none."""
    most = {gpu_type: budget.most_gpus(job.uid, [gpu_type]) for gpu_type in found}
    allowed = {gpu_type: spread for gpu_type, spread in found.items() if most[gpu_type][0] >= job.gpus}
    if allowed:
        return allowed, None
    gpus, number = max(most.values())
    return {}, quota_reached(budget.quotas[number], gpus)


def _binding(
    budget: QuotaBudget, jobs: Iterable[Job], gpus_per_node: Mapping[str, Mapping[str, GpusPerNode]]
) -> Iterator[Quota]:
    """The quotas that leave their members less than these ask for."""
    wanted = [0] * len(budget.quotas)
    for job in jobs:
        types = gpus_per_node[job.uid]
        for number in budget.quotas_of.get(job.uid, ()):
            quota = budget.quotas[number]
            if any(map(quota.counts, types)):
                wanted[number] += quota.use(job.gpus)
    for quota, amount in zip(budget.quotas, wanted, strict=True):
        if amount > max(quota.left, 0):
            yield quota


def _placeable(jobs: Sequence[Job], empty: Iterable[Node], *, uneven: bool) -> AbstractSet[str]:
    """Uids of the jobs that could be placed and run on these nodes if they were empty."""
    shapes = ClusterShapes(empty, jobs, uneven=uneven)
    return {job.uid for job in jobs if _speeds(job.speed, _consolidated(job, shapes.of(job)))[0]}


def _held_on_other_type(
    job: Job, capacity: Mapping[str, int], found: Mapping[str, GpusPerNode]
) -> tuple[str, GpusPerNode] | None:
    """The running job's allocation, where no placement was ``found`` on its GPU type.

    The allocation remains possible, even where its nodes would not be assigned to the job again.

    Returns:
        the GPU type, and GPUs on each node; None where there is no such allocation.
    """
    place = job.placement if job.status is Status.RUNNING else None
    if place is None or place.gpus != job.gpus or place.gpu_type is None:
        return None
    return (place.gpu_type, place.spread) if place.gpu_type in capacity and place.gpu_type not in found else None


def _speeds(
    speed: Speed | None, placements: Mapping[str, GpusPerNode]
) -> tuple[Mapping[str, GpusPerNode], Mapping[str, float | None]]:
    """The placements by GPU type, without types of speed 0; and steps per second on them, None where not known."""
    if speed is None:
        return placements, dict.fromkeys(placements)
    found = {gpu_type: speed.steps_per_second(gpu_type, per_node) for gpu_type, per_node in placements.items()}
    runs = {gpu_type: per_second for gpu_type, per_second in found.items() if per_second != 0.0}
    return {gpu_type: placements[gpu_type] for gpu_type in runs}, runs


def _unconsolidated_speeds(
    job: Job, placements: Mapping[str, GpusPerNode], shape: ShapeCapacity
) -> Mapping[str, float]:
    """By GPU type, steps per second on as many nodes as possible: more than in ``placements``, and of known speed."""
    if job.speed is None:
        return {}
    found = {}
    for gpu_type in sorted(placements.keys() & shape.units.keys()):
        per_node = shape.scattered(gpu_type, job.gpus)
        if per_node is not None and len(per_node) > len(placements[gpu_type]):
            found[gpu_type] = job.speed.steps_per_second(gpu_type, per_node)
    return {gpu_type: speed for gpu_type, speed in found.items() if speed}
