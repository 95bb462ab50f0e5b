import math
import random

import pytest

from metasched.forecast import queue_forecast
from metasched.forecast.calibration import Calibration


@pytest.mark.parametrize(
    ("finite", "reaches"),
    [
        (11, True),
        (10, False),  # the 90th percentile lies between the tenth and the eleventh instant
        (9, False),
        (6, False),  # the median is the last finite instant
    ],
)
def test_ranges_of_eleven_samples_end_with_the_horizon(finite, reaches):
    """An instant beyond the horizon is infinite; no end of a range is NaN."""
    instants = [100.0 + number for number in range(finite)] + [math.inf] * (11 - finite)
    found = queue_forecast._range(instants, Calibration(), 0.0)
    assert found.low < found.median == 105.0
    assert (found.high is not None and found.high > 105.0) is reaches


def test_no_range_has_its_median_beyond_the_horizon():
    """Most of the simulations do not reach the instant."""
    assert queue_forecast._range([100.0] * 5 + [math.inf] * 6, Calibration(), 0.0) is None


def test_a_range_holds_80_percent_of_further_instants():
    """Whatever the number of simulations is, from nine on: an end is missed by a tenth of further instants."""
    for count in (9, 10, 20):
        rng, held = random.Random(count), []  # noqa: S311  no secret
        for _ in range(3000):
            found = queue_forecast._range([rng.random() * 1e5 for _ in range(count)], Calibration(), 0.0)
            held.append(found.holds(rng.random() * 1e5))
        assert 0.77 < sum(held) / len(held) < 0.83
