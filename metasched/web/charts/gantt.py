"""Spans of time in rows: which jobs were on a node, or how many GPUs a job had."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from metasched.web.charts.scales import Scale, Tick, time_ticks

LANE_PIXELS = 18
"""Height of one lane of a row, gap included."""
LABEL_PERCENT = 7.0
"""Least width of a bar that has its label inside."""
LEAST_PERCENT = 0.15


@dataclass(frozen=True, slots=True)
class Span:
    """One span of a row.

    Attributes:
        begin: unix seconds.
        end: unix seconds; at most the end of the window for a span that is not over.
        label: words inside the bar, if the bar is wide enough.
        title: words of the bar.
        tone: colour, 0 to 7; None for a neutral bar.
        href: address that the bar leads to; "" for none.
        open: whether the span is not over.
        cause: why it ended, "" for an open one.
    """

    begin: float
    end: float
    label: str
    title: str
    tone: int | None = None
    href: str = ""
    open: bool = False
    cause: str = ""


@dataclass(frozen=True, slots=True)
class Bar:
    """A span as drawn: place and width in per cent, top in pixels."""

    x: float
    width: float
    y: int
    span: Span
    labelled: bool


@dataclass(frozen=True, slots=True)
class Row:
    """One row: its name, address, height in pixels and bars."""

    name: str
    href: str
    height: int
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True)
class Gantt:
    """What the template draws: rows below one axis of time; ``marks`` are rounds, in per cent."""

    rows: tuple[Row, ...]
    ticks: tuple[Tick, ...]
    marks: tuple[float, ...]
    bars: int


def gantt(
    rows: Iterable[tuple[str, str, Sequence[Span]]], begin: float, end: float, rounds: Iterable[float] = ()
) -> Gantt:
    """The chart of a window.

    Spans of a row that overlap are drawn in lanes, one below the other.

    Args:
        rows: name, address ("" for none) and spans of each row; spans outside of the window are left out.
        begin: of the window, unix seconds.
        end: of the window, later than ``begin``.
        rounds: instants of rounds.
    """
    scale = Scale(begin, end)
    drawn = [_row(name, href, [span for span in spans if _seen(span, scale)], scale) for name, href, spans in rows]
    marks = tuple(scale.percent(at) for at in rounds if begin <= at <= end)
    return Gantt(tuple(drawn), tuple(time_ticks(scale)), marks, sum(len(row.bars) for row in drawn))


def _seen(span: Span, scale: Scale) -> bool:
    return span.begin < scale.high and span.end > scale.low


def _row(name: str, href: str, spans: Sequence[Span], scale: Scale) -> Row:
    lanes = list[float]()  # the end of the last span of each lane
    bars = list[Bar]()
    for span in sorted(spans, key=lambda span: (span.begin, span.end, span.label)):
        lane = next((lane for lane, until in enumerate(lanes) if until <= span.begin), len(lanes))
        if lane == len(lanes):
            lanes.append(span.end)
        lanes[lane] = span.end
        x = scale.percent(span.begin)
        width = max(LEAST_PERCENT, round(scale.percent(span.end) - x, 2))
        x = min(x, 100 - LEAST_PERCENT)
        bars.append(Bar(x, width, lane * LANE_PIXELS, span, width >= LABEL_PERCENT))
    return Row(name, href, max(1, len(lanes)) * LANE_PIXELS, tuple(bars))


@dataclass(frozen=True, slots=True)
class Step:
    """One run as a block whose height is its number of GPUs: place and size in per cent; ``y`` from the top."""

    x: float
    width: float
    y: float
    height: float
    label: str
    title: str
    cause: str
    labelled: bool


@dataclass(frozen=True, slots=True)
class Steps:
    """Numbers of GPUs over time: blocks, ticks of time, and the largest number."""

    blocks: tuple[Step, ...]
    ticks: tuple[Tick, ...]
    most: int


def gpu_steps(runs: Sequence[tuple[float, float, int, str, str]], begin: float, end: float) -> Steps:
    """The runs of a job as blocks.

    Args:
        runs: begin and end (unix seconds), GPUs, cause of the end ("" while open) and words of each run.
        begin: of the axis, unix seconds.
        end: of the axis, later than ``begin``.
    """
    scale = Scale(begin, end)
    most = max((gpus for _, _, gpus, _, _ in runs), default=0)
    blocks = list[Step]()
    for first, last, gpus, cause, title in runs:
        x = min(scale.percent(first), 100 - LEAST_PERCENT)
        width = max(LEAST_PERCENT, round(scale.percent(last) - x, 2))
        height = round(88 * gpus / most, 2) if gpus else 12.0  # a job without GPUs is a low block
        blocks.append(Step(x, width, round(100 - height, 2), height, str(gpus), title, cause, width >= 3))  # noqa: PLR2004  per cent
    return Steps(tuple(blocks), tuple(time_ticks(scale)), most)
