from metasched.core.apps import TrialOrder
from metasched.core.reason_words import words
from tests.builders import job
from tests.unit.apps.searches import APP, app_of, settings, trial

TUNER = settings("outside")


def test_orders_cap_and_end_trials():
    """An end is for good, though the driver does not repeat it; the driver may end all trials."""
    app = app_of(*(trial(n, tuner=TUNER, high=8) for n in range(3)))
    orders = (TrialOrder(APP, "5_00", max_gpus=2), TrialOrder(APP, "5_01", end=True, words="pruned at epoch 3"))
    found = app.step(trial_orders=orders)
    assert {one.uid: one.max_gpus for one in found.snapshot.jobs} == {"5_00": 2, "5_02": 8}
    assert {uid: words(why) for uid, why in found.ends.items()} == {
        "5_01": "its app's driver has ended it: pruned at epoch 3"
    }
    found = app.step(trial_orders=(TrialOrder(APP, "5_00", max_gpus=0), TrialOrder(APP, "5_02", end=True)))
    assert {one.uid: (one.min_gpus, one.gpus, one.max_gpus) for one in found.snapshot.jobs} == {"5_00": (1, 1, 1)}
    assert found.ends.keys() == {"5_01", "5_02"}


def test_orders_for_strangers_are_ignored_and_named():
    """Neither a job of another app, nor one that has no tuner in its tag, nor a job that is not there."""
    stranger, plain = job("6_1", app="array:6", tuner=TUNER), job("5_77", app=APP)
    app = app_of(trial(0, tuner=TUNER), plain, stranger)
    orders = [TrialOrder(APP, uid, end=True) for uid in ("6_1", "5_77", "nobody")]
    found = app.step(trial_orders=(*orders, TrialOrder("array:9", "5_00", end=True)))
    assert (found.ends, len(found.snapshot.jobs)) == ({}, 3)
    assert [None if app.problem is None else words(app.problem) for app in found.snapshot.apps] == [
        "its app's driver gives orders for job 5_77 and 2 more, none of the app's trials: they are ignored",
        None,
    ]


def test_orders_for_trials_that_are_gone_are_no_problem():
    """The driver may not know yet."""
    app = app_of(trial(0, tuner=TUNER), trial(1, tuner=TUNER))
    app.step()
    app.remove("5_01")
    found = app.step(trial_orders=(TrialOrder(APP, "5_01", end=True),))
    assert (found.ends, found.snapshot.apps[0].problem) == ({}, None)
