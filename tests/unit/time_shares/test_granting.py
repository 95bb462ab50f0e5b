"""A run keeps its GPUs for a quantum, so that jobs that alternate do not restart in every round."""

from __future__ import annotations

from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metasched.core.model import Placement, Status
from metasched.core.reason_words import words
from metasched.time_shares.granting import LONGEST_QUANTUM, choose, runs_within_quantum
from metasched.time_shares.policy_base import TimeShareParameters
from metasched.time_shares.round_mechanism import UNCONSOLIDATED, Candidate, TimeAccounts, priorities
from policies.baselines.isolated import Isolated
from policies.gavel.policies import (
    GavelCost,
    GavelCostParameters,
    GavelHierarchical,
    GavelHierarchicalParameters,
    GavelLas,
    GavelMakespan,
)
from tests import builders
from tests.unit.gavel_tables import cluster, known_job, small_table
from tests.unit.rounds import ROUND, Rounds


def costly(uid, restart=0.5, **more):
    """A job for V100s; ``restart`` in rounds, None where it is not known."""
    seconds = None if restart is None else restart * ROUND
    return known_job(uid, gpu_types=("v100",), restart_seconds=seconds, **more)


def alternating(restart, rounds=100, **parameters):
    """Two equal jobs for one GPU."""
    jobs = [costly(uid, restart) for uid in "ab"]
    return Rounds(Isolated(TimeShareParameters(**parameters)), cluster(v100=1), {0: jobs}).run(rounds)


def runs(rounds, uid):
    """The lengths of a job's runs in rounds, but for the last one, which may go on."""
    return [len(list(group)) for gpus, group in groupby(rounds.gpus(uid)) if gpus][:-1]


@pytest.mark.parametrize(
    ("restart", "length"), [(None, 1), (0.0, 1), (0.01, 1), (0.1, 2), (0.25, 5), (0.26, 6), (1.0, 10), (100.0, 10)]
)
def test_two_jobs_alternate_in_runs_of_a_quantum(restart, length):
    """A quantum is 20 restarts, and at most 10 rounds; a run lasts as many whole rounds."""
    rounds = alternating(restart)
    assert set(runs(rounds, "a")) == set(runs(rounds, "b")) == {length}


@pytest.mark.parametrize("none", [{"quantum_restarts": 0.0}, {"carry": False}])
def test_without_quanta_jobs_alternate_in_every_round(none):
    """As in the paper, and in the public code."""
    assert set(runs(alternating(1.0, **none), "a")) == {1}


def test_a_quantum_is_as_many_restarts_as_the_parameter_says():
    assert set(runs(alternating(0.25, quantum_restarts=8.0), "a")) == {2}


def test_the_reason_says_that_a_job_is_within_its_quantum():
    rounds = alternating(0.25, 3)
    assert words(rounds.reasons[0]["a"]) == "its turn on v100: its share of time is 50% of v100"
    assert words(rounds.reasons[2]["a"]) == "within its quantum on v100: its share of time is 50% of v100"
    assert words(rounds.reasons[2]["b"]) == (
        "not its turn: its share of time is 50% of v100; needs 1 GPU of type v100; 0 are free"
    )


def test_a_small_share_has_its_first_round_a_quantum_later_at_most():
    """Weights 0.95 and 0.05: due after 10 rounds."""
    jobs = [costly("heavy", weight=0.95), costly("light", weight=0.05)]
    light = Rounds(GavelLas(), cluster(v100=1), {0: jobs}).run(400).gpus("light")
    assert 10 <= light.index(1) <= 10 + LONGEST_QUANTUM
    assert sum(light) == pytest.approx(20, abs=LONGEST_QUANTUM)


@given(
    weights=st.lists(st.integers(1, 10), min_size=2, max_size=4),
    restarts=st.lists(st.sampled_from([None, 0.0, 0.02, 0.2, 5.0]), min_size=4, max_size=4),
)
def test_received_time_deviates_from_time_shares_by_quanta_at_most(weights, restarts):
    """Whatever the shares: no job is a quantum and two rounds ahead, or the others' quanta and two rounds behind."""
    jobs = [costly(f"j{i}", restarts[i], weight=float(weight)) for i, weight in enumerate(weights)]
    rounds = Rounds(GavelLas(), cluster(v100=1), {0: jobs})
    for passed in range(1, 61):
        rounds.step()
        for i, weight in enumerate(weights):
            ahead = sum(rounds.gpus(f"j{i}")) - passed * weight / sum(weights)
            assert -(len(weights) - 1) * LONGEST_QUANTUM - 2 <= ahead <= LONGEST_QUANTUM + 2


