"""What shares of time are made for: jobs, and GPUs for them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from metasched.capacity.shapes import ClusterShapes, ShapeCapacity, without_allocations
from metasched.core.model import Job, Node, Snapshot, Speed, Status
from metasched.core.retention import is_non_preemptible, runs_on_closed_nodes_only
from metasched.time_shares.round_mechanism import APART


@dataclass(frozen=True, slots=True)
class AllocationInputs:
    """What shares are made for: jobs, and GPUs for them.

    Attributes:
        jobs: GPU jobs that can be given shares, by submission.
        capacity: GPUs by type, without those of jobs that stay.
        spreads: by uid, by GPU type, the best placement of the job there as GPUs on each node; only types that accept
            it and can hold it beside jobs that stay, and where it is not known not to run.
        speeds: by uid, by the same types, steps per second there; None where it is not known.
        sharing: whether two jobs can have the same GPUs.
        now: unix seconds.
        apart: by uid, by GPU type, where placement counts and it can be told: steps per second on GPUs that are spread
            over as many nodes as they can be, where that is more nodes than in ``spreads``.
        nodes: by GPU type, the GPUs of each node; empty where placement does not count.
        stays: jobs that go on with what they hold, and have no part in the shares.
        shut_out: the uids of those who could run if these were not there.
    """

    jobs: Sequence[Job]
    capacity: Mapping[str, int]
    spreads: Mapping[str, Mapping[str, tuple[int, ...]]]
    speeds: Mapping[str, Mapping[str, float | None]]
    sharing: bool
    now: float
    apart: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    nodes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    stays: Sequence[Job] = ()
    shut_out: AbstractSet[str] = frozenset()

    def kinds(self, uid: str) -> tuple[str, ...]:
        """Worker types that the job can have."""
        near = tuple(self.spreads[uid])
        return (*near, *(gpu_type + APART for gpu_type in self.apart[uid])) if uid in self.apart else near

    def near(self, uid: str) -> Mapping[str, tuple[int, ...]]:
        """The placements on types that the job can also have unconsolidated."""
        return {gpu_type: self.spreads[uid][gpu_type] for gpu_type in self.apart[uid]} if uid in self.apart else {}

    def speed(self, job: Job, gpu_type: str) -> float | None:
        """Steps per second at its best on a type that it can have; None where it is not known."""
        return self.speeds[job.uid][gpu_type]

    def speed_beside(self, job: Job, other: Job, gpu_type: str) -> float | None:
        """The same with another job on the same GPUs; 0.0 for jobs that cannot share any."""
        if job.whole_gpus or other.whole_gpus:
            return 0.0
        if job.speed is None or other.speed is None:
            return None
        return job.speed.steps_per_second_with(other.speed, gpu_type, self.spreads[job.uid][gpu_type])


def allocation_inputs(snapshot: Snapshot, *, apart: bool = False) -> AllocationInputs:
    """The inputs of a round's time shares.

    Args:
        snapshot: the round's jobs and nodes.
        apart: whether to find out the speeds on GPUs that are spread over many nodes, too.
    """
    empty = {node.name: node for node in snapshot.nodes if node.gpu_type is not None and node.accepts}
    stays = [job for job in snapshot.jobs if is_non_preemptible(job) or runs_on_closed_nodes_only(job, empty)]
    staying = {job.uid for job in stays}
    jobs = [job for job in snapshot.jobs if job.gpus > 0 and job.uid not in staying]
    nodes = without_allocations(empty.values(), stays)
    shapes = ClusterShapes(nodes, snapshot.jobs, uneven=False)
    gpus: dict[str, list[int]] = {}
    for node in nodes:
        gpus.setdefault(node.gpu_type or "", []).append(node.gpus)
    capacity = {kind: sum(each) for kind, each in gpus.items()}
    by_shape: dict[object, Mapping[str, tuple[int, ...]]] = {}
    by_speed: dict[object, tuple[Mapping[str, tuple[int, ...]], Mapping[str, float | None]]] = {}
    spreads, speeds, scattered = {}, {}, {}
    far: dict[object, Mapping[str, float]] = {}
    for job in jobs:
        shape = shapes.of(job)
        if (found := by_shape.get((shape, job.gpus))) is None:
            found = by_shape[shape, job.gpus] = _consolidated(job, shape)
        held = _held_outside(job, capacity, found)
        if held is not None:
            found = {**found, held[0]: held[1]}
        key = shape, job.gpus, held, job.speed
        if (known := by_speed.get(key)) is None:
            known = by_speed[key] = _speeds(job.speed, found)
            if apart:
                far[key] = _apart(job, known[0], shape)
        spreads[job.uid], speeds[job.uid] = known
        if apart and far[key]:
            scattered[job.uid] = far[key]
    placeless = [job for job in jobs if not spreads[job.uid]]
    return AllocationInputs(
        jobs,
        capacity,
        spreads,
        speeds,
        snapshot.sharing,
        snapshot.now,
        apart=scattered,
        nodes=gpus if apart else {},
        stays=stays,
        shut_out=_shut_out(placeless, empty.values()) if stays else frozenset(),
    )


def _consolidated(job: Job, shape: ShapeCapacity) -> Mapping[str, tuple[int, ...]]:
    """By GPU type, ascending, the job's placement on the fewest nodes, as GPUs on each; types without one left out."""
    found = ((gpu_type, shape.consolidated(gpu_type, job.gpus)) for gpu_type in sorted(shape.units))
    return {gpu_type: spread for gpu_type, spread in found if spread is not None}


