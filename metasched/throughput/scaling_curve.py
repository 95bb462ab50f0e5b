"""Scaling curves: speed as a function of the number of GPUs. Also trainings of which one run's duration is known.

These sources have no measurements of co-located jobs: each job of a pair has ``COLOCATED_FRACTION`` of its isolated
speed.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from metasched.core.model import Placement, Speed
from metasched.throughput.training import COLOCATED_FRACTION, Pace, Training


class Scaling(Protocol):
    """Speed as a function of the number of GPUs, on one GPU type."""

    def at(self, gpus: int) -> float | None:
        """Steps per second; 0.0 where the job is known not to run, None where nothing is known."""


@dataclass(frozen=True, slots=True)
class Curve:
    """A measured curve on one GPU type.

    Attributes:
        points: (GPUs, steps per second), by ascending GPUs; 0.0 where the job does not run.
    """

    points: tuple[tuple[int, float], ...]

    def at(self, gpus: int) -> float | None:
        """Steps per second, linear between two sizes at which the job runs; None outside of these."""
        sizes = [size for size, _ in self.points]
        above = bisect_left(sizes, gpus)
        if above == len(sizes):
            return None
        if sizes[above] == gpus:
            return self.points[above][1]
        if above == 0 or not (self.points[above - 1][1] and self.points[above][1]):
            return None
        (low, slow), (high, fast) = self.points[above - 1], self.points[above]
        return slow + (fast - slow) * (gpus - low) / (high - low)


@dataclass(frozen=True, slots=True)
class PowerLaw:
    """A power law for the speed of a job of which one run is known.

    Attributes:
        gpus: the GPUs of the run, on which the speed is one step per second: a step is a second of the run.
        exponent: the exponent of speed over the number of GPUs: 1 is linear, 0 constant.
    """

    gpus: int
    exponent: float

    def at(self, gpus: int) -> float:
        """Steps per second on that many GPUs."""
        return math.pow(gpus / self.gpus, self.exponent)


@dataclass(frozen=True, slots=True, eq=False)
class ScalingSpeed:
    """A ``Speed`` by scaling curves, by GPU type; ``""`` stands for any type."""

    curves: Mapping[str, Scaling]

    def steps_per_second(self, gpu_type: str, spread: tuple[int, ...]) -> float | None:
        """The curve's speed on that many GPUs, on any nodes; None where it is not known."""
        curve = self.curves.get(gpu_type) or self.curves.get("")
        return None if curve is None else curve.at(sum(spread))

    def steps_per_second_with(self, other: Speed, gpu_type: str, spread: tuple[int, ...]) -> float | None:
        """None: the source has no co-located speeds."""
        del other, gpu_type, spread
        return None


@dataclass(frozen=True, slots=True)
class ScalingTraining:
    """A job whose speed follows scaling curves: a ``Training``.

    Attributes:
        total: steps in all.
        curves: scaling curves by GPU type; ``""`` stands for any type.
        speed: the same as a ``Speed``.
    """

    total: float
    curves: Mapping[str, Scaling]
    speed: ScalingSpeed = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "speed", ScalingSpeed(self.curves))

    def with_total(self, total: float) -> ScalingTraining:
        """The same training with another number of steps in all."""
        return replace(self, total=total)

    def pace(self, done: float, placement: Placement, co_runner: Training | None = None) -> Pace:
        """The curve's speed, which never changes; 0.0 where it is not known."""
        del done
        rate = self.speed.steps_per_second(placement.gpu_type or "", placement.spread) or 0.0
        return Pace(rate if co_runner is None else rate * COLOCATED_FRACTION, math.inf)

    def known(self, done: float) -> Speed:
        """The true speed, which simulated policies see."""
        del done
        return self.speed


def training_of_run(seconds: float, gpus: int, exponent: float | None = None) -> ScalingTraining:
    """The training of a job of which one run is known, on GPUs of any type; a step is a second of that run.

    Args:
        seconds: the duration of the run.
        gpus: the GPUs of the run; 0 for a job without GPUs.
        exponent: the exponent of speed over the number of GPUs; None for a rigid job.
    """
    curve: Scaling = Curve(((gpus, 1.0),)) if exponent is None or not gpus else PowerLaw(gpus, exponent)
    return ScalingTraining(seconds, {"": curve})
