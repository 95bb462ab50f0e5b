"""Averages of the gradient noise."""

import math

import pytest

from trainer_shim.adaptive_batch.noise_averages import KNOWN_WEIGHT, NoiseAverages


def averaged(pairs, steps=4.0):
    """The averages after these measurements."""
    found = NoiseAverages()
    for square, variance in pairs:
        found = found.updated(square, variance, steps)
    return found


def test_no_bias_towards_zero():
    """The averages of a constant are that constant from the first measurement on."""
    assert NoiseAverages().grad_square is None
    assert NoiseAverages().grad_variance is None
    for count in (1, 5, 500):
        found = averaged([(2.0, 60.0)] * count)
        assert (found.grad_square, found.grad_variance) == (pytest.approx(2), pytest.approx(60))
        assert found.noise_scale is None if found.weight < KNOWN_WEIGHT else found.noise_scale == pytest.approx(30)


def test_later_measurements_count_more():
    """The averages follow a noise that changes."""
    assert averaged([(1.0, 10.0)] * 500 + [(1.0, 90.0)] * 1000).noise_scale == pytest.approx(90, rel=0.02)


def test_larger_batches_count_for_more_steps():
    """A measurement at 8 x M0 has the weight of eight at M0."""
    assert averaged([(1.0, 2.0)], steps=32).weight == pytest.approx(averaged([(1.0, 2.0)] * 8).weight, rel=0.02)


def test_the_signal_and_the_variance_are_averaged_apart():
    """The mean of the parts counts, and not the mean of their ratios."""
    assert averaged([(1.0, 10.0), (3.0, 10.0)] * 400).noise_scale == pytest.approx(5, rel=0.01)


def test_negative_averages():
    """Unbiased estimates may be negative by chance: noise without signal is infinite, and neither is not known."""
    assert averaged([(-1.0, 5.0)] * 50).noise_scale == math.inf
    assert averaged([(1.0, -5.0)] * 50).noise_scale == 0
    assert averaged([(-1.0, -5.0)] * 50).noise_scale is None
