"""Trainings of a measured application whose batch size changes while it runs (Pollux, OSDI 2021, section 5.3)."""

from __future__ import annotations

from dataclasses import dataclass

from metasched.core.batching import BatchControl, Batching, BatchPlan, GradientNoise
from metasched.core.model import Placement
from metasched.throughput.goodput_profile import ProfileTraining
from metasched.throughput.training import COLOCATED_FRACTION, Pace, Training


@dataclass(frozen=True, slots=True)
class AdaptiveProfileTraining(ProfileTraining):
    """A training of an application at its first batch size, or at the batch plans of a policy: ``AdaptiveTraining``."""

    @property
    def batching(self) -> Batching:
        """The batch sizes at which the application was measured."""
        profile = self.profile
        return Batching(
            profile.first_batch,
            BatchControl.SCHEDULER,
            max_batch=profile.most_batch,
            min_per_gpu=profile.least_local,
            max_per_gpu=profile.most_local,
        )

    def noise(self, done: float, batch: int) -> GradientNoise:
        """The gradient noise in the present epoch, at a global batch.

        The published variance is that of a first batch.
        """
        profile = self.profile
        square, variance = profile.noise(batch, profile.epoch(done))
        return GradientNoise(square, variance * profile.first_batch)

    def own_plan(self, placement: Placement) -> BatchPlan:
        """The division of the training's batch on a placement."""
        split = self.profile.split(self.batch, placement.gpus)
        return BatchPlan(split.local, split.accumulated + 1)

    def iteration_seconds(self, placement: Placement, plan: BatchPlan) -> float | None:
        """The seconds of an optimizer step on a placement; None outside of the measured sizes."""
        if placement.gpu_type != self.profile.gpu_type:
            return None
        times = self.profile.step_time(placement.spread, plan.per_gpu)
        return None if times is None else times.step + (times.step - times.sync) * (plan.accumulation - 1)

    def tuned_pace(self, done: float, placement: Placement, plan: BatchPlan, co_runner: Training | None = None) -> Pace:
        """The goodput with a batch plan, until the epoch ends; 0.0 outside of the measured sizes."""
        profile = self.profile
        epoch = profile.epoch(done)
        seconds = self.iteration_seconds(placement, plan)
        batch = min(plan.global_batch(placement.gpus), profile.most_batch)
        rate = 0.0 if seconds is None else profile.gain(batch, epoch) / seconds
        return Pace(rate * (1.0 if co_runner is None else COLOCATED_FRACTION), profile.ends[epoch])
