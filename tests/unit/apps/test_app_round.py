import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metasched.apps.app_round import apply_apps
from metasched.core.apps import AppsState
from metasched.core.model import Placement, Status
from metasched.core.reason_words import words
from metasched.core.reasons import Reason
from tests.builders import job, snapshot
from tests.unit.apps.searches import APP, app_of, at, finished, settings, stored, trial
from tests.unit.strategies import snapshots


@given(snapshots(blocked=True))
def test_a_snapshot_without_apps_passes_through(shot):
    """The very same snapshot, and no state."""
    found = apply_apps(shot)
    assert found.snapshot is shot
    assert (found.held, found.ends, found.state) == ({}, {}, AppsState())


def test_apps_are_in_the_snapshot():
    """Arrays and named apps are, with live members in order; apps of one only where they are asked for."""
    jobs = [
        *(job(f"5_{n}", app=APP, submitted=2.0, name="sweep") for n in (2, 1)),
        job("7", app="app:ann/lr", submitted=3.0),
        finished(job("8", app="app:ann/lr")),
        job("9", submitted=1.0, name="alone"),
    ]
    shot = snapshot(jobs, now=10.0)
    found = apply_apps(shot)
    assert found.snapshot.jobs == shot.jobs
    assert [(app.uid, app.name, app.user, app.members, app.first_submitted) for app in found.snapshot.apps] == [
        (APP, "sweep", "ann", ("5_1", "5_2"), 2.0),
        ("app:ann/lr", "lr", "ann", ("7",), 3.0),
    ]
    singles = apply_apps(shot, singles=True).snapshot.apps
    assert [(app.uid, app.name, app.members) for app in singles if app.uid == "9"] == [("9", "alone", ("9",))]
    assert [app.uid for app in singles] == ["9", APP, "app:ann/lr"]


def test_live_apps_are_integrated_over_an_apps_life():
    """Before the first round their number is that of the first round; a blocked job is in no live app."""
    one = job("1", submitted=10.0)
    state = apply_apps(snapshot([one], now=20.0), singles=True).state
    other, blocked = job("2", submitted=50.0), job("3", blocked=Reason.text("later"))
    found = apply_apps(snapshot([one, other, blocked], now=60.0), stored(state), singles=True)
    integrals = {app.uid: app.live_integral for app in found.snapshot.apps}
    assert integrals == {"1": 60.0, "2": 20.0, "3": 70.0}
    found = apply_apps(snapshot([one, other], now=70.0), stored(found.state), singles=True)
    assert {app.uid: app.live_integral for app in found.snapshot.apps} == {"1": 80.0, "2": 40.0}
    assert [app.mean_live_apps(70.0) for app in found.snapshot.apps] == [80 / 60, 2.0]
    assert found.state.data == {"now": 70.0, "live": [[20.0, 1], [50.0, 2]], "apps": {}}


def test_service_of_members_that_are_gone_counts():
    """Trials remain members as long as one member lives; other members leave their service behind."""
    plain = job("5_50", app=APP, attained={"v100": 7.0})
    app = app_of(*(trial(n, attained={"v100": 10.0}) for n in range(2)), plain, job("5_51", app=APP))
    assert app.step().snapshot.apps[0].attained_service == 27.0
    app.remove("5_00", "5_50")
    (found,) = app.step(trial(1, attained={"v100": 30.0, "a100": 1.0})).snapshot.apps
    assert (found.members, found.attained_service) == (("5_00", "5_01", "5_51"), 48.0)
    assert app.step().snapshot.apps[0].attained_service == 48.0
    app.remove("5_01", "5_51")
    assert app.step(job("9")).state == AppsState()
    (found,) = app.step(trial(3)).snapshot.apps
    assert (found.members, found.attained_service) == (("5_03",), 0.0)


def test_only_jobs_whose_tag_names_the_tuner_are_ended():
    """The other members of the app are neither capped, held nor ended, and do not count as trials."""
    plain = at(500.0, 99.0, 7).evolve(tuner=None, max_gpus=8)
    found = app_of(at(500.0, 1.0, 0), at(500.0, 2.0, 1), plain).step()
    assert found.ends.keys() == {"5_01"}
    assert found.snapshot.job["5_07"] is plain
    assert found.snapshot.apps[0].brackets[0].trials == ("5_00", "5_01")


def test_two_tuners_in_one_app_are_named():
    """All trials run without a tuner, until one tuner is left. Other apps are not touched."""
    other = [at(500.0, float(n), n).evolve(uid=f"6_{n}", app="array:6") for n in range(2)]
    app = app_of(at(500.0, 1.0, 0), at(500.0, 2.0, 1), trial(2, tuner=settings("median")), *other)
    found = app.step()
    assert found.ends.keys() == {"6_1"}
    assert words(found.snapshot.apps[0].problem) == (
        "its app runs without a tuner. its jobs' tags name different tuners, tuner=halving,steps=1000 and tuner=median"
        ": name the same one in all of them"
    )
    assert found.snapshot.apps[0].tuner is None
    app.remove("5_02")
    assert app.step().ends.keys() == {"5_01", "6_1"}


