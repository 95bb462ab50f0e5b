"""Who holds what so far, and what is free."""

from __future__ import annotations

from bisect import bisect_left, insort

from metasched.core.model import Grant, Job, Placement, Status
from metasched.placement.free_resources import FreeResources, NodeIndex, Resources
from metasched.placement.requests import RequestOrder, answers

ALL = Resources(1, 1, 1)
NO_GPUS = Resources(0, 1, 1)


class Assignments:
    """Who holds what so far, and what is free.

    Attributes:
        placed: places by uid.
        fixed: placed jobs that cannot be displaced.
        kept: jobs that have all they are to have, and need no further thought.
        residue: kinds of resources (1) that a job holds even if it does not run.
        ranks: who could be displaced, ascending; known from ``index`` on.
        movable: what those take on each node; likewise.
    """

    def __init__(self, order: RequestOrder, ground: NodeIndex, named: frozenset[str]) -> None:
        self.order = order
        self.ground = ground
        self.free = FreeResources(ground, named)
        self.placed: dict[str, Placement] = {}
        self.fixed: set[str] = set()
        self.kept: set[str] = set()
        self.residue: dict[str, Resources] = {}
        self.ranks: list[int] = []
        self.movable: list[dict[str, Resources]] = []
        self._indexed = False
        self._shapes: dict[tuple[int, int, int], Resources] = {}

    def assign(self, job: Job, place: Placement) -> None:
        """Give it the place."""
        uid = job.uid
        self.placed[uid] = place
        change = self.free.change
        loads = self.rest(job, place) if self.residue else self.loads(job, place)
        for i, load in loads:
            change(i, load, -1)
        if self._indexed and uid not in self.fixed:
            insort(self.ranks, self.order.rank[uid])
            for i, load in loads:
                self.movable[i][uid] = load

    def release(self, uid: str) -> Placement:
        """Take its place away, which is given back."""
        self.index()
        self.kept.discard(uid)
        place = self.placed.pop(uid)
        del self.ranks[bisect_left(self.ranks, self.order.rank[uid])]
        for i in self.free.numbers(place):
            self.free.change(i, self.movable[i].pop(uid), +1)
        return place

    def assign_colocated(self, job: Job, place: Placement) -> None:
        """Give it the place of a pinned job, on the very same GPUs."""
        self.placed[job.uid] = place
        self.fixed.add(job.uid)
        for i, load in self.loads(job, place, NO_GPUS):
            self.free.change(i, load, -1)

    def index(self) -> None:
        """From here on, know who could be displaced; most rounds never ask."""
        if self._indexed:
            return
        self._indexed = True
        self.movable = [{} for _ in self.ground.nodes]
        movable = [uid for uid in self.placed if uid not in self.fixed]
        self.ranks = sorted([self.order.rank[uid] for uid in movable])
        for uid in movable:
            for i, load in self.rest(self.order.job[uid], self.placed[uid]):
                self.movable[i][uid] = load

    def leave(self, job: Job, place: Placement, residue: Resources) -> None:
        """Leave it some kinds of resources there, whether it runs or not."""
        for i, load in self.loads(job, place, residue):
            self.free.change(i, load, -1)
        self.residue[job.uid] = residue

    def stay(self, grant: Grant, job: Job) -> bool:
        """Put it exactly where it is, was released for, or is just leaving, if that answers the grant and fits."""
        place = job.released if job.status is Status.QUEUED else job.placement
        if place is None or not answers(grant, place) or self.parted(job):
            return False
        in_place = job.status in (Status.RUNNING, Status.SUSPENDED)
        if not (in_place or self.takes(job, place)) or not self.fits(job, place):
            return False
        self.assign(job, place)
        return True

    def parted(self, job: Job) -> bool:
        """Whether another job keeps its GPUs, with which it is to share them no more."""
        return job.co_runner is not None and self.placed.get(job.co_runner) == job.placement

    def takes(self, job: Job, place: Placement) -> bool:
        """Whether its nodes are there, accept new jobs and suit this one; how much is free is another question."""
        numbers, k = self.free.numbers(place), len(place.nodes)
        asked = job.nodes if job.gpus else job.nodes or 1
        if len(numbers) < k or asked not in (None, k) or k > (job.max_nodes or k):
            return False
        nodes = [self.free.nodes[i] for i in numbers]
        kinds = {node.gpu_type for node in nodes} if job.gpus else {None}
        return kinds == {place.gpu_type} and all(node.accepts and job.matches(node) for node in nodes)

    def fits(self, job: Job, place: Placement) -> bool:
        """Whether all its nodes are there, and have room for it now."""
        loads = self.rest(job, place)
        fits = self.free.fits
        return len(loads) == len(place.nodes) and all(fits(i, load) for i, load in loads)

    def loads(self, job: Job, place: Placement, share: Resources = ALL) -> list[tuple[int, Resources]]:
        """What it takes on each of its nodes, of some kinds of resources; nodes that are gone are left out."""
        number = self.free.number
        if place.uneven:
            each = {gpus: Resources.of(job, gpus).part(share) for gpus in set(place.uneven)}
            return [(number[name], each[gpus]) for name, gpus in place.node_gpus if name in number]
        shape = (job.cpus_per_unit, job.memory_per_unit, place.gpus_per_node)
        load = self._shapes.get(shape)
        if load is None:
            load = self._shapes[shape] = Resources.of(job, place.gpus_per_node)
        if share is not ALL:
            load = load.part(share)
        return [(number[name], load) for name in place.nodes if name in number]

    def rest(self, job: Job, place: Placement) -> list[tuple[int, Resources]]:
        """What it takes on each node beyond what it holds there anyway."""
        held = self.residue.get(job.uid)
        if held is None:
            return self.loads(job, place)
        return self.loads(job, place, Resources(1 - held.gpus, 1 - held.cpus, 1 - held.memory))
