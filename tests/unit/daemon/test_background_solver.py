"""Time shares of the background solver, and the rounds until they arrive."""

from __future__ import annotations

import json
import socket
import time
from multiprocessing.reduction import ForkingPickler
from types import MappingProxyType

import pytest

from metasched.core.model import Decision, Snapshot
from metasched.core.policy import Policy, PolicyState, installed_policies
from metasched.core.reasons import Reason
from metasched.daemon.background_solver import BackgroundSolver, NotPortableError, check_portable
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


def next_result(solver):
    """The solver's next result that is not empty."""
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        if found := solver.collect():
            return found
        time.sleep(0.02)
    raise AssertionError("no result")


@pytest.fixture
def solver():
    made = BackgroundSolver()
    yield made
    made.close()


JOBS = (rated("a", v100=4.0, k80=1.0), rated("b", v100=1.0, k80=1.0))
NODES = cluster(v100=1, k80=1)


def shot(number, jobs=JOBS, **more):
    return Snapshot(number * ROUND, number, ROUND, NODES, tuple(jobs), **more)


@pytest.mark.parametrize("rounds", [1, 3])
def test_time_shares_take_effect_some_rounds_after_a_change(rounds):
    """Until then, all jobs have equal time shares of every GPU type."""
    policy = las(recompute_rounds=rounds)
    state = None
    for number in range(rounds):
        state = run_round(shot(number), policy, state).state
        assert shares(state) == {uid: {"v100": 0.5, "k80": 0.5} for uid in "ab"}
    state = run_round(shot(rounds), policy, state).state
    at_once = run_round(shot(0), las(recompute_rounds=0), None).state
    assert shares(state) == shares(at_once)
    assert shares(state)["a"]["v100"] > 0.7


def test_until_a_solution_arrives_a_new_job_has_an_equal_time_share():
    """The other jobs keep their time shares; the new job has no deficit from before its arrival."""
    policy = las()
    state = None
    for number in range(3):
        state = run_round(shot(number), policy, state).state
    before = shares(state)
    new = rated("c", submitted=3 * ROUND, v100=2.0, k80=1.0)
    a, b = JOBS
    served = a.evolve(attained={"v100": 2 * ROUND}), b.evolve(attained={"k80": 2 * ROUND})
    result = run_round(shot(3, (*served, new)), policy, state)
    assert shares(result.state) == {**before, "c": {"v100": pytest.approx(1 / 3), "k80": pytest.approx(1 / 3)}}
    served = a.evolve(attained={"v100": 3 * ROUND}), b.evolve(attained={"k80": 3 * ROUND})
    after = run_round(shot(4, (*served, new)), policy, result.state)
    assert "c" in {**result.targets, **after.targets}
    owed = {"+".join(who): times for who, times in after.state.data["ledger"]["owed"]}
    assert owed["c"] == {kind: pytest.approx(ROUND / 3) for kind in ("v100", "k80")}


def test_a_change_during_a_computation_is_part_of_the_next_one():
    """The first result is for the jobs of its own snapshot, the next one for the present jobs."""
    policy = las(recompute_rounds=2)
    state = run_round(shot(0), policy, None).state
    new = rated("c", submitted=ROUND, v100=2.0, k80=1.0)
    made_for = []
    for number in range(1, 5):
        state = run_round(shot(number, (*JOBS, new)), policy, state).state
        made_for.append(state.data["made_for"] and state.data["made_for"]["jobs"])
    assert made_for == [None, ["a", "b"], ["a", "b"], ["a", "b", "c"]]
    assert "coming" not in state.data


def test_jobs_that_end_during_a_computation_get_no_time_shares():
    """A result that arrives is restricted to the live jobs."""
    policy = las()
    state = run_round(shot(0), policy, None).state
    state = run_round(shot(1, JOBS[1:]), policy, state).state
    assert shares(state).keys() == {"b"}


def test_rounds_compute_no_time_shares_where_the_background_solver_does(monkeypatch):
    """Rounds use the results that arrive, and before the first one equal time shares."""
    policy = las()
    first = run_round(shot(0, precomputed={}), policy, None)
    found = json.loads(json.dumps(precompute(shot(0), policy, first.state)))
    monkeypatch.setattr(GavelLas, "time_shares", None)
    later = run_round(shot(1, precomputed={}), policy, first.state)
    assert shares(later.state) == {uid: {"v100": 0.5, "k80": 0.5} for uid in "ab"}
    arrived = run_round(shot(2, precomputed=found), policy, later.state)
    assert shares(arrived.state)["a"]["v100"] > 0.7
    assert precompute(shot(2), policy, arrived.state) is None


def test_with_many_jobs_the_daemon_computes_time_shares_in_the_background():
    """Rounds with fewer jobs compute them; so do simulations, in which nothing is precomputed."""
    many, few = las(recompute_rounds=0, background_jobs=2), las(recompute_rounds=0, background_jobs=3)
    assert many.precomputes(shot(0))
    assert not few.precomputes(shot(0))
    first = run_round(shot(0, precomputed={}), many, None)
    assert shares(first.state) == {uid: {"v100": 0.5, "k80": 0.5} for uid in "ab"}
    found = json.loads(json.dumps(precompute(shot(0), many, first.state)))
    assert shares(run_round(shot(1, precomputed=found), many, first.state).state)["a"]["v100"] > 0.7
    assert shares(run_round(shot(0), many, None).state)["a"]["v100"] > 0.7
    assert shares(run_round(shot(0, precomputed={}), few, None).state)["a"]["v100"] > 0.7


