"""What real jobs' own reports have told of their speed, alone and beside each other (Gavel, OSDI 2020, section 6)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from metasched.model import Speed

Where = tuple[str, tuple[int, ...]]
"""A GPU type, and the GPUs on each node, descending."""


@dataclass(frozen=True, eq=False)
class OnlineSpeed:
    """A ``Speed``; immutable.

    Attributes:
        subject: whose: a job's, or that of all jobs of a user that name one model.
        alone: steps/s by where it ran.
        beside_subject: the same beside another subject on the same GPUs.
        untried: the part of its speed alone that it is taken to keep beside a subject beside which it never ran; None
            for not known.
    """

    subject: str
    alone: Mapping[Where, float] = field(default_factory=dict)
    beside_subject: Mapping[tuple[Where, str], float] = field(default_factory=dict)
    untried: float | None = None

    def after(self, where: Where, beside: str | None, steps_per_second: float) -> OnlineSpeed:
        """With another speed, in place of the one that was known there."""
        if beside is None:
            alone = {**self.alone, where: steps_per_second}
            return OnlineSpeed(self.subject, alone, self.beside_subject, self.untried)
        together = {**self.beside_subject, (where, beside): steps_per_second}
        return OnlineSpeed(self.subject, self.alone, together, self.untried)

    def to_json(self) -> Mapping[str, Any]:
        """As JSON-compatible data."""
        return {
            "subject": self.subject,
            "alone": [[*where, speed] for where, speed in self.alone.items()],
            "beside": [[*where, other, speed] for (where, other), speed in self.beside_subject.items()],
            "untried": self.untried,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """From what ``to_json`` gave."""
        alone = {(kind, tuple(spread)): speed for kind, spread, speed in data["alone"]}
        beside = {((kind, tuple(spread)), other): speed for kind, spread, other, speed in data["beside"]}
        return cls(data["subject"], alone, beside, data["untried"])

    def known(self, where: Where, beside: str | None) -> float | None:
        """Steps/s there, as measured; None where it was not."""
        return self.alone.get(where) if beside is None else self.beside_subject.get((where, beside))

    def steps_per_second(self, gpu_type: str, spread: tuple[int, ...]) -> float | None:
        """As measured there; None elsewhere."""
        return self.alone.get((gpu_type, spread))

    def beside(self, other: Speed, gpu_type: str, spread: tuple[int, ...]) -> float | None:
        """As measured beside that subject there; else the part of its speed alone that is taken for granted."""
        where = (gpu_type, spread)
        if isinstance(other, OnlineSpeed) and (found := self.beside_subject.get((where, other.subject))) is not None:
            return found
        mine = self.alone.get(where)
        return None if mine is None or self.untried is None else self.untried * mine
