"""Trainings that were measured on one GPU type, on a cluster with other types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from metasched.core.batching import Batching, BatchPlan, GradientNoise
from metasched.core.model import Placement, Speed
from metasched.simulator.records import Workload
from metasched.throughput.adaptive_profile import AdaptiveProfileTraining
from metasched.throughput.goodput_profile import ProfileTraining
from metasched.throughput.training import Pace, Training


def on_types(workload: Workload, factors: Mapping[str, float]) -> Workload:
    """A workload of measured applications whose jobs accept several GPU types.

    Args:
        workload: its trainings are ``ProfileTraining``.
        factors: by GPU type, the speed relative to that of the measurements, with any batch and on any placement.
    """
    submissions = []
    for one in workload.submissions:
        assert isinstance(one.training, ProfileTraining)  # noqa: S101  the reader's
        training = TypedTraining(one.training, factors)
        if isinstance(one.training, AdaptiveProfileTraining):
            training = AdaptiveTypedTraining(one.training, factors)
        submissions.append(replace(one, job=one.job.evolve(gpu_types=tuple(factors)), training=training))
    return Workload(f"{workload.source} on {', '.join(factors)}", tuple(submissions))


@dataclass(frozen=True, eq=False)
class TypedSpeed:
    """The speed of a training on several GPU types: a ``Speed``.

    Attributes:
        measured: the speed on the type of the measurements.
        gpu_type: that type.
        factors: see ``on_types``.
    """

    measured: Speed
    gpu_type: str
    factors: Mapping[str, float]

    def steps_per_second(self, gpu_type: str, spread: tuple[int, ...]) -> float | None:
        """The speed; None on any other type, and where the measurements tell none."""
        found = self.measured.steps_per_second(self.gpu_type, spread)
        return None if found is None or gpu_type not in self.factors else found * self.factors[gpu_type]

    def steps_per_second_with(self, other: Speed, gpu_type: str, spread: tuple[int, ...]) -> float | None:
        """None: co-location was not measured."""
        del other, gpu_type, spread
        return None


@dataclass(frozen=True)
class TypedTraining:
    """A training with a fixed batch on several GPU types: a ``Training``.

    Attributes:
        measured: the training on the type of the measurements.
        factors: see ``on_types``.
    """

    measured: ProfileTraining
    factors: Mapping[str, float]

    @property
    def total(self) -> float:
        """The work of the training, in steps at the first batch."""
        return self.measured.total

    def pace(self, done: float, placement: Placement, co_runner: Training | None = None) -> Pace:
        """The speed on a placement of any of the types."""
        return self._scaled(self.measured.pace(done, self._there(placement), co_runner), placement)

    def known(self, done: float) -> Speed:
        """The true speed in the present epoch, on all types."""
        return TypedSpeed(self.measured.known(done), self.measured.profile.gpu_type, self.factors)

    def _there(self, placement: Placement) -> Placement:
        return replace(placement, gpu_type=self.measured.profile.gpu_type)

    def _scaled(self, pace: Pace, placement: Placement) -> Pace:
        return pace._replace(steps_per_second=pace.steps_per_second * self.factors.get(placement.gpu_type or "", 0.0))


@dataclass(frozen=True)
class AdaptiveTypedTraining(TypedTraining):
    """A training whose batch may change, on several GPU types: an ``AdaptiveTraining``."""

    measured: AdaptiveProfileTraining

    @property
    def batching(self) -> Batching:
        """The batch sizes at which the application was measured."""
        return self.measured.batching

    def noise(self, done: float, batch: int) -> GradientNoise:
        """The gradient noise in the present epoch, at a global batch."""
        return self.measured.noise(done, batch)

    def own_plan(self, placement: Placement) -> BatchPlan:
        """The division of the training's batch on a placement."""
        return self.measured.own_plan(placement)

    def iteration_seconds(self, placement: Placement, plan: BatchPlan) -> float | None:
        """The seconds of an optimizer step; None on any other type, and outside of the measured sizes."""
        found = self.measured.iteration_seconds(self._there(placement), plan)
        factor = self.factors.get(placement.gpu_type or "")
        return None if found is None or factor is None else found / factor

    def tuned_pace(self, done: float, placement: Placement, plan: BatchPlan, co_runner: Training | None = None) -> Pace:
        """The goodput with a batch plan, until the epoch ends."""
        return self._scaled(self.measured.tuned_pace(done, self._there(placement), plan, co_runner), placement)
