"""Allocation inputs: the jobs that can have time shares, the GPU types and speeds of each. Pure.

A *worker type* is a GPU type (a job's GPUs are consolidated), or a GPU type with the suffix ``UNCONSOLIDATED``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from metasched.capacity.capacity_pool import even_ways, is_fixed, units_of, without
from metasched.core.model import Job, Node, Snapshot, Speed, Status
from metasched.time_shares.round_mechanism import UNCONSOLIDATED

GpusPerNode = tuple[int, ...]
"""A placement as the number of GPUs on each of its nodes."""


@dataclass(frozen=True, slots=True)
class AllocationInputs:
    """What a time-share policy reads of a round.

    Attributes:
        jobs: GPU jobs that can have time shares, by submission.
        capacity: GPUs by type, without those of retained jobs.
        gpus_per_node: by uid, by GPU type, the job's placement there on the fewest nodes, as GPUs on each node. Only
            types that the job accepts, that can hold it in addition to the retained jobs, and on which it is not known
            not to run.
        speeds: by uid, by the same types, steps per second on that placement; None where it is not known.
        sharing: whether two jobs can have the same GPUs.
        now: unix seconds.
        unconsolidated_speeds: by uid, by GPU type, steps per second on as many nodes as possible. Only with
            ``placement``, where that is more nodes than in ``gpus_per_node`` and the speed is known.
        node_gpus: by GPU type, the GPUs of each node that retained jobs leave; empty without ``placement``.
        retained: jobs that keep their allocations, and have no time shares.
        displaced: uids of jobs that can be placed nowhere, but could be without the retained jobs.
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

    def worker_types(self, uid: str) -> tuple[str, ...]:
        """Worker types on which the job can run, the GPU types first."""
        gpu_types = tuple(self.gpus_per_node[uid])
        if uid not in self.unconsolidated_speeds:
            return gpu_types
        return (*gpu_types, *(gpu_type + UNCONSOLIDATED for gpu_type in self.unconsolidated_speeds[uid]))

    def consolidated(self, uid: str) -> Mapping[str, GpusPerNode]:
        """The job's consolidated placement, by GPU type on which it can also run unconsolidated."""
        types = self.unconsolidated_speeds.get(uid, ())
        return {gpu_type: self.gpus_per_node[uid][gpu_type] for gpu_type in types}

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
        snapshot: the round's.
        placement: whether unconsolidated GPUs are worker types of their own.
    """
    empty = {node.name: node for node in snapshot.nodes if node.gpu_type is not None and node.accepts}
    retained = [job for job in snapshot.jobs if is_fixed(job) or _runs_outside(empty, job)]
    retained_uids = {job.uid for job in retained}
    jobs = [job for job in snapshot.jobs if job.gpus > 0 and job.uid not in retained_uids]
    nodes = _Nodes(without(empty.values(), retained))
    node_gpus = nodes.gpus()
    capacity = {gpu_type: sum(gpus) for gpu_type, gpus in node_gpus.items()}
    by_speed: dict[object, tuple[Mapping[str, GpusPerNode], Mapping[str, float | None]]] = {}
    gpus_per_node, speeds, unconsolidated = {}, {}, {}
    unconsolidated_by_speed: dict[object, Mapping[str, float]] = {}
    for job in jobs:
        like = shape = _shape(job)
        found = nodes.placements(job, shape)
        if (held := _held(job, capacity)) is not None and held[0] not in found:
            like, found = (like, held), {**found, held[0]: held[1]}
        key = like, job.speed
        if (known := by_speed.get(key)) is None:
            known = by_speed[key] = _speeds(job.speed, found)
            if placement:
                unconsolidated_by_speed[key] = _unconsolidated_speeds(job, known[0], nodes.suiting(job, shape))
        gpus_per_node[job.uid], speeds[job.uid] = known
        if placement and unconsolidated_by_speed[key]:
            unconsolidated[job.uid] = unconsolidated_by_speed[key]
    unplaceable = (job for job in jobs if not gpus_per_node[job.uid])
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
        displaced=_placeable(unplaceable, empty.values()) if retained else frozenset(),
    )


def _shape(job: Job) -> tuple[object, ...]:
    """The attributes that decide where a job can be placed, its node constraints first."""
    return job.constraints, job.gpus, job.nodes, job.max_nodes, job.cpus_per_unit, job.memory_per_unit


class _Nodes:
    """Nodes, and the placements of jobs on them, which are computed once for all jobs of one shape."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self._nodes = list(nodes)
        self._suiting: dict[object, list[Node]] = {}
        self._placements: dict[object, dict[str, GpusPerNode]] = {}

    def gpus(self) -> Mapping[str, list[int]]:
        """GPUs of each node, by GPU type."""
        found: dict[str, list[int]] = {}
        for node in self._nodes:
            found.setdefault(node.gpu_type or "", []).append(node.gpus)
        return found

    def suiting(self, job: Job, shape: tuple[object, ...]) -> Sequence[Node]:
        """The nodes that satisfy the job's node constraints."""
        if shape[0] not in self._suiting:
            self._suiting[shape[0]] = [node for node in self._nodes if job.matches(node)]
        return self._suiting[shape[0]]

    def placements(self, job: Job, shape: tuple[object, ...]) -> dict[str, GpusPerNode]:
        """By GPU type, the job's placement on the fewest nodes."""
        if (found := self._placements.get(shape)) is None:
            found = self._placements[shape] = _placements(job, self.suiting(job, shape))
        return found