@pytest.mark.parametrize(
    ("tuner", "message"),
    [
        (settings("halfing"), "tuner=halfing: no tuner is named 'halfing'; did you mean 'halving'?"),
        (settings(eta=0), "tuner=halving,eta=0: eta: Input should be greater than or equal to 2 (found 0.0)"),
    ],
)
def test_a_wrong_tag_is_the_problem_of_its_app(tuner, message):
    """The tag and the fix are named, and what was ended before remains ended."""
    app = app_of(at(500.0, 1.0, 0), at(500.0, 2.0, 1))
    app.step()
    wrong = [at(900.0, float(9 - n), n, tuner=tuner) for n in range(2)]
    found = app.step(*wrong)
    assert words(found.snapshot.apps[0].problem) == f"its app runs without a tuner. {message}"
    assert (found.ends.keys(), found.held) == ({"5_01"}, {})


def test_a_job_that_an_admin_suspended_is_not_held():
    """It holds its GPUs whatever the tuner says."""
    place = {"status": Status.SUSPENDED, "placement": Placement(("n1",), 1, "v100")}
    found = app_of(at(500.0, 1.0, 0, **place), trial(1, 0.0)).step()
    assert (found.held, len(found.snapshot.jobs)) == ({}, 2)


def test_a_trial_that_may_not_start_is_not_awaited():
    """It joins the search when it may start: later than the first phase, in a bracket of its own."""
    waits = trial(2, blocked=Reason.text("a dependency"))
    app = app_of(at(500.0, 1.0, 0), at(500.0, 2.0, 1), waits)
    found = app.step()
    assert (found.ends.keys(), found.snapshot.apps[0].brackets[0].trials) == ({"5_01"}, ("5_00", "5_01"))
    assert found.snapshot.apps[0].members == ("5_00", "5_01", "5_02")
    found = app.step(trial(2))
    assert [bracket.trials for bracket in found.snapshot.apps[0].brackets] == [("5_00", "5_01"), ("5_02",)]
    deferred = trial(1, 100.0, run=1, blocked=Reason.text("later"))
    assert app_of(at(500.0, 1.0, 0), deferred).step().held.keys() == {"5_00"}


def test_a_state_of_another_version_is_not_read():
    """The apps begin anew."""
    app = app_of(at(500.0, 1.0, 0), at(500.0, 2.0, 1))
    app.step()
    shot = snapshot([at(10.0, 1.0, 0), at(10.0, 2.0, 1)])
    assert apply_apps(shot, app.state).ends.keys() == {"5_01"}
    assert apply_apps(shot, replace(app.state, version=2)).ends == {}


@st.composite
def searches(draw):
    """Rounds of one app whose trials advance: its live jobs and completed trials in each of them."""
    name = draw(st.sampled_from(("halving", "hyperband", "median", "curve")))
    tuner = settings(name, **({"steps": 1000} if name != "median" else {"grace": 100, "others": 2}))
    count = draw(st.integers(1, 6))
    done = [0] * count
    losses: list = [[] for _ in range(count)]
    live = set(range(count))
    gone: set = set()
    rounds = []
    for now in range(8):
        leaving = draw(st.sets(st.integers(0, count - 1), max_size=2)) if draw(st.booleans()) else set()
        if live - leaving:
            gone |= {n for n in leaving & live if draw(st.booleans())}
            live -= leaving
        for n in sorted(live):
            for _ in range(draw(st.integers(0, 4))):
                done[n] += 50
                loss = draw(st.sampled_from((math.inf, 0.5, 1.0, 2.0, n + 100 / done[n])))
                losses[n].append((float(done[n]), loss))
        jobs = [trial(n, float(done[n]), losses[n], tuner=tuner, high=8) for n in live]
        completed = frozenset(f"5_{n:02}" for n in gone)
        rounds.append(snapshot(jobs, now=60.0 * now, completed_trials=completed))
    return rounds


@given(searches(), st.randoms(use_true_random=False))
def test_searches_are_replayed_and_ends_are_for_good(rounds, rng):
    """The order of jobs changes nothing; a live trial is left in every round that began with one."""
    state = AppsState()
    ended: set = set()
    for shot in rounds:
        found = apply_apps(shot, state)
        mixed = replace(shot, jobs=tuple(rng.sample(shot.jobs, len(shot.jobs))))
        again = apply_apps(mixed, stored(state))
        assert (again.held, again.ends, again.state) == (found.held, found.ends, found.state)
        assert again.snapshot.apps == found.snapshot.apps
        assert sorted(again.snapshot.jobs, key=lambda one: one.uid) == list(found.snapshot.jobs)
        live = shot.job.keys() - ended
        ended |= found.ends.keys()
        assert found.ends.keys() == ended & shot.job.keys()
        assert not live or live - ended
        assert found.snapshot.job.keys() == shot.job.keys() - found.held.keys() - found.ends.keys()
        state = stored(found.state)
        assert state == found.state


@given(
    st.sampled_from(("halving", "hyperband", "median", "curve", "outside")),
    st.lists(st.lists(st.floats(), max_size=8), min_size=1, max_size=6),
    st.lists(st.one_of(st.none(), st.floats()), min_size=6, max_size=6),
)
def test_any_loss_and_progress_is_survived(name, losses, progress):
    """Reports are hostile: no number that a float can be breaks a round, and a state that is JSON comes out."""
    options = {"median": {"others": 1}, "curve": {"steps": 100, "points": 4}, "outside": {}}.get(name, {"steps": 64})
    tuner = settings(name, **options)
    points = [[(float(n), loss) for n, loss in enumerate(curve, 1)] for curve in losses]
    app = app_of(*(trial(n, progress[n], points[n], tuner=tuner) for n in range(len(losses))))
    for _ in range(2):
        assert len(app.step().ends) < len(losses)
