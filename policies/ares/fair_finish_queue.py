"""Ares's fair-finish queue: jobs ordered by their virtual finish times under fair sharing (section 3.2)."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from metasched.core.model import Job, Snapshot
from metasched.core.policy import PolicyState
from policies.ares.reference_system import ReferenceSystem, VirtualClock

STATE_VERSION = 2
OVERRUN = 2.0
"""Multiple of its predicted service at which a job's demand counts as unknown."""
REPORT_AGE = 3600.0
"""Largest assumed age in seconds of the reports from which a job's remaining demand follows."""

Demand = Callable[[Job], float | None]
"""GPU-seconds that a job still needs on its requested GPUs; None where that is not known."""

Nodes = frozenset[str]
"""Names of the nodes that a job can use: those of the GPU types on which a size of it fits on an empty cluster."""


class _RemainingWork(NamedTuple):
    """Remaining demand of a job at one round.

    Attributes:
        work: GPU-seconds.
        max_gpus: most GPUs that the job can use.
        steps: remaining steps; None where the job does not report steps.
        attained: attained service, GPU-seconds; None in states of earlier versions.
        declared: whether the job's demand followed from declared steps.
    """

    work: float
    max_gpus: int
    steps: float | None
    attained: float | None = None
    declared: bool = False

    @classmethod
    def of(cls, job: Job, work: float) -> _RemainingWork:
        steps = None if job.progress_steps is None else job.remaining_steps
        return cls(work, job.max_gpus, steps, job.attained_service, job.remaining_steps is not None)