class Stream(Rounds):
    """Always 16 short jobs of one GPU; each ends after 3 to 6 rounds, and another one comes."""

    count = 0

    def step(self):
        for _ in range(16 - sum(uid != "gang" for uid in self.jobs)):
            uid = f"s{self.count:04}"
            self.work[uid] = (3 + self.count * 7 % 4) * ROUND
            self.arrivals.setdefault(len(self.history), []).append(costly(uid, account="short", total_steps=1e4))
            self.count += 1
        super().step()


@pytest.mark.parametrize(
    ("policy", "weight", "share"),
    [
        (GavelHierarchical(), 1.0, 0.5),
        (GavelHierarchical(GavelHierarchicalParameters(quantum_restarts=4.0)), 1.0, 0.5),
        (GavelLas(), 64.0, 0.8),
        (GavelMakespan(), 1.0, 0.9),
    ],
    ids=["accounts", "short_quanta", "weights", "makespan"],
)
def test_a_gang_beside_a_stream_of_short_jobs_has_its_time_share(policy, weight, share):
    """It waits for the quanta of those that ran before it, not for those that fill the gap in the meantime."""
    gang = costly("gang", gpus=8, weight=weight, account="long", total_steps=1e9, progress_steps=0.0)
    rounds = Stream(policy, cluster(v100=8), {0: [gang]}).run(200)
    waits = [len(list(group)) for gpus, group in groupby(rounds.gpus("gang")) if not gpus]
    assert max(waits, default=0) <= 2 * LONGEST_QUANTUM
    assert sum(map(bool, rounds.gpus("gang"))) >= 0.85 * share * 200


def test_gap_fillers_run_on_until_the_gang_can_have_their_gpus():
    """They are not replaced by each other while a gang waits for a GPU."""
    accounts = TimeAccounts(
        shares={("gang",): {"v100": 0.5}, **{(uid,): {"v100": 0.3} for uid in "abc"}},
        since=0.0,
        deficit={("gang",): {"v100": 900.0}, ("a",): {"v100": -100.0}},
        granted=(("a",), ("b",)),
        gap_fillers=frozenset({("a",)}),
    )
    candidates = [Candidate(("gang",), 2, ("v100",)), *(Candidate((uid,), 1, ("v100",)) for uid in "abc")]
    priority = priorities(accounts, 100.0, carry=True)
    both = {("a",): "v100", ("b",): "v100"}
    grants = choose(accounts, candidates, {"v100": 2}, priority, within_quantum=both)
    assert [(grant.combination, grant.fills_gap) for grant in grants] == [(("b",), False), (("a",), True)]
    (grant,) = choose(accounts, candidates, {"v100": 2}, priority, within_quantum={("a",): "v100"})
    assert grant.combination == ("gang",)
    assert accounts.assign(grants).gap_fillers == {("a",)}
    assert TimeAccounts.from_json(accounts.to_json()).gap_fillers == {("a",)}


def test_a_state_of_an_earlier_version_has_neither_gap_fillers_nor_advances():
    stored = TimeAccounts().to_json()
    for key in ("gap_fillers", "in_advance", "advances"):
        del stored[key]
    assert TimeAccounts.from_json(stored) == TimeAccounts()


@pytest.mark.parametrize("free", [0, 1])
def test_a_job_within_its_quantum_moves_to_a_type_of_a_larger_share_only_where_gpus_are_free(free):
    """Another job waits for the V100 if there is only one; a third one gets the K80 that the first one leaves."""
    shares = {("a",): {"v100": 0.9, "k80": 0.1}, ("b",): {"v100": 0.8}, ("c",): {"k80": 0.5}}
    accounts = TimeAccounts(shares=shares, since=0.0, granted=(("a",),), received={("a",): {"k80": 500.0}})
    types = {"a": ("v100", "k80"), "b": ("v100",), "c": ("k80",)}
    candidates = [Candidate((uid,), 1, worker_types) for uid, worker_types in types.items()]
    priority = priorities(accounts, 100.0, carry=True)
    capacity = {"v100": 1 + free, "k80": 1}
    grants = choose(accounts, candidates, capacity, priority, within_quantum={("a",): "k80"}, fill=False)
    found = {grant.combination[0]: (grant.gpu_type, grant.in_advance) for grant in grants}
    if free:
        assert found == {"a": ("v100", False), "b": ("v100", False), "c": ("k80", False)}
    else:
        assert found == {"a": ("k80", True), "b": ("v100", False)}


def test_a_job_does_not_move_within_its_quantum_to_a_type_of_an_equal_share():
    """Its priority is always higher where it has not run: it would restart in every round."""
    job = known_job("a", gpu_types=("v100", "k80"), restart_seconds=ROUND)
    rounds = Rounds(Isolated(), cluster(v100=1, k80=1), {0: [job]}).run(40)
    types = [targets["a"].gpu_type for targets in rounds.history]
    assert [len(list(group)) for _, group in groupby(types)] == [10, 10, 10, 10]


