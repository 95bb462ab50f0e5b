"""The line in which Ares serves jobs: by when each would end under fair sharing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from metasched.core.model import Job, Snapshot
from metasched.core.policy import PolicyState
from policies.ares.reference_system import Gps

STATE_VERSION = 1
OVERRUN = 2.0
"""A job that has had so many times what it was expected to need is one of unknown demand."""
LATEST_NEWS = 3600.0
"""Seconds by which what is known of a job's rest may be old: it reports now and then, and may have become faster."""

Demand = Callable[[Job], float | None]
"""GPU-seconds that a job still needs on the GPUs it asked for; None where that is not known."""


class _Rest(NamedTuple):
    """What a job has to do: GPU-seconds, on so many GPUs at most, and steps, where it reports them.

    ``had`` is its attained service then; None in states of old.
    """

    work: float
    most: int
    steps: float | None
    had: float | None = None

    @classmethod
    def of(cls, job: Job, work: float) -> _Rest:
        steps = None if job.progress_steps is None else job.remaining_steps
        return cls(work, job.max_gpus, steps, job.attained_service)


@dataclass
class Line:
    """What is remembered of jobs with GPUs.

    Attributes:
        gps: the reference system.
        finish: by uid, virtual finish times of jobs whose demand is known; fixed when it first was.
        since: by uid of the others, the virtual time at which they would have begun to have what they have had.
        rest: by uid of those in ``finish``, what they still had to do at the last look.
    """

    gps: Gps
    finish: dict[str, float]
    since: dict[str, float]
    rest: dict[str, _Rest]

    @classmethod
    def after(cls, state: PolicyState, snapshot: Snapshot, demand: Demand) -> Line:
        """The line after another look at the cluster.

        Jobs come to the reference system when they were submitted, or since the last look, if that was later. Those
        that ended here come to their end there in their own time. Those that left with far more to do than they could
        have done since the last look were cancelled or put aside, and leave it, too.
        """
        jobs = [job for job in snapshot.jobs if job.gpus]
        line = cls._of(state)
        if line is None:
            began = min((job.submitted for job in jobs), default=snapshot.now)
            line = cls(Gps(sum(snapshot.capacity.values()), min(began, snapshot.now)), {}, {}, {})
        line._go_on(jobs, snapshot, demand)
        return line

    @classmethod
    def _of(cls, state: PolicyState) -> Line | None:
        data: Mapping[str, Any] = state.data
        if state.version != STATE_VERSION or not data:
            return None
        try:
            rest = {uid: _Rest(*values) for uid, values in data.get("rest", {}).items()}
            return cls(Gps.of(data["gps"]), dict(data["finish"]), dict(data["since"]), rest)
        except (AttributeError, KeyError, TypeError, ValueError):
            return None

    def state(self) -> PolicyState:
        """To be carried to the next round."""
        rest = {uid: list(one) for uid, one in self.rest.items()}
        known = {"gps": self.gps.data(), "finish": self.finish, "since": self.since, "rest": rest}
        return PolicyState(STATE_VERSION, known)

    def owed(self, job: Job) -> float:
        """GPU-seconds that a job of unknown demand should have had more under fair sharing."""
        return (self.gps.virtual - self.since[job.uid]) * job.weight - job.attained_service

    def _go_on(self, jobs: list[Job], snapshot: Snapshot, demand: Demand) -> None:
        gps, now = self.gps, snapshot.now
        live = {job.uid: job.weight for job in jobs}
        seconds = max(now - gps.now, 0.0) + LATEST_NEWS
        gps.leave({uid for uid, rest in self.rest.items() if uid not in live and rest.work > rest.most * seconds})
        new = [job for job in jobs if job.uid not in self.finish and job.uid not in self.since]
        gps.leave({job.uid for job in new})  # one that comes back
        for job in new:  # in the order of their submission
            gps.advance(min(job.submitted, now))
            self._enter(job, demand(job))
        gps.advance(now)
        gps.gpus = sum(snapshot.capacity.values())
        for job in jobs:
            if job.uid in self.since:
                work = demand(job)
                if work is not None:
                    self._enter(job, work)
            elif overrun(job):
                del self.finish[job.uid]
                gps.leave({job.uid})
                self._enter(job, None)
        self.finish = {uid: finish for uid, finish in self.finish.items() if uid in live}
        self.since = {uid: since for uid, since in self.since.items() if uid in live}
        self.rest = {job.uid: self._rest(job, demand) for job in jobs if job.uid in self.finish}
        gps.others = sum(live[uid] for uid in self.since)

    def _enter(self, job: Job, work: float | None) -> None:
        """Take it in, or give it the place in line that it would have if its demand had been known before."""
        if work is None:
            self.since[job.uid] = self.gps.virtual - job.attained_service / job.weight
            self.gps.others += job.weight
            return
        since = self.since.pop(job.uid, None)
        had = 0.0 if since is None else job.attained_service
        self.finish[job.uid] = self.gps.arrive(job.uid, had + work, job.weight, since)
        self.rest[job.uid] = _Rest.of(job, work)

    def _rest(self, job: Job, demand: Demand) -> _Rest:
        """What it still has to do of what that was before: by the steps that it reports, or else by what it has had."""
        before = self.rest.get(job.uid)
        if before is None:  # in states of old
            return _Rest.of(job, demand(job) or 0.0)
        now = _Rest.of(job, before.work)
        if now.steps is not None and before.steps is not None:
            return now._replace(work=before.work * now.steps / before.steps if before.steps else 0.0)
        since = job.attained_service - (job.attained_service if before.had is None else before.had)
        return now._replace(work=max(before.work - since, 0.0))


def overrun(job: Job) -> bool:
    """Whether its demand was expected by that of others, and it needs far more."""
    expected = job.expected_service if job.remaining_steps is None else None
    return expected is not None and job.attained_service >= OVERRUN * expected
