import itertools
import math
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metasched.core.batching import BatchPlan
from metasched.throughput.goodput import BatchLimits, Goodput, efficiency, gain
from metasched.throughput.iteration_time import IterationParameters

THETA = IterationParameters(0.05, 0.004, 0.08, 0.01, 0.3, 0.02, 2.5)
LIMITS = BatchLimits(first_batch=32, max_batch=2048, max_per_gpu=64, min_per_gpu=4)


def exhaustive(goodput, gpus, *, multi_node):
    """The highest goodput over all plans within the limits; 0 where there is none."""
    limits = goodput.limits
    passes = range(1, limits.max_batch // (gpus * limits.min_per_gpu) + 1)
    found = (
        goodput.at(gpus, BatchPlan(per_gpu, accumulation), multi_node=multi_node)
        for accumulation, per_gpu in itertools.product(passes, range(1, limits.max_per_gpu + 1))
    )
    return max((one.goodput for one in found if one is not None), default=0.0)


def test_efficiency_is_one_at_the_first_batch_and_falls():
    """Eq. 6, with its limits for no noise and for nothing but noise."""
    assert efficiency(100.0, 32, 32) == 1.0
    assert efficiency(100.0, 32, 64) == pytest.approx(132 / 164)
    assert efficiency(0.0, 32, 64) == pytest.approx(0.5)
    assert efficiency(math.inf, 32, 64) == 1.0


def test_gain_is_between_one_and_the_ratio_of_batches():
    """Progress in steps at the first batch: (phi/M0 + 1) / (phi/M + 1)."""
    assert gain(100.0, 32, 64) == pytest.approx((100 / 32 + 1) / (100 / 64 + 1))
    assert gain(0.0, 32, 64) == pytest.approx(1.0)
    assert gain(math.inf, 32, 64) == 2.0


def test_goodput_is_throughput_times_efficiency():
    """Eq. 4 and 7."""
    found = Goodput(THETA, LIMITS, 500.0).at(8, BatchPlan(16, 2), multi_node=True)
    assert found.batch == 256
    assert found.goodput == pytest.approx(
        256 / THETA.iteration_seconds(8, 16, 2, multi_node=True) * efficiency(500.0, 32, 256)
    )


def test_more_noise_makes_larger_batches_best():
    """A job late in its training uses a larger batch on the same GPUs."""
    batches = [Goodput(THETA, LIMITS, phi).best(8, multi_node=True).batch for phi in (10.0, 1e3, 1e5)]
    assert batches == sorted(set(batches))


def test_more_gpus_make_larger_batches_best():
    """The synchronisation is amortised over more samples."""
    job = Goodput(THETA, LIMITS, 500.0)
    assert job.best(16, multi_node=True).batch > job.best(1, multi_node=False).batch


@pytest.mark.parametrize("noise_scale", [None, 1e6])
def test_a_fixed_batch_is_divided_and_has_efficiency_one(noise_scale):
    """Section 4.2: the goodput of a non-adaptive job is its throughput."""
    job = Goodput(THETA, BatchLimits(100, 100, 32), noise_scale)
    found = job.best(3, multi_node=False)
    assert found.plan == BatchPlan(17, 2)
    assert found.batch == 100
    assert found.efficiency == 1.0
    assert found.goodput == pytest.approx(100 / THETA.iteration_seconds(3, 17, 2, multi_node=False))


def test_the_batch_stays_where_the_noise_is_not_known():
    """An adaptive job whose noise scale was not measured yet has its first batch."""
    assert Goodput(THETA, LIMITS, None).best(4, multi_node=False).batch == 32


def test_limits_that_no_number_of_gpus_can_hold_give_none():
    """Too few samples for the GPUs, or for the least number of samples of a GPU."""
    assert Goodput(THETA, BatchLimits(8, 16, 64, 1), 500.0).best(17, multi_node=True) is None
    never = BatchLimits(8, 8, 64, 9)
    assert never.most_gpus() == 0
    assert all(Goodput(THETA, never, 500.0).best(gpus, multi_node=False) is None for gpus in (1, 2, 8))
    assert LIMITS.batch(1, BatchPlan(65, 1)) is None
    assert LIMITS.batch(1, BatchPlan(16, 1)) is None
    found = Goodput(THETA, LIMITS, 500.0).best_of(np.array([512, 513]), np.array([True, True]))
    assert found.goodput[0] > 0
    assert [each[1] for each in found] == [0, 0, 0, 0.0]


@pytest.mark.parametrize("wrong", [(32, 16, 8, 1), (0, 16, 8, 1), (8, 16, 8, 9), (8, 16, 8, 0)])
def test_contradictory_limits_are_refused_in_words(wrong):
    """Every refusal names the limit and the fix."""
    with pytest.raises(ValueError, match="give"):
        BatchLimits(*wrong)


@pytest.mark.parametrize("noise_scale", [-1.0, math.nan])
def test_noise_below_zero_is_refused_in_words(noise_scale):
    """An efficiency above 1 would make every batch the best."""
    with pytest.raises(ValueError, match="give"):
        Goodput(THETA, LIMITS, noise_scale)


@st.composite
def jobs(draw):
    first = draw(st.integers(1, 40))
    most_per_gpu = draw(st.integers(8, 60))
    limits = BatchLimits(first, first * draw(st.integers(1, 10)), most_per_gpu, draw(st.integers(1, 8)))
    seconds = st.floats(1e-3, 1.0)
    theta = IterationParameters(*(draw(seconds) for _ in range(6)), draw(st.floats(1.0, 10.0)))
    return Goodput(theta, limits, 10 ** draw(st.floats(-1.0, 4.0)))


@settings(deadline=None, max_examples=60)
@given(jobs(), st.integers(1, 16), st.booleans())
def test_the_best_plan_is_close_to_that_of_an_exhaustive_search(job, gpus, several):
    """Eq. 13 against brute force, and a plan is found exactly where there is one."""
    multi_node = several and gpus > 1
    best, found = exhaustive(job, gpus, multi_node=multi_node), job.best(gpus, multi_node=multi_node)
    assert (found is None) == (best == 0.0)
    if found is not None:
        assert best * 0.97 <= found.goodput <= best * (1 + 1e-9)


def test_the_best_plans_of_common_jobs_are_exact():
    """At the limits of the paper's applications the mean gap to brute force is below a thousandth."""
    gaps = []
    for first, most, per_gpu, least in [(12, 384, 12, 4), (20, 640, 20, 10), (8, 512, 8, 4), (128, 1024, 256, 32)]:
        for phi, gpus in itertools.product((50.0, 1e3), (1, 3, 8)):
            job = Goodput(THETA, BatchLimits(first, most, per_gpu, least), phi)
            several = gpus > 4
            gaps.append(1 - job.best(gpus, multi_node=several).goodput / exhaustive(job, gpus, multi_node=several))
    assert fmean(gaps) < 1e-3
