"""Discretised two-dimensional least attained service (Tiresias, NSDI 2019, section 3.2).

A job's attained service is GPUs x time. Queues are bands of attained service: a job enters the top queue, and falls to
the next when its service passes that queue's threshold. Upper queues preempt lower ones. Within a queue, running jobs
come first, as in the authors' public simulator, so that jobs of one queue do not preempt each other; then waiting jobs
by their first start, jobs that never started last. A job that waited ``promote_knob`` times as long as it ran returns
to the top queue, and its service counts anew.

Pollux's simulator orders the jobs of a queue by their entry into it instead, as ``order = "entry"`` does.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, field_validator

from metasched.core.model import Decision, Job, Snapshot
from metasched.core.policy import Policy, PolicyParameters, PolicyState
from metasched.core.reasons import Code, Reason
from policies.baselines.app_groups import by_app
from policies.baselines.gpu_allocator import allocate

STATE_VERSION = 1
LEAST_SERVED = Reason(Code.LEAST_SERVED_APP)


class LasParameters(PolicyParameters):
    """Parameters of the policy LAS."""

    queue_thresholds_gpu_seconds: tuple[float, ...] = Field(default=(3250.0,), strict=False)
    """Upper ends of all queues but the last, increasing."""
    promote_knob: float | None = Field(default=8.0, gt=0)
    """Waiting time over run time since the last promotion at which a job goes back to the top queue; None for never."""
    order: Literal["start", "entry"] = "start"
    """Order within a queue: running jobs first, and then by first start; or by entry into the queue, where a waiting
    job may preempt a running one of its queue.
    """
    elastic: bool = True
    """Whether jobs may get other numbers of GPUs than they requested."""
    by_app: bool = False
    """Whether the app with the least service comes first, without queues, as in Themis's comparison."""

    @field_validator("queue_thresholds_gpu_seconds")
    @classmethod
    def _increasing(cls, thresholds: tuple[float, ...]) -> tuple[float, ...]:
        if any(low >= high for low, high in zip((0.0, *thresholds), thresholds, strict=False)):
            message = "must be positive and increasing"
            raise ValueError(message)
        return thresholds


@dataclass(frozen=True, slots=True)
class _Record:
    """The state of a job that has started at least once.

    Attributes:
        first_start: unix seconds of the first start.
        service: attained service at the last promotion, GPU-seconds.
        ran: run time at the last promotion, seconds.
        waited: waiting time since the first start at the last promotion, seconds.
        level: queue, 0 for the top queue.
        entered: unix seconds of the entry into this queue; 0 for jobs that never left the top queue.
    """

    first_start: float
    service: float = 0.0
    ran: float = 0.0
    waited: float = 0.0
    level: float = 0.0
    entered: float = 0.0

    @classmethod
    def from_json(cls, data: Any) -> Self | None:
        """The record that ``to_json`` wrote; None where the data are damaged."""
        try:
            return cls(**{key: float(value) for key, value in data.items()})
        except (AttributeError, TypeError, ValueError):
            return None

    def to_json(self) -> dict[str, float]:
        """The record as JSON-compatible data (``dataclasses.asdict`` is several times as slow)."""
        return {name: getattr(self, name) for name in self.__slots__}


class Las(Policy):
    """Least attained service first, in discrete queues; preemptive."""

    name: ClassVar[str] = "las"
    Parameters: ClassVar[type[PolicyParameters]] = LasParameters
    parameters: LasParameters

    def initial_state(self, snapshot: Snapshot) -> PolicyState:
        """A state in which jobs that ran before count as started in the order of their submission."""
        started = {job.uid: _Record(first_start=job.submitted) for job in snapshot.jobs if job.ran_seconds > 0}
        return _state(started)

    def decide(self, snapshot: Snapshot, state: PolicyState) -> tuple[Decision, PolicyState]:
        """Promote starved jobs, then serve queue by queue."""
        if self.parameters.by_app:
            queue = by_app(snapshot, lambda group: group.attained_service)
            return allocate(
                snapshot, queue, lambda _: LEAST_SERVED, strict=False, elastic=self.parameters.elastic
            ), state
        if state.version != STATE_VERSION:
            state = self.initial_state(snapshot)
        known = {uid: record for uid, data in state.data.items() if (record := _Record.from_json(data)) is not None}
        records: dict[str, _Record] = {}
        level: dict[str, int] = {}
        for job in snapshot.jobs:
            record = self._update(job, known.get(job.uid), snapshot.now)
            level[job.uid] = new_level = self._level(job, record)
            if record is not None:
                moved = new_level != record.level
                records[job.uid] = replace(record, level=new_level, entered=snapshot.now) if moved else record
        queue = sorted(snapshot.jobs, key=lambda job: (level[job.uid], *self._order_key(job, records), job.uid))
        levels = len(self.parameters.queue_thresholds_gpu_seconds) + 1

        def order(job: Job) -> Reason:
            # Without amounts: the history has a row for each change of a reason, which would be one each round.
            return Reason(Code.ATTAINED_SERVICE_QUEUE, (("queue", level[job.uid] + 1), ("queues", levels)))

        decision = allocate(snapshot, queue, order, strict=False, elastic=self.parameters.elastic)
        return decision, _state(records)

    def _update(self, job: Job, record: _Record | None, now: float) -> _Record | None:
        """The job's record in this round: made at its first start, None before; counters reset at a promotion."""
        if record is None:
            if not job.active and job.ran_seconds <= 0:
                return None
            start = job.run_started if job.run_started is not None else now
            return _Record(first_start=start, waited=job.waited_seconds(now))
        knob = self.parameters.promote_knob
        ran, waited = job.ran_seconds - record.ran, job.waited_seconds(now) - record.waited
        starved = knob is not None and not job.active and ran > 0 and waited >= knob * ran
        if starved and self._level(job, record) > 0:
            counters = (job.attained_service, job.ran_seconds, job.waited_seconds(now))
            return _Record(record.first_start, *counters, entered=now)
        return record

    def _level(self, job: Job, record: _Record | None) -> int:
        """The job's queue by its attained service, 0 for the top queue."""
        service = job.attained_service - (record.service if record is not None else 0.0)
        return bisect_right(self.parameters.queue_thresholds_gpu_seconds, service)

    def _order_key(self, job: Job, records: Mapping[str, _Record]) -> tuple[float, ...]:
        """Sort key of the job within its queue."""
        record = records.get(job.uid)
        if self.parameters.order == "entry":
            return (max(job.submitted, record.entered if record is not None else 0.0), job.submitted)
        return (not job.active, record.first_start if record is not None else math.inf, job.submitted)


def _state(records: Mapping[str, _Record]) -> PolicyState:
    return PolicyState(STATE_VERSION, {uid: records[uid].to_json() for uid in sorted(records)})
