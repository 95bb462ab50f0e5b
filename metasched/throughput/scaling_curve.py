"""Scaling curves: speed by the number of GPUs alone. And the simplest knowledge of all: how long a run took.

Where jobs share GPUs nothing was measured, so each of two has half of its speed.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from metasched.core.model import Placement, Speed
from metasched.throughput.training import Pace, Training

SHARED = 0.5


class Scaling(Protocol):
    """Speed by the number of GPUs."""

    def at(self, gpus: int) -> float | None:
        """Steps per second; 0.0 where it is known not to run, None where nothing is known."""


@dataclass(frozen=True, slots=True)
class Curve:
    """A measured curve on one GPU type.

    Attributes:
        points: (GPUs, steps per second), by ascending GPUs; 0.0 where it does not run.
    """

    points: tuple[tuple[int, float], ...]

    def at(self, gpus: int) -> float | None:
        """Linear between two sizes at which it runs; None beyond the measured ones, or beside one that does not run."""
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
    """A speed-up rule for a job of which one run is known.

    Attributes:
        gpus: of the run; its speed there is one step per second, so that a step is a second of the run.
        exponent: of the speed-up with the number of GPUs: 1 is linear, 0 none.
    """

    gpus: int
    exponent: float

    def at(self, gpus: int) -> float:
        """Relative to the run."""
        return math.pow(gpus / self.gpus, self.exponent)


@dataclass(frozen=True, slots=True)
class Fixed:
    """A job of which one run is known, and nothing else: it goes as fast as it went, on as many GPUs."""

    gpus: int

    def at(self, gpus: int) -> float | None:
        """One step per second at its size."""
        return 1.0 if gpus == self.gpus else None


@dataclass(frozen=True, slots=True, eq=False)
class ScalingSpeed:
    """What a policy may know: the curves, by GPU type; ``""`` stands for any type."""

    curves: Mapping[str, Scaling]

    def steps_per_second(self, gpu_type: str, spread: tuple[int, ...]) -> float | None:
        """By the number of GPUs, however they are spread."""
        curve = self.curves.get(gpu_type) or self.curves.get("")
        return None if curve is None else curve.at(sum(spread))

    def steps_per_second_with(self, other: Speed, gpu_type: str, spread: tuple[int, ...]) -> float | None:
        """Not known."""
        del other, gpu_type, spread
        return None


@dataclass(frozen=True, slots=True)
class ScalingTraining:
    """A job whose speed follows curves.

    Attributes:
        total: steps.
        curves: by GPU type; ``""`` stands for any type.
    """

    total: float
    curves: Mapping[str, Scaling]
    speed: ScalingSpeed = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "speed", ScalingSpeed(self.curves))

    def pace(self, done: float, placement: Placement, beside: Training | None = None) -> Pace:
        """The curve's speed, to the end; 0 where it is not known."""
        del done
        rate = self.speed.steps_per_second(placement.gpu_type or "", placement.spread) or 0.0
        return Pace(rate if beside is None else rate * SHARED, math.inf)

    def known(self, done: float) -> Speed:
        """The truth."""
        del done
        return self.speed


def ran(seconds: float, gpus: int, exponent: float | None = None) -> ScalingTraining:
    """A job that ran for so long on so many GPUs, of whatever type.

    Args:
        seconds: of the run.
        gpus: of the run; for a job without GPUs 0.
        exponent: of its speed-up at other sizes; None if it can have no other size.
    """
    return ScalingTraining(seconds, {"": Fixed(gpus) if exponent is None or not gpus else PowerLaw(gpus, exponent)})
