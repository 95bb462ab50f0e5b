"""Trainings that scale linearly within a node, and are slowed down by a factor of their own over several nodes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from metasched.core.model import Placement, Speed
from metasched.throughput.training import COLOCATED_FRACTION, Pace, Training


@dataclass(frozen=True, slots=True)
class LinearTraining:
    """A job whose speed grows linearly with its GPUs, on any GPU type: a ``Training`` and its ``Speed``.

    Attributes:
        total: steps in all.
        seconds_per_step: seconds of a step on one GPU.
        slowdown: by what factor the job is slower on several nodes than on one, 1 or more (S of Themis, section 4.3.1).
    """

    total: float
    seconds_per_step: float
    slowdown: float = 1.0

    def steps_per_second(self, gpu_type: str, spread: tuple[int, ...]) -> float:
        """Steps per second on so many GPUs of each node."""
        del gpu_type
        factor = self.slowdown if len(spread) > 1 else 1.0
        return sum(spread) / (self.seconds_per_step * factor)

    def steps_per_second_with(self, other: Speed, gpu_type: str, spread: tuple[int, ...]) -> None:
        """None: the speed next to a co-runner is not known."""
        del other, gpu_type, spread

    def pace(self, done: float, placement: Placement, co_runner: Training | None = None) -> Pace:
        """The speed on a placement, which stays the same to the end."""
        del done
        speed = self.steps_per_second(placement.gpu_type or "", placement.spread)
        return Pace(speed if co_runner is None else speed * COLOCATED_FRACTION, math.inf)

    def known(self, done: float) -> Speed:
        """The true speed, which simulated policies see."""
        del done
        return self
