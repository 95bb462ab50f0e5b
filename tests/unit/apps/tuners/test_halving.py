import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metasched.core.apps import Phase
from metasched.core.model import Placement, Preempt, Status
from metasched.core.reason_words import words
from tests.unit.apps.searches import app_of, at, settings, trial


def bracket(found):
    """The one bracket of the app of a round."""
    (app,) = found.snapshot.apps
    (one,) = app.brackets
    return one


def alive(app):
    """The uids of the trials that live and were not ended."""
    return app.jobs.keys() - app.rounds[-1].ends.keys()


def test_of_eight_trials_the_better_half_continues_until_one_is_left():
    """Phases end at 125, 250 and 500 steps, and ended trials stay ended while they are still listed."""
    app = app_of(*(trial(n) for n in range(8)))
    assert bracket(app.step()).phases == (
        Phase(8, 125.0, 1),
        Phase(4, 250.0, 1),
        Phase(2, 500.0, 1),
        Phase(1, 1000.0, 1),
    )
    for phase, (steps, left) in enumerate([(125.0, 4), (250.0, 2), (500.0, 1)], 1):
        ended = set(app.rounds[-1].ends)
        found = app.step(*(at(steps, n / 10, n) for n in range(8) if f"5_{n:02}" not in ended))
        assert alive(app) == {f"5_{n:02}" for n in range(left)}
        assert (bracket(found).phase, found.held) == (phase, {})
        assert {job.uid for job in found.snapshot.jobs} == alive(app)
    found = app.step(at(1000.0, 0.0, 0))
    assert (found.held, set(found.ends)) == ({}, {f"5_{n:02}" for n in range(1, 8)})
    assert words(app.rounds[1].ends["5_06"]) == "its loss 0.6 at step 125 ranks 7th of 8 trials, of which 4 continue"


def test_a_trial_that_has_done_its_phase_waits_for_the_others():
    """A held trial gives up its GPUs, unless nothing may take them; it continues when the phase is over."""
    place = {"status": Status.RUNNING, "placement": Placement(("n1",), 1, "v100")}
    pinned = at(260.0, 0.2, 1, preempt=Preempt.NO, **place)
    app = app_of(at(250.0, 0.1, 0, **place), pinned, at(249.0, 0.3, 2, **place), trial(3))
    found = app.step()
    assert found.ends == {}
    assert {uid: words(why) for uid, why in found.held.items()} == {
        "5_00": "it has trained the 250 steps of phase 1 of 3, and waits until job 5_03 and the other trials have"
    }
    assert [job.uid for job in found.snapshot.jobs] == ["5_01", "5_02", "5_03"]
    found = app.step(at(250.0, 0.4, 2), at(250.0, 0.5, 3))
    assert (found.held, found.ends.keys()) == ({}, {"5_02", "5_03"})


def test_losses_are_compared_at_the_end_of_the_phase():
    """A trial that trained on is not better for it."""
    early = trial(0, 900.0, [(100, 3.0), (500, 2.0), (900, 0.1)])
    found = app_of(early, trial(1, 500.0, [(499, 1.5), (501, 1.5)])).step()
    assert found.ends.keys() == {"5_00"}


def test_ties_go_to_the_earlier_submission():
    """The order of uids is the last resort."""
    trials = [at(250.0, 1.0, n, submitted=float(9 - n)) for n in range(4)]
    assert app_of(*trials).step().ends.keys() == {"5_00", "5_01"}
    assert app_of(*(at(250.0, 1.0, n) for n in range(4))).step().ends.keys() == {"5_02", "5_03"}


@pytest.mark.parametrize("losses", [(), [(100.0, math.nan)], [(100.0, 0.1), (500.0, math.inf)]])
def test_a_trial_without_a_finite_loss_ranks_last(losses):
    """The reason says so."""
    found = app_of(trial(0, 500.0, losses), at(500.0, 9.9, 1)).step()
    assert {uid: words(why) for uid, why in found.ends.items()} == {
        "5_00": "it has reported no finite loss by step 500, so it ranks 2nd of 2 trials, of which 1 continue"
    }


def test_nobody_is_ended_where_no_trial_reports_a_loss():
    """Nothing tells losers from winners: all train on, without holds, until one reports a loss."""
    app = app_of(trial(0, 500.0), trial(1, 500.0))
    found = app.step()
    assert (found.held, found.ends, len(found.snapshot.jobs)) == ({}, {}, 2)
    assert words(found.snapshot.apps[0].problem) == (
        "its app runs without a tuner. tuner=halving,steps=1000: none of its 2 trials has reported a finite loss by "
        "step 500, so they cannot be compared: report the loss"
    )
    assert app.step(at(600.0, 1.0, 1)).ends.keys() == {"5_00"}


def test_dead_trials_take_the_places_of_losers():
    """Of 8, of which 3 die, 4 of 5 continue; where as many are left as may continue, the phase is over at once."""
    app = app_of(*(trial(n) for n in range(8)))
    app.step()
    app.remove("5_00", "5_01", "5_02")
    assert app.step(*(at(125.0, float(n), n) for n in range(3, 8))).ends.keys() == {"5_07"}
    app.remove("5_03", "5_04", "5_07")
    found = app.step()
    assert (bracket(found).phase, found.ends, found.held) == (2, {}, {})


