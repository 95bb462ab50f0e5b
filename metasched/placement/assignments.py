"""The placements that are assigned so far in a call of ``place``, and the resources that they leave free."""

from __future__ import annotations

from bisect import bisect_left, insort

from metasched.core.model import Grant, Job, Placement, Status
from metasched.placement.free_resources import FreeResources, NodeIndex, Resources
from metasched.placement.requests import RequestOrder, satisfies

ALL_KINDS = Resources(1, 1, 1)
ALL_BUT_GPUS = Resources(0, 1, 1)


class Assignments:
    """The placements that are assigned so far, and the resources that they leave free.

    Attributes:
        order: the requests.
        node_index: the cluster's nodes.
        free: the free resources of each node.
        placed: placements by uid.
        pinned: uids of placed jobs that cannot be preempted: pinned jobs, and their co-runners.
        settled: uids of jobs that need no search, because they hold all GPUs that were granted.
        retained: by uid, the kinds of resources (1; others 0) that a job holds even if it does not run.
        preemptible_ranks: ranks of placed jobs that could be preempted, ascending; valid after ``index_preemptible``.
        preemptible_loads: for each node, by uid, the load of those jobs there; valid after ``index_preemptible``.
    """

    def __init__(self, order: RequestOrder, node_index: NodeIndex, named: frozenset[str]) -> None:
        self.order = order
        self.node_index = node_index
        self.free = FreeResources(node_index, named)
        self.placed: dict[str, Placement] = {}
        self.pinned: set[str] = set()
        self.settled: set[str] = set()
        self.retained: dict[str, Resources] = {}
        self.preemptible_ranks: list[int] = []
        self.preemptible_loads: list[dict[str, Resources]] = []
        self._indexed = False
        self._shapes: dict[tuple[int, int, int], Resources] = {}

    def assign(self, job: Job, place: Placement) -> None:
        """Assign the placement to the job, and take its resources."""
        uid = job.uid
        self.placed[uid] = place
        change = self.free.change
        loads = self.additional_loads(job, place) if self.retained else self.loads(job, place)
        for i, load in loads:
            change(i, load, -1)
        if self._indexed and uid not in self.pinned:
            insort(self.preemptible_ranks, self.order.rank[uid])
            for i, load in loads:
                self.preemptible_loads[i][uid] = load

    def release(self, uid: str) -> Placement:
        """Take the job's placement away, free its resources, and return the placement."""
        self.index_preemptible()
        self.settled.discard(uid)
        place = self.placed.pop(uid)
        del self.preemptible_ranks[bisect_left(self.preemptible_ranks, self.order.rank[uid])]
        for i in self.free.numbers(place):
            self.free.change(i, self.preemptible_loads[i].pop(uid), +1)
        return place

    def assign_colocated(self, job: Job, place: Placement) -> None:
        """Assign the placement of a pinned job to another job, on the same GPUs: only CPUs and memory are taken."""
        self.placed[job.uid] = place
        self.pinned.add(job.uid)
        for i, load in self.loads(job, place, ALL_BUT_GPUS):
            self.free.change(i, load, -1)

    def index_preemptible(self) -> None:
        """Begin to keep ``preemptible_ranks`` and ``preemptible_loads``; most rounds never need them."""
        if self._indexed:
            return
        self._indexed = True
        self.preemptible_loads = [{} for _ in self.node_index.nodes]
        movable = [uid for uid in self.placed if uid not in self.pinned]
        self.preemptible_ranks = sorted([self.order.rank[uid] for uid in movable])
        for uid in movable:
            for i, load in self.additional_loads(self.order.job[uid], self.placed[uid]):
                self.preemptible_loads[i][uid] = load

    def retain(self, job: Job, place: Placement, kinds: Resources) -> None:
        """Take some kinds of resources for a suspended or suspendable job, whether it is placed or not."""
        for i, load in self.loads(job, place, kinds):
            self.free.change(i, load, -1)
        self.retained[job.uid] = kinds

    def assign_present(self, grant: Grant, job: Job) -> bool:
        """Assign the placement that the job holds, or was released for, if the placement satisfies the grant and fits.

        Returns:
            whether it was assigned.
        """
        place = job.released if job.status is Status.QUEUED else job.placement
        if place is None or not satisfies(grant, place) or self.loses_co_runner(job):
            return False
        in_place = job.status in (Status.RUNNING, Status.SUSPENDED)
        if not (in_place or self.is_assignable(job, place)) or not self.fits(job, place):
            return False
        self.assign(job, place)
        return True

    def loses_co_runner(self, job: Job) -> bool:
        """Whether the job's GPUs are assigned to its present co-runner alone, as the two are to share them no more."""
        return job.co_runner is not None and self.placed.get(job.co_runner) == job.placement

    def is_assignable(self, job: Job, place: Placement) -> bool:
        """Whether the placement's nodes exist, accept jobs and suit the job, regardless of what is free on them."""
        numbers, k = self.free.numbers(place), len(place.nodes)
        asked = job.nodes if job.gpus else job.nodes or 1
        if len(numbers) < k or asked not in (None, k) or k > (job.max_nodes or k):
            return False
        nodes = [self.free.nodes[i] for i in numbers]
        gpu_types = {node.gpu_type for node in nodes} if job.gpus else {None}
        return gpu_types == {place.gpu_type} and all(node.accepts and job.matches(node) for node in nodes)

    def fits(self, job: Job, place: Placement) -> bool:
        """Whether all nodes of the placement exist, and their free resources suffice for the job."""
        loads = self.additional_loads(job, place)
        fits = self.free.fits
        return len(loads) == len(place.nodes) and all(fits(i, load) for i, load in loads)

    def loads(self, job: Job, place: Placement, kinds: Resources = ALL_KINDS) -> list[tuple[int, Resources]]:
        """The resources of some kinds that the job takes of each node of a placement; missing nodes are left out.

        Returns:
            node numbers with loads.
        """
        number = self.free.number
        if place.uneven:
            each = {gpus: Resources.of(job, gpus).masked(kinds) for gpus in set(place.uneven)}
            return [(number[name], each[gpus]) for name, gpus in place.node_gpus if name in number]
        shape = (job.cpus_per_unit, job.memory_per_unit, place.gpus_per_node)
        load = self._shapes.get(shape)
        if load is None:
            load = self._shapes[shape] = Resources.of(job, place.gpus_per_node)
        if kinds is not ALL_KINDS:
            load = load.masked(kinds)
        return [(number[name], load) for name in place.nodes if name in number]

    def additional_loads(self, job: Job, place: Placement) -> list[tuple[int, Resources]]:
        """``loads`` without the kinds of resources that the job retains in any case."""
        held = self.retained.get(job.uid)
        if held is None:
            return self.loads(job, place)
        return self.loads(job, place, Resources(1 - held.gpus, 1 - held.cpus, 1 - held.memory))
