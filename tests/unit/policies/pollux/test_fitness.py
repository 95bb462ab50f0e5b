import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.pollux.fitness import LEAST_SPEEDUP, contributions, fitness, reallocation_factor

SPEEDUPS = st.lists(st.floats(0.01, 100.0), min_size=1, max_size=8).map(np.array)


@pytest.mark.parametrize(
    ("p", "mean"), [(1.0, 2.0), (0.0, 2.0 * 0.75 ** (1 / 3)), (-1.0, 3 / (1 + 1 / 2 + 1 / 3)), (-math.inf, 1.0)]
)
def test_known_means(p, mean):
    """The arithmetic, geometric and harmonic mean, and the minimum."""
    assert fitness(np.array([1.0, 2.0, 3.0]), p) == pytest.approx(mean)


@given(SPEEDUPS, st.floats(-5.0, 5.0), st.floats(-5.0, 5.0))
def test_the_mean_grows_with_the_exponent(speedups, p, q):
    """The power mean inequality, from the minimum to the maximum."""
    low, high = sorted((p, q))
    tolerance = 1e-6
    assert fitness(speedups, low) <= fitness(speedups, high) * (1 + tolerance)
    assert speedups.min() * (1 - tolerance) <= fitness(speedups, low)
    assert fitness(speedups, high) <= speedups.max() * (1 + tolerance)


@given(SPEEDUPS)
def test_large_negative_exponents_approach_the_minimum(speedups):
    """The limit p -> -infinity is the minimum; the function does not underflow on the way."""
    assert fitness(speedups, -1e6) == pytest.approx(fitness(speedups, -math.inf), rel=1e-4)
    assert fitness(speedups, -math.inf) == speedups.min()
    assert fitness(speedups, math.inf) == speedups.max()


@given(SPEEDUPS)
def test_small_exponents_approach_the_geometric_mean(speedups):
    """The limit p -> 0."""
    assert fitness(speedups, 1e-6) == pytest.approx(fitness(speedups, 0.0), rel=1e-3)


@given(SPEEDUPS, st.integers(1, 4), st.sampled_from([1.0, 0.0, -1.0, -10.0]))
def test_a_weight_counts_like_as_many_jobs(speedups, times, p):
    """A job of weight n is n jobs."""
    weights = np.ones(len(speedups))
    weights[0] = times
    repeated = np.concatenate([np.full(times - 1, speedups[0]), speedups])
    assert fitness(speedups, p, weights) == pytest.approx(fitness(repeated, p))


@pytest.mark.parametrize("p", [1.0, 0.0, -1.0, -10.0, -math.inf])
def test_a_job_without_gpus_leaves_the_fitness_of_others_visible(p):
    """A speed-up of 0 counts as a small one: with p <= 0 one job that waits would make every fitness 0."""
    waiting = fitness(np.array([0.0, 1.0]), p)
    assert waiting == fitness(np.array([LEAST_SPEEDUP, 1.0]), p)
    assert waiting > 0
    if not math.isinf(p):
        assert fitness(np.array([0.0, 2.0]), p) >= waiting


@given(SPEEDUPS, SPEEDUPS, st.sampled_from([2.0, 1.0, 0.0, -1.0, -3.0]))
def test_contributions_order_allocations_like_the_fitness(one, other, p):
    """The fitness is a growing function of the contributions' mean."""
    sums = [contributions(speedups, p).mean() for speedups in (one, other)]
    means = [float(fitness(speedups, p)) for speedups in (one, other)]
    if abs(means[0] - means[1]) > 1e-9 * max(means):
        assert (sums[0] < sums[1]) == (means[0] < means[1])


def test_the_reallocation_factor_is_that_of_the_paper():
    """(T - R delta) / (T + delta), each job with its own delay; never below 0."""
    found = reallocation_factor(
        np.array([300.0, 300.0, 30.0, 0.0]), np.array([0, 2, 4, 0]), np.array([30.0, 60, 30, 0])
    )
    assert found == pytest.approx([300 / 330, 180 / 360, 0.0, 1.0])
