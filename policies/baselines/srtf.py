"""Shortest remaining time first: the order that minimises mean completion time where jobs do not scale.

A baseline of Tiresias (Gu et al., NSDI 2019, section 2.2) and of many papers since. It needs remaining times.
"""

from __future__ import annotations

import math
from typing import ClassVar

from metasched.capacity.capacity_pool import CapacityPool
from metasched.core.model import Decision, Job, Snapshot
from metasched.core.policy import Policy, PolicyParameters, PolicyState
from metasched.core.reasons import Code, Reason
from policies.baselines.app_groups import AppGroup, by_app
from policies.baselines.gpu_allocator import allocate
from policies.baselines.remaining_time import RemainingTime

UNKNOWN = Reason(Code.REMAINING_UNKNOWN)

DIGITS = 12
"""Significant digits of the times by which jobs, but not apps, are ordered: in further ones, equal times differ."""


class ShortestParameters(PolicyParameters):
    """Parameters of SRTF and SRSF."""

    elastic: bool = True
    """Whether jobs may get other numbers of GPUs than they requested."""
    by_app: bool = False
    """Whether apps are served by what is left of all their jobs, as in Themis's comparison."""


class Srtf(Policy):
    """Shortest remaining time first; preemptive. Jobs of unknown remaining time come last, by submission."""

    name: ClassVar[str] = "srtf"
    Parameters: ClassVar[type[PolicyParameters]] = ShortestParameters
    parameters: ShortestParameters
    shortest: ClassVar[Reason] = Reason(Code.SHORTEST_TIME)  # the reason of jobs in the policy's order

    def size(self, job: Job) -> int:
        """The factor on the job's remaining seconds in the order."""
        del job
        return 1

    def left_of_app(self, group: AppGroup, remaining_time: RemainingTime) -> float | None:
        """What is left of an app, by which apps are ordered; None where it is not known."""
        return group.remaining_seconds(remaining_time)

    def decide(self, snapshot: Snapshot, state: PolicyState) -> tuple[Decision, PolicyState]:
        """Serve jobs by remaining seconds times ``size``; keeps no state."""
        remaining_time = RemainingTime(CapacityPool(snapshot))
        left = {job.uid: remaining_time.remaining_seconds(job) for job in snapshot.jobs}

        def key(job: Job) -> tuple[float, float, str]:
            """Return a job's key of the order, least first: its remaining seconds times size, submission and uid."""
            seconds = left[job.uid]
            rounded = math.inf if seconds is None else float(f"{seconds * self.size(job):.{DIGITS}g}")
            return (rounded, job.submitted, job.uid)

        if self.parameters.by_app:
            queue = by_app(snapshot, lambda group: self.left_of_app(group, remaining_time))
        else:
            queue = sorted(snapshot.jobs, key=key)
        decision = allocate(
            snapshot,
            queue,
            lambda job: UNKNOWN if left[job.uid] is None else self.shortest,
            strict=False,
            elastic=self.parameters.elastic,
        )
        return decision, state
