"""Optimus' allocation (Peng et al., EuroSys 2018, section 4.1): each GPU goes where it saves the most time.

Every job first gets its minimum. Then GPUs go, step by step, to the job whose remaining time falls most for each GPU,
until no GPUs are left or no job gains. Jobs are placed in ascending order of their GPUs (section 4.2). Optimus fits
speeds and remaining steps online. Here they are declared, measured or learned, or in simulations the true ones, as in
Pollux's comparison with Optimus ("Optimus+Oracle").
"""

from __future__ import annotations

import heapq
from dataclasses import replace
from typing import ClassVar

from metasched.capacity.capacity_pool import GpuAmount
from metasched.core.model import Decision, Job, Snapshot
from metasched.core.policy import Policy, PolicyParameters, PolicyState
from metasched.core.reasons import Code, Reason
from metasched.core.retention import is_non_preemptible
from policies.baselines.app_groups import app_groups
from policies.baselines.app_speed import grow_apps
from policies.baselines.gpu_allocator import Allocator
from policies.baselines.remaining_time import RemainingTime

KNOWN = Reason(Code.MOST_TIME_SAVED)
UNKNOWN = Reason(Code.SPEED_UNKNOWN)
BY_APP = Reason(Code.MOST_APP_SPEED)


class OptimusParameters(PolicyParameters):
    """Parameters of the policy Optimus."""

    by_app: bool = False
    """Whether each GPU goes to the app whose speed grows by the largest factor, as in Themis's comparison (NSDI 2020,
    section 6.1).
    """


class Optimus(Policy):
    """Greedy by marginal gain in remaining time; elastic, preemptive."""

    name: ClassVar[str] = "optimus"
    Parameters: ClassVar[type[PolicyParameters]] = OptimusParameters
    parameters: OptimusParameters

    def decide(self, snapshot: Snapshot, state: PolicyState) -> tuple[Decision, PolicyState]:
        """Serve every job's minimum, then repeatedly grow the job that gains most; keeps no state."""
        queue = sorted(snapshot.jobs, key=lambda job: (job.min_gpus, job.submitted, job.uid))
        growth = _Growth(Allocator(snapshot, queue, elastic=True))
        if self.parameters.by_app:
            grow_apps(growth.allocator, app_groups(snapshot), growth.remaining_time)
            return growth.allocator.decision(lambda _: BY_APP, None), state
        known = {job.uid for job in queue if growth.is_known(job)}
        growth.allocator.serve_minimum(strict=False)
        growth.grow([job for job in queue if job.uid in known])
        for job in queue:
            if job.uid not in known or growth.next_gain_unknown(job):
                growth.allocator.grow(job, job.gpus)
        decision = growth.allocator.decision(lambda job: KNOWN if job.uid in known else UNKNOWN, None)
        return replace(decision, grants=tuple(sorted(decision.grants, key=lambda grant: grant.gpus))), state


class _Growth:
    """Growth of jobs by the remaining time that further GPUs save."""

    def __init__(self, allocator: Allocator) -> None:
        self.remaining_time = RemainingTime(allocator.pool)
        self.allocator = allocator

    def is_known(self, job: Job) -> bool:
        """Whether the job's remaining steps are known, and its speed at its smallest size on some GPU type."""
        sizes = self.allocator.sizes(job)
        return job.remaining_steps is not None and any(
            self.remaining_time.speed(job, gpu_type, amounts[0]) is not None for gpu_type, amounts in sizes.items()
        )

    def grow(self, jobs: list[Job]) -> None:
        """Assign the remaining GPUs to the jobs that gain most by each GPU; equal jobs in their order."""
        heap: list[tuple[float, int, GpuAmount]] = []

        def push(position: int) -> None:
            gain = self._gain(jobs[position])
            if gain is not None and gain[0] > 0:
                heapq.heappush(heap, (-gain[0], position, gain[1]))

        for position in range(len(jobs)):
            push(position)
        while heap:
            _, position, amount = heapq.heappop(heap)
            if self.allocator.pool.assign(jobs[position], amount):
                push(position)

    def next_gain_unknown(self, job: Job) -> bool:
        """Whether the job could grow, but the gain of its next larger amount is not known."""
        step = self._step(job)
        return step is not None and None in self._speeds(job, *step)

    def _gain(self, job: Job) -> tuple[float, GpuAmount] | None:
        """Seconds saved by each further GPU of the job's next larger amount, and that amount; None where not known."""
        step = self._step(job)
        if step is None:
            return None
        present, larger = step
        now, then = self._speeds(job, present, larger)
        if not now or not then:
            return None
        saved = (1 / now - 1 / then) * (job.remaining_steps or 0.0)
        return saved / (larger.gpus - present.gpus), larger

    def _step(self, job: Job) -> tuple[GpuAmount, GpuAmount] | None:
        """The amount that is assigned to the job, and its next larger amount; None where it cannot grow."""
        present = self.allocator.pool.assigned.get(job.uid)
        if present is None or is_non_preemptible(job):
            return None
        larger = self.allocator.larger_amount(job)
        return None if larger is None else (present, larger)

    def _speeds(self, job: Job, *amounts: GpuAmount) -> list[float | None]:
        return [self.remaining_time.speed(job, amount.gpu_type, amount.gpus) for amount in amounts]
