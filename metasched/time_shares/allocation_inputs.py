"""What shares of time are made for: jobs, and GPUs for them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from metasched.capacity.capacity_pool import even_ways, units_of, without
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
    """Who claims what in a round; ``apart``: and how fast jobs are on GPUs that are spread over many nodes."""
    empty = {node.name: node for node in snapshot.nodes if node.gpu_type is not None and node.accepts}
    stays = [job for job in snapshot.jobs if is_non_preemptible(job) or runs_on_closed_nodes_only(job, empty)]
    staying = {job.uid for job in stays}
    jobs = [job for job in snapshot.jobs if job.gpus > 0 and job.uid not in staying]
    places = _Places(without(empty.values(), stays))
    gpus = places.gpus()
    capacity = {kind: sum(left) for kind, left in gpus.items()}
    by_speed: dict[object, tuple[Mapping[str, tuple[int, ...]], Mapping[str, float | None]]] = {}
    spreads, speeds, scattered = {}, {}, {}
    far: dict[object, Mapping[str, float]] = {}
    for job in jobs:
        like = shape = _shape(job)
        found = places.spreads(job, shape)
        if (kept := _kept(job, capacity)) is not None and kept[0] not in found:
            like, found = (like, kept), {**found, kept[0]: kept[1]}
        key = like, job.speed
        if (known := by_speed.get(key)) is None:
            known = by_speed[key] = _speeds(job.speed, found)
            if apart:
                far[key] = _apart(job, known[0], places.suiting(job, shape))
        spreads[job.uid], speeds[job.uid] = known
        if apart and far[key]:
            scattered[job.uid] = far[key]
    placeless = (job for job in jobs if not spreads[job.uid])
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


def _shape(job: Job) -> tuple[object, ...]:
    """What decides where it can be placed, its constraints first."""
    return job.constraints, job.gpus, job.nodes, job.max_nodes, job.cpus_per_unit, job.memory_per_unit


class _Places:
    """Nodes, and where on them jobs could be placed; of jobs of one shape it is found once."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self._nodes = list(nodes)
        self._suiting: dict[object, list[Node]] = {}
        self._spreads: dict[object, dict[str, tuple[int, ...]]] = {}

    def gpus(self) -> Mapping[str, list[int]]:
        """By type, those of each node."""
        found: dict[str, list[int]] = {}
        for node in self._nodes:
            found.setdefault(node.gpu_type or "", []).append(node.gpus)
        return found

    def suiting(self, job: Job, shape: tuple[object, ...]) -> Sequence[Node]:
        """The nodes that suit a job."""
        if shape[0] not in self._suiting:
            self._suiting[shape[0]] = [node for node in self._nodes if job.matches(node)]
        return self._suiting[shape[0]]

    def spreads(self, job: Job, shape: tuple[object, ...]) -> dict[str, tuple[int, ...]]:
        """By type, a job's placement with the fewest nodes."""
        if (found := self._spreads.get(shape)) is None:
            found = self._spreads[shape] = _spreads(job, self.suiting(job, shape))
        return found


def _shut_out(jobs: Iterable[Job], empty: Iterable[Node]) -> AbstractSet[str]:
    """Which of these jobs, that have no place, would have one on empty nodes."""
    places = _Places(empty)
    return {job.uid for job in jobs if _speeds(job.speed, places.spreads(job, _shape(job)))[0]}


def _kept(job: Job, capacity: Mapping[str, int]) -> tuple[str, tuple[int, ...]] | None:
    """What it has, as type and GPUs on each node: that is possible, even where its nodes would not take it again."""
    place = job.placement if job.status is Status.RUNNING else None
    kind = None if place is None or place.gpus != job.gpus else place.gpu_type
    return None if place is None or kind is None or kind not in capacity else (kind, place.spread)


def _speeds(
    speed: Speed | None, spreads: Mapping[str, tuple[int, ...]]
) -> tuple[Mapping[str, tuple[int, ...]], Mapping[str, float | None]]:
    """The placements on types where it is not known not to run, and the speeds there."""
    if speed is None:
        return spreads, dict.fromkeys(spreads)
    found = {kind: speed.steps_per_second(kind, spread) for kind, spread in spreads.items()}
    runs = {kind: per_second for kind, per_second in found.items() if per_second != 0.0}
    return {kind: spreads[kind] for kind in runs}, runs


def _apart(job: Job, spreads: Mapping[str, tuple[int, ...]], nodes: Iterable[Node]) -> Mapping[str, float]:
    """By type, the speed on as many nodes as can be, where that is known, and another place than the one on few."""
    if job.speed is None:
        return {}
    far = {kind: spread for kind, spread in _spreads(job, nodes, most=True).items() if kind in spreads}
    found = {kind: job.speed.steps_per_second(kind, far[kind]) for kind in far if len(far[kind]) > len(spreads[kind])}
    return {kind: speed for kind, speed in found.items() if speed}


def _spreads(job: Job, nodes: Iterable[Node], *, most: bool = False) -> dict[str, tuple[int, ...]]:
    """By type of these nodes that could hold it, the placement with the fewest of them, or with the most."""
    room: dict[str, list[int]] = {}
    for node in nodes:
        room.setdefault(node.gpu_type or "", []).append(units_of(job, node))
    found = {}
    for gpu_type, sizes in sorted(room.items()):
        sizes.sort(reverse=True)
        ways = [(g,) * k for k, g in even_ways(job, job.gpus, sizes)]
        if ways:
            found[gpu_type] = ways[-1 if most else 0]
    return found
