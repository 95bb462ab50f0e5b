"""Charts: positions, ticks, gaps and lanes."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metasched.web.charts.gantt import LANE_PIXELS, Span, gantt, gpu_steps
from metasched.web.charts.line_chart import line_chart
from metasched.web.charts.scales import Scale, scale_of, short_number, time_ticks, value_ticks
from metasched.web.charts.stacked_bar import stacked_bar

FINITE = st.floats(-1e12, 1e12, allow_nan=False)


@given(st.lists(FINITE, max_size=8), st.booleans())
def test_every_scale_has_few_ticks_within_it(values, from_zero):
    """Ticks lie on the axis, ascend, and are at most eight."""
    scale = scale_of(values, from_zero=from_zero)
    assert scale.low < scale.high
    places = [tick.place for tick in value_ticks(scale)]
    assert places == sorted(places)
    assert 1 <= len(places) <= 8
    assert all(0 <= place <= 100 for place in places)


def test_ticks_are_round():
    """Ticks of an axis from 0 to 1 are 0.2 apart, with equally many digits."""
    assert [tick.label for tick in value_ticks(Scale(0, 1))] == ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]
    assert [tick.label for tick in value_ticks(Scale(0, 48_000), 4)] == ["0", "20k", "40k"]
    assert [short_number(value) for value in (0.123456, 12, 9999, 12_345, 2.5e9)] == [
        "0.1235",
        "12",
        "9999",
        "12.3k",
        "2.5G",
    ]


@pytest.mark.parametrize("span", [60, 3600, 6 * 3600, 86_400, 7 * 86_400, 400 * 86_400])
def test_ticks_of_time_lie_in_the_window(span):
    """A window of any length has some ticks of time, and not too many."""
    begin = 1_700_000_123.0
    ticks = time_ticks(Scale(begin, begin + span))
    assert 1 <= len(ticks) <= 14
    assert all(0 <= tick.place <= 100 for tick in ticks)


def test_a_line_has_gaps_where_values_are_not_known():
    """Values of None and values that are not finite interrupt the line; a single point is a dot."""
    chart = line_chart("loss", "", [(0, 1.0), (1, 2.0), (2, None), (3, 3.0), (4, math.nan), (5, 1.0), (6, 1.5)])
    assert chart.path.count("M") == 2
    assert len(chart.dots) == 1
    assert chart.rows == ((0, 1.0), (1, 2.0), (3, 3.0), (5, 1.0), (6, 1.5))
    assert (chart.least, chart.most, chart.last) == ("1", "3", "1.5")


def test_a_line_without_values_is_no_chart():
    """Without a known value there is nothing to draw."""
    assert line_chart("loss", "", [(0, None), (1, math.inf)]) is None
    assert line_chart("loss", "", []) is None


def test_equal_values_make_a_chart():
    """One value alone, or equal ones, have a scale."""
    assert line_chart("speed", "", [(5, 2.0)]).dots == ((500.0, 500.0),)


def span(begin, end, label="j"):
    return Span(begin, end, label, label)


def test_overlapping_spans_are_in_lanes():
    """Spans that overlap are drawn below each other; one that follows another is in its lane."""
    chart = gantt([("n1", "", [span(0, 50, "a"), span(20, 60, "b"), span(50, 100, "c")])], 0, 100)
    (row,) = chart.rows
    assert [(bar.span.label, bar.y) for bar in row.bars] == [("a", 0), ("b", LANE_PIXELS), ("c", 0)]
    assert row.height == 2 * LANE_PIXELS
    assert chart.bars == 3


def test_spans_are_cut_at_the_window():
    """A span that begins before the window begins at its edge; one outside of the window is not drawn."""
    chart = gantt([("n1", "", [span(-50, 10), span(90, 900), span(200, 300)])], 0, 100, [-1, 50, 101])
    assert [(bar.x, bar.width) for bar in chart.rows[0].bars] == [(0.0, 10.0), (90.0, 10.0)]
    assert chart.marks == (50.0,)


def test_blocks_are_as_high_as_their_gpus():
    """The largest number of GPUs has the highest block; a job without GPUs has a low one."""
    steps = gpu_steps([(0, 50, 2, "resized", "2"), (50, 100, 8, "", "8")], 0, 100)
    assert [(block.height, block.y) for block in steps.blocks] == [(22.0, 78.0), (88.0, 12.0)]
    assert steps.most == 8
    assert gpu_steps([(0, 50, 0, "", "cpu")], 0, 100).blocks[0].height == 12.0


@given(st.lists(st.one_of(st.none(), st.floats(0, 1e9)), max_size=6), st.floats(0, 1e9))
def test_parts_never_exceed_the_whole(amounts, whole):
    """Widths add up to at most 100 per cent; unknown parts are left out."""
    parts = stacked_bar([("kind", "name", amount) for amount in amounts], whole)
    assert sum(part.width for part in parts) <= 100.1
    assert len(parts) == sum(1 for amount in amounts if amount)
