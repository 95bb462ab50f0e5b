"""The line in which Ares serves jobs: by when each would end under fair sharing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from metasched.model import Job, Snapshot
from metasched.policy import PolicyState
from policies.ares.gps import Gps

STATE_VERSION = 1
OVERRUN = 2.0
"""A job that has had so many times what it was expected to need is one of unknown demand."""

Demand = Callable[[Job], float | None]
"""GPU-seconds that a job still needs on the GPUs it asked for; None where that is not known."""


@dataclass
class Line:
    """What is remembered of jobs with GPUs.

    Attributes:
        gps: the reference system.
        finish: by uid, virtual finish times of jobs whose demand is known; fixed when it first was.
        since: by uid of the others, the virtual time at which they would have begun to have what they have had.
    """

    gps: Gps
    finish: dict[str, float]
    since: dict[str, float]

    @classmethod
    def after(cls, state: PolicyState, snapshot: Snapshot, demand: Demand) -> Line:
        """The line after another look at the cluster.

        Jobs come to the reference system when they were submitted, or since the last look, if that was later. Those
        that left come to their end there in their own time: most have only ended earlier here.
        """
        jobs = [job for job in snapshot.jobs if job.gpus]
        line = cls._of(state)
        if line is None:
            began = min((job.submitted for job in jobs), default=snapshot.now)
            line = cls(Gps(sum(snapshot.capacity.values()), min(began, snapshot.now)), {}, {})
        line._go_on(jobs, snapshot, demand)
        return line

    @classmethod
    def _of(cls, state: PolicyState) -> Line | None:
        data: Mapping[str, Any] = state.data
        if state.version != STATE_VERSION or not data:
            return None
        try:
            return cls(Gps.of(data["gps"]), dict(data["finish"]), dict(data["since"]))
        except (KeyError, TypeError, ValueError):
            return None

    def state(self) -> PolicyState:
        """To be carried to the next round."""
        return PolicyState(STATE_VERSION, {"gps": self.gps.data(), "finish": self.finish, "since": self.since})

    def owed(self, job: Job) -> float:
        """GPU-seconds that a job of unknown demand should have had more under fair sharing."""
        return (self.gps.virtual - self.since[job.uid]) * job.weight - job.attained_service

    def _go_on(self, jobs: list[Job], snapshot: Snapshot, demand: Demand) -> None:
        gps, now = self.gps, snapshot.now
        for job in jobs:  # in the order of their submission
            if job.uid not in self.finish and job.uid not in self.since:
                gps.advance(min(job.submitted, now))
                self._enter(job, demand(job))
        gps.advance(now)
        gps.gpus = sum(snapshot.capacity.values())
        for job in jobs:
            if job.uid in self.since:
                work = demand(job)
                if work is not None:
                    del self.since[job.uid]
                    self._enter(job, work)
            elif overrun(job):
                del self.finish[job.uid]
                self._enter(job, None)
        live = {job.uid: job.weight for job in jobs}
        self.finish = {uid: finish for uid, finish in self.finish.items() if uid in live}
        self.since = {uid: since for uid, since in self.since.items() if uid in live}
        gps.others = sum(live[uid] for uid in self.since)

    def _enter(self, job: Job, work: float | None) -> None:
        if work is None:
            self.since[job.uid] = self.gps.virtual - job.attained_service / job.weight
            self.gps.others += job.weight
        else:
            self.finish[job.uid] = self.gps.arrive(job.uid, work, job.weight)


def overrun(job: Job) -> bool:
    """Whether its demand was expected by that of others, and it needs far more."""
    expected = job.expected_service if job.remaining_steps is None else None
    return expected is not None and job.attained_service >= OVERRUN * expected
