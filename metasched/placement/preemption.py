"""Preemption in the placement: jobs that lose their placements of this round so that another job gets one.

    place_evenly, for each spread (k nodes x g GPUs) and GPU type:
        candidates: nodes on which the load fits already, then the nodes of preemptible jobs, the least important jobs
            first
        minimal victims of a node: take the least important jobs off the node until the load fits, then put back the
            most important victims that fit in addition to the load
        choose the k candidates with the fewest victims; stop early at k candidates with at most one each
        release the victims, assign the nodes to the job, and place the more important victims again
        restore everything if one of these finds no nodes; less important victims are placed when it is their turn

Only jobs of ranks above a bound may be victims (a higher rank is a less important job). ``place_exactly`` tries
fallbacks, then all less important jobs, then any job; ``place_full_or_least`` the last two. Failed attempts are
counted, because each one searches all nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from metasched.core.model import Grant, Job, Placement
from metasched.placement.assignments import Assignments
from metasched.placement.free_resources import NodeGroup, Resources
from metasched.placement.requests import RequestOrder, allowed_spreads, satisfies
from metasched.placement.search import NodeSearch

# A failed attempt has searched all nodes: after this many, no further job of the round is placed by preemption.
MAX_FAILED_ATTEMPTS = 32

ANY_RANK = -1  # a rank bound under which every job may be a victim


class PreemptionSearch:
    """Places jobs by preempting others that are placed already."""

    def __init__(self, order: RequestOrder, assignments: Assignments, search: NodeSearch) -> None:
        self._failed_attempts = 0
        self._order, self._assignments, self._search, self._free = order, assignments, search, assignments.free

    def place_exactly(self, rank: int, grant: Grant, job: Job, place: Placement) -> None:
        """Place the job on exactly these nodes, if necessary by preempting others; nothing changes where that fails.

        Fallbacks preempt no job.
        """
        is_retained = job.uid in self._assignments.retained
        if not satisfies(grant, place) or not (is_retained or self._assignments.is_assignable(job, place)):
            return
        if self._assignments.fits(job, place):
            self._assignments.assign(job, place)
            return
        loads = self._assignments.additional_loads(job, place)
        is_fallback = rank >= self._order.granted
        lacks_a_node = len(loads) < len(place.nodes)
        if is_fallback or lacks_a_node or self._failed_attempts >= MAX_FAILED_ATTEMPTS:
            return
        self._assignments.index_preemptible()
        for rank_bound in (self._order.granted - 1, rank, ANY_RANK):
            victims = [found for i, load in loads if (found := self._minimal_victims(i, load, rank_bound)) is not None]
            if len(victims) == len(loads) and self._preempt_and_place(rank, job, place, set().union(*victims)):
                return
        self._failed_attempts += 1

    def place_evenly(self, rank: int, job: Job, spreads: Iterable[tuple[int, int]], rank_bound: int) -> bool:
        """Place a job on the first of some spreads by preempting few and unimportant jobs.

        Args:
            rank: the job's rank.
            job: the job.
            spreads: (nodes, GPUs per node) to try, in order.
            rank_bound: only jobs of a higher rank than this may be preempted (a higher rank is a less important job).

        Returns:
            whether it was placed; if not, nothing is changed.
        """
        self._assignments.index_preemptible()
        if self._assignments.preemptible_ranks and self._assignments.preemptible_ranks[-1] > rank_bound:
            types = self._search.preferred_gpu_types(self._order.grants[rank], job)
            for k, g in spreads:
                for gpu_type in types:
                    found = self._cheapest_nodes(job, k, g, self._free.matching(job, gpu_type), rank_bound)
                    if found is not None:
                        numbers, victims = found
                        place = Placement(self._free.names(numbers), g, gpu_type)
                        if self._preempt_and_place(rank, job, place, victims):
                            return True
        return False

    def place_full_or_least(self, rank: int, grant: Grant, job: Job, low: int) -> None:
        """Place the job on all of its GPUs or on ``low`` by preempting any jobs; not after too many failures."""
        if self._failed_attempts >= MAX_FAILED_ATTEMPTS:
            return
        served = any(
            self.place_evenly(rank, job, allowed_spreads(grant, job, gpus), rank_bound)
            for gpus in dict.fromkeys((grant.gpus, low))
            for rank_bound in (rank, ANY_RANK)
        )
        placed = served or (self._search.uneven and self._place_unevenly(rank, grant, job, low))
        if not placed:
            self._failed_attempts += 1

    def _place_unevenly(self, rank: int, grant: Grant, job: Job, low: int) -> bool:
        """Place the job on GPUs that become free as later jobs are preempted one by one, the least important first.

        Victims that still fit afterwards are put back.
        """
        self._assignments.index_preemptible()
        infeasible = self._search.clear_infeasible()
        preempted: list[tuple[str, Placement]] = []
        found = False
        while not found and self._assignments.preemptible_ranks and self._assignments.preemptible_ranks[-1] > rank:
            uid = self._order.grants[self._assignments.preemptible_ranks[-1]].uid
            preempted.append((uid, self._assignments.release(uid)))
            self._search.clear_infeasible()
            found = any(self._search.place_amount(grant, job, gpus) for gpus in dict.fromkeys((grant.gpus, low)))
        for uid, place in reversed(preempted):
            if not found or self._assignments.fits(self._order.job[uid], place):
                self._assignments.assign(self._order.job[uid], place)
        if not found:
            self._search.known_infeasible = infeasible
        return found

    def _cheapest_nodes(
        self, job: Job, k: int, g: int, groups: list[NodeGroup], rank_bound: int
    ) -> tuple[list[int], set[str]] | None:
        """The k nodes of some groups on which g GPUs become free by preempting the fewest jobs of rank above a bound.

        The nodes of the least important jobs come first. The search ends once k nodes are found that cost at most one
        job each.

        Returns:
            the node numbers, and the uids of the jobs to preempt; None if there are too few such nodes.
        """
        load = Resources.of(job, g)
        costs: list[tuple[int, int, int]] = []
        victims: dict[int, set[str]] = {}
        cheap = 0
        for i in self._candidate_nodes(load, rank_bound):
            if i in victims or self._free.group[i] not in groups:
                continue
            victims[i] = set()
            needed = self._minimal_victims(i, load, rank_bound)
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

    def _candidate_nodes(self, load: Resources, rank_bound: int) -> Iterator[int]:
        """Nodes on which the load fits without preemption, then the nodes of placed jobs, the least important first.

        A node may come several times.
        """
        yield from (i for i in self._free.candidates(self._free.groups, load) if self._free.fits(i, load))
        for rank in reversed(self._assignments.preemptible_ranks):
            if rank <= rank_bound:
                return
            yield from self._free.numbers(self._assignments.placed[self._order.grants[rank].uid])

    def _minimal_victims(self, i: int, load: Resources, rank_bound: int) -> set[str] | None:
        """The uids of the least important jobs that must leave node i for the load to fit; None if it cannot fit."""
        gpus = self._free.gpus[i] - load.gpus
        cpus = self._free.cpus[i] - load.cpus
        memory = self._free.memory[i] - load.memory
        taken: list[tuple[str, Resources]] = []
        there = self._assignments.preemptible_loads[i]
        for uid in sorted(there, key=self._order.rank.__getitem__, reverse=True):
            if (gpus >= 0 and cpus >= 0 and memory >= 0) or self._order.rank[uid] <= rank_bound:
                break
            held = there[uid]
            taken.append((uid, held))
            gpus, cpus, memory = gpus + held.gpus, cpus + held.cpus, memory + held.memory
        if gpus < 0 or cpus < 0 or memory < 0:
            return None
        victims = set()
        for uid, held in reversed(taken):  # put back the most important ones that fit after all
            if gpus >= held.gpus and cpus >= held.cpus and memory >= held.memory:
                gpus, cpus, memory = gpus - held.gpus, cpus - held.cpus, memory - held.memory
            else:
                victims.add(uid)
        return victims

    def _preempt_and_place(self, rank: int, job: Job, place: Placement, victims: set[str]) -> bool:
        """Assign the placement to the job, and other placements to its more important victims; everything or nothing.

        Returns:
            whether that was done.
        """
        before = {uid: self._assignments.release(uid) for uid in victims}
        infeasible = self._search.clear_infeasible()
        self._assignments.assign(job, place)
        tried = []
        for uid in sorted((uid for uid in victims if self._order.rank[uid] < rank), key=self._order.rank.__getitem__):
            grant, other = self._order.grants[self._order.rank[uid]], self._order.job[uid]
            tried.append(uid)
            if not self._place_again(grant, other, before[uid].gpus):
                break
        else:
            return True
        for uid in (*tried, job.uid):
            if uid in self._assignments.placed:
                self._assignments.release(uid)
        for uid, earlier in before.items():
            self._assignments.assign(self._order.job[uid], earlier)
        self._search.known_infeasible = infeasible
        return False

    def _place_again(self, grant: Grant, job: Job, gpus: int) -> bool:
        """Place a victim on its present nodes, or on others with that many GPUs; return whether it was placed."""
        if self._assignments.assign_present(grant, job):
            return True
        movable = job.uid not in self._assignments.retained and grant.exact is None
        return movable and self._search.place_amount(grant, job, gpus)
