"""Ares's fair-finish queue: jobs ordered by their virtual finish times under fair sharing (section 3.2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from metasched.core.model import Job, Snapshot
from metasched.core.policy import PolicyState
from policies.ares.reference_system import ReferenceSystem

STATE_VERSION = 1
OVERRUN = 2.0
"""Multiple of its predicted service at which a job's demand counts as unknown."""
REPORT_AGE = 3600.0
"""Largest assumed age in seconds of the reports from which a job's remaining demand follows."""

Demand = Callable[[Job], float | None]
"""GPU-seconds that a job still needs on its requested GPUs; None where that is not known."""


class _RemainingWork(NamedTuple):
    """Remaining demand of a job at one round.

    Attributes:
        work: GPU-seconds.
        max_gpus: most GPUs that the job can use.
        steps: remaining steps; None where the job does not report steps.
        attained: attained service, GPU-seconds; None in states of earlier versions.
    """

    work: float
    max_gpus: int
    steps: float | None
    attained: float | None = None

    @classmethod
    def of(cls, job: Job, work: float) -> _RemainingWork:
        steps = None if job.progress_steps is None else job.remaining_steps
        return cls(work, job.max_gpus, steps, job.attained_service)


@dataclass
class FairFinishQueue:
    """The jobs with GPUs of known demand in their order, and those of unknown demand.

    Attributes:
        reference: the reference system.
        finish: virtual finish time by uid of each job of known demand; fixed when the demand is first known.
        since: by uid of each job of unknown demand, the virtual time from which its GPUs under fair sharing count.
        remaining: by uid of the jobs in ``finish``, their remaining demand at the last round.
    """

    reference: ReferenceSystem
    finish: dict[str, float]
    since: dict[str, float]
    remaining: dict[str, _RemainingWork]

    @classmethod
    def after(cls, state: PolicyState, snapshot: Snapshot, demand: Demand) -> FairFinishQueue:
        """The queue of this round, from the state after the last round.

        Jobs enter the reference system at their submission, or at the last round if that was later. A job that ended on
        the cluster remains in the reference system until its virtual end. A job that is gone with more remaining demand
        than it could have done since the last round was cancelled or hidden, and leaves the reference system.

        Args:
            state: the policy's state; the queue begins anew where it is empty, damaged or of another version.
            snapshot: the round's jobs and nodes.
            demand: the remaining demand of a job.
        """
        jobs = [job for job in snapshot.jobs if job.gpus]
        queue = cls._of(state)
        if queue is None:
            began = min((job.submitted for job in jobs), default=snapshot.now)
            queue = cls(ReferenceSystem(sum(snapshot.capacity.values()), min(began, snapshot.now)), {}, {}, {})
        queue._update(jobs, snapshot, demand)
        return queue

    @classmethod
    def _of(cls, state: PolicyState) -> FairFinishQueue | None:
        data: Mapping[str, Any] = state.data
        if state.version != STATE_VERSION or not data:
            return None
        try:
            remaining = {uid: _RemainingWork(*values) for uid, values in data.get("rest", {}).items()}
            return cls(ReferenceSystem.from_json(data["gps"]), dict(data["finish"]), dict(data["since"]), remaining)
        except (AttributeError, KeyError, TypeError, ValueError):
            return None

    def state(self) -> PolicyState:
        """The queue as the policy's state for the next round."""
        remaining = {uid: list(one) for uid, one in self.remaining.items()}
        known = {"gps": self.reference.to_json(), "finish": self.finish, "since": self.since, "rest": remaining}
        return PolicyState(STATE_VERSION, known)

    def deficit(self, job: Job) -> float:
        """GPU-seconds that a job of unknown demand lacks against fair sharing; negative: received in excess."""
        return (self.reference.virtual - self.since[job.uid]) * job.weight - job.attained_service

    def _update(self, jobs: list[Job], snapshot: Snapshot, demand: Demand) -> None:
        reference, now = self.reference, snapshot.now
        live = {job.uid: job.weight for job in jobs}
        seconds = max(now - reference.now, 0.0) + REPORT_AGE
        reference.leave(
            {
                uid
                for uid, remaining in self.remaining.items()
                if uid not in live and remaining.work > remaining.max_gpus * seconds
            }
        )
        new = [job for job in jobs if job.uid not in self.finish and job.uid not in self.since]
        reference.leave({job.uid for job in new})  # a job that was hidden in earlier rounds enters anew
        for job in new:  # in the order of their submission
            reference.advance(min(job.submitted, now))
            self._enter(job, demand(job))
        reference.advance(now)
        reference.gpus = sum(snapshot.capacity.values())
        for job in jobs:
            if job.uid in self.since:
                work = demand(job)
                if work is not None:
                    self._enter(job, work)
            elif overrun(job):
                del self.finish[job.uid]
                reference.leave({job.uid})
                self._enter(job, None)
        self.finish = {uid: finish for uid, finish in self.finish.items() if uid in live}
        self.since = {uid: since for uid, since in self.since.items() if uid in live}
        self.remaining = {job.uid: self._remaining(job, demand) for job in jobs if job.uid in self.finish}
        reference.others = sum(live[uid] for uid in self.since)

    def _enter(self, job: Job, work: float | None) -> None:
        """Enter a job, or give it the virtual finish time that it would have if its demand had always been known.

        Args:
            job: a new job, or one of unknown demand.
            work: GPU-seconds that it still needs; None where that is not known.
        """
        if work is None:
            self.since[job.uid] = self.reference.virtual - job.attained_service / job.weight
            self.reference.others += job.weight
            return
        since = self.since.pop(job.uid, None)
        attained = 0.0 if since is None else job.attained_service
        self.finish[job.uid] = self.reference.arrive(job.uid, attained + work, job.weight, since)
        self.remaining[job.uid] = _RemainingWork.of(job, work)

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
