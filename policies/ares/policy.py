"""Ares: who would end first under fair sharing is served first, with more GPUs than it asked for where it scales.

Source: Liu et al., "Ares: Fair and Efficient Scheduling of Deep Learning Jobs with Elastic Fair Queuing", 2025.
Elastic fair queuing (section 3.2) orders jobs by their virtual finish time under generalised processor sharing, which
is fixed when a job arrives; an earlier one preempts. Scaling control (section 3.3) doubles a job's GPUs from what it
asked for while they stay efficient. Jobs of unknown demand have a pool of their own under fair sharing (section 3.5).
On several GPU types, demands count in GPUs of average power, and jobs choose the type in turn (section 3.5).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import ClassVar, Literal

from pydantic import Field

from metasched.capacity.capacity_pool import CPU_ONLY, CapacityPool, GpuAmount, is_fixed
from metasched.core.model import Decision, Grant, Job, Preempt, Snapshot
from metasched.core.policy import Policy, PolicyParameters, PolicyState
from metasched.core.reasons import Code, Reason
from policies.ares.fair_finish_queue import Line, overrun
from policies.ares.scaling import CLOSE, Amount, Scaling

POOL = Reason(Code.UNKNOWN_DEMAND_POOL)
EXPLORES = Reason(Code.EXPLORES)
NO_GPUS = Reason(Code.CPU_ONLY)


class AresParameters(PolicyParameters):
    """Parameters of Ares.

    Attributes:
        alpha: the least part of its speed that each GPU of a job keeps when it gets more than it asked for.
        leftovers: where GPUs go that are left when all jobs are served: nowhere; to amounts between two doublings that
            scaling control allows; or also beyond that, as long as a job becomes faster.
        explore: whether what is left after that goes to jobs whose speed on twice their GPUs is not known, to learn it.
        turn_seconds: for which a job of unknown demand that has begun to run in the pool goes on there.
    """

    alpha: float = Field(default=0.75, gt=0, le=1)
    leftovers: Literal["none", "efficient", "faster"] = "efficient"
    explore: bool = True
    turn_seconds: float = Field(default=1800.0, ge=0)


class Ares(Policy):
    """Elastic fair queuing: shortest fair finish first; elastic, preemptive."""

    name: ClassVar[str] = "ares"
    Parameters: ClassVar[type[PolicyParameters]] = AresParameters
    parameters: AresParameters

    def decide(self, snapshot: Snapshot, state: PolicyState) -> tuple[Decision, PolicyState]:
        """Bring the reference system up to now, then give GPUs away in the order of virtual finish times."""
        room = CapacityPool(snapshot)
        line = Line.after(state, snapshot, partial(demand, room, snapshot))
        return _Round(self.parameters, snapshot, room, line).decision(), line.state()


def demand(room: CapacityPool, snapshot: Snapshot, job: Job) -> float | None:
    """GPU-seconds that it still needs on the GPUs it asked for, GPUs being of average power; None where not known.

    From its remaining steps and its speed: what is known of that, or else what it measures where it runs now. From what
    was expected of it, where its steps are not known.
    """
    steps = job.remaining_steps
    if steps is not None:
        scaling = Scaling(job, room.site(job), 1.0)
        speeds = {kind: scaling.speed(kind, job.gpus) for kind in scaling.site.widest}
        known = {kind: speed for kind, speed in speeds.items() if speed}
        if known:
            count = sum(snapshot.capacity[kind] for kind in known)
            return job.gpus * steps * count / sum(snapshot.capacity[kind] * speed for kind, speed in known.items())
        if job.steps_per_second and job.placement is not None:
            return job.placement.gpus * steps / job.steps_per_second
    if job.expected_service is not None and not overrun(job):
        return max(job.expected_service - job.attained_service, 0.0)
    return None


class _Round:
    """GPUs being given away."""

    def __init__(self, parameters: AresParameters, snapshot: Snapshot, room: CapacityPool, line: Line) -> None:
        self.parameters = parameters
        self.room = room
        self.line = line
        self.now = snapshot.now
        self.capacity = sum(snapshot.capacity.values())
        known = [job for job in snapshot.jobs if job.uid in line.finish]
        self.known = sorted(known, key=lambda job: (line.finish[job.uid], job.submitted, job.uid))
        unknown = [job for job in snapshot.jobs if job.uid in line.since]
        self.unknown = sorted(unknown, key=lambda job: (-line.owed(job) / job.weight, job.submitted, job.uid))
        self.without_gpus = [job for job in snapshot.jobs if not job.gpus]
        self.given: dict[str, Amount] = {}  # to jobs in line
        self.exploring: set[str] = set()

    def decision(self) -> Decision:
        """The pool is served, then the line, then whoever can use what is left."""
        served = self._serve_pool()
        for job in self.known:
            self._serve(job)
        for job in self.unknown:
            self._serve_plainly(job, job.gpus)
        if self.parameters.leftovers != "none":
            self._give_leftovers(Scaling.between)
        if self.parameters.leftovers == "faster":
            self._give_leftovers(Scaling.beyond)
        if self.parameters.explore:
            self._explore()
        for job in self.without_gpus:
            if job.uid not in self.room.shares and (self.room.keeps(job) or self._runs(job)):
                self.room.give(job, GpuAmount(0, CPU_ONLY))
        in_pool = [job for job in self.unknown if job.uid in served]
        others = [job for job in self.unknown if job.uid not in served]
        reasons = [(job, POOL) for job in in_pool]
        length = len(self.known)
        for i, job in enumerate(self.known, start=1):
            reasons.append((job, Reason(Code.FAIR_FINISH_POSITION, (("position", i), ("length", length)))))
        reasons += [(job, POOL) for job in others] + [(job, NO_GPUS) for job in self.without_gpus]
        return self._answer(reasons)

    # -- the line -------------------------------------------------------------------------------------------------

    def _serve(self, job: Job) -> None:
        """Give it what it prefers of what is left: the fastest; among equals, what is of the type that it has."""
        room = self.room
        if job.uid in room.shares or (room.used_up and not room.keeps(job)):
            return
        scaling = Scaling(job, room.site(job), self.parameters.alpha)
        options = [] if (kept := self._kept(job)) is None else [kept]
        for kind in scaling.site.widest:
            options += islice((one for one in scaling.amounts(kind) if room.fits(job, one.share)), 1)
        if options:
            best = max(options, key=lambda one: (one.speed or 0.0, *self._likes(job, one.kind)))
            self.given[job.uid] = best
            room.give(job, best.share)

    def _left(self, job: Job, kind: str) -> int:
        """GPUs of a type that it could have more than it has."""
        return self.room.left(self.room.reach(job, kind))

    def _likes(self, job: Job, kind: str) -> tuple[bool, int, int, str]:
        """Greater for the type that it has or had, then by its own order, then for that of which most is free."""
        held = job.placement or job.released or job.last_placement
        order = -job.gpu_types.index(kind) if kind in job.gpu_types else 0
        return held is not None and held.gpu_type == kind, order, self._left(job, kind), kind

    def _kept(self, job: Job) -> Amount | None:
        """What it holds on nodes that accept no jobs any more, if there is room for it."""
        place = job.placement
        if place is None or not self.room.keeps(job):
            return None
        kind = place.gpu_type or CPU_ONLY
        if not self.room.fits(job, GpuAmount(place.gpus, kind)):
            return None
        known = None if job.speed is None else job.speed.steps_per_second(kind, place.spread)
        return Amount(kind, place.gpus, job.steps_per_second if known is None else known)

    def _give_leftovers(self, grown: Callable[[Scaling, Amount, int], Amount | None]) -> None:
        for job in self.known:
            given = self.given.get(job.uid)
            if given is not None and (left := self._left(job, given.kind)) > 0:
                scaling = Scaling(job, self.room.site(job), self.parameters.alpha)
                more = grown(scaling, given, given.gpus + left)
                if more is not None and self.room.give(job, more.share):
                    self.given[job.uid] = more

    def _explore(self) -> None:
        """Let jobs run where that tells how fast they are: in line, and those that trials bring into the line."""
        tried = [job for job in self.unknown if job.profiled and job.remaining_steps is not None]
        for job in [job for job in (*self.known, *tried) if job.learns_speed and job.preempt is Preempt.CHECKPOINT]:
            share = self.room.shares.get(job.uid)
            if share is None or is_fixed(job) or self.room.keeps(job):
                continue
            if (left := self._left(job, share.gpu_type)) > 0:
                scaling = Scaling(job, self.room.site(job), self.parameters.alpha)
                more = scaling.unknown(share.gpu_type, share.gpus + left)
                if more is not None and more.gpus > share.gpus and self.room.give(job, more.share):
                    self.exploring.add(job.uid)

    # -- the pool -------------------------------------------------------------------------------------------------

    def _serve_pool(self) -> set[str]:
        """Give jobs of unknown demand their part of the GPUs, one after the other; returns who is in the pool.

        The pool is their part of the live jobs, by weight, or as much more as the first of those that could also stop
        needs to run at all.
        Those are served who have had less than under fair sharing, and those whose turn is not over.
        """
        left = math.ceil(self._pool() - CLOSE)
        stay = {job.uid for job in self.unknown if job.uid in self.room.shares}
        served = set(stay)
        left -= sum(self.room.shares[uid].gpus for uid in served)
        for job in sorted(self.unknown, key=lambda job: not self._in_turn(job)):
            due = job.uid not in served and (self._in_turn(job) or self.line.owed(job) >= 0)
            if due and self._serve_plainly(job, max(left, job.min_gpus) if served == stay else left):
                served.add(job.uid)
                left -= self.room.shares[job.uid].gpus
        return served

    def _pool(self) -> float:
        """GPUs."""
        weight = sum(job.weight for job in self.unknown)
        return self.capacity * weight / (weight + sum(job.weight for job in self.known)) if weight else 0.0

    def _in_turn(self, job: Job) -> bool:
        """Whether it runs, and began less than a turn ago."""
        began = job.run_started
        return job.active and (began is None or self.now < began + self.parameters.turn_seconds)

    def _serve_plainly(self, job: Job, most: int) -> bool:
        """Give it up to so many GPUs of what it asked for, if that is more than it has been given; whether it was."""
        room = self.room
        share = room.shares.get(job.uid)
        kind, gpus = (None, 0) if share is None else (share.gpu_type, share.gpus)
        if share is not None and (is_fixed(job) or gpus >= job.gpus):
            return False
        scaling = Scaling(job, room.site(job), self.parameters.alpha)
        kinds = sorted(scaling.site.widest, key=lambda kind: self._likes(job, kind), reverse=True)
        options = [one for other in kinds if kind in (None, other) for one in scaling.plain(other)]
        if kind is None and (kept := self._kept(job)) is not None:
            options.insert(0, kept)
        found = [one for one in options if gpus < one.gpus <= most and room.fits(job, one.share)]
        if found:
            best = max(found, key=lambda one: one.gpus)  # the first of them
            room.give(job, best.share)
        return bool(found)

    # -- the answer -----------------------------------------------------------------------------------------------

    def _answer(self, reasons: Sequence[tuple[Job, Reason]]) -> Decision:
        grants, fallback, waits = [], [], {}
        for job, reason in reasons:
            share = self.room.shares.get(job.uid)
            if share is not None:
                told = reason.and_also(EXPLORES) if job.uid in self.exploring else reason
                grants.append(self._grant(job, share, told))
            elif (most := self._runs(job)) is not None:
                fallback.append(Grant(job.uid, most.gpus, reason, min(job.min_gpus, most.gpus), most.kind or None))
            else:
                waits[job.uid] = reason.and_also(_exceeds(job))
        return Decision(tuple(grants), tuple(fallback), waits)

    def _grant(self, job: Job, share: GpuAmount, reason: Reason) -> Grant:
        """Fewer GPUs rather than the same further apart: its speed is known where they are close."""
        gpus, kind = share
        if is_fixed(job) or gpus <= job.min_gpus:
            return Grant(job.uid, gpus, reason, gpus, kind or None)
        spread = self.room.site(job).spread(kind, gpus)
        held = len(job.placement.nodes) if job.placement is not None else 0
        most = max(len(spread), held) if spread is not None else None
        return Grant(job.uid, gpus, reason, job.min_gpus, kind or None, max_nodes=most)

    def _runs(self, job: Job) -> Amount | None:
        """The first of the amounts, up to what it asked for, on which it could run if nothing else did."""
        site = self.room.site(job)
        if not job.gpus:
            return None if site.spread("", 0) is None else Amount("", 0, None)
        scaling = Scaling(job, site, self.parameters.alpha)
        kinds = sorted(site.widest, key=lambda kind: self._likes(job, kind), reverse=True)
        return next((amount for kind in kinds for amount in scaling.plain(kind)), None)


def _exceeds(job: Job) -> Reason:
    nodes, cpus = (None, None) if job.gpus else (job.nodes or 1, job.cpus_per_unit)
    return Reason.of(Code.EXCEEDS_NODES, gpus=job.min_gpus, gpu_types=job.gpu_types, nodes=nodes, cpus=cpus)
