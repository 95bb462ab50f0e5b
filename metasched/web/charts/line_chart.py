"""One line over steps or time, as an SVG of any width: the plot is stretched, its labels are not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from metasched.web.charts.scales import Scale, Tick, scale_of, short_number, time_ticks, value_ticks

UNITS = 1000
"""Units of the plot's coordinates, across and down; the SVG stretches them to its size."""


@dataclass(frozen=True, slots=True)
class LineChart:
    """What the template draws.

    Attributes:
        name: of the chart, for its heading.
        unit: of the values.
        of_time: whether the horizontal axis has instants, unix seconds; else it has steps.
        path: the line, as the ``d`` of an SVG path in ``UNITS``.
        dots: single points without neighbours, in ``UNITS``.
        across: ticks of the horizontal axis.
        down: ticks of the vertical axis, in per cent from the top.
        least: the smallest value, in words.
        most: the largest value, in words.
        last: the latest value, in words.
        rows: the values as a table: place on the horizontal axis and value.
    """

    name: str
    unit: str
    of_time: bool
    path: str
    dots: tuple[tuple[float, float], ...]
    across: tuple[Tick, ...]
    down: tuple[Tick, ...]
    least: str
    most: str
    last: str
    rows: tuple[tuple[float, float], ...]

    @property
    def key(self) -> str:
        """The name as a part of the ids of the chart's elements."""
        return self.name.lower().replace(" ", "-")


def line_chart(
    name: str,
    unit: str,
    points: Sequence[tuple[float, float | None]],
    *,
    of_time: bool = False,
    from_zero: bool = False,
) -> LineChart | None:
    """The chart of some points.

    Args:
        name: of the chart.
        unit: of the values.
        points: place on the horizontal axis, ascending, and value. The line has a gap where a value is None or not
            finite.
        of_time: whether the horizontal axis has instants, unix seconds.
        from_zero: whether the vertical axis begins at 0.

    Returns:
        The chart; None where no value is known.
    """
    rows = [(x, y) for x, y in points if y is not None and math.isfinite(y) and math.isfinite(x)]
    if not rows:
        return None
    across = _exact([x for x, _ in rows])
    down = scale_of([y for _, y in rows], from_zero=from_zero)
    path, dots = _line(points, across, down)
    ticks = time_ticks(across, 4) if of_time else value_ticks(across, 4)
    values = [y for _, y in rows]
    return LineChart(
        name,
        unit,
        of_time,
        path,
        dots,
        tuple(ticks),
        tuple(Tick(round(100 - tick.place, 2), tick.label) for tick in value_ticks(down)),
        short_number(min(values)),
        short_number(max(values)),
        short_number(values[-1]),
        tuple(rows),
    )


@dataclass(frozen=True, slots=True)
class ComparisonChart:
    """Two lines on the same axes, as the template draws them.

    Attributes:
        name: of the chart.
        lines: name, path and single dots of each line; the first line is drawn whole, the second one dashed.
        across: ticks of the horizontal axis, which has instants.
        down: ticks of the vertical axis, in per cent from the top.
        rows: the values as a table: instant, and the value of each line or None.
    """

    name: str
    lines: tuple[tuple[str, str, tuple[tuple[float, float], ...]], ...]
    across: tuple[Tick, ...]
    down: tuple[Tick, ...]
    rows: tuple[tuple[float, float | None, float | None], ...]


def comparison_chart(
    name: str, lines: tuple[str, str], rows: Sequence[tuple[float, float | None, float | None]]
) -> ComparisonChart | None:
    """The chart of two values over time, from zero; None where neither is ever known.

    Args:
        name: of the chart.
        lines: names of the two lines.
        rows: instants, ascending, with both values; the lines have gaps where a value is None.
    """
    known = [value for row in rows for value in row[1:] if value is not None and math.isfinite(value)]
    if not known:
        return None
    across, down = _exact([row[0] for row in rows]), scale_of(known, from_zero=True)
    return ComparisonChart(
        name,
        tuple(
            (label, *_line([(row[0], row[index]) for row in rows], across, down))
            for index, label in enumerate(lines, 1)
        ),
        tuple(time_ticks(across, 4)),
        tuple(Tick(round(100 - tick.place, 2), tick.label) for tick in value_ticks(down)),
        tuple(rows),
    )


def _line(
    points: Sequence[tuple[float, float | None]], across: Scale, down: Scale
) -> tuple[str, tuple[tuple[float, float], ...]]:
    """The path of a line with gaps, and the points without neighbours, in ``UNITS``."""
    parts, dots, part = list[str](), list[tuple[float, float]](), list[tuple[float, float]]()
    for x, y in (*points, (0.0, None)):
        if y is not None and math.isfinite(y) and math.isfinite(x):
            part.append((across.percent(x) * UNITS / 100, UNITS - down.percent(y) * UNITS / 100))
            continue
        if len(part) == 1:
            dots += part
        elif part:
            parts.append("M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in part))
        part = []
    return "".join(parts), tuple(dots)


def _exact(values: list[float]) -> Scale:
    low, high = min(values), max(values)
    return Scale(low, high) if low < high else Scale(low - 1, low + 1)
