import pytest
from hypothesis import given
from hypothesis import strategies as st

from metasched.apps.tuners.brackets import BracketOptions
from metasched.apps.tuners.hyperband import Hyperband
from tests.unit.apps.searches import app_of, at, settings, trial


def layout(trials, steps, eta=2):
    """Number of trials and steps of the phases of each bracket."""
    found = Hyperband(BracketOptions(eta=eta)).layout([str(n) for n in range(trials)], steps)
    return [(len(one.trials), one.steps) for one in found]


def test_brackets_have_the_proportions_of_the_paper():
    """Table 1 of Li et al. (JMLR 2018): R = 81 and eta = 3 have brackets of 81, 34, 15, 8 and 5 trials."""
    assert layout(143, 81.0, 3) == [
        (81, [1.0, 3.0, 9.0, 27.0, 81.0]),
        (34, [3.0, 9.0, 27.0, 81.0]),
        (15, [9.0, 27.0, 81.0]),
        (8, [27.0, 81.0]),
        (5, [81.0]),
    ]


@pytest.mark.parametrize(
    ("trials", "steps", "found"),
    [
        (1, 100.0, [(1, [100.0])]),
        (3, 100.0, [(3, [100.0])]),
        (4, 100.0, [(2, [50.0, 100.0]), (2, [100.0])]),
        (100, 2.0, [(50, [1.0, 2.0]), (50, [2.0])]),
        (100, 1.0, [(100, [1.0])]),
    ],
)
def test_trials_and_steps_limit_the_brackets(trials, steps, found):
    """The first phase of a bracket has a step or more, and each bracket as many trials as in Hyperband."""
    assert layout(trials, steps) == found


@given(st.integers(1, 200), st.integers(1, 5000), st.integers(2, 5))
def test_every_trial_is_in_one_bracket(trials, steps, eta):
    """Whatever their number."""
    found = Hyperband(BracketOptions(eta=eta)).layout([str(n) for n in range(trials)], float(steps))
    assert sorted(uid for one in found for uid in one.trials) == sorted(str(n) for n in range(trials))
    assert all(one.steps[0] >= 1 and one.steps[-1] == steps for one in found)


def test_each_bracket_halves_its_own_trials():
    """A bracket without a phase to come ends nobody; neighbours are dealt to different brackets."""
    tuner = settings("hyperband", steps=1000)
    app = app_of(*(trial(n, tuner=tuner) for n in range(4)))
    halved, whole = (one.trials for one in app.step().snapshot.apps[0].brackets)
    assert (halved, whole) == (("5_00", "5_02"), ("5_01", "5_03"))
    found = app.step(*(at(500.0, float(n), n, tuner=tuner) for n in range(4)))
    assert (found.ends.keys(), found.held) == ({"5_02"}, {})
    assert [one.phase for one in found.snapshot.apps[0].brackets] == [1, 0]