def test_time_in_advance_is_recorded():
    """In the second, third and fourth round the job is kept although the other one is due; the fourth is not over."""
    rounds = alternating(0.1, 4, quantum_restarts=40.0)
    assert rounds.gpus("a") == [1, 1, 1, 1]
    accounts = TimeAccounts.from_json(rounds.state.data["ledger"])
    assert accounts.in_advance == {("a",)}
    assert accounts.advances == {("a",): {"v100": 2 * ROUND}}


def test_a_long_job_beside_short_ones_that_come_one_after_the_other_has_its_time_share():
    """Each of them ends before the long one's quantum would be made up for; the surplus is not forgotten."""
    rounds = Rounds(Isolated(), cluster(v100=1), {0: [costly("long")]})
    for number in range(200):
        if not any(uid != "long" for uid in rounds.jobs):
            rounds.work[f"s{number}"] = 5 * ROUND
            rounds.arrivals.setdefault(number, []).append(costly(f"s{number}"))
        rounds.step()
    assert sum(rounds.gpus("long")) == pytest.approx(100, abs=LONGEST_QUANTUM)


def running(uid, gpu_type, started=0.0, **more):
    place = Placement(("n1",), 1, gpu_type)
    return builders.job(uid, 1, status=Status.RUNNING, placement=place, run_started=started, **more)


def within(shares, granted, *jobs, now=0.0, unconsolidated=()):
    """The runs within quanta of 20 restarts, in rounds of 100 s."""
    accounts = TimeAccounts(shares=shares, since=0.0, granted=granted, unconsolidated=unconsolidated)
    return runs_within_quantum(accounts, {job.uid: job for job in jobs}, now, 20.0, 100.0)


def test_a_quantum_begins_with_the_run():
    shares = {("a",): {"v100": 0.5}}
    job = running("a", "v100", started=1000.0, restart_seconds=10.0)
    assert within(shares, (("a",),), job, now=1199.0) == {("a",): "v100"}
    assert not within(shares, (("a",),), job, now=1200.0)


def test_a_restart_takes_at_least_as_long_as_a_cut_start():
    """A job without a measured restart has a quantum by its cut start; a smaller measurement does not shorten it."""
    shares = {("a",): {"v100": 0.5}}
    for measured in (None, 10.0, 50.0):
        job = running("a", "v100", restart_seconds=measured, cut_start_seconds=30.0)
        quantum = 20 * max(measured or 0.0, 30.0)
        assert within(shares, (("a",),), job, now=quantum - 1.0) == {("a",): "v100"}
        assert not within(shares, (("a",),), job, now=quantum)


def test_the_quantum_of_a_pair_is_that_of_its_later_and_its_costlier_job():
    shares = {("a", "b"): {"v100": 0.5}}
    jobs = running("a", "v100", restart_seconds=20.0), running("b", "v100", started=300.0, restart_seconds=10.0)
    assert within(shares, (("a", "b"),), *jobs, now=699.0) == {("a", "b"): "v100"}
    assert not within(shares, (("a", "b"),), *jobs, now=700.0)


def test_an_unconsolidated_run_is_kept_unconsolidated():
    shares = {("a",): {"v100": 0.5, "v100" + UNCONSOLIDATED: 0.25}}
    job = running("a", "v100", restart_seconds=10.0)
    assert within(shares, (("a",),), job, unconsolidated=("a",)) == {("a",): "v100" + UNCONSOLIDATED}


def test_a_grant_that_came_to_nothing_or_has_no_time_share_any_more_has_no_quantum():
    """The job did not start; its co-runner has ended; its time share is of a pair, or of another type now."""
    known = {"restart_seconds": 10.0}
    assert not within({("a",): {"v100": 0.5}}, (("a",),), builders.job("a", 1, **known))
    assert not within({("a",): {"v100": 0.5}}, (("a", "b"),), running("a", "v100", **known))
    assert not within({("a", "b"): {"v100": 0.5}}, (("a",),), running("a", "v100", **known))
    assert not within({("a",): {"v100": 0.5}}, (("a",),), running("a", "k80", **known))


@pytest.mark.parametrize("slos", [True, False])
def test_a_deadline_does_not_wait_for_the_quanta_of_others(slos):
    """With deadlines `gavel_cost` has no quanta: a job that needs half of the time has it from the start."""
    table = small_table()
    bulk = costly("bulk", table=table, total_steps=1e9, progress_steps=0.0)
    urgent = costly("urgent", table=table, total_steps=6 * 10.0 * ROUND, progress_steps=0.0, slo_seconds=13 * ROUND)
    policy = GavelCost(GavelCostParameters(slos=slos))
    rounds = Rounds(policy, cluster(v100=1), {0: [bulk], 5: [urgent]}).run(12)
    assert (1 in rounds.gpus("urgent")[5:8]) == slos