def test_a_result_that_arrives_early_waits_for_its_round():
    """The policy's state holds it, and nothing else is computed meanwhile."""
    policy = las(recompute_rounds=3)
    first = run_round(shot(0, precomputed={}), policy, None)
    found = precompute(shot(0), policy, first.state)
    early = run_round(shot(1, precomputed=found), policy, first.state)
    assert shares(early.state)["a"] == {"v100": 0.5, "k80": 0.5}
    assert precompute(shot(1), policy, early.state) is None
    on_time = run_round(shot(3, precomputed={}), policy, run_round(shot(2, precomputed={}), policy, early.state).state)
    assert shares(on_time.state)["a"]["v100"] > 0.7


def test_equal_jobs_get_equal_time_with_late_results():
    """The time is counted over many rounds."""
    jobs = {0: [rated(uid, v100=1.0) for uid in "ab"], 5: [rated("c", v100=1.0)]}
    rounds = Rounds(las(recompute_rounds=2), cluster(v100=1), jobs).run(35)
    had = {uid: sum(rounds.gpus(uid)[8:]) for uid in "abc"}
    assert set(had.values()) == {9}


def test_the_background_process_computes_the_same_result(solver):
    """The policy's ``precompute`` in this process is the reference."""
    policy = las()
    state = run_round(shot(0, precomputed={}), policy, None).state
    solver.begin(shot(0), policy, state)
    solver.begin(shot(1), policy, state)  # it is busy
    assert next_result(solver) == json.loads(json.dumps(precompute(shot(0), policy, state)))
    assert solver.collect() == {}


def test_a_policy_that_holds_a_socket_is_not_portable():
    """A connection of this process is of no use in the background process."""
    policy = las()
    check_portable(policy)
    with socket.socket() as policy.connection, pytest.raises(NotPortableError, match="socket"):
        check_portable(policy)


def test_read_only_mappings_are_pickled_by_the_solver_alone():
    """Other users of multiprocessing in the process keep Python's own rules."""
    with pytest.raises(TypeError, match="mappingproxy"):
        ForkingPickler.dumps(MappingProxyType({}))


class Broken(GavelLas):
    """A policy whose ``precompute`` raises."""

    def precompute(self, snapshot, state):
        raise ValueError("no")


class Absent(GavelLas):
    """A policy that the background process cannot unpickle."""

    def __reduce__(self):
        return eval, ("absent",)


class Stuck(GavelLas):
    """A policy that cannot be pickled."""

    def __reduce__(self):
        raise TypeError("no")


def test_a_failed_computation_gives_no_result_and_the_next_one_succeeds(solver):
    """The background process survives the failure."""
    state = PolicyState()
    solver.begin(shot(0), Stuck(GavelLasParameters(recompute_rounds=1)), state)
    solver.begin(shot(0), Absent(GavelLasParameters(recompute_rounds=1)), state)
    process = solver._process
    until = time.monotonic() + SECONDS
    while solver._busy_since is not None and time.monotonic() < until:
        assert solver.collect() == {}
        time.sleep(0.02)
    solver.begin(shot(0), Broken(GavelLasParameters(recompute_rounds=1)), state)
    until = time.monotonic() + SECONDS
    while not (found := solver.collect()) and time.monotonic() < until:
        solver.begin(shot(1), las(), state)
        time.sleep(0.02)
    assert found["round"] == 1
    assert solver._process is process


def test_a_killed_background_process_is_started_again(solver):
    """An out-of-memory kill ends a process like this."""
    state = PolicyState()
    solver.begin(shot(0), las(), state)
    solver._process.kill()
    solver._process.join(SECONDS)
    assert solver.collect() == {}
    solver.begin(shot(1), las(), state)
    assert next_result(solver)["round"] == 1


def test_the_daemon_stores_background_results_with_their_rounds_for_replay(tmp_path, monkeypatch):
    """No round computes time shares itself, and a replay decides the same."""
    monkeypatch.setitem(sites.POLICIES, "gavel_las", GavelLas)
    site = sites.FakeSite(tmp_path, FakeSlurm(nodes=(FakeNode("n1"),)), policy="gavel_las")
    try:
        site.parameters = {"background_jobs": 1}
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


class Late(Policy):
    """Computes late in the round, and asks for a round when the result has come; grants nothing."""

    name = "late"
    solves_in_background = True
    precompute_at = 0.6
    wakes_on_arrival = wakes_on_completion = False
    wakes_on_result = True

    def decide(self, snapshot, state):
        waits = {job.uid: Reason.text("for the test") for job in snapshot.jobs}
        return Decision(waits=waits), PolicyState(1, {**state.data, "result": dict(snapshot.precomputed or {})})

    def precompute(self, snapshot, state):
        return {"now": snapshot.now, "round": snapshot.round, "jobs": len(snapshot.jobs)}


def test_a_late_computation_has_the_newest_snapshot_and_its_result_starts_a_round(tmp_path, monkeypatch):
    """It begins in the stated part of the round; a job that came since the round is in its snapshot."""
    monkeypatch.setitem(sites.POLICIES, "late", Late)
    site = sites.FakeSite(tmp_path, policy="late", round_seconds=1000.0)
    try:
        site.add("--gres=gpu:1")
        site.run(300)
        site.add("--gres=gpu:1")
        site.run(200)
        assert not site.controller._background_solver._busy_since
        (decided,) = site.store.recent_rounds()
        until = time.monotonic() + SECONDS
        while not (found := site.store.policy_state("late").data["result"]) and time.monotonic() < until:
            site.run(3)
            time.sleep(0.05)
        assert (found["jobs"], found["round"]) == (2, decided.round)
        assert 600.0 <= found["now"] - decided.at < 610.0
        last = site.store.last_round()
        assert last.round == decided.round + 1
        assert last.at < decided.at + 1000.0
    finally:
        site.controller.close()
        site.close()
