"""Shares that are made beside the rounds, and what holds in the meantime."""

from __future__ import annotations

import json
import time

import pytest

from metasched.core.model import Snapshot
from metasched.core.policy import PolicyState, installed_policies
from metasched.daemon.background_solver import BackgroundSolver
from metasched.replay.replay import replay
from metasched.scheduling.engine import precompute, run_round
from policies.gavel.policies import GavelLas, GavelLasParameters
from tests.fakes.fake_nodes import FakeNode
from tests.fakes.fake_slurm import FakeSlurm
from tests.unit import site as sites
from tests.unit.gavel_tables import cluster
from tests.unit.policies.gavel.test_policies import rated
from tests.unit.rounds import ROUND, Rounds

SECONDS = 60.0  # that another process may take to start, on a busy machine


def las(**more):
    return GavelLas(GavelLasParameters(**{"recompute_rounds": 1, **more}))


def shares(state):
    return {"+".join(who): share for who, share in state.data["ledger"]["shares"]}


def waited(beside):
    """Its next answer that is not empty."""
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        if found := beside.collect():
            return found
        time.sleep(0.02)
    raise AssertionError("no answer")


@pytest.fixture
def beside():
    made = BackgroundSolver()
    yield made
    made.close()


JOBS = (rated("a", v100=4.0, k80=1.0), rated("b", v100=1.0, k80=1.0))
NODES = cluster(v100=1, k80=1)


def look(number, jobs=JOBS, **more):
    return Snapshot(number * ROUND, number, ROUND, NODES, tuple(jobs), **more)


@pytest.mark.parametrize("rounds", [1, 3])
def test_shares_come_into_force_some_rounds_after_the_change(rounds):
    """Until then, everybody has an equal part of every type: the agnostic shares."""
    policy = las(recompute_rounds=rounds)
    state = None
    for number in range(rounds):
        state = run_round(look(number), policy, state).state
        assert shares(state) == {uid: {"v100": 0.5, "k80": 0.5} for uid in "ab"}
    state = run_round(look(rounds), policy, state).state
    at_once = run_round(look(0), las(recompute_rounds=0), None).state
    assert shares(state) == shares(at_once)
    assert shares(state)["a"]["v100"] > 0.7


def test_in_the_interim_a_new_job_has_an_equal_part_and_the_others_what_they_had():
    """It runs at once, and is not owed time from before it came."""
    policy = las()
    state = None
    for number in range(3):
        state = run_round(look(number), policy, state).state
    before = shares(state)
    new = rated("c", submitted=3 * ROUND, v100=2.0, k80=1.0)
    served = [job.evolve(attained={"v100": 2 * ROUND, "k80": 2 * ROUND}) for job in JOBS]
    result = run_round(look(3, (*served, new)), policy, state)
    assert shares(result.state) == {**before, "c": {"v100": pytest.approx(1 / 3), "k80": pytest.approx(1 / 3)}}
    assert "c" in result.targets
    after = run_round(look(4, (*served, new)), policy, result.state).state
    owed = {"+".join(who): times for who, times in after.data["ledger"]["owed"]}
    assert owed["c"] == {kind: pytest.approx(ROUND / 3) for kind in ("v100", "k80")}


def test_a_change_while_shares_are_made_is_answered_next():
    """First the shares for what was then; the next ones are for what is now."""
    policy = las(recompute_rounds=2)
    state = run_round(look(0), policy, None).state
    new = rated("c", submitted=ROUND, v100=2.0, k80=1.0)
    made_for = []
    for number in range(1, 5):
        state = run_round(look(number, (*JOBS, new)), policy, state).state
        made_for.append(state.data["made_for"] and state.data["made_for"]["jobs"])
    assert made_for == [None, ["a", "b"], ["a", "b"], ["a", "b", "c"]]
    assert "coming" not in state.data


def test_jobs_that_end_meanwhile_have_no_part_in_the_new_shares():
    """Shares that come name only who is there."""
    policy = las()
    state = run_round(look(0), policy, None).state
    state = run_round(look(1, JOBS[1:]), policy, state).state
    assert shares(state).keys() == {"b"}


def test_where_work_is_done_beside_the_rounds_a_round_makes_no_shares(monkeypatch):
    """It takes those that arrive; without any, the earlier ones or equal parts hold."""
    policy = las()
    first = run_round(look(0, precomputed={}), policy, None)
    found = json.loads(json.dumps(precompute(look(0), policy, first.state)))
    monkeypatch.setattr(GavelLas, "time_shares", None)
    later = run_round(look(1, precomputed={}), policy, first.state)
    assert shares(later.state) == {uid: {"v100": 0.5, "k80": 0.5} for uid in "ab"}
    arrived = run_round(look(2, precomputed=found), policy, later.state)
    assert shares(arrived.state)["a"]["v100"] > 0.7
    assert precompute(look(2), policy, arrived.state) is None


