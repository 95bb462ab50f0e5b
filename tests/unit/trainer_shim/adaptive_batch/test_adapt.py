"""Rules by which scripts change their batch."""

import math

import pytest

from trainer_shim.adaptive_batch.adapt import (
    Accordion,
    BatchRule,
    BatchSchedule,
    NoiseScale,
    RuleState,
    WindowEnd,
    find_rule,
)
from trainer_shim.errors import UsageError


class Mine(BatchRule):
    def __init__(self, name):
        super().__init__()
        self.name = name

    def choose(self, window):
        return window.batch


def window(batch=32, *, epoch=5.0, norm=1.0, last=1.0, noise=None, rate=1.0):
    return WindowEnd(32, 256, batch, epoch, norm, last, noise, rate)


@pytest.mark.parametrize(
    ("seen", "batch"),
    [
        (window(norm=1.0, last=1.2), 256),
        (window(norm=0.5, last=1.0), 32),
        (window(norm=1.5, last=1.0, batch=256), 32),
        (window(norm=1.4, last=1.0, batch=256), 256),
        (window(norm=None), 32),
        (window(norm=None, batch=256), 256),
        (window(last=None), 32),
        (window(rate=0.1, batch=256), 32),
        (window(rate=0.9), 256),
        (window(norm=0.0, last=0.0), 32),
    ],
)
def test_accordion(seen, batch):
    """Fast changes of the gradient, and falls of the learning rate, begin critical regimes."""
    assert Accordion().choose(seen) == batch


@pytest.mark.parametrize(
    ("noise", "batch", "found"),
    [(None, 32, 32), (63.9, 32, 32), (64.0, 32, 64), (math.inf, 128, 256), (1e9, 256, 256), (200.0, 192, 192)],
)
def test_the_noise_scale(noise, batch, found):
    """The batch doubles where the noise scale is that of the doubled batch, once a window, up to the limit."""
    assert NoiseScale().choose(window(batch, noise=noise)) == found


def test_most_regimes():
    """Those that follow from the rule."""
    assert NoiseScale().most_regimes(32, 256) == 4
    assert NoiseScale().most_regimes(32, 250) == 4
    assert Accordion().most_regimes(32, 256) is None


def test_a_schedule():
    """The batch of each epoch is the declared one, the first one before that."""
    rule = BatchSchedule({20: 128, 10: 64})
    assert [rule.choose(window(epoch=epoch)) for epoch in (9.0, 10.0, 19.0, 20.0, 30.0)] == [32, 64, 64, 128, 128]
    assert rule.declared_schedule(32, 5) == [(32, 0), (64, 50), (128, 100)]


def test_the_norm_is_that_of_the_mean_square():
    """A mean below 0, by chance, is no gradient."""
    state = RuleState(8.0)
    assert state.grad_norm is None
    assert state.measured(5.0).measured(13.0).grad_norm == 3.0
    assert state.measured(-1.0).grad_norm == 0.0


@pytest.mark.parametrize(
    "make",
    [
        lambda: Accordion(threshold=0),
        lambda: Accordion(every=0),
        lambda: NoiseScale(factor=-1),
        lambda: NoiseScale(every=math.inf),
        lambda: BatchSchedule({}),
        lambda: BatchSchedule({0: 64}),
        lambda: find_rule("often"),
        lambda: find_rule(Mine("mine")),
    ],
)
def test_wrong_arguments(make):
    """Each is a UsageError."""
    with pytest.raises(UsageError):
        make()


def test_rules_by_name():
    """The names are those of the tag."""
    assert isinstance(find_rule("accordion"), Accordion)
    assert isinstance(find_rule("gns"), NoiseScale)
    assert find_rule("static") is None
    for name in ("gns", None):
        assert find_rule(Mine(name)).name == name
