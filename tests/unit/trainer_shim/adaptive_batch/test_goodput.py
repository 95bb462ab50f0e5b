"""Gain, the time of a step, and the plan of the highest goodput."""

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from trainer_shim.adaptive_batch.goodput import GoodputModel, IterationTime, PlanLimits, gain

THETA = IterationTime(0.05, 0.002, 0.03, 0.004, 0.2, 0.01, 2.0)
scales = st.floats(0, 1e9)
batches = st.integers(1, 10_000)


@given(batches, batches, scales)
def test_gain(first, batch, scale):
    """The gain is 1 at M0, and between 1 and M/M0 above it; it grows with the noise."""
    assert gain(first, first, scale) == 1
    assume(batch >= first)
    assert gain(first, batch, scale) * (1 + 1e-12) >= 1
    assert gain(first, batch, scale) <= batch / first * (1 + 1e-12)
    assert gain(first, batch, scale) <= gain(first, batch, 2 * scale) * (1 + 1e-12)


def test_limits_of_the_gain():
    """Without noise a larger batch gains nothing; noise alone is averaged out by every further sample."""
    assert gain(32, 128, 0) == 1
    assert gain(32, 128, 1e15) == pytest.approx(4)
    assert gain(32, 128, math.inf) == 4
    assert gain(32, 128, 579.0) == pytest.approx((579 / 32 + 1) / (579 / 128 + 1))


def test_seconds_of_a_step():
    """Eq. 8 to 11: one GPU exchanges nothing, one node exchanges faster than several, each pass costs its time."""
    gradient = 0.05 + 0.002 * 10
    assert THETA.seconds(1, 10, 1, several_nodes=False) == pytest.approx(gradient)
    assert THETA.seconds(1, 10, 3, several_nodes=False) == pytest.approx(3 * gradient)
    local, node = 0.03 + 2 * 0.004, 0.2 + 2 * 0.01
    assert THETA.seconds(4, 10, 1, several_nodes=False) == pytest.approx(math.hypot(gradient, local))
    assert THETA.seconds(4, 10, 2, several_nodes=True) == pytest.approx(gradient + math.hypot(gradient, node))
    assert IterationTime(0, 0, 0, 0, 0, 0, 1).seconds(1, 1, 1, several_nodes=False) == 0
    assert IterationTime(1e200, 0, 1e200, 0, 0, 0, 10).seconds(2, 1, 1, several_nodes=False) < math.inf


@given(
    st.tuples(st.integers(1, 60), st.integers(1, 300), st.integers(1, 40)),
    st.integers(1, 8),
    scales,
    st.booleans(),
)
def test_the_best_plan_against_all_plans(limits, gpus, scale, several_nodes):
    """No plan within the limits is better than the chosen one by more than the spacing of the candidates."""
    first, most, largest = limits
    assume(most >= first)
    model = GoodputModel(THETA, PlanLimits(*limits), scale, gpus, several_nodes)
    every = [
        (model.goodput(gpus * per_gpu * passes, per_gpu, passes), per_gpu, passes)
        for per_gpu in range(1, largest + 1)
        for passes in range(1, most // (gpus * per_gpu) + 1)
        if gpus * per_gpu * passes >= first
    ]
    best = model.best_plan()
    if best is None:
        # an even plan may exist only beside the candidates, where no share can be cut into equal passes
        assert not every or most - first < gpus * -(-most // (gpus * largest))
        return
    batch = gpus * best.per_gpu * best.accumulation
    assert first <= batch <= most
    assert best.per_gpu <= largest
    assert best.goodput == model.goodput(batch, best.per_gpu, best.accumulation)
    assert best.goodput >= 0.85 * max(every)[0]


def test_noise_makes_the_batch_grow():
    """The more noise, the larger the batch; without noise it stays the smallest."""

    def chosen(scale, gpus=4):
        best = GoodputModel(THETA, PlanLimits(32, 1024, 64), scale, gpus, several_nodes=True).best_plan()
        return gpus * best.per_gpu * best.accumulation

    assert chosen(0) == 32
    assert chosen(0) < chosen(1000) < chosen(100_000)