def test_shares_that_arrive_early_wait_for_their_round():
    """They are kept in the state, and nothing else is worked on."""
    policy = las(recompute_rounds=3)
    first = run_round(look(0, precomputed={}), policy, None)
    found = precompute(look(0), policy, first.state)
    early = run_round(look(1, precomputed=found), policy, first.state)
    assert shares(early.state)["a"] == {"v100": 0.5, "k80": 0.5}
    assert precompute(look(1), policy, early.state) is None
    on_time = run_round(look(3, precomputed={}), policy, run_round(look(2, precomputed={}), policy, early.state).state)
    assert shares(on_time.state)["a"]["v100"] > 0.7


def test_with_late_shares_everybody_still_gets_its_part():
    """Over many rounds, jobs of equal claims have had equal time."""
    jobs = {0: [rated(uid, v100=1.0) for uid in "ab"], 5: [rated("c", v100=1.0)]}
    rounds = Rounds(las(recompute_rounds=2), cluster(v100=1), jobs).run(35)
    had = {uid: sum(rounds.gpus(uid)[8:]) for uid in "abc"}
    assert set(had.values()) == {9}


def test_another_process_gives_the_same_answer(beside):
    """As the policy's own work in this process."""
    policy = las()
    state = run_round(look(0, precomputed={}), policy, None).state
    beside.begin(look(0), policy, state)
    beside.begin(look(1), policy, state)  # it is busy
    assert waited(beside) == json.loads(json.dumps(precompute(look(0), policy, state)))
    assert beside.collect() == {}


class Broken(GavelLas):
    """Fails at its work."""

    def precompute(self, snapshot, state):
        raise ValueError("no")


class Absent(GavelLas):
    """The other process cannot make it."""

    def __reduce__(self):
        return eval, ("absent",)


class Stuck(GavelLas):
    """Cannot be sent to another process."""

    def __reduce__(self):
        raise TypeError("no")


def test_work_that_fails_is_no_answer_and_the_next_goes_on(beside):
    """The process goes on, and so do we."""
    state = PolicyState()
    beside.begin(look(0), Stuck(GavelLasParameters(recompute_rounds=1)), state)
    beside.begin(look(0), Absent(GavelLasParameters(recompute_rounds=1)), state)
    process = beside._process
    until = time.monotonic() + SECONDS
    while beside._busy_since is not None and time.monotonic() < until:
        assert beside.collect() == {}
        time.sleep(0.02)
    beside.begin(look(0), Broken(GavelLasParameters(recompute_rounds=1)), state)
    until = time.monotonic() + SECONDS
    while not (found := beside.collect()) and time.monotonic() < until:
        beside.begin(look(1), las(), state)
        time.sleep(0.02)
    assert found["round"] == 1
    assert beside._process is process


def test_a_process_that_is_gone_is_begun_again(beside):
    """As after an out-of-memory kill."""
    state = PolicyState()
    beside.begin(look(0), las(), state)
    beside._process.kill()
    beside._process.join(SECONDS)
    assert beside.collect() == {}
    beside.begin(look(1), las(), state)
    assert waited(beside)["round"] == 1


def test_the_daemon_makes_shares_beside_its_rounds_and_replays_them(tmp_path, monkeypatch):
    """No round of its own makes any; what arrived is kept with the round, so that it is decided alike again."""
    monkeypatch.setitem(sites.POLICIES, "gavel_las", GavelLas)
    site = sites.FakeSite(tmp_path, FakeSlurm(nodes=(FakeNode("n1"),)), policy="gavel_las")
    try:
        site.parameters = {"recompute_rounds": 1}
        site.start()
        monkeypatch.setattr(GavelLas, "time_shares", None)  # in this process; the other has its own
        for _ in range(3):
            site.add("--gres=gpu:2", seconds=10_000)
        until = time.monotonic() + SECONDS
        made_for = None
        while made_for is None and time.monotonic() < until:
            site.run(10)
            time.sleep(0.05)
            made_for = site.store.policy_state("gavel_las").data["made_for"]
        assert len(made_for["jobs"]) == 3
        assert not [event for event in site.store.recent_events(1000) if event.kind == "policy_failed"]
        assert [one.differences for one in replay(site.store, installed_policies(), 1000) if one.differences] == []
    finally:
        site.controller.close()
        site.close()
