"""Making room: who is displaced for whom."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from metasched.core.model import Grant, Job, Placement
from metasched.placement.assignments import Assignments
from metasched.placement.free_resources import Group, Resources
from metasched.placement.requests import RequestOrder, answers
from metasched.placement.search import Search

# A search for jobs to displace looks at every node; after so many vain ones the rest of the round goes without.
VAIN_REPAIRS = 32


class PreemptionSearch:
    """Places jobs by displacing others."""

    def __init__(self, order: RequestOrder, seats: Assignments, search: Search) -> None:
        self._vain = 0
        self._order, self._seats, self._search, self._free = order, seats, search, seats.free

    def put(self, rank: int, grant: Grant, job: Job, place: Placement) -> None:
        """Place it exactly there, by displacing others if it must be."""
        in_place = job.uid in self._seats.residue
        if not answers(grant, place) or not (in_place or self._seats.takes(job, place)):
            return
        if self._seats.fits(job, place):
            self._seats.assign(job, place)
            return
        loads = self._seats.rest(job, place)
        if rank >= self._order.granted or len(loads) < len(place.nodes) or self._vain >= VAIN_REPAIRS:
            return
        self._seats.index()
        for above in (self._order.granted - 1, rank, -1):
            victims = [self._victims(i, load, above) for i, load in loads]
            displaced = set[str]().union(*(some for some in victims if some is not None))
            if None not in victims and self._swap(rank, job, place, displaced):
                return
        self._vain += 1

    def evenly(self, rank: int, job: Job, spreads: Iterable[tuple[int, int]], above: int) -> bool:
        """Place a grant by taking nodes from placed jobs of rank above a bound, few and unimportant ones.

        Displaced jobs before it in the order get another place at once, or nothing is changed; those after it get
        their turn later.
        """
        self._seats.index()
        if self._seats.ranks and self._seats.ranks[-1] > above:
            types = self._search.types(self._order.grants[rank], job)
            for k, g in spreads:
                for gpu_type in types:
                    found = self._vacate(job, k, g, self._among(self._free.matching(job, gpu_type)), above)
                    if found is not None:
                        numbers, displaced = found
                        if self._swap(rank, job, Placement(self._free.names(numbers), g, gpu_type), displaced):
                            return True
        return False

    def anyhow(self, rank: int, grant: Grant, job: Job, low: int) -> None:
        """Place it on all of its GPUs or on ``low``, whoever must go for that; not after too many vain searches."""
        if self._vain >= VAIN_REPAIRS:
            return
        served = any(
            self.evenly(rank, job, job.spreads(gpus), above)
            for gpus in dict.fromkeys((grant.gpus, low))
            for above in (rank, -1)
        )
        self._vain += not (served or (self._search.uneven and self._unevenly(rank, grant, job, low)))

    def _unevenly(self, rank: int, grant: Grant, job: Job, low: int) -> bool:
        """Place it on what becomes free as later jobs are displaced, the least important first."""
        self._seats.index()
        known = self._search.forget()
        displaced: list[tuple[str, Placement]] = []
        found = False
        while not found and self._seats.ranks and self._seats.ranks[-1] > rank:
            uid = self._order.grants[self._seats.ranks[-1]].uid
            displaced.append((uid, self._seats.release(uid)))
            self._search.forget()
            found = any(self._search.amount(grant, job, gpus) for gpus in dict.fromkeys((grant.gpus, low)))
        for uid, place in reversed(displaced):
            if not found or self._seats.fits(self._order.job[uid], place):
                self._seats.assign(self._order.job[uid], place)
        if not found:
            self._search.hopeless = known
        return found

    def _among(self, groups: list[Group]) -> Callable[[int], bool]:
        return lambda i: self._free.group[i] in groups

    def _vacate(
        self, job: Job, k: int, g: int, site: Callable[[int], bool], above: int
    ) -> tuple[list[int], set[str]] | None:
        """K sites that become free enough by displacing few jobs of rank above a bound, and these jobs.

        None if there are none. Looks at the nodes of the least important jobs first, and no further once enough
        sites are found that cost one job each.
        """
        load = Resources.of(job, g)
        costs: list[tuple[int, int, int]] = []
        victims: dict[int, set[str]] = {}
        cheap = 0
        for i in self._from_the_end(load, above):
            if i in victims or not site(i):
                continue
            victims[i] = set()
            needed = self._victims(i, load, above)
            if needed is not None:
                victims[i] = needed
                costs.append((len(needed), len(costs), i))
                cheap += len(needed) <= 1
                if cheap == k:
                    break
        if len(costs) < k:
            return None
        chosen = [i for _, _, i in sorted(costs)[:k]]
        return chosen, set().union(*(victims[i] for i in chosen))

    def _from_the_end(self, load: Resources, above: int) -> Iterator[int]:
        """Nodes that fit as they are, then nodes of placed jobs, the least important first; with repetitions."""
        yield from (i for i in self._free.candidates(self._free.groups, load) if self._free.fits(i, load))
        for rank in reversed(self._seats.ranks):
            if rank <= above:
                return
            yield from self._free.numbers(self._seats.placed[self._order.grants[rank].uid])

    def _victims(self, i: int, load: Resources, above: int) -> set[str] | None:
        """The jobs to take off node i for the load to fit, the least important first; None if it cannot."""
        gpus = self._free.gpus[i] - load.gpus
        cpus = self._free.cpus[i] - load.cpus
        memory = self._free.memory[i] - load.memory
        taken: list[tuple[str, Resources]] = []
        there = self._seats.movable[i]
        for uid in sorted(there, key=self._order.rank.__getitem__, reverse=True):
            if (gpus >= 0 and cpus >= 0 and memory >= 0) or self._order.rank[uid] <= above:
                break
            held = there[uid]
            taken.append((uid, held))
            gpus, cpus, memory = gpus + held.gpus, cpus + held.cpus, memory + held.memory
        if gpus < 0 or cpus < 0 or memory < 0:
            return None
        needed = set()
        for uid, held in reversed(taken):  # spare the most important that need not go after all
            if gpus >= held.gpus and cpus >= held.cpus and memory >= held.memory:
                gpus, cpus, memory = gpus - held.gpus, cpus - held.cpus, memory - held.memory
            else:
                needed.add(uid)
        return needed

    def _swap(self, rank: int, job: Job, place: Placement, displaced: set[str]) -> bool:
        """Give the place to the job, and other places to displaced jobs before it; all of it or nothing."""
        before = {uid: self._seats.release(uid) for uid in displaced}
        known = self._search.forget()
        self._seats.assign(job, place)
        moved = []
        for uid in sorted((uid for uid in displaced if self._order.rank[uid] < rank), key=self._order.rank.__getitem__):
            grant, other = self._order.grants[self._order.rank[uid]], self._order.job[uid]
            moved.append(uid)
            if not self._settled_again(grant, other, before[uid].gpus):
                break
        else:
            return True
        for uid in (*moved, job.uid):
            if uid in self._seats.placed:
                self._seats.release(uid)
        for uid, there in before.items():
            self._seats.assign(self._order.job[uid], there)
        self._search.hopeless = known
        return False

    def _settled_again(self, grant: Grant, job: Job, gpus: int) -> bool:
        """Whether a displaced job has its place still, or another one of that many GPUs."""
        if self._seats.stay(grant, job):
            return True
        held = job.uid in self._seats.residue
        return not held and grant.exact is None and self._search.amount(grant, job, gpus)
