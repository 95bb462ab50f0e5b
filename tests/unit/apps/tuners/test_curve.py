import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metasched.apps.tuners.curve import forecast
from metasched.core.apps import LossPoint
from metasched.core.reason_words import words
from tests.unit.apps.searches import app_of, settings, trial

TUNER = settings("curve", steps=1000)


def power(offset, scale=1.0, exponent=0.5, *, upto=300.0, noise=0.0, seed=0):
    """Twenty points of a noisy power law."""
    rng = random.Random(seed)  # noqa: S311  no secret
    steps = [upto * (n + 1) / 20 for n in range(20)]
    return tuple(LossPoint(s, offset + scale * s**-exponent + rng.gauss(0.0, noise)) for s in steps)


def falling(task, offset, **law):
    """A trial whose loss falls to ``offset``."""
    losses = power(offset, **law, seed=task)
    return trial(task, losses[-1].progress_steps, losses, tuner=TUNER)


@given(st.floats(-5, 5), st.floats(0.1, 10), st.floats(0.2, 2), st.integers(0, 99))
def test_the_optimistic_loss_is_seldom_above_the_true_one(offset, scale, exponent, seed):
    """Without noise it is the true one within a tenth of the fall; with noise it lies below, with some slack."""
    end = offset + scale * 1000.0**-exponent
    exact = forecast(power(offset, scale, exponent), 1000.0)
    fall = scale * 15.0**-exponent
    assert exact.optimistic <= end + 0.02 * fall
    assert exact.optimistic >= end - 0.1 * fall
    noisy = forecast(power(offset, scale, exponent, noise=0.02 * fall, seed=seed), 1000.0)
    assert noisy.optimistic <= end + 0.1 * fall
    assert noisy.optimistic <= noisy.level


@pytest.mark.parametrize(
    "losses",
    [(), (LossPoint(0, 1.0), LossPoint(1, 1.0), LossPoint(2, 0.5)), (LossPoint(1, math.nan),) * 8],
)
def test_a_curve_needs_three_usable_points(losses):
    """Neither the loss before the first step nor one that is not finite counts."""
    assert forecast(losses, 1000.0) is None


@pytest.mark.parametrize("losses", [tuple(LossPoint(n, 2.0) for n in range(1, 9)), (LossPoint(5.0, 2.0),) * 8])
def test_a_constant_loss_stays_or_is_unknown(losses):
    """No fall is foreseen where there was none; points at one step are no curve."""
    found = forecast(losses, 1000.0)
    assert found is None or found.optimistic == pytest.approx(2.0)


def test_a_rising_loss_is_not_extrapolated():
    """The curve's a is not negative."""
    found = forecast(tuple(LossPoint(n, float(n)) for n in range(1, 21)), 1000.0)
    assert found.level == pytest.approx(10.5)


def test_a_trial_that_cannot_win_is_ended():
    """Its optimistic end is worse than what the best one has reached already."""
    app = app_of(falling(0, 0.0, noise=0.01), falling(1, 0.02, noise=0.01), falling(2, 2.0, noise=0.01))
    found = app.step()
    (why,) = found.ends.values()
    assert found.ends.keys() == {"5_02"}
    assert words(why).startswith("its loss may fall to 2.0")
    assert "by step 1000, and another trial has reached 0.0" in words(why)


@pytest.mark.parametrize(
    "bad",
    [
        falling(2, 2.0, upto=99.0),
        trial(2, 300.0, power(2.0)[:7], tuner=TUNER),
        trial(2, 300.0, tuner=TUNER),
    ],
    ids=["grace", "points", "silent"],
)
def test_young_trials_are_left_alone(bad):
    """Not before a tenth of the steps, nor with fewer than eight losses."""
    assert app_of(falling(0, 0.0), bad).step().ends == {}


def test_a_diverged_trial_is_ended_if_another_one_has_not():
    """Whatever it had reached before."""
    diverged = trial(1, 310.0, [*power(-5.0), LossPoint(310.0, math.nan)], tuner=TUNER)
    assert app_of(falling(0, 0.0), diverged).step().ends.keys() == {"5_01"}
    assert app_of(diverged).step().ends == {}


def test_a_completed_trial_counts_and_a_dead_one_does_not():
    """The last live trial is never ended."""
    app = app_of(falling(0, 0.0), falling(1, 2.0, upto=90.0), falling(2, 3.0, upto=90.0))
    app.step()
    app.remove("5_00")
    late = falling(1, 2.0), falling(2, 2.01)
    assert app.step(*late).ends == {}
    app = app_of(falling(0, 0.0), falling(1, 2.0, upto=90.0), falling(2, 3.0, upto=90.0))
    app.step()
    app.remove("5_00")
    app.completed = frozenset({"5_00"})
    assert app.step(*late).ends.keys() == {"5_02"}


def test_equal_trials_are_not_ended_for_their_noise():
    """Twenty trials of one curve; at most one in ten would be a mistake."""
    ended = app_of(*(falling(n, 1.0, noise=0.05) for n in range(20))).step().ends
    assert len(ended) <= 2
