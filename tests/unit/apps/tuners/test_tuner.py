import math

import pytest

from metasched.apps.tuners.registry import TUNERS, make_tuner
from metasched.apps.tuners.tuner import Search, TunerError, best_loss, loss_at
from metasched.core.apps import LossPoint, TunerSettings
from tests.unit.apps.searches import settings, trial

CURVE = (LossPoint(10, 4.0), LossPoint(20, 2.0), LossPoint(30, math.nan))


@pytest.mark.parametrize(
    ("steps", "loss"), [(5, 4.0), (10, 4.0), (15, 3.0), (20, 2.0), (25, 2.0), (30, math.inf), (99, math.inf)]
)
def test_the_loss_at_a_step_lies_between_two_points(steps, loss):
    """Before the first point it is the first loss; from a loss that is not finite on it is infinite."""
    assert loss_at(CURVE, steps) == loss


def test_a_silent_or_diverged_training_has_no_finite_loss():
    """Infinity is worse than every loss."""
    assert loss_at((), 10) == best_loss(()) == best_loss(CURVE) == math.inf
    assert loss_at((LossPoint(10, math.nan),), 5) == math.inf
    assert best_loss(CURVE[:2]) == 2.0
    assert best_loss((LossPoint(1, math.nan), LossPoint(2, 3.0))) == 3.0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (TunerSettings("halfing"), "no tuner is named 'halfing'; did you mean 'halving'?"),
        (settings(eta=1), "eta: Input should be greater than or equal to 2 (found 1.0)"),
        (settings(eta=2.5), "eta: Input should be a valid integer, got a number with a fractional part (found 2.5)"),
        (settings(etta=2), "etta: no such key; did you mean 'eta'?"),
        (settings(steps=0), "steps: Input should be greater than or equal to 1 (found 0.0)"),
        (settings(steps=math.nan), "steps: Input should be a finite number (found nan)"),
        (settings("outside", eta=2), "eta: no such key"),
        (settings("median", others=0), "others: Input should be greater than or equal to 1 (found 0.0)"),
        (settings("curve", points=2), "points: Input should be greater than or equal to 4 (found 2.0)"),
    ],
)
def test_a_wrong_tag_is_named_with_the_fix(given, message):
    """A tuner that does not exist, or options that it does not have, or not in this range."""
    with pytest.raises(TunerError) as error:
        make_tuner(given)
    assert str(error.value) == message


def test_the_steps_are_those_of_the_option_or_the_fewest_that_trials_declare():
    """A tuner that needs them says what to add to the tag."""
    silent = Search(trials=[trial(1)], entrants=["5_01"])
    declared = Search(trials=[trial(n, total_steps=total) for n, total in enumerate((500.0, None, 400.0))], entrants=[])
    assert (silent.steps(None), silent.steps(7.0), declared.steps(None), declared.steps(7.0)) == (None, 7.0, 400.0, 7.0)
    assert declared.required_steps(None) == 400.0
    with pytest.raises(TunerError, match="add total_steps=N, or the tuner's option steps=N"):
        silent.required_steps(None)


def test_every_tuner_has_defaults():
    """A tag may name a tuner alone."""
    assert {name for name in TUNERS if make_tuner(TunerSettings(name)).name == name} == {
        *("halving", "hyperband", "median", "curve", "outside")
    }
