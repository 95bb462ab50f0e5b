"""Optimus' allocation (Peng et al., EuroSys 2018, section 4.1): each GPU goes where it saves the most time.

Every job first gets its minimum. Then the job gets more whose remaining time falls most by it, until GPUs are used up
or nobody gains. Jobs are placed in the order of their size, small ones first (section 4.2). Optimus fits speed and
remaining work online; here they are what is known of each job: declared, measured or fitted, or in simulations the
truth, as in Pollux's comparison with it ("Optimus+Oracle").
"""

from __future__ import annotations

import heapq
from dataclasses import replace
from typing import ClassVar

from metasched.capacity.capacity_pool import GpuAmount
from metasched.core.model import Decision, Job, Snapshot
from metasched.core.policy import Policy, PolicyState
from metasched.core.reasons import Code, Reason
from metasched.core.retention import is_non_preemptible
from policies.baselines.gpu_allocator import Allocator
from policies.baselines.remaining_time import Outlook

KNOWN = Reason(Code.MOST_TIME_SAVED)
UNKNOWN = Reason(Code.SPEED_UNKNOWN)


class Optimus(Policy):
    """Greedy by marginal gain in remaining time; elastic, preemptive."""

    name: ClassVar[str] = "optimus"

    def decide(self, snapshot: Snapshot, state: PolicyState) -> tuple[Decision, PolicyState]:
        """Give everybody the minimum, then grow the job that gains most, again and again; keeps no state."""
        queue = sorted(snapshot.jobs, key=lambda job: (job.min_gpus, job.submitted, job.uid))
        growth = _Growth(Allocator(snapshot, queue, elastic=True))
        known = {job.uid for job in queue if growth.knows(job)}
        growth.allocator.serve_minimum(strict=False)
        growth.grow([job for job in queue if job.uid in known])
        for job in queue:
            if job.uid not in known or growth.ends_blind(job):
                growth.allocator.grow(job, job.gpus)
        decision = growth.allocator.decision(lambda job: KNOWN if job.uid in known else UNKNOWN, None)
        return replace(decision, grants=tuple(sorted(decision.grants, key=lambda grant: grant.gpus))), state


class _Growth:
    """Who gains how much by more GPUs."""

    def __init__(self, allocator: Allocator) -> None:
        self.outlook = Outlook(allocator.pool)
        self.allocator = allocator

    def knows(self, job: Job) -> bool:
        """Whether its gains can be known."""
        kinds = self.allocator.sizes(job)
        return job.remaining_steps is not None and any(
            self.outlook.speed(job, kind, amounts[0]) is not None for kind, amounts in kinds.items()
        )

    def grow(self, jobs: list[Job]) -> None:
        """Give what is left to those who gain most by each GPU; equals in their order."""
        heap: list[tuple[float, int, GpuAmount]] = []

        def look(position: int) -> None:
            step = self._next(jobs[position])
            if step is not None and step[0] > 0:
                heapq.heappush(heap, (-step[0], position, step[1]))

        for position in range(len(jobs)):
            look(position)
        while heap:
            _, position, share = heapq.heappop(heap)
            if self.allocator.pool.assign(jobs[position], share):
                look(position)

    def ends_blind(self, job: Job) -> bool:
        """Whether it is not known what the next larger amount would gain."""
        step = self._step(job)
        return step is not None and None in self._speeds(job, *step)

    def _next(self, job: Job) -> tuple[float, GpuAmount] | None:
        """Its next larger amount, and the seconds that each GPU of the difference saves; None where that is unknown."""
        step = self._step(job)
        if step is None:
            return None
        share, larger = step
        now, then = self._speeds(job, share, larger)
        if not now or not then:
            return None
        saved = (1 / now - 1 / then) * (job.remaining_steps or 0.0)
        return saved / (larger.gpus - share.gpus), larger

    def _step(self, job: Job) -> tuple[GpuAmount, GpuAmount] | None:
        """What it has been given, and the next larger amount."""
        share = self.allocator.pool.assigned.get(job.uid)
        if share is None or is_non_preemptible(job):
            return None
        gpus = next((n for n in self.allocator.sizes(job).get(share.gpu_type, ()) if n > share.gpus), None)
        return None if gpus is None else (share, GpuAmount(gpus, share.gpu_type))

    def _speeds(self, job: Job, *shares: GpuAmount) -> list[float | None]:
        return [self.outlook.speed(job, share.gpu_type, share.gpus) for share in shares]
