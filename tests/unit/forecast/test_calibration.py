import random

import pytest

from metasched.forecast.calibration import Calibration
from metasched.forecast.records import InstantRange


def test_misses_widen_the_end_that_missed():
    """A truth after the range moves its upper end away, and a truth inside draws both ends closer."""
    found = InstantRange(90.0, 100.0, 110.0)
    late = Calibration().learned([(found, 120.0)])
    assert late.above > 1.0 > late.below
    inside = Calibration().learned([(found, 100.0)])
    assert inside.above < 1.0
    assert inside.below < 1.0


def test_outcomes_that_come_together_are_one_step():
    """A hundred jobs of a burst that end late widen the ranges as one job does, and count as a hundred outcomes."""
    found = InstantRange(90.0, 100.0, 110.0)
    one, many = (Calibration().learned([(found, 120.0)] * count) for count in (1, 100))
    assert (many.below, many.above) == (one.below, one.above)
    assert (many.outcomes, many.steps) == (100, 1)
    mixed = Calibration().learned([(found, 120.0), (found, 100.0)])
    assert 1.0 < mixed.above < one.above


def test_a_burst_makes_later_steps_no_smaller_than_one_job_does():
    """The step shrinks by the number of steps: after a hundred outcomes in one, the second is as large as after one."""
    found = InstantRange(90.0, 100.0, 110.0)
    one, many = (Calibration().learned([(found, 120.0)] * count).learned([(found, 120.0)]) for count in (1, 100))
    assert (many.below, many.above) == (one.below, one.above)


@pytest.mark.parametrize("scale", [0.3, 1.0, 4.0])
def test_ranges_come_to_hold_80_percent(scale):
    """Whatever the simulated widths are, after some hundred outcomes four of five truths lie in the ranges."""
    rng, known, held = random.Random(1), Calibration(), []  # noqa: S311  no secret
    for _ in range(1500):
        found = known.applied(InstantRange(10_000.0 - 1000 * scale, 10_000.0, 10_000.0 + 1000 * scale), 0.0)
        truth = rng.gauss(10_000.0, 1000.0)
        held.append(found.holds(truth))
        known = known.learned([(found, truth)])
    assert 0.75 <= sum(held[500:]) / 1000 <= 0.85


def test_no_range_begins_before_the_forecast():
    """A wide range ends at the instant of the forecast, and one without width gets some seconds."""
    assert Calibration(below=50.0).applied(InstantRange(110.0, 120.0, None), 100.0) == InstantRange(100.0, 120.0, None)
    narrow = Calibration().applied(InstantRange(120.0, 120.0, 120.0), 100.0)
    assert (narrow.low, narrow.high) == (115.0, 125.0)
