"""The round of apps within the engine's round, and the plan that follows."""

from __future__ import annotations

import pytest

from metasched.core.model import Decision, Stop
from metasched.core.policy import Policy, PolicyState
from metasched.core.reason_words import words
from metasched.core.reasons import Reason
from metasched.scheduling.engine import precompute, run_round
from metasched.scheduling.plan import Timeouts, plan
from policies.baselines.fifo import Fifo
from policies.baselines.las import Las
from tests.builders import job, nodes, running, snapshot
from tests.unit.apps.searches import at, trial


class Seeing(Policy):
    """Lets all jobs wait, and notes what it sees."""

    name = "seeing"

    def __init__(self):
        super().__init__()
        self.seen = []

    def decide(self, snapshot, state):
        self.seen.append(snapshot)
        return Decision(waits={one.uid: Reason.text("waits") for one in snapshot.jobs}), PolicyState()

    def precompute(self, snapshot, state):
        return {"jobs": len(snapshot.jobs)}


class Asking(Seeing):
    """The same, and it asks for apps of one."""

    reads_apps = True


def losers(*, runs=True):
    """Two trials at the end of their first phase, the second one worse, and a third job that waits."""
    trials = [at(500.0, float(n), n) for n in range(2)]
    if runs:
        trials = [running(one, "v100-0") for one in trials]
    return [*trials, job("9", submitted=1.0)]


@pytest.mark.parametrize("policy", [Fifo(), Las()])
def test_an_ended_trial_leaves_its_gpu_to_others(policy):
    """Under every policy; its reason is the tuner's, and it is ended in the next round, too."""
    shot = snapshot(losers(), nodes(1, 2))
    result = run_round(shot, policy, None)
    assert result.targets.keys() == {"5_00", "9"}
    assert result.ends.keys() == {"5_01"}
    assert words(result.reasons["5_01"]) == "its loss 1 at step 500 ranks 2nd of 2 trials, of which 1 continue"
    assert [type(action) for action in plan(shot, result.targets, Timeouts(5.0, 5.0)) if action.uid == "5_01"] == [Stop]
    assert run_round(shot, policy, result.state, result.apps).ends == result.ends


def test_a_held_trial_stops_and_waits():
    """Its GPU goes to the job behind it."""
    shot = snapshot([running(at(500.0, 1.0, 0), "v100-0"), running(trial(1), "v100-0"), job("9")], nodes(1, 2))
    result = run_round(shot, Fifo(), None)
    assert (result.targets.keys(), result.ends) == ({"5_01", "9"}, {})
    assert words(result.reasons["5_00"]).startswith("it has trained the 500 steps of phase 1 of 2")


def test_a_policy_sees_the_apps_that_it_asks_for():
    """Apps of one only where it reads apps; neither ended nor held trials are in the snapshot."""
    shot = snapshot(losers(runs=False))
    without, with_singles = Seeing(), Asking()
    state = run_round(shot, without, None).apps
    run_round(shot, with_singles, None)
    (seen,), (seen_with_singles,) = without.seen, with_singles.seen
    assert [one.uid for one in seen.jobs] == ["5_00", "9"]
    assert [app.uid for app in seen.apps] == ["array:5"]
    assert [app.uid for app in seen_with_singles.apps] == ["array:5", "9"]
    assert precompute(shot, without, PolicyState(), state) == {"jobs": 2}


def test_a_round_without_apps_has_no_state():
    """Nothing has to be stored."""
    result = run_round(snapshot([job("1")]), Fifo(), None)
    assert (result.ends, result.apps.data) == ({}, {})
