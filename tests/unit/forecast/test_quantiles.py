import math

import pytest

from metasched.forecast import queue_forecast
from metasched.forecast.calibration import Calibration


@pytest.mark.parametrize(
    ("finite", "reaches"),
    [
        (11, True),
        (10, True),  # the 90th percentile is the last finite instant
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