def _runs_outside(nodes: Mapping[str, Node], job: Job) -> bool:
    """Whether a GPU job runs on none of these nodes, which accept jobs: no other job could use its GPUs."""
    place = job.placement if job.status is Status.RUNNING else None
    return place is not None and place.gpus > 0 and nodes.keys().isdisjoint(place.nodes)


def _placeable(jobs: Iterable[Job], empty: Iterable[Node]) -> AbstractSet[str]:
    """Uids of the jobs that could be placed and run on these nodes if they were empty."""
    nodes = _Nodes(empty)
    return {job.uid for job in jobs if _speeds(job.speed, nodes.placements(job, _shape(job)))[0]}


def _held(job: Job, capacity: Mapping[str, int]) -> tuple[str, GpusPerNode] | None:
    """GPU type and placement that a running job has: it is possible even where its nodes accept no jobs now."""
    place = job.placement if job.status is Status.RUNNING else None
    gpu_type = None if place is None or place.gpus != job.gpus else place.gpu_type
    return None if place is None or gpu_type is None or gpu_type not in capacity else (gpu_type, place.spread)


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
    job: Job, placements: Mapping[str, GpusPerNode], nodes: Iterable[Node]
) -> Mapping[str, float]:
    """By GPU type, steps per second on as many nodes as possible: more than in ``placements``, and of known speed."""
    if job.speed is None:
        return {}
    widest = {
        gpu_type: per_node
        for gpu_type, per_node in _placements(job, nodes, most=True).items()
        if gpu_type in placements
    }
    found = {
        gpu_type: job.speed.steps_per_second(gpu_type, per_node)
        for gpu_type, per_node in widest.items()
        if len(per_node) > len(placements[gpu_type])
    }
    return {gpu_type: speed for gpu_type, speed in found.items() if speed}


def _placements(job: Job, nodes: Iterable[Node], *, most: bool = False) -> dict[str, GpusPerNode]:
    """By GPU type that can hold the job, its placement on the fewest nodes, or on the most."""
    units: dict[str, list[int]] = {}
    for node in nodes:
        units.setdefault(node.gpu_type or "", []).append(units_of(job, node))
    found = {}
    for gpu_type, sizes in sorted(units.items()):
        sizes.sort(reverse=True)
        ways = [(g,) * k for k, g in even_ways(job, job.gpus, sizes)]
        if ways:
            found[gpu_type] = ways[-1 if most else 0]
    return found
