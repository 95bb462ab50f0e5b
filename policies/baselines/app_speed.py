"""Optimus by app, as in Themis's comparison (NSDI 2020, section 6.1): each GPU goes where an app's speed grows most.

The metric is the app's speed with more GPUs over its speed without. An app's speed is the sum over its jobs, each over
its own speed on its fewest GPUs, so that steps of different lengths add up. An app without GPUs comes first.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from typing import NamedTuple

from metasched.capacity.capacity_pool import GpuAmount
from metasched.core.model import Job
from policies.baselines.app_groups import AppGroup
from policies.baselines.gpu_allocator import Allocator
from policies.baselines.remaining_time import RemainingTime


class _Step(NamedTuple):
    """The next amount of one job, in the order in which steps are taken.

    Attributes:
        key: minus the gain over the app's speed; minus infinity while the app has no GPUs.
        waits: whether the job holds no GPUs now.
        number: position of the job among all jobs.
        amount: the GPUs that it would have.
        gain: the gain in speed for each further GPU.
    """

    key: float
    waits: bool
    number: int
    amount: GpuAmount
    gain: float


def grow_apps(allocator: Allocator, groups: Sequence[AppGroup], known: RemainingTime) -> None:
    """Assign GPUs, step by step, to the app whose speed grows by the largest factor for each of them.

    Among equal steps those of jobs that hold GPUs come first, then earlier apps and jobs. A job whose speed is not
    known counts as linear up to its requested GPUs.
    """
    jobs = [(group.uid, job) for group in groups for job in group.jobs]
    growth = _AppGrowth(allocator, jobs, known)
    retained = set(allocator.pool.assigned)
    heap = [step for number, (_, job) in enumerate(jobs) if job.uid not in retained and (step := growth.step(number))]
    heapq.heapify(heap)
    while heap:
        step = heapq.heappop(heap)
        key = growth.key(step.number, step.gain)
        if key > step.key:  # the app has got GPUs since
            heapq.heappush(heap, step._replace(key=key))
        elif growth.take(step) and (following := growth.step(step.number)) is not None:
            heapq.heappush(heap, following)


class _AppGrowth:
    """The speeds of apps while GPUs are assigned.

    Args:
        allocator: the round's GPUs.
        jobs: the jobs, each after its app's uid.
        known: the jobs' speeds.
    """

    def __init__(self, allocator: Allocator, jobs: Sequence[tuple[str, Job]], known: RemainingTime) -> None:
        self._allocator = allocator
        self._jobs = jobs
        self._known = known
        self._speeds = {app: 0.0 for app, _ in jobs}
        for app, job in jobs:
            self._speeds[app] += self._present_speed(job)

    def key(self, number: int, gain: float) -> float:
        """The key of a step with this gain."""
        speed = self._speeds[self._jobs[number][0]]
        return -gain / speed if speed else -math.inf

    def step(self, number: int) -> _Step | None:
        """The next step of a job; None where it cannot grow, or gains nothing."""
        job = self._jobs[number][1]
        present, now = self._allocator.pool.assigned.get(job.uid), self._present_speed(job)
        larger = self._allocator.larger_amount(job)
        for amount in self._allocator.options(job) if present is None else () if larger is None else (larger,):
            then = self._relative_speed(job, amount)
            if then is not None and then > now and self._allocator.pool.fits(job, amount):
                gain = (then - now) / max(amount.gpus - (present.gpus if present else 0), 1)
                return _Step(self.key(number, gain), not job.active, number, amount, gain)
        return None

    def take(self, step: _Step) -> bool:
        """Assign a step's GPUs; returns whether the job may have a further step."""
        app, job = self._jobs[step.number]
        before = self._present_speed(job)
        assigned = self._allocator.pool.assign(job, step.amount)
        self._speeds[app] += self._present_speed(job) - before
        return assigned or job.uid not in self._allocator.pool.assigned  # perhaps on another GPU type

    def _present_speed(self, job: Job) -> float:
        """The relative speed of what is assigned to a job; 0 for nothing."""
        amount = self._allocator.pool.assigned.get(job.uid)
        return 0.0 if amount is None else self._relative_speed(job, amount) or 0.0

    def _relative_speed(self, job: Job, amount: GpuAmount) -> float | None:
        """The job's speed over that on its fewest GPUs of the type; None where it is not known beyond its request."""
        if not amount.gpus:
            return 1.0
        least = min(self._allocator.sizes(job).get(amount.gpu_type, ()), default=amount.gpus) or amount.gpus
        alone, speed = (self._known.speed(job, amount.gpu_type, gpus) for gpus in (least, amount.gpus))
        if alone and speed is not None:
            return speed / alone
        return amount.gpus / least if amount.gpus <= max(job.gpus, least) else None
