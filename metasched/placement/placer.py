"""The placement of a round's grants, in their order; the package's docstring has the pseudo-code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from metasched.capacity.shapes import nodes_named_by
from metasched.core.model import Grant, Job, Node, Placement, Preempt, Snapshot, Status
from metasched.core.reasons import Code, Reason
from metasched.core.retention import is_pinned, may_be_retained, suspended_by_daemon
from metasched.placement import explanations
from metasched.placement.assignments import ALL_BUT_GPUS, ALL_KINDS, Assignments
from metasched.placement.colocation import CoRunnerPairs, Pair, are_colocated
from metasched.placement.consolidation import consolidate
from metasched.placement.free_resources import NodeIndex, Resources
from metasched.placement.preemption import PreemptionSearch
from metasched.placement.requests import RequestOrder, allowed_spreads, least_gpus, satisfies
from metasched.placement.search import NodeSearch


@dataclass(frozen=True, slots=True)
class Placements:
    """The placements of granted jobs.

    Attributes:
        placed: by uid, most important first; pinned jobs are in it whether granted or not.
        unplaced: by uid, why a grant or fallback has no placement.
        co_runners: by uid, the other job on the same GPUs, for both jobs of each pair.
        on_other_types: by uid of a job on one of its grant's ``other_types``, why it has no placement of the granted.
    """

    placed: Mapping[str, Placement]
    unplaced: Mapping[str, Reason]
    co_runners: Mapping[str, str] = field(default_factory=dict)
    on_other_types: Mapping[str, Reason] = field(default_factory=dict)


def place(snapshot: Snapshot, grants: Sequence[Grant], fallback: Sequence[Grant] = ()) -> Placements:
    """Find nodes for the grants, most important first, then for the fallbacks on what remains free.

    Args:
        snapshot: jobs and nodes.
        grants: the grants; every uid must be a job of the snapshot, and appear once in both sequences.
        fallback: jobs that may run where a grant could not be placed.
    """
    return _Placer(snapshot, grants, fallback).run()


class _LastNodeIndex:
    """The node index of the last call: a simulation passes the same tuple of nodes in every round."""

    def __init__(self) -> None:
        self._last: tuple[tuple[Node, ...], NodeIndex] | None = None

    def of(self, nodes: tuple[Node, ...]) -> NodeIndex:
        """The index of these nodes; a new one where the last call had another tuple."""
        last = self._last  # read once, as another thread may write it
        if last is None or last[0] is not nodes:
            self._last = last = (nodes, NodeIndex(nodes))
        return last[1]


_last_node_index = _LastNodeIndex()


class _Placer:
    """One call of ``place``."""

    def __init__(self, snapshot: Snapshot, grants: Sequence[Grant], fallback: Sequence[Grant]) -> None:
        self.jobs = snapshot.job
        self.maybe_retained = [job for job in snapshot.jobs if may_be_retained(job)]
        self.order = order = RequestOrder(snapshot, grants, fallback)
        node_index = _last_node_index.of(snapshot.nodes)
        self.co_runner_pairs = CoRunnerPairs(order, node_index.nodes)
        pairs = [pair.joint_job for pair in self.co_runner_pairs.pairs.values()]
        self.assignments = Assignments(order, node_index, nodes_named_by([*snapshot.jobs, *pairs]))
        self.search = NodeSearch(self.assignments, uneven=snapshot.uneven)
        self.preemption = PreemptionSearch(order, self.assignments, self.search)
        self.co_runners: dict[str, str] = {}
        self.on_other_types: dict[str, Reason] = {}
        self._explained: dict[object, Reason] = {}

    def run(self) -> Placements:
        """Assign the retained and the present placements, then place the grants and the fallbacks by rank."""
        self._assign_retained()
        self._assign_all_present()
        granted, last = self.order.granted, len(self.order.grants)
        for ranks in (range(granted), range(granted, last)):
            self._place_ranks(ranks)
            self._place_on_other_types(ranks)
        job, placed, pairs = self.order.job, self.assignments.placed, self.co_runner_pairs.pairs
        for uid, pair in pairs.items():
            if uid in placed and job[uid] is pair.joint_job:
                placed[pair.guest.uid] = placed[uid]
                self._record_pair(uid, pair.guest.uid)
        self._consolidate()
        unplaced = {grant.uid: self._explain(grant) for grant in self.order.grants if grant.uid not in placed}
        ordered = {uid: placed[uid] for uid in placed if uid not in self.order.rank} if self.assignments.pinned else {}
        ordered |= {uid: placed[uid] for uid in self.order.rank if uid in placed}
        return Placements(ordered, unplaced, self.co_runners, self.on_other_types)

    def _place_ranks(self, ranks: range) -> None:
        """Place the requests of some ranks that are not placed yet, most important first."""
        job, placed, settled = self.order.job, self.assignments.placed, self.assignments.settled
        pairs, pinned_hosts = self.co_runner_pairs.pairs, self.co_runner_pairs.pinned_hosts
        guests = self.co_runner_pairs.guests
        for rank in ranks:
            grant = self.order.grants[rank]
            uid = grant.uid
            if uid in guests or uid in settled:
                continue
            if uid in pairs and (uid not in placed or job[uid] is not pairs[uid].joint_job):
                self._place_pair(rank, pairs[uid])
            elif uid in placed:
                if placed[uid].gpus < grant.gpus:
                    self._grow(rank, grant)
            elif uid in pinned_hosts and self._place_with_pinned(grant, pinned_hosts[uid]):
                continue
            elif grant.co_runner is None:
                self._place_grant(rank, grant)

    # -- present allocations ------------------------------------------------------------------------------------------

    def _assign_retained(self) -> None:
        """Assign the resources that no decision of this round can free, those of pinned and of suspended jobs."""
        assignments = self.assignments
        for job in sorted(self.maybe_retained, key=lambda job: (job.submitted, job.uid)):
            place = job.placement
            if place is None or not job.active:
                continue
            if is_pinned(job):
                other = job.co_runner
                if other in assignments.pinned and are_colocated(job, self.order.job[other]):
                    self._assign_colocated(job, place, other)
                else:
                    assignments.pinned.add(job.uid)
                    assignments.assign(job, place)
            elif job.status is Status.SUSPENDED:
                # An admin may resume the job at any moment, so only a suspension by the daemon frees CPUs.
                assignments.retain(job, place, Resources(1, 0, 1) if suspended_by_daemon(job) else ALL_KINDS)
            elif job.status is Status.RUNNING and job.preempt is Preempt.SUSPEND:
                assignments.retain(job, place, Resources(0, 0, 1))
        for uid, host in self.co_runner_pairs.pinned_hosts.items():
            job, place = self.order.job[uid], assignments.placed[host]
            asked = self.order.grants[self.order.rank[uid]]
            if job.status is Status.RUNNING and are_colocated(job, self.order.job[host]) and satisfies(asked, place):
                self._assign_colocated(job, place, host)

    def _assign_all_present(self) -> None:
        """Assign granted jobs their present placements: running jobs without a check, others if they fit."""
        running, queued = [], []
        assignments, jobs = self.assignments, self.order.job
        placed, settled = assignments.placed, assignments.settled
        others = placed.keys() | self.co_runner_pairs.guests | self.co_runner_pairs.pinned_hosts.keys()
        is_running, may_fit = Status.RUNNING, (Status.QUEUED, Status.SUSPENDED)
        for grant in self.order.grants:
            uid = grant.uid
            job = jobs[uid]
            place, status = job.placement, job.status
            if uid in others:
                continue
            if status is is_running:
                if place is None or not satisfies(grant, place) or (job.co_runner and assignments.loses_co_runner(job)):
                    continue
                settled.add(uid)
                if assignments.retained or place.uneven:
                    assignments.assign(job, place)
                else:
                    placed[uid] = place
                    running.append((job, place))
            elif status in may_fit:
                queued.append((grant, job))
        assignments.free.take_all(running)
        for grant, job in queued:
            assignments.assign_present(grant, job)
        short = {grant.uid for grant in self.order.grants if grant.at_least is not None and grant.at_least < grant.gpus}
        settled.difference_update(self.co_runner_pairs.pairs, short)

    # -- one grant -----------------------------------------------------------------------------------------------

    def _place_grant(self, rank: int, grant: Grant) -> None:
        """Place one grant, if necessary by preemption."""
        job = self.order.job[grant.uid]
        if self._assign_present(grant, job):
            return
        prescribed = job.placement if job.uid in self.assignments.retained else grant.exact
        if prescribed is not None:
            self.preemption.place_exactly(rank, grant, job, prescribed)
            return
        low = least_gpus(grant)
        if not self._may_be_enough(rank, grant, job, low) or self.search.place_amount(grant, job, grant.gpus):
            return
        important = rank < self.order.granted
        full = allowed_spreads(grant, job, grant.gpus)
        if important and self.preemption.place_evenly(rank, job, full, self.order.granted - 1):
            return
        if not self.search.place_fewer(grant, job, low) and important:
            self.preemption.place_full_or_least(rank, grant, job, low)

    def _assign_present(self, grant: Grant, job: Job) -> bool:
        """Assign a job the placement that it holds or was released for, if that is possible; return whether it was.

        A job that is stopping in order to grow must not be placed at its old size meanwhile, or it never grows.
        """
        grows = job.status is Status.STOPPING and job.placement is not None and job.placement.gpus < grant.gpus
        return not grows and self.assignments.assign_present(grant, job)

    def _place_on_other_types(self, ranks: range) -> None:
        """Place requests of some ranks for which no placement was found on idle GPUs of other types."""
        free, placed = self.assignments.free.total, self.assignments.placed
        if not any(free.values()):
            return
        infeasible: set[object] = set()
        for rank in ranks:
            grant = self.order.grants[rank]
            if grant.other_types and grant.uid not in placed and self._may_have_other_type(grant):
                self._place_on_other_type(grant, infeasible)

    def _may_have_other_type(self, grant: Grant) -> bool:
        """Whether nothing binds a job to the granted type: no other job, no suspension, no prescribed placement."""
        uid, pairs = grant.uid, self.co_runner_pairs
        bound = uid in pairs.pairs or uid in pairs.guests or uid in self.assignments.retained
        return not bound and grant.co_runner is None and grant.exact is None

    def _place_on_other_type(self, grant: Grant, infeasible: set[object]) -> None:
        """Place a job on GPUs of another type, if there are enough; its present GPUs come first.

        Args:
            grant: its grant.
            infeasible: requests for which no nodes were found in this pass, to which this one is added.
        """
        job, asked, least = self.jobs[grant.uid], self.order.job[grant.uid], least_gpus(grant)
        held = None if job.held_or_released is None else job.held_or_released.gpu_type
        unit = (job.constraints, job.cpus_per_unit, job.memory_per_unit, job.nodes, job.max_nodes)
        for gpu_type in sorted(grant.other_types, key=lambda one: one != held):
            request = (gpu_type, grant.gpus, least, grant.sizes, unit)
            if self.assignments.free.total.get(gpu_type, 0) < least or (gpu_type != held and request in infeasible):
                continue
            other, why = replace(grant, gpu_type=gpu_type, max_nodes=None), self._explain(grant)
            self.order.replace_request(job, other)
            if (
                self._assign_present(other, job)
                or self.search.place_amount(other, job, other.gpus)
                or self.search.place_fewer(other, job, least)
            ):
                self.on_other_types[grant.uid] = why
                return
            self.order.replace_request(asked, grant)
            infeasible.add(request)

    def _may_be_enough(self, rank: int, grant: Grant, job: Job, gpus: int) -> bool:
        """Whether the free GPUs and those of less important jobs are at least as many as given; never wrongly False."""
        if not job.gpus:
            return True
        assignments = self.assignments
        total = sum([assignments.free.total.get(gpu_type, 0) for gpu_type in self.search.gpu_types(grant, job)])
        if total < gpus and rank < self.order.granted:
            assignments.index_preemptible()
            for later in reversed(assignments.preemptible_ranks):
                if total >= gpus or later < rank:
                    break
                total += assignments.placed[self.order.grants[later].uid].gpus
        return total >= gpus

    def _grow(self, rank: int, grant: Grant) -> None:
        """Place a job that is assigned its present GPUs on more: all of its grant, if need be by preempting fallbacks.

        Otherwise it has as many as are free.
        """
        job = self.order.job[grant.uid]
        if grant.uid in self.assignments.pinned or grant.uid in self.assignments.retained:
            return
        # Requests that were infeasible may fit on the job's own nodes.
        before, infeasible = self.assignments.release(grant.uid), self.search.clear_infeasible()
        if self.search.place_amount(grant, job, grant.gpus):
            return
        fallbacks = self.order.granted - 1
        spreads = allowed_spreads(grant, job, grant.gpus)
        if rank <= fallbacks and self.preemption.place_evenly(rank, job, spreads, fallbacks):
            return
        if self.search.place_fewer(grant, job, before.gpus + 1):
            return
        self.assignments.assign(job, before)
        self.search.known_infeasible = infeasible

    def _consolidate(self) -> None:
        """Move running jobs to fewer nodes, where their grants allow it, after all other jobs have their places."""
        for grant in self.order.grants:
            if not grant.consolidate or grant.exact is not None or grant.uid in self.co_runners:
                continue
            job = self.order.job[grant.uid]
            if job.placement is not None and self.assignments.placed.get(grant.uid) == job.placement:
                consolidate(grant, job, self.assignments, self.search)

    # -- pairs ----------------------------------------------------------------------------------------------------

    def _place_pair(self, rank: int, pair: Pair) -> None:
        """Place a pair that is not placed together yet, or otherwise the host alone."""
        uid = pair.host.uid
        before, infeasible = None, self.search.known_infeasible
        if uid in self.assignments.placed:
            before, infeasible = self.assignments.release(uid), self.search.clear_infeasible()
        self.order.replace_request(pair.joint_job, pair.joint_grant)
        self._place_grant(rank, pair.joint_grant)
        if uid in self.assignments.placed:
            return
        self.order.replace_request(pair.host, pair.host_grant)
        if before is None:
            self._place_grant(rank, pair.host_grant)
        else:
            self.assignments.assign(pair.host, before)
            self.search.known_infeasible = infeasible

    def _place_with_pinned(self, grant: Grant, host: str) -> bool:
        """Assign a pinned job's GPUs to another job, unless a third job shares them; return whether it was done."""
        assignments, job, place = self.assignments, self.order.job[grant.uid], self.assignments.placed[host]
        if host in self.co_runners or not satisfies(grant, place) or not assignments.is_assignable(job, place):
            return False
        if not all(assignments.free.fits(i, load) for i, load in assignments.loads(job, place, ALL_BUT_GPUS)):
            return False
        self._assign_colocated(job, place, host)
        return True

    def _assign_colocated(self, job: Job, place: Placement, host: str) -> None:
        self.assignments.assign_colocated(job, place)
        self._record_pair(job.uid, host)

    def _record_pair(self, one: str, other: str) -> None:
        self.co_runners[one], self.co_runners[other] = other, one

    # -- reasons ---------------------------------------------------------------------------------------------------

    def _explain(self, grant: Grant) -> Reason:
        """Why a grant has no placement; found once for jobs with equal requests."""
        job, free = self.order.job[grant.uid], self.assignments.free
        if grant.co_runner is not None:
            host = self.order.job[grant.co_runner]
            code = Code.CO_RUNNER_DOES_NOT_FIT if host.uid in self.assignments.placed else Code.CO_RUNNER_UNPLACED
            return self.co_runner_pairs.unpaired.get(job.uid) or Reason.of(code, co_runner=host.slurm_job_id)
        if job.uid in self.assignments.retained and job.placement is not None:
            return Reason.of(Code.SUSPENDED_RESOURCES_TAKEN, nodes=job.placement.nodes)
        if grant.exact is not None:
            return explanations.exact(free, job, grant.exact)
        gpus = least_gpus(grant)
        unit = (job.cpus_per_unit, job.memory_per_unit, job.nodes, job.max_nodes)
        key = (gpus, grant.gpu_type, job.gpus > 0, job.constraints, unit)
        if key not in self._explained:
            types = self.search.gpu_types(grant, job) if job.gpus else (None,)
            self._explained[key] = explanations.search(free, job, gpus, types, uneven=self.search.uneven)
        return self._explained[key]
