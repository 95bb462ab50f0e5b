from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metasched.core.apps import MOST_LOSS_POINTS, App, LossPoint, TunerSettings, thinned

APP = App("array:5", "sweep", "ann", ("5_1",), 100.0, 0.0, 500.0)


@given(st.integers(0, 300), st.integers(2, MOST_LOSS_POINTS))
def test_thinned_points_have_both_ends(count, most):
    """Thinning leaves the order, the first and the last point, and as many points as allowed."""
    points = [LossPoint(float(step), 1.0 / (step + 1)) for step in range(count)]
    found = thinned(points, most)
    assert len(found) == min(count, most)
    assert list(found) == sorted(set(found))
    assert set(found) <= set(points)
    assert not points or (found[0], found[-1]) == (points[0], points[-1])


def test_settings_are_written_as_in_the_tag():
    """Options are in alphabetical order, and whole numbers have no point."""
    assert TunerSettings("halving").tag == "tuner=halving"
    assert TunerSettings("halving", {"steps": 1e4, "eta": 2.0}).tag == "tuner=halving,eta=2,steps=10000"


@pytest.mark.parametrize(("now", "mean"), [(350.0, 2.0), (100.0, 1.0), (50.0, 1.0), (5000.0, 1.0)])
def test_an_app_is_among_at_least_one_live_app(now, mean):
    """The mean is over the app's life, and counts the app itself."""
    assert APP.mean_live_apps(now) == mean
    assert replace(APP, live_integral=0.0).mean_live_apps(now) == 1.0