def _shut_out(jobs: Sequence[Job], empty: Iterable[Node]) -> AbstractSet[str]:
    """The uids of those of some jobs without a placement that would have one on empty nodes."""
    shapes = ClusterShapes(empty, jobs, uneven=False)
    return {job.uid for job in jobs if _speeds(job.speed, _consolidated(job, shapes.of(job)))[0]}


def _held_outside(
    job: Job, capacity: Mapping[str, int], found: Mapping[str, tuple[int, ...]]
) -> tuple[str, tuple[int, ...]] | None:
    """The running job's allocation, where no placement was ``found`` on its GPU type.

    It remains possible, even where its nodes would not be assigned to the job again.

    Returns:
        the GPU type, and GPUs on each node; None where there is nothing to be added.
    """
    place = job.placement if job.status is Status.RUNNING else None
    if place is None or place.gpus != job.gpus or place.gpu_type is None:
        return None
    return (place.gpu_type, place.spread) if place.gpu_type in capacity and place.gpu_type not in found else None


def _speeds(
    speed: Speed | None, spreads: Mapping[str, tuple[int, ...]]
) -> tuple[Mapping[str, tuple[int, ...]], Mapping[str, float | None]]:
    """The placements on types where it is not known not to run, and the speeds there."""
    if speed is None:
        return spreads, dict.fromkeys(spreads)
    found = {kind: speed.steps_per_second(kind, spread) for kind, spread in spreads.items()}
    runs = {kind: per_second for kind, per_second in found.items() if per_second != 0.0}
    return {kind: spreads[kind] for kind in runs}, runs


def _apart(job: Job, spreads: Mapping[str, tuple[int, ...]], shape: ShapeCapacity) -> Mapping[str, float]:
    """By GPU type, the known steps per second on the most nodes possible, if those are more than in ``spreads``."""
    if job.speed is None:
        return {}
    far = {kind: shape.scattered(kind, job.gpus) for kind in sorted(shape.units) if kind in spreads}
    found = {
        kind: job.speed.steps_per_second(kind, spread)
        for kind, spread in far.items()
        if spread is not None and len(spread) > len(spreads[kind])
    }
    return {kind: speed for kind, speed in found.items() if speed}
