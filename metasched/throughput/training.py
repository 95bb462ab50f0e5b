"""The contract between the simulator and the sources of throughput: one job's training, as it truly is."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from metasched.core.model import Placement, Speed


class Pace(NamedTuple):
    """A speed that lasts for a while.

    Attributes:
        steps_per_second: progress; 0.0 where the job cannot run.
        until: steps done up to which the speed stays the same, beyond those done now; infinite for good.
    """

    steps_per_second: float
    until: float


class Training(Protocol):
    """One job's training: how much work it is, and how fast that goes anywhere, anytime. Immutable.

    Work is counted in steps. What a step is is up to the source (an iteration, a sample, a second of the trace's own
    run), as long as it is the same at every size.
    """

    @property
    def total(self) -> float:
        """Steps in all."""

    def pace(self, done: float, placement: Placement, beside: Training | None = None) -> Pace:
        """The speed at a place after ``done`` steps; ``beside`` is the job that has the same GPUs too, if one does."""

    def known(self, done: float) -> Speed | None:
        """What a policy is told of the speed after ``done`` steps; None for nothing."""
