import math

import pytest

from metasched.apps.tuners.median import running_averages
from metasched.core.apps import LossPoint
from metasched.core.reason_words import words
from tests.unit.apps.searches import app_of, settings, trial

TUNER = settings("median", grace=100)


def flat(task, loss, steps=200.0, tuner=TUNER, **fields):
    """A trial whose loss is the same at all steps."""
    return trial(task, steps, [(s, loss) for s in (10.0, 100.0, steps) if s <= steps], tuner=tuner, **fields)


def test_a_running_average_counts_steps():
    """Each loss stands for the steps since the one before."""
    points = (LossPoint(10.0, 4.0), LossPoint(40.0, 2.0), LossPoint(50.0, math.nan), LossPoint(60.0, 1.0))
    assert running_averages(points) == ((10.0, 4.0), (40.0, 2.5), (50.0, math.inf), (60.0, math.inf))


def test_a_trial_worse_than_the_median_of_the_others_is_ended():
    """Its best loss counts, and of the others the mean up to the same step."""
    found = app_of(*(flat(n, float(n)) for n in range(5))).step()
    assert {uid: words(why) for uid, why in found.ends.items()} == {
        "5_03": "its best loss 3 is worse than 1.5, the median of the other trials' mean losses up to step 200",
        "5_04": "its best loss 4 is worse than 1.5, the median of the other trials' mean losses up to step 200",
    }
    assert found.held == {}
    recovered = trial(9, 200.0, [(100, 9.0), (200, 1.0)], tuner=TUNER)
    assert app_of(*(flat(n, float(n)) for n in range(4)), recovered).step().ends.keys() == {"5_03"}


@pytest.mark.parametrize(
    "trials",
    [
        [flat(n, float(n), 99.0) for n in range(5)],
        [flat(n, float(n), tuner=settings("median", grace=100, others=5)) for n in range(5)],
        [flat(n, float(n), tuner=settings("median"), total_steps=2001.0) for n in range(5)],
        [*(flat(n, 1.0, 199.0) for n in range(4)), flat(4, 9.0)],
        [flat(n, 1.0) for n in range(5)],
        [flat(n, math.nan) for n in range(5)],
        [trial(n, 200.0, tuner=TUNER) for n in range(5)],
    ],
    ids=["grace", "others", "tenth", "ahead", "equal", "diverged", "silent"],
)
def test_nobody_is_ended_too_early_or_among_equals(trials):
    """Not within the grace, with too few others that have come as far, nor where no trial is better."""
    assert app_of(*trials).step().ends == {}


def test_a_diverged_trial_is_ended():
    """Its best loss counts no more."""
    diverged = trial(9, 200.0, [(10, 0.0), (200, math.nan)], tuner=TUNER)
    found = app_of(*(flat(n, 1.0) for n in range(3)), diverged).step()
    assert {uid: words(why) for uid, why in found.ends.items()} == {
        "5_09": "its loss at step 200 is not finite, and other trials' are"
    }


def test_completed_and_ended_trials_count_and_dead_ones_do_not():
    """The best live trial is not ended, even if better ones have completed."""
    good = [flat(n, float(n)) for n in range(3)]
    late = [flat(7, 5.0), flat(8, 6.0)]
    started = [flat(7, 5.0, 99.0), flat(8, 6.0, 99.0)]
    dead = app_of(*good, *started)
    dead.step()
    dead.remove("5_00", "5_01", "5_02")
    assert dead.step(*late).ends == {}
    completed = app_of(*good, *started)
    completed.step()
    completed.remove("5_00", "5_01", "5_02")
    completed.completed = frozenset({"5_00", "5_01", "5_02"})
    assert completed.step(*late).ends.keys() == {"5_08"}
    ended = app_of(*(flat(n, float(n)) for n in range(5)))
    assert ended.step().ends.keys() == {"5_03", "5_04"}
    ended.remove("5_03", "5_04", "5_02")
    assert ended.step(flat(6, 3.0)).ends.keys() == {"5_06"}  # two live trials would be too few others
