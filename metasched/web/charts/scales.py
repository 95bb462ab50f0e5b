"""Axes: round values and instants for the ticks of an axis, and their words."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

_STEPS = (60, 300, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400, 172_800, 604_800, 1_209_600, 2_592_000)
_DAY = 86_400
_THOUSANDS = ("", "k", "M", "G", "T")


@dataclass(frozen=True, slots=True)
class Tick:
    """One tick: its place on the axis in per cent from the axis' begin, and its label."""

    place: float
    label: str


@dataclass(frozen=True, slots=True)
class Scale:
    """A linear axis from ``low`` to ``high``; ``low < high``."""

    low: float
    high: float

    def percent(self, value: float) -> float:
        """The place of a value in per cent, at most 0.01 per cent off, within 0 to 100."""
        return round(min(100.0, max(0.0, 100 * (value - self.low) / (self.high - self.low))), 2)


def scale_of(values: list[float], *, from_zero: bool = False) -> Scale:
    """A scale that holds all values, with a margin; of no or equal values, one of some width."""
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    if from_zero:
        low = min(low, 0.0)
    margin = (high - low) * 0.05 or abs(high) * 0.1 or 1.0
    return Scale(low if from_zero else low - margin, high + margin)


def value_ticks(scale: Scale, most: int = 5) -> list[Tick]:
    """Ticks at round values: 1, 2 or 5 times a power of ten apart."""
    rough = (scale.high - scale.low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    first = math.ceil(scale.low / step - 1e-9)
    last = math.floor(scale.high / step + 1e-9)
    return [Tick(scale.percent(number * step), short_number(number * step, step)) for number in range(first, last + 1)]


def time_ticks(scale: Scale, most: int = 6) -> list[Tick]:
    """Ticks at round local times: full minutes, hours or days; midnights have their date."""
    span = scale.high - scale.low
    step = next((step for step in _STEPS if span / step <= most), _STEPS[-1])
    local = datetime.fromtimestamp(scale.low, UTC).astimezone()
    at = local.replace(hour=0, minute=0, second=0, microsecond=0)
    found = list[Tick]()
    while at.timestamp() <= scale.high and len(found) <= 2 * most:
        if at.timestamp() >= scale.low:
            midnight = at.hour == at.minute == 0
            found.append(Tick(scale.percent(at.timestamp()), at.strftime("%d %b" if midnight else "%H:%M")))
            at += timedelta(seconds=step)
        else:
            at += timedelta(seconds=step * max(1, math.floor((scale.low - at.timestamp()) / step)))
    return found


def short_number(value: float, step: float | None = None) -> str:
    """A number for an axis: ``0.25``, ``12``, ``3.5k``; with as many digits as ticks ``step`` apart need."""
    if abs(value) >= 10_000:  # noqa: PLR2004  five digits
        power = min(len(_THOUSANDS) - 1, int(math.log10(abs(value)) // 3))
        return f"{value / 1000**power:.3g}{_THOUSANDS[power]}"
    if step is not None and step < 1:
        return f"{value:.{min(9, max(0, -math.floor(math.log10(step) + 1e-9)))}f}"
    return f"{value:.4g}"
