"""Parts of a whole in one bar."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Part:
    """One part: its kind (of the class and the pattern), its name, its amount, and place and width in per cent."""

    kind: str
    name: str
    amount: float
    x: float
    width: float
    percent: int


def stacked_bar(parts: Sequence[tuple[str, str, float | None]], whole: float) -> tuple[Part, ...]:
    """The parts that are known and above 0, in their order; scaled down where they exceed the whole.

    Args:
        parts: kind, name and amount of each part; an amount of None is not known.
        whole: the amount of all parts and of the rest, which stays empty.
    """
    known = [(kind, name, amount) for kind, name, amount in parts if amount is not None and amount > 0]
    total = max(whole, sum(amount for *_, amount in known))
    found, x = list[Part](), 0.0
    for kind, name, amount in known:
        width = 100 * amount / total
        found.append(Part(kind, name, amount, round(x, 2), round(width, 2), round(width)))
        x += width
    return tuple(found)
