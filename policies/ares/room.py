"""What there is to give: GPUs by type, and CPUs; and which amounts of them a job can be given at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from metasched.model import Job, Preempt, Snapshot, Status


class Site:
    """Where jobs of one kind could be, on the nodes that accept jobs, if those were empty.

    Attributes:
        widest: by GPU type, the most GPUs of such a job on one node.
    """

    def __init__(self, job: Job, units: Mapping[str, Sequence[int]], *, uneven: bool) -> None:
        self._job = job  # one of them
        self._units = units  # GPUs of each node, descending, by type
        self._uneven = uneven and job.nodes is None and job.max_nodes is None
        self._spreads: dict[tuple[str, int], tuple[int, ...] | None] = {}
        self.widest = {kind: found[0] for kind, found in units.items() if found and found[0] > 0}

    def spread(self, kind: str, gpus: int) -> tuple[int, ...] | None:
        """So many GPUs on as few nodes as can be; None where no nodes hold them."""
        key = kind, gpus
        if key not in self._spreads:
            self._spreads[key] = self._find(self._units.get(kind, ()), gpus)
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
        ways = self._job.spreads(gpus)
        return next(((g,) * k for k, g in ways if k <= len(units) and units[k - 1] >= max(g, 1)), None)


class Room:
    """What is left to give. Jobs that can neither stop nor move have theirs from the beginning.

    Attributes:
        gpus: by type.
        cpus: in all.
        shares: by uid, what was given: the GPU type and the GPUs.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._open = {node.name for node in snapshot.nodes if node.accepts}
        self._sites: dict[object, Site] = {}
        self.gpus = dict(snapshot.capacity)
        self.cpus = sum(node.cpus for node in snapshot.nodes if node.accepts)
        self.shares: dict[str, tuple[str, int]] = {}
        for job in snapshot.jobs:
            if job.placement is not None and fixed(job):
                self.give(job, job.placement.gpu_type or "", job.placement.gpus)

    def site(self, job: Job) -> Site:
        """Where it could be; jobs that are alike in that share one."""
        key = (job.gpus > 0, job.constraints, job.cpus_per_unit, job.memory_per_unit, job.nodes, job.max_nodes)
        if key not in self._sites:
            units: dict[str, list[int]] = {}
            for node in self._snapshot.nodes:
                if node.accepts and job.matches(node):
                    gpus = node.gpus if job.gpus else 1
                    cpus = node.cpus // job.cpus_per_unit if job.cpus_per_unit else gpus
                    memory = node.memory // job.memory_per_unit if job.memory_per_unit else gpus
                    kind = (node.gpu_type or "") if job.gpus else ""
                    units.setdefault(kind, []).append(min(gpus, cpus, memory))
            for found in units.values():
                found.sort(reverse=True)
            self._sites[key] = Site(job, units, uneven=self._snapshot.uneven)
        return self._sites[key]

    def keeps(self, job: Job) -> bool:
        """Whether it holds something on nodes that would not take it again."""
        if job.placement is None or not job.active:
            return False
        there = [self._snapshot.node.get(name) for name in job.placement.nodes]
        return not all(node is not None and node.accepts and job.matches(node) for node in there)

    def fits(self, job: Job, kind: str, gpus: int) -> bool:
        """Whether so much is left, beside what it has been given already."""
        more_gpus, more_cpus = self._more(job, kind, gpus)
        return more_gpus <= max(self.gpus.get(kind, 0), 0) and (more_cpus <= 0 or more_cpus <= self.cpus)

    def give(self, job: Job, kind: str, gpus: int) -> None:
        """Give it that instead of what it has been given, of the same type."""
        more_gpus, more_cpus = self._more(job, kind, gpus)
        if job.gpus:
            self.gpus[kind] = self.gpus.get(kind, 0) - more_gpus
        self.cpus -= more_cpus
        self.shares[job.uid] = (kind, gpus)

    def _more(self, job: Job, kind: str, gpus: int) -> tuple[int, int]:
        before = self._cost(job, *self.shares[job.uid]) if job.uid in self.shares else 0
        more = self._cost(job, kind, gpus) - before
        return (more if job.gpus else 0), more * job.cpus_per_unit

    def _cost(self, job: Job, kind: str, gpus: int) -> int:
        """GPUs (CPU-only: nodes) of the room: what it keeps on nodes that accept no jobs is not of it."""
        held = job.placement if job.active else None
        if held is not None and (held.gpu_type or "", held.gpus) == (kind, gpus):
            return sum(max(count, 1) for name, count in held.shares if name in self._open)
        return gpus or job.nodes or 1


def fixed(job: Job) -> bool:
    """Whether it holds what neither it nor anybody else can be given otherwise now."""
    if job.preempt is Preempt.CHECKPOINT and job.status is not Status.SUSPENDED:
        return False
    return job.pinned or (job.status is Status.SUSPENDED and job.gpus > 0)
