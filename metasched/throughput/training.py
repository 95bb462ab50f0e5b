"""The contract between the simulator and the sources of throughput: the true work and speed of one job's training."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import NamedTuple, Protocol, TypeGuard, runtime_checkable

from metasched.core.batching import Batching, BatchPlan, GradientNoise
from metasched.core.model import Placement, Speed

COLOCATED_FRACTION = 0.5
"""The assumed fraction of its isolated speed that a job has with a co-runner, where co-location was not measured."""


class Pace(NamedTuple):
    """A speed, and how long it stays the same.

    Attributes:
        steps_per_second: the speed; 0.0 where the job cannot run.
        until: the number of steps done at which the speed changes, above those done now; infinite if it never does.
    """

    steps_per_second: float
    until: float


class Training(Protocol):
    """One job's training: its work, and its speed on every placement at every point of its progress. Immutable.

    Work is counted in steps. Each source defines its step (an iteration, a sample, a second of the trace's own run),
    which is the same on every number of GPUs.
    """

    @property
    def total(self) -> float:
        """The number of steps of the whole training."""

    def pace(self, done: float, placement: Placement, co_runner: Training | None = None) -> Pace:
        """The speed on a placement after ``done`` steps, co-located with ``co_runner`` where that is given."""

    def known(self, done: float) -> Speed | None:
        """The speed as policies know it after ``done`` steps; None where they know nothing of it."""


@runtime_checkable
class AdaptiveTraining(Training, Protocol):
    """A training whose batch size may change while it runs. Work is counted in steps at its first batch."""

    @property
    def batching(self) -> Batching:
        """The first batch and the limits of other ones."""

    def noise(self, done: float, batch: int) -> GradientNoise:
        """The true gradient noise after ``done`` steps, while the training runs at a global batch."""

    def own_plan(self, placement: Placement) -> BatchPlan:
        """The division of the training's own batch, which ``pace`` trains with, on a placement."""

    def iteration_seconds(self, placement: Placement, plan: BatchPlan) -> float | None:
        """The true seconds of an optimizer step on a placement; None where it cannot run."""

    def tuned_pace(self, done: float, placement: Placement, plan: BatchPlan, co_runner: Training | None = None) -> Pace:
        """The speed with a batch plan, in steps at the first batch; otherwise as ``pace``."""


@runtime_checkable
class ScriptedTraining(Training, Protocol):
    """A training whose script changes its batch size by itself. Work is counted in steps at the first batch."""

    def reported_batching(self, done: float) -> Batching:
        """The batch size as the trainer has reported it after ``done`` steps; nothing of regimes to come."""

    @property
    def batch_speeds(self) -> Mapping[int, Speed]:
        """By global batch, the speed in optimizer steps with it, of the batches that were measured of its model."""


def is_adaptive(training: Training) -> TypeGuard[AdaptiveTraining]:
    """Whether the batch size of a training may change while it runs.

    By its class, once for each class: ``isinstance`` with a protocol reads all of an object's properties every time,
    and a simulation asks for each job.
    """
    return _has_methods(type(training), ("noise", "own_plan", "iteration_seconds", "tuned_pace"))


def is_scripted(training: Training) -> TypeGuard[ScriptedTraining]:
    """Whether a training's script changes its batch size by itself; by its class, as in ``is_adaptive``."""
    return _has_methods(type(training), ("reported_batching", "batch_speeds"))


@cache
def _has_methods(kind: type, names: tuple[str, ...]) -> bool:
    return all(hasattr(kind, name) for name in names)
