"""What real jobs' own reports have told of their speed, alone and beside each other (Gavel, OSDI 2020, section 6)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any, Self

from metasched.core.model import Speed

Where = tuple[str, tuple[int, ...]]
"""A GPU type, and the GPUs on each node, descending."""
Column = tuple[str, int, str]
"""A GPU type, a number of GPUs, and who else is on them."""
Parts = Mapping[Column, float]
"""What is left of a speed there, as a part of the speed alone."""

NEWS = 0.05
"""Parts that have changed by no more, relative to what they were, are the same."""


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """How a subject fares beside others, and they beside it, as far as that is estimated.

    Attributes:
        like: the reference subject that others' speeds beside it are taken from: itself, or the closest.
        parts: of its speed, what is left beside each reference subject; empty where none of that was measured.
    """

    like: str
    parts: Parts

    def near(self, other: Fingerprint | None) -> bool:
        """Whether another one says the same, nearly."""
        return other is not None and self.like == other.like and near(self.parts, other.parts)


def near(new: Parts, old: Parts) -> bool:
    """Whether parts are the same, nearly."""
    return new.keys() == old.keys() and all(abs(new[column] - old[column]) <= NEWS * old[column] for column in new)


@dataclass(frozen=True, eq=False)
class MeasuredSpeed:
    """A ``Speed``; immutable.

    Attributes:
        subject: whose: a job's, or that of all jobs of a user that name one model.
        alone: steps/s by where it ran.
        beside_subject: the same beside another subject on the same GPUs.
        untried: the part of its speed alone that it is taken to keep beside a subject beside which it never ran, where
            there is no estimate; None for not known.
        fingerprint: from which that is estimated; None where nothing is.
    """

    subject: str
    alone: Mapping[Where, float] = field(default_factory=dict)
    beside_subject: Mapping[tuple[Where, str], float] = field(default_factory=dict)
    untried: float | None = None
    fingerprint: Fingerprint | None = None

    def after(self, where: Where, beside: str | None, steps_per_second: float) -> Self:
        """With another speed, in place of the one that was known there."""
        if beside is None:
            return replace(self, alone={**self.alone, where: steps_per_second})
        return replace(self, beside_subject={**self.beside_subject, (where, beside): steps_per_second})

    def without(self, subject: str) -> Self:
        """Without what was measured beside a subject."""
        left = {(where, other): speed for (where, other), speed in self.beside_subject.items() if other != subject}
        return replace(self, beside_subject=left)

    def estimated(self, fingerprint: Fingerprint | None) -> Self:
        """With another fingerprint; the same object where that says nothing new."""
        same = self.fingerprint is None if fingerprint is None else fingerprint.near(self.fingerprint)
        return self if same else replace(self, fingerprint=fingerprint)

    def to_json(self) -> Mapping[str, Any]:
        """As JSON-compatible data; of the fingerprint, what can be used: the parts where its speed alone is known."""
        found: dict[str, Any] = {
            "subject": self.subject,
            "alone": [[*where, speed] for where, speed in self.alone.items()],
            "beside": [[*where, other, speed] for (where, other), speed in self.beside_subject.items()],
            "untried": self.untried,
        }
        if self.fingerprint is not None:
            ran = {(kind, sum(spread)) for kind, spread in self.alone}
            found["like"] = self.fingerprint.like
            found["parts"] = [[*column, part] for column, part in self.fingerprint.parts.items() if column[:2] in ran]
        return found

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """From what ``to_json`` gave, now or before there were fingerprints."""
        alone = {(kind, tuple(spread)): speed for kind, spread, speed in data["alone"]}
        beside = {((kind, tuple(spread)), other): speed for kind, spread, other, speed in data["beside"]}
        fingerprint = None
        if "like" in data:
            parts = {(kind, gpus, other): part for kind, gpus, other, part in data["parts"]}
            fingerprint = Fingerprint(data["like"], parts)
        return cls(data["subject"], alone, beside, data["untried"], fingerprint)

    def known(self, where: Where, beside: str | None) -> float | None:
        """Steps/s there, as measured; None where it was not."""
        return self.alone.get(where) if beside is None else self.beside_subject.get((where, beside))

    def kept(self) -> Parts:
        """What is left of its speed beside others, as measured; the mean where as many GPUs were on other nodes."""
        found: dict[Column, list[float]] = {}
        for ((kind, spread), other), speed in self.beside_subject.items():
            if whole := self.alone.get((kind, spread)):
                found.setdefault((kind, sum(spread), other), []).append(speed / whole)
        return {column: fmean(parts) for column, parts in found.items()}

    def steps_per_second(self, gpu_type: str, spread: tuple[int, ...]) -> float | None:
        """As measured there; None elsewhere."""
        return self.alone.get((gpu_type, spread))

    def steps_per_second_with(self, other: Speed, gpu_type: str, spread: tuple[int, ...]) -> float | None:
        """As measured beside that subject there; else as estimated; else the part of its speed alone that is taken."""
        where = (gpu_type, spread)
        if isinstance(other, MeasuredSpeed) and (found := self.beside_subject.get((where, other.subject))) is not None:
            return found
        mine, part = self.alone.get(where), self._part(other, gpu_type, sum(spread))
        return None if mine is None or part is None else part * mine

    def _part(self, other: Speed, gpu_type: str, gpus: int) -> float | None:
        if not isinstance(other, MeasuredSpeed) or self.fingerprint is None or other.fingerprint is None:
            return self.untried
        return self.fingerprint.parts.get((gpu_type, gpus, other.fingerprint.like), self.untried)