def test_gpus_double_with_each_phase_up_to_the_jobs_own_limit():
    """The last trial may have all that it can use; a cap neither shrinks a run nor goes below the fewest GPUs."""
    sizes = {"gpus": 2, "low": 1, "high": 16}
    app = app_of(*(trial(n, **sizes) for n in range(8)))
    found = app.step()
    assert {job.max_gpus for job in found.snapshot.jobs} == {2}
    assert [phase.max_gpus for phase in bracket(found).phases] == [2, 4, 8, 16]
    running = {"status": Status.RUNNING, "placement": Placement(("n1",), 4, "v100")}
    found = app.step(at(0.0, 1.0, 7, **sizes, **running))
    assert found.snapshot.job["5_07"].max_gpus == 4
    found = app.step(*(at(125.0, float(n), n, **sizes) for n in range(8)))
    assert {job.max_gpus for job in found.snapshot.jobs} == {4}
    app.remove(*(uid for uid in found.ends))
    app.remove("5_01", "5_02", "5_03")
    assert [job.max_gpus for job in app.step().snapshot.jobs] == [16]


def test_eta_is_what_one_of_continues():
    """Of nine trials and eta=3, three and then one continue; steps grow by the factor eta."""
    tuner = settings(eta=3, steps=900)
    app = app_of(*(at(100.0, float(n), n, tuner=tuner) for n in range(9)))
    found = app.step()
    assert [(phase.trials, phase.steps) for phase in bracket(found).phases] == [(9, 100.0), (3, 300.0), (1, 900.0)]
    assert len(found.ends) == 6


def test_three_trials_become_two_and_then_one():
    """Halves are rounded up."""
    app = app_of(*(at(250.0, float(n), n) for n in range(3)))
    assert app.step().ends.keys() == {"5_02"}
    assert app.step(at(500.0, 0.0, 0), at(500.0, 1.0, 1)).ends.keys() == {"5_01", "5_02"}


def test_one_trial_trains_to_its_end():
    """Neither capped, nor held, nor ended."""
    found = app_of(at(5000.0, math.nan, high=8)).step()
    assert (found.held, found.ends, found.snapshot.jobs[0].max_gpus) == ({}, {}, 8)


def test_trials_that_come_late_are_compared_with_one_another():
    """Until the first phase is over they join it; afterwards they are a bracket of their own."""
    app = app_of(trial(0), trial(1))
    app.step()
    found = app.step(trial(2), trial(3))
    assert bracket(found).trials == ("5_00", "5_01", "5_02", "5_03")
    app.step(*(at(250.0, float(n), n) for n in range(4)))
    (found,) = app.step(trial(4), trial(5)).snapshot.apps
    assert [(one.trials, one.phase) for one in found.brackets] == [
        (("5_00", "5_01", "5_02", "5_03"), 1),
        (("5_04", "5_05"), 0),
    ]
    assert app.step(at(500.0, 8.0, 4), at(500.0, 9.0, 5)).ends.keys() == {"5_02", "5_03", "5_05"}


def test_steps_are_those_that_the_trials_declare():
    """Without them the app runs without a tuner, and the problem says what to add."""
    tuner = settings()
    app = app_of(*(trial(n, tuner=tuner, total_steps=800.0 + n) for n in range(4)))
    assert [phase.steps for phase in bracket(app.step()).phases] == [200.0, 400.0, 800.0]
    found = app_of(trial(0, tuner=tuner), trial(1, tuner=tuner)).step()
    assert words(found.snapshot.apps[0].problem) == (
        "its app runs without a tuner. tuner=halving: it needs the steps of a training: add total_steps=N, or the "
        "tuner's option steps=N"
    )


def test_too_few_steps_are_named():
    """A phase of less than a step would compare nothing."""
    found = app_of(*(trial(n, tuner=settings(steps=3)) for n in range(5))).step()
    assert words(found.snapshot.apps[0].problem).endswith(
        "tuner=halving,steps=3: 3 steps are too few for 4 phases of 5 trials: give at least steps=8"
    )


@given(st.data())
def test_half_of_the_trials_continue_whatever_dies_in_between(data):
    """ceil(n / eta^k) continue into phase k while that many live; the best live one always does; ends are for good."""
    eta = data.draw(st.integers(2, 4))
    count = data.draw(st.one_of(st.sampled_from((2, 4, 8)), st.integers(1, 12)))
    tuner = settings(eta=eta, steps=4096)
    uids = [f"5_{n:02}" for n in range(count)]
    drawn = data.draw(st.lists(st.sampled_from((0.0, 1.0, 2.0, 3.0, 4.0, math.nan)), min_size=count, max_size=count))
    loss = dict(zip(uids, drawn, strict=True))
    app = app_of(*(trial(n, 0.0, tuner=tuner) for n in range(count)))
    present = bracket(app.step())
    ended: dict = {}
    some = st.sets(st.sampled_from(uids))
    for _ in range(12):
        dead = data.draw(some) & app.jobs.keys() if data.draw(st.booleans()) else set()
        if len(dead) == len(app.jobs):
            break
        app.remove(*dead)
        live = alive(app)
        steps = present.phases[present.phase].steps
        moving = [app.jobs[uid] for uid in sorted(live - data.draw(some)) if app.jobs[uid].progress_steps < steps]
        found = app.step(*(at(steps, loss[job.uid], int(job.uid[2:]), tuner=tuner) for job in moving))
        new = found.ends.keys() - ended.keys()
        ended |= found.ends
        assert found.ends == {uid: ended[uid] for uid in ended.keys() & app.jobs.keys()}
        assert new <= live
        assert {job.uid for job in found.snapshot.jobs} == live - new - found.held.keys()
        if not found.snapshot.apps[0].brackets:
            assert not new
            assert not live or all(math.isnan(loss[uid]) for uid in live)
            continue
        present, before = bracket(found), present
        if new:
            assert present.phase > before.phase
            assert len(live - new) == min(len(live), -(-count // eta**present.phase))
            assert min(live, key=lambda uid: (math.isnan(loss[uid]), loss[uid], uid)) not in new
        assert not live or live - new
