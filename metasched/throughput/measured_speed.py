"""Speeds of real jobs, isolated and co-located, as their trainers reported them (Gavel, OSDI 2020, section 6)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any, Self, TypeVar

from metasched.core.model import Speed

PlacementShape = tuple[str, tuple[int, ...]]
"""A GPU type, and the numbers of GPUs on each node, descending."""
ColocationKey = tuple[str, int, str]
"""A GPU type, a number of GPUs, and the subject of the co-runner on them."""
SpeedFractions = Mapping[ColocationKey, float]
"""Co-located speed over isolated speed, 0 to 1."""

TOLERANCE = 0.05
"""The relative change up to which fractions count as unchanged."""
REPORT_WEIGHT = 0.3
"""Weight of a new report in the exponential moving average of a measurement."""

_Key = TypeVar("_Key")
_NOTHING: Mapping[Any, float] = {}  # one object for thousands of subjects


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The estimated slowdown of a subject with co-runners, and of these with it.

    Attributes:
        reference: the reference subject that stands for this one as a co-runner: itself, or the closest one.
        fractions: the fraction of its speed that the subject retains with each reference subject; empty where no
            fraction was measured.
    """

    reference: str
    fractions: SpeedFractions

    def within_tolerance(self, other: Fingerprint | None) -> bool:
        """Whether another fingerprint has the same reference, and fractions within ``TOLERANCE``."""
        return (
            other is not None
            and self.reference == other.reference
            and within_tolerance(self.fractions, other.fractions)
        )


def within_tolerance(new: Mapping[_Key, float], old: Mapping[_Key, float], tolerance: float = TOLERANCE) -> bool:
    """Whether numbers have the same keys, and differ by at most ``tolerance``, relative to the old ones."""
    return new.keys() == old.keys() and all(abs(new[key] - old[key]) <= tolerance * old[key] for key in new)


def moving_mean(before: float | None, measured: float) -> float:
    """The exponential moving average after a new report; ``before`` is None where there was none."""
    return measured if before is None else before + REPORT_WEIGHT * (measured - before)


@dataclass(frozen=True, eq=False)
class MeasuredSpeed:
    """The measured speeds of one subject: a ``Speed``. Immutable.

    Attributes:
        subject: a job's uid, or a user's model, whose jobs share their measurements.
        alone: isolated speeds in steps per second, by placement shape.
        colocated: co-located speeds in steps per second, by placement shape and the co-runner's subject.
        untried: the fraction of its isolated speed that the subject is taken to retain with a co-runner of which
            nothing was measured or estimated; None for not known.
        fingerprint: the estimate for co-runners that were not measured; None where there is none.
        batch: samples of the optimizer steps that are counted; 0 where that is not known.
    """

    subject: str
    alone: Mapping[PlacementShape, float] = field(default_factory=lambda: _NOTHING)
    colocated: Mapping[tuple[PlacementShape, str], float] = field(default_factory=lambda: _NOTHING)
    untried: float | None = None
    fingerprint: Fingerprint | None = None
    batch: int = 0

    @property
    def key(self) -> tuple[str, int]:
        """The subject and the batch: equal for the speeds that jobs share."""
        return self.subject, self.batch

    def after(self, shape: PlacementShape, co_runner: str | None, steps_per_second: float) -> Self:
        """A copy with a measured speed, which replaces an earlier one of the same shape and co-runner."""
        if co_runner is None:
            return replace(self, alone={**self.alone, shape: steps_per_second})
        return replace(self, colocated={**self.colocated, (shape, co_runner): steps_per_second})

    def without(self, subject: str) -> Self:
        """A copy without the measurements with one co-runner."""
        left = {(shape, other): speed for (shape, other), speed in self.colocated.items() if other != subject}
        return replace(self, colocated=left)

    def estimated(self, fingerprint: Fingerprint | None) -> Self:
        """A copy with another fingerprint; the same object where that is within ``TOLERANCE`` of the present one."""
        same = self.fingerprint is None if fingerprint is None else fingerprint.within_tolerance(self.fingerprint)
        return self if same else replace(self, fingerprint=fingerprint)

    def to_json(self) -> Mapping[str, Any]:
        """The speeds as JSON-compatible data, with the fingerprint's fractions where the isolated speed is known."""
        found: dict[str, Any] = {
            "subject": self.subject,
            "alone": [[*shape, speed] for shape, speed in self.alone.items()],
            "beside": [[*shape, other, speed] for (shape, other), speed in self.colocated.items()],
            "untried": self.untried,
        }
        if self.batch:
            found["batch"] = self.batch
        if self.fingerprint is not None:
            ran = {(gpu_type, sum(spread)) for gpu_type, spread in self.alone}
            found["like"] = self.fingerprint.reference
            fractions = self.fingerprint.fractions
            found["parts"] = [[*key, fraction] for key, fraction in fractions.items() if key[:2] in ran]
        return found

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The speeds that ``to_json`` wrote, with a fingerprint or without."""
        alone = {(gpu_type, tuple(spread)): speed for gpu_type, spread, speed in data["alone"]}
        colocated = {((gpu_type, tuple(spread)), other): speed for gpu_type, spread, other, speed in data["beside"]}
        fingerprint = None
        if "like" in data:
            fractions = {(gpu_type, gpus, other): fraction for gpu_type, gpus, other, fraction in data["parts"]}
            fingerprint = Fingerprint(data["like"], fractions)
        return cls(data["subject"], alone, colocated, data["untried"], fingerprint, data.get("batch", 0))

    def measured(self, shape: PlacementShape, co_runner: str | None) -> float | None:
        """The measured steps per second, isolated or with a co-runner; None where they were not measured."""
        return self.alone.get(shape) if co_runner is None else self.colocated.get((shape, co_runner))

    def retained_fractions(self) -> SpeedFractions:
        """The measured fractions; the mean where as many GPUs were measured on several placement shapes."""
        found: dict[ColocationKey, list[float]] = {}
        for ((gpu_type, spread), other), speed in self.colocated.items():
            if isolated := self.alone.get((gpu_type, spread)):
                found.setdefault((gpu_type, sum(spread), other), []).append(speed / isolated)
        return {key: fmean(fractions) for key, fractions in found.items()}

    def steps_per_second(self, gpu_type: str, spread: tuple[int, ...]) -> float | None:
        """The measured isolated speed; None where it was not measured."""
        return self.alone.get((gpu_type, spread))

    def steps_per_second_with(self, other: Speed, gpu_type: str, spread: tuple[int, ...]) -> float | None:
        """The co-located speed: measured, else estimated by the fingerprints, else by ``untried``."""
        shape = (gpu_type, spread)
        if isinstance(other, MeasuredSpeed) and (found := self.colocated.get((shape, other.subject))) is not None:
            return found
        isolated, fraction = self.alone.get(shape), self._fraction(other, gpu_type, sum(spread))
        return None if isolated is None or fraction is None else fraction * isolated

    def _fraction(self, other: Speed, gpu_type: str, gpus: int) -> float | None:
        if not isinstance(other, MeasuredSpeed) or self.fingerprint is None or other.fingerprint is None:
            return self.untried
        return self.fingerprint.fractions.get((gpu_type, gpus, other.fingerprint.reference), self.untried)
