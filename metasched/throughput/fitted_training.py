"""Trainings of real jobs whose batch size may change, by what their trainers reported (Pollux, OSDI 2021, section 4.1).

Their speed follows the fitted time of an iteration, and their gradient noise stays what it was last.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from metasched.core.batching import Batching, BatchPlan, GradientNoise
from metasched.core.model import Job, Placement, Speed
from metasched.throughput.goodput import Goodput
from metasched.throughput.job_goodput import batch_limits, is_tuned, job_goodput
from metasched.throughput.training import COLOCATED_FRACTION, Pace, Training


class FittedTraining:
    """The training of a job that ``has_fitted_goodput``: an ``AdaptiveTraining``. Immutable.

    Args:
        job: the job, with the batch in force, which its trainer has until a policy asks for another one.
        total: steps in all, at the first batch.

    Attributes:
        total: as given.
        batching: the job's batch sizes.
        speed: the speed with the batch in force, which policies see.
    """

    def __init__(self, job: Job, total: float) -> None:
        if job.batching is None or job.noise is None:
            raise ValueError(f"job {job.uid}: its batch size and its gradient noise must be known")
        self.total = total
        self.batching: Batching = job.batching
        self.speed = FittedSpeed(self)
        self._noise: GradientNoise = job.noise
        self._limits = batch_limits(job.batching)
        self._job = job
        self._goodput: dict[str, Goodput] = {}  # by GPU type

    def with_total(self, total: float) -> FittedTraining:
        """The same training with another number of steps in all."""
        return FittedTraining(self._job, total)

    def pace(self, done: float, placement: Placement, co_runner: Training | None = None) -> Pace:
        """The goodput with the batch in force, which never changes; 0.0 where the limits do not allow it."""
        return self.tuned_pace(done, placement, self.own_plan(placement), co_runner)

    def tuned_pace(self, done: float, placement: Placement, plan: BatchPlan, co_runner: Training | None = None) -> Pace:
        """The goodput with a batch plan, in steps at the first batch; otherwise as ``pace``."""
        del done
        rate = self.steps_per_second(placement.gpu_type or "", placement.spread, plan)
        return Pace(rate if co_runner is None else rate * COLOCATED_FRACTION, math.inf)

    def known(self, done: float) -> Speed:
        """The same speed, which simulated policies see."""
        del done
        return self.speed

    def noise(self, done: float, batch: int) -> GradientNoise:
        """The gradient noise as it was last, at any batch."""
        del done, batch
        return self._noise

    def own_plan(self, placement: Placement) -> BatchPlan:
        """The division of the batch in force on a placement."""
        return self.plan_on(placement.gpus)

    def plan_on(self, gpus: int) -> BatchPlan:
        """The division of the batch in force on a number of GPUs, or of the least batch that they can have."""
        limits = self._limits
        batch = min(max(self.batching.global_batch or 0, limits.first_batch), limits.max_batch)
        share = max(-(-batch // max(gpus, 1)), limits.min_per_gpu)
        accumulation = -(-share // limits.max_per_gpu)
        return BatchPlan(-(-share // accumulation), accumulation)

    def iteration_seconds(self, placement: Placement, plan: BatchPlan) -> float:
        """The fitted seconds of an optimizer step on a placement."""
        several = len(placement.nodes) > 1
        iteration = self._on(placement.gpu_type or "").iteration
        return iteration.iteration_seconds(placement.gpus, plan.per_gpu, plan.accumulation, multi_node=several)

    def steps_per_second(self, gpu_type: str, spread: tuple[int, ...], plan: BatchPlan) -> float:
        """Steps at the first batch each second, with a batch plan; 0.0 where the limits do not allow it."""
        gpus = sum(spread)
        found = self._on(gpu_type).at(gpus, plan, multi_node=len(spread) > 1) if gpus else None
        return 0.0 if found is None else found.goodput / self.batching.first_batch

    def _on(self, gpu_type: str) -> Goodput:
        if gpu_type not in self._goodput:
            self._goodput |= job_goodput(self._job, [gpu_type])
        return self._goodput[gpu_type]


@dataclass(frozen=True, slots=True, eq=False)
class FittedSpeed:
    """The speed of a fitted training with the batch in force: a ``Speed``."""

    training: FittedTraining

    def steps_per_second(self, gpu_type: str, spread: tuple[int, ...]) -> float:
        """Steps at the first batch each second; 0.0 where the limits of the batch do not allow it."""
        return self.training.steps_per_second(gpu_type, spread, self.training.plan_on(sum(spread)))

    def steps_per_second_with(self, other: Speed, gpu_type: str, spread: tuple[int, ...]) -> None:
        """None: co-location was not measured."""
        del other, gpu_type, spread


def has_fitted_goodput(job: Job) -> bool:
    """Whether the job's batch size may be changed, and its trainers have reported enough to know its goodput."""
    return is_tuned(job.batching) and job.noise is not None and bool(job.iteration_parameters)
