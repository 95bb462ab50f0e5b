"""Batch plans and gradient noise: what a step at a larger batch is worth."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metasched.core.batching import (
    AdaptationRule,
    Batching,
    BatchPlan,
    BatchRegime,
    Contradiction,
    GradientNoise,
    contradiction,
)

amounts = st.floats(0.0, 1e12)


def test_the_global_batch_counts_gpus_and_micro_batches():
    """Each GPU processes its micro-batches one after the other."""
    assert BatchPlan(32).global_batch(4) == 128
    assert BatchPlan(32, 3).global_batch(4) == 384


def test_the_noise_scale_is_the_ratio_of_variance_and_square():
    """It is infinite where no signal was found in the noise, and not known where there is neither."""
    assert GradientNoise(2.0, 100.0).scale == 50.0
    assert GradientNoise(0.0, 100.0).scale == math.inf
    assert GradientNoise(0.0, 0.0).scale is None


@given(amounts, amounts, st.integers(1, 10_000), st.integers(1, 100))
def test_the_gain_is_between_one_and_the_ratio_of_the_batches(square, variance, first, ratio):
    """A step at the first batch is worth one step; a larger batch never costs and never gains more than its size."""
    noise = GradientNoise(square, variance)
    assert noise.gain(first, first) == pytest.approx(1.0)
    assert 1.0 - 1e-9 <= noise.gain(first, first * ratio) <= ratio * (1 + 1e-9)


def test_the_gain_at_the_limits():
    """Without noise a larger batch gains nothing; with nothing but noise it gains as much as it is larger."""
    assert GradientNoise(1.0, 0.0).gain(64, 256) == 1.0
    assert GradientNoise(0.0, 1.0).gain(64, 256) == 4.0
    assert (GradientNoise(1.0, 0.0).efficiency(64, 256), GradientNoise(0.0, 1.0).efficiency(64, 256)) == (0.25, 1.0)
    assert GradientNoise(0.0, 0.0).gain(64, 256) == 1.0


def test_the_gain_is_that_of_the_noise_scale():
    """Pollux, Eq. 6: a step at M is worth (phi / M0 + 1) / (phi / M + 1) steps at M0."""
    assert GradientNoise(2.0, 1000.0).gain(100, 400) == pytest.approx((500 / 100 + 1) / (500 / 400 + 1))


SCHEDULE = (BatchRegime(32, 0.0), BatchRegime(64, 50.0))


@pytest.mark.parametrize(
    ("rule", "batches", "found"),
    [
        ("static", [32], None),
        ("static", [32, 64], Contradiction.OTHER_RULE),
        ("gns", [32, 64, 128], None),
        ("gns", [64, 32], Contradiction.OTHER_RULE),
        ("gns", [32, 64, 128, 256, 256], Contradiction.MORE_REGIMES),
        ("gns", [32, 512], Contradiction.BEYOND_LIMIT),
        ("accordion", [32, 256, 32, 256], None),
        ("accordion", [32, 100], Contradiction.OTHER_RULE),
        ("schedule", [32, 64], None),
        ("schedule", [32, 128], Contradiction.OTHER_RULE),
        ("schedule", [32], Contradiction.OVERDUE),
        (None, [32, 512, 1], None),
        ("gns", [], None),
    ],
)
def test_reports_may_contradict_a_declaration(rule, batches, found):
    """After 60 of 100 steps, with the limit 256, four regimes, and a schedule whose change is due after 50."""
    regimes = tuple(BatchRegime(batch, 10.0 * number) for number, batch in enumerate(batches))
    adapts = None if rule is None else AdaptationRule(rule)
    known = Batching(32, max_batch=256, regimes=regimes, adapts=adapts, most_regimes=4, schedule=SCHEDULE)
    assert contradiction(known, 60.0, 100.0) is found
    if found is Contradiction.OVERDUE:
        assert contradiction(known, 55.0, 100.0) is None
        assert contradiction(known, None, None) is None