@dataclass
class FairFinishQueue:
    """The jobs with GPUs of known demand in their order, and those of unknown demand.

    Attributes:
        reference: the reference system.
        clock: by uid of each live job with GPUs, its clock: that of the nodes that it can use.
        finish: virtual finish time by uid of each job of known demand; fixed when the demand is first known.
        ended: by uid, when a job of known demand ended in the reference system, unix seconds, if it did.
        since: by uid of each job of unknown demand, the virtual time from which its GPUs under fair sharing count.
        remaining: by uid of the jobs in ``finish``, their remaining demand at the last round.
    """

    reference: ReferenceSystem
    clock: dict[str, VirtualClock] = field(default_factory=dict)
    finish: dict[str, float] = field(default_factory=dict)
    ended: dict[str, float] = field(default_factory=dict)
    since: dict[str, float] = field(default_factory=dict)
    remaining: dict[str, _RemainingWork] = field(default_factory=dict)

    @classmethod
    def after(
        cls, state: PolicyState, snapshot: Snapshot, demand: Demand, usable: Mapping[str, Nodes]
    ) -> FairFinishQueue:
        """The queue of this round, from the state after the last round.

        Jobs enter the reference system at their submission, or at the last round if that was later. A job that ended on
        the cluster remains in the reference system until its virtual end. A job that is gone with more remaining demand
        than it could have done since the last round was cancelled or hidden, and leaves the reference system.

        Args:
            state: the policy's state; the queue begins anew where it is empty, damaged or of an unknown version.
            snapshot: the round's jobs and nodes.
            demand: the remaining demand of a job.
            usable: by uid of each job with GPUs, the names of the nodes that it can use.
        """
        jobs = [job for job in snapshot.jobs if job.gpus]
        queue = cls._of(state, snapshot)
        if queue is None:
            began = min((job.submitted for job in jobs), default=snapshot.now)
            queue = cls(ReferenceSystem(node_gpus(snapshot), min(began, snapshot.now), ()))
        queue._update(jobs, snapshot, demand, usable)
        return queue

    @classmethod
    def _of(cls, state: PolicyState, snapshot: Snapshot) -> FairFinishQueue | None:
        data: Mapping[str, Any] = state.data
        if state.version not in (1, STATE_VERSION) or not data:
            return None
        try:
            remaining = {uid: _RemainingWork(*values) for uid, values in data.get("rest", {}).items()}
            finish, since = dict(data["finish"]), dict(data["since"])
            if state.version == 1:
                return cls._of_first_version(data["gps"], snapshot, finish, since, remaining)
            reference = ReferenceSystem.from_json(data["gps"])
            reference.gpus = node_gpus(snapshot) | reference.gpus
            clock = {uid: reference.clocks[i] for i, uids in enumerate(data["clocks"]) for uid in uids}
            if not clock.keys() >= finish.keys() | since.keys():
                return None
            return cls(reference, clock, finish, dict(data["ended"]), since, remaining)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError):
            return None

    @classmethod
    def _of_first_version(
        cls,
        gps: Mapping[str, Any],
        snapshot: Snapshot,
        finish: dict[str, float],
        since: dict[str, float],
        remaining: dict[str, _RemainingWork],
    ) -> FairFinishQueue:
        """The queue of a state of version 1, in which all jobs have one clock."""
        gpus = node_gpus(snapshot)
        numbers = {name: float(gps[name]) for name in ("virtual", "weight", "others")}
        clock = VirtualClock(gpus, active=gps["active"], **numbers)
        reference = ReferenceSystem(gpus, float(gps["now"]), (clock,))
        queue = cls(reference, dict.fromkeys(finish | since, clock), finish, {}, since, remaining)
        for uid in sorted(finish, key=lambda uid: finish[uid]):
            if finish[uid] < clock.virtual:
                queue.ended[uid] = queue._end_before_now(uid)
        return queue

    def state(self) -> PolicyState:
        """The queue as the policy's state for the next round."""
        uids: dict[int, list[str]] = {}
        for uid, clock in self.clock.items():
            uids.setdefault(id(clock), []).append(uid)
        known = {
            "gps": self.reference.to_json(),
            "clocks": [uids.get(id(clock), []) for clock in self.reference.clocks],
            "finish": self.finish,
            "ended": self.ended,
            "since": self.since,
            "rest": {uid: list(one) for uid, one in self.remaining.items()},
        }
        return PolicyState(STATE_VERSION, known)

    def fair_ends(self) -> Mapping[str, float]:
        """By uid of each job of known demand, when it ends under fair sharing at the present speed of its clock.

        Unix seconds; infinite where the job has no GPUs under fair sharing.
        """
        now = self.reference.now
        pairs = zip(self.reference.clocks, self.reference.rates(), strict=True)
        per_virtual = {id(clock): rate.weight / rate.gpus if rate.gpus > 0 else math.inf for clock, rate in pairs}
        ends = {}
        for uid, finish in self.finish.items():
            clock = self.clock[uid]
            ahead = max(finish - clock.virtual, 0.0)
            ends[uid] = self.ended[uid] if uid in self.ended else now + (ahead * per_virtual[id(clock)] if ahead else 0)
        return ends

    def deficit(self, job: Job) -> float:
        """GPU-seconds that a job of unknown demand lacks against fair sharing; negative: received in excess."""
        return (self.clock[job.uid].virtual - self.since[job.uid]) * job.weight - job.attained_service

    def _update(self, jobs: list[Job], snapshot: Snapshot, demand: Demand, usable: Mapping[str, Nodes]) -> None:
        reference, now = self.reference, snapshot.now
        weight = {job.uid: job.weight for job in jobs}
        self._leave_gone(weight, max(now - reference.now, 0.0) + REPORT_AGE)
        new = [job for job in jobs if job.uid not in self.clock]
        self._leave({job.uid for job in new})  # a job that was hidden in earlier rounds enters anew
        nodes = self._nodes_by_clock(usable)
        for job in new:  # in the order of their submission
            self._advance(min(job.submitted, now))
            self.clock[job.uid] = self._clock_of(usable[job.uid], nodes)
            self._enter(job, demand(job))
        self._advance(now)
        reference.change_nodes(node_gpus(snapshot), [nodes[id(clock)] for clock in reference.clocks])
        self._follow_nodes(usable)
        for job in jobs:
            if job.uid in self.since:
                work = demand(job)
                if work is not None:
                    self._enter(job, work)
            elif overrun(job):
                self._forget_demand(job)
            elif self._is_revoked(job):
                self._forget_demand(job)
                if (work := demand(job)) is not None:
                    self._enter(job, work)
        self.remaining = {job.uid: self._remaining(job, demand) for job in jobs if job.uid in self.finish}
        for clock in reference.clocks:
            clock.others = 0
        for uid in self.since:
            self.clock[uid].others += weight[uid]
        reference.discard_unused({self.clock[uid] for uid in weight})

    def _leave_gone(self, live: Collection[str], seconds: float) -> None:
        """Forget jobs that are gone; those that cannot have ended leave the reference system.

        Args:
            live: uids of the live jobs.
            seconds: how long a job may have run since the report from which its remaining demand follows.
        """
        cancelled = {
            uid
            for uid, remaining in self.remaining.items()
            if uid not in live and (remaining.work > remaining.max_gpus * seconds or not self.clock[uid].nodes)
        }
        self._leave(cancelled)
        self.clock = {uid: clock for uid, clock in self.clock.items() if uid in live}
        self.finish = {uid: finish for uid, finish in self.finish.items() if uid in live}
        self.ended = {uid: ended for uid, ended in self.ended.items() if uid in live}
        self.since = {uid: since for uid, since in self.since.items() if uid in live}

    def _leave(self, uids: Collection[str]) -> None:
        for clock in self.reference.clocks:
            clock.leave(uids)

    def _advance(self, to: float) -> None:
        self.ended |= {uid: end for uid, end in self.reference.advance(to) if uid in self.finish}

    def _enter(self, job: Job, work: float | None) -> None:
        """Enter a job, or give it the virtual finish time that it would have if its demand had always been known.

        Args:
            job: a new job, or one of unknown demand.
            work: GPU-seconds that it still needs; None where that is not known.
        """
        clock = self.clock[job.uid]
        if work is None:
            self.since[job.uid] = clock.virtual - job.attained_service / job.weight
            clock.others += job.weight
            return
        since = self.since.pop(job.uid, None)
        attained = 0.0 if since is None else job.attained_service
        self.finish[job.uid] = clock.arrive(job.uid, attained + work, job.weight, since)
        if self.finish[job.uid] < clock.virtual:
            self.ended[job.uid] = self._end_before_now(job.uid)
        self.remaining[job.uid] = _RemainingWork.of(job, work)

    def _forget_demand(self, job: Job) -> None:
        """Let a job of known demand enter anew, as a job of unknown demand that has received its service."""
        self.clock[job.uid].leave({job.uid})
        del self.finish[job.uid]
        self.ended.pop(job.uid, None)
        self._enter(job, None)

    def _is_revoked(self, job: Job) -> bool:
        """Whether a job's demand followed from declared steps that are contradicted meanwhile."""
        before = self.remaining.get(job.uid)
        return before is not None and before.declared and job.remaining_steps is None

    def _end_before_now(self, uid: str) -> float:
        """When a job that is past its virtual finish time would have ended: in the order of the others of its clock."""
        finish, clock = self.finish[uid], self.clock[uid]
        rate = self.reference.rates()[self.reference.clocks.index(clock)]
        end = self.reference.now
        if rate.gpus > 0:
            end -= (clock.virtual - finish) * rate.weight / rate.gpus
        same = [(self.finish[other], ended) for other, ended in self.ended.items() if self.clock[other] is clock]
        earliest = max((ended for other, ended in same if other <= finish), default=-math.inf)
        latest = min((ended for other, ended in same if other > finish), default=self.reference.now)
        return min(max(end, earliest), latest)

    # -- the nodes of the clocks ----------------------------------------------------------------------------------

    def _nodes_by_clock(self, usable: Mapping[str, Nodes]) -> dict[int, Nodes]:
        """By the clock's id, the nodes that most of its live jobs can use now, rather than none at all.

        The nodes change where nodes are drained or come back, and where the speed of the jobs becomes known.
        """
        counts: dict[int, dict[Nodes, int]] = {}
        for uid, clock in self.clock.items():
            count = counts.setdefault(id(clock), {})
            count[usable[uid]] = count.get(usable[uid], 0) + 1
        found = {}
        for clock in self.reference.clocks:
            count = counts.get(id(clock), {clock.nodes: 1})
            found[id(clock)] = max(count.items(), key=lambda item: (bool(item[0]), item[1]))[0]
        return found

    def _clock_of(self, nodes: Nodes, nodes_by_clock: dict[int, Nodes]) -> VirtualClock:
        """The clock of these nodes, which is made where there is none."""
        for clock in self.reference.clocks:
            if nodes_by_clock[id(clock)] == nodes:
                return clock
        clock = self.reference.add(nodes)
        nodes_by_clock[id(clock)] = nodes
        return clock

    def _follow_nodes(self, usable: Mapping[str, Nodes]) -> None:
        """Move jobs to the clocks of the nodes that they can use now, and join clocks that have the same nodes."""
        clocks: dict[Nodes, VirtualClock] = {}
        for clock in self.reference.clocks:
            first = clocks.setdefault(clock.nodes, clock)
            if first is not clock:
                self._move({uid for uid, own in self.clock.items() if own is clock}, clock, first)
                clock.move(first)
        moved: dict[tuple[int, Nodes], set[str]] = {}
        for uid, clock in self.clock.items():
            if clock.nodes is not usable[uid] and clock.nodes != usable[uid]:
                moved.setdefault((id(clock), usable[uid]), set()).add(uid)
        for (_, nodes), uids in moved.items():
            if nodes not in clocks:
                clocks[nodes] = self.reference.add(nodes)
            self._move(uids, self.clock[next(iter(uids))], clocks[nodes])

    def _move(self, uids: Collection[str], clock: VirtualClock, other: VirtualClock) -> None:
        """Move live jobs from one clock to another, with their remaining virtual time."""
        offset = clock.move(other, uids)
        for uid in uids:
            self.clock[uid] = other
            for times in (self.finish, self.since):
                if uid in times:
                    times[uid] += offset

    def _remaining(self, job: Job, demand: Demand) -> _RemainingWork:
        """The job's remaining demand, from that of the last round by its reported steps, or else by its service."""
        before = self.remaining.get(job.uid)
        if before is None:  # in states of earlier versions
            return _RemainingWork.of(job, demand(job) or 0.0)
        now = _RemainingWork.of(job, before.work)
        if now.steps is not None and before.steps is not None:
            return now._replace(work=before.work * now.steps / before.steps if before.steps else 0.0)
        received = 0.0 if before.attained is None else job.attained_service - before.attained
        return now._replace(work=max(before.work - received, 0.0))


def overrun(job: Job) -> bool:
    """Whether a job's demand is predicted, not declared, and it has received ``OVERRUN`` times the prediction."""
    expected = job.expected_service if job.remaining_steps is None else None
    return expected is not None and job.attained_service >= OVERRUN * expected


def node_gpus(snapshot: Snapshot) -> dict[str, float]:
    """The GPUs of each node that accepts jobs, by its name."""
    return {node.name: node.gpus for node in snapshot.nodes if node.gpu_type is not None and node.accepts and node.gpus}
