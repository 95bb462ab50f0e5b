"""Grants in their order: who stays, who goes where, who makes room for whom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from metasched.capacity.capacity_pool import named_nodes
from metasched.core.model import Grant, Job, Node, Placement, Preempt, Snapshot, Status
from metasched.core.reasons import Code, Reason
from metasched.placement import explanations
from metasched.placement.assignments import ALL, NO_GPUS, Assignments
from metasched.placement.colocation import CoRunners, Pair, are_together
from metasched.placement.free_resources import NodeIndex, Resources
from metasched.placement.preemption import PreemptionSearch
from metasched.placement.requests import RequestOrder, answers, least
from metasched.placement.search import Search


@dataclass(frozen=True, slots=True)
class Placements:
    """Where the granted jobs go.

    Attributes:
        placed: by uid, most important first; pinned jobs are in it whether granted or not.
        unplaced: by uid, why a grant or fallback has no place.
        co_runners: by uid, the other job on the same GPUs, for both of each pair.
    """

    placed: Mapping[str, Placement]
    unplaced: Mapping[str, Reason]
    co_runners: Mapping[str, str] = field(default_factory=dict)


def place(snapshot: Snapshot, grants: Sequence[Grant], fallback: Sequence[Grant] = ()) -> Placements:
    """Find nodes for the grants, most important first, then for the fallback in what is left.

    Every uid must be a job of the snapshot, and appear once.
    """
    return _Placer(snapshot, grants, fallback).run()


class _LastGround:
    """The cluster that was looked at last: a simulation shows the very same tuple of nodes round after round."""

    def __init__(self) -> None:
        self._last: tuple[tuple[Node, ...], NodeIndex] | None = None

    def of(self, nodes: tuple[Node, ...]) -> NodeIndex:
        last = self._last  # one read: another thread may write it
        if last is None or last[0] is not nodes:
            self._last = last = (nodes, NodeIndex(nodes))
        return last[1]


_last_ground = _LastGround()


class _Placer:
    """One call of ``place``."""

    def __init__(self, snapshot: Snapshot, grants: Sequence[Grant], fallback: Sequence[Grant]) -> None:
        can_stop, suspended = Preempt.CHECKPOINT, Status.SUSPENDED
        self.held = [job for job in snapshot.jobs if job.preempt is not can_stop or job.status is suspended]
        self.order = order = RequestOrder(snapshot, grants, fallback)
        ground = _last_ground.of(snapshot.nodes)
        self.couples = CoRunners(order, ground.nodes)
        pairs = [pair.job for pair in self.couples.pairs.values()]
        self.seats = Assignments(order, ground, named_nodes([*snapshot.jobs, *pairs]))
        self.search = Search(self.seats, uneven=snapshot.uneven)
        self.displacement = PreemptionSearch(order, self.seats, self.search)
        self.co_runners: dict[str, str] = {}
        self.reasons: dict[object, Reason] = {}

    def run(self) -> Placements:
        self._fix()
        self._keep()
        job, placed, kept = self.order.job, self.seats.placed, self.seats.kept
        pairs, beside, guests = self.couples.pairs, self.couples.beside, self.couples.guests
        for rank, grant in enumerate(self.order.grants):
            uid = grant.uid
            if uid in guests or uid in kept:
                continue
            if uid in pairs and (uid not in placed or job[uid] is not pairs[uid].job):
                self._join(rank, pairs[uid])
            elif uid in placed:
                if placed[uid].gpus < grant.gpus:
                    self._grow(grant)
            elif uid in beside and self._sit(grant, beside[uid]):
                continue
            elif grant.co_runner is None:
                self._settle(rank, grant)
        for uid, pair in pairs.items():
            if uid in placed and job[uid] is pair.job:
                placed[pair.guest.uid] = placed[uid]
                self._share(uid, pair.guest.uid)
        unplaced = {grant.uid: self._explain(grant) for grant in self.order.grants if grant.uid not in placed}
        ordered = {uid: placed[uid] for uid in placed if uid not in self.order.rank} if self.seats.fixed else {}
        ordered |= {uid: placed[uid] for uid in self.order.rank if uid in placed}
        return Placements(ordered, unplaced, self.co_runners)

    # -- who holds what ------------------------------------------------------------------------------------------

    def _fix(self) -> None:
        """Take off what nothing in this round can free."""
        seats = self.seats
        for job in sorted(self.held, key=lambda job: (job.submitted, job.uid)):
            place = job.placement
            if place is None or not job.active:
                continue
            if job.pinned:
                other = job.co_runner
                if other in seats.fixed and are_together(job, self.order.job[other]):
                    self._seat(job, place, other)
                else:
                    seats.fixed.add(job.uid)
                    seats.assign(job, place)
            elif job.status is Status.SUSPENDED:
                # Who suspended it may resume it at any moment: only behind our own are the CPUs ours to give.
                seats.leave(job, place, Resources(1, 0, 1) if job.suspended_by_us else ALL)
            elif job.status is Status.RUNNING and job.preempt is Preempt.SUSPEND:
                seats.leave(job, place, Resources(0, 0, 1))
        for uid, host in self.couples.beside.items():
            job, place = self.order.job[uid], seats.placed[host]
            asked = self.order.grants[self.order.rank[uid]]
            if job.status is Status.RUNNING and are_together(job, self.order.job[host]) and answers(asked, place):
                self._seat(job, place, host)

    def _keep(self) -> None:
        """Leave granted jobs where they are: running ones as a fact, the others as far as there is room."""
        stay, queued = [], []
        seats, jobs = self.seats, self.order.job
        placed, kept = seats.placed, seats.kept
        settled = placed.keys() | self.couples.guests | self.couples.beside.keys()
        runs, waits = Status.RUNNING, (Status.QUEUED, Status.SUSPENDED)
        for grant in self.order.grants:
            uid = grant.uid
            job = jobs[uid]
            place, status = job.placement, job.status
            if uid in settled:
                continue
            if status is runs:
                if place is None or not answers(grant, place) or (job.co_runner and seats.parted(job)):
                    continue
                kept.add(uid)
                if seats.residue or place.uneven:
                    seats.assign(job, place)
                else:
                    placed[uid] = place
                    stay.append((job, place))
            elif status in waits:
                queued.append((grant, job))
        seats.free.hold(stay)
        for grant, job in queued:
            seats.stay(grant, job)
        short = {grant.uid for grant in self.order.grants if grant.at_least is not None and grant.at_least < grant.gpus}
        kept.difference_update(self.couples.pairs, short)

    # -- one grant -----------------------------------------------------------------------------------------------

    def _settle(self, rank: int, grant: Grant) -> None:
        """Find a place for it, and make room where there is none."""
        job = self.order.job[grant.uid]
        # A job that stops to grow must not fall back to its old size if it is looked at meanwhile: it would never end.
        grows = job.status is Status.STOPPING and job.placement is not None and job.placement.gpus < grant.gpus
        if not grows and self.seats.stay(grant, job):
            return
        prescribed = job.placement if job.uid in self.seats.residue else grant.exact
        if prescribed is not None:
            self.displacement.put(rank, grant, job, prescribed)
            return
        low = least(grant)
        if not self._enough(rank, grant, job, low) or self.search.amount(grant, job, grant.gpus):
            return
        important = rank < self.order.granted
        full = job.spreads(grant.gpus)
        if important and self.displacement.evenly(rank, job, full, self.order.granted - 1):
            return
        if not self.search.fewer(grant, job, low) and important:
            self.displacement.anyhow(rank, grant, job, low)

    def _enough(self, rank: int, grant: Grant, job: Job, gpus: int) -> bool:
        """Whether GPUs, though scattered or held by later jobs, are enough for a grant; cheap, and never wrongly no."""
        if not job.gpus:
            return True
        seats = self.seats
        total = sum([seats.free.total.get(kind, 0) for kind in self.search.kinds(grant, job)])
        if total < gpus and rank < self.order.granted:
            seats.index()
            for later in reversed(seats.ranks):
                if total >= gpus or later < rank:
                    break
                total += seats.placed[self.order.grants[later].uid].gpus
        return total >= gpus

    def _grow(self, grant: Grant) -> None:
        """Move a kept job to more GPUs, where its grant asks for more than it holds and they are free."""
        job = self.order.job[grant.uid]
        if grant.uid in self.seats.fixed or grant.uid in self.seats.residue:
            return
        # What was hopeless may fit into its own room.
        before, known = self.seats.release(grant.uid), self.search.forget()
        if not self.search.amount(grant, job, grant.gpus) and not self.search.fewer(grant, job, before.gpus + 1):
            self.seats.assign(job, before)
            self.search.hopeless = known

    # -- two on the same GPUs ------------------------------------------------------------------------------------

    def _join(self, rank: int, pair: Pair) -> None:
        """Place host and guest, where they are not placed together yet, or else the host alone."""
        uid = pair.host.uid
        before, known = None, self.search.hopeless
        if uid in self.seats.placed:
            before, known = self.seats.release(uid), self.search.forget()
        self.order.stand_in(pair.job, pair.grant)
        self._settle(rank, pair.grant)
        if uid in self.seats.placed:
            return
        self.order.stand_in(pair.host, pair.alone)
        if before is None:
            self._settle(rank, pair.alone)
        else:
            self.seats.assign(pair.host, before)
            self.search.hopeless = known

    def _sit(self, grant: Grant, host: str) -> bool:
        """Put a job on the GPUs of a pinned one, unless that shares them with another one that stays."""
        seats, job, place = self.seats, self.order.job[grant.uid], self.seats.placed[host]
        if host in self.co_runners or not answers(grant, place) or not seats.takes(job, place):
            return False
        if not all(seats.free.fits(i, load) for i, load in seats.loads(job, place, NO_GPUS)):
            return False
        self._seat(job, place, host)
        return True

    def _seat(self, job: Job, place: Placement, host: str) -> None:
        self.seats.assign_colocated(job, place)
        self._share(job.uid, host)

    def _share(self, one: str, other: str) -> None:
        self.co_runners[one], self.co_runners[other] = other, one

    # -- reasons -------------------------------------------------------------------------------------------------

    def _explain(self, grant: Grant) -> Reason:
        """Why it has no place."""
        job, free = self.order.job[grant.uid], self.seats.free
        if grant.co_runner is not None:
            host = self.order.job[grant.co_runner]
            code = Code.CO_RUNNER_NO_ROOM if host.uid in self.seats.placed else Code.CO_RUNNER_UNPLACED
            return self.couples.unpaired.get(job.uid) or Reason.of(code, co_runner=host.slurm_job_id)
        if job.uid in self.seats.residue and job.placement is not None:
            return explanations.suspended(job.placement)
        if grant.exact is not None:
            return explanations.exact(free, job, grant.exact)
        gpus = least(grant)
        unit = (job.cpus_per_unit, job.memory_per_unit, job.nodes, job.max_nodes)
        key = (gpus, grant.gpu_type, job.gpus > 0, job.constraints, unit)
        if key not in self.reasons:
            types = self.search.kinds(grant, job) if job.gpus else (None,)
            self.reasons[key] = explanations.search(free, job, gpus, types, uneven=self.search.uneven)
        return self.reasons[key]
