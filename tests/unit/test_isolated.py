from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metasched.chance import Chance
from metasched.engine import run_round
from metasched.fractions import FractionParameters
from metasched.model import Placement, Preempt, Snapshot, Status
from policies.baselines.gandiva import Gandiva
from policies.baselines.gavel_fifo import GavelFifo, GavelFifoParameters
from policies.baselines.isolated import Isolated
from policies.baselines.max_sum_throughput import MaxSumThroughput
from tests.unit.gavel_tables import cluster, known_job, small_table
from tests.unit.rounds import ROUND, Rounds
from tests.unit.strategies import snapshots

POLICIES = {
    "isolated": Isolated(),
    "shuffled": Isolated(FractionParameters(types_in_turn=("v100", "a100"), shuffle_types=True)),
    "max_sum_throughput": MaxSumThroughput(),
    "gandiva": Gandiva(),
    "gavel_fifo": GavelFifo(),
    "agnostic": GavelFifo(GavelFifoParameters(aware=False)),
    "as_published": GavelFifo(GavelFifoParameters(aware=False, as_published=True)),
}


def snapshot(jobs, nodes, now=0.0, **more):
    return Snapshot(now, 1, ROUND, nodes, tuple(jobs), **more)


def shares(policy, jobs, nodes, **more):
    """The shares that a policy makes, by uid."""
    result = run_round(snapshot(jobs, nodes, **more), policy, None)
    return {"+".join(who): share for who, share in result.state.data["ledger"]["shares"]}


def test_everybody_has_an_equal_part_of_every_type():
    """Of n jobs each has 1/n of the time of all GPUs of a type."""
    found = shares(Isolated(), [known_job(uid) for uid in "abcd"], cluster(v100=2, k80=1))
    assert found == {uid: {"v100": 0.5, "k80": 0.25} for uid in "abcd"}


def test_a_part_is_counted_in_gpus_and_no_more_than_all_of_the_time():
    """A job of two GPUs has half the time for its part; a job's shares add up to 1 at most."""
    found = shares(Isolated(), [known_job("a"), known_job("b", gpus=2)], cluster(v100=4, k80=4))
    assert found["a"] == {"v100": 0.5, "k80": 0.5}
    assert found["b"] == {"v100": 0.5, "k80": 0.5}
    (found,) = shares(Isolated(), [known_job("a", gpus=2)], cluster(v100=2, k80=2)).values()
    assert found == {"v100": 0.5, "k80": 0.5}


def test_a_type_on_which_a_job_cannot_run_is_no_part_of_its_shares():
    """Whether it does not accept the type, does not fit on it, or is known not to run there."""
    table = small_table()
    jobs = [
        known_job("picky", gpu_types=("v100",)),
        known_job("dead", "steady", 2, table=table),
        known_job("wide", gpus=3, max_nodes=1),
    ]
    found = shares(Isolated(), jobs, cluster(v100=3, k80=2))
    assert all(share.keys() == {"v100"} for share in found.values())


def test_jobs_take_turns():
    """Three jobs on one GPU each run every third round."""
    rounds = Rounds(Isolated(), cluster(v100=1), {0: [known_job(uid) for uid in "abc"]}).run(9)
    assert [sum(rounds.gpus(uid)) for uid in "abc"] == [3, 3, 3]


def test_reasons_say_what_share_a_job_has():
    """Whether it runs or waits."""
    result = run_round(snapshot([known_job("a"), known_job("b")], cluster(v100=1)), Isolated(), None)
    assert result.reasons["a"] == "its turn on v100: its share of time is 50% of v100"
    assert result.reasons["b"].startswith("not its turn: its share of time is 50% of v100")


def test_a_job_that_fits_nowhere_waits_and_holds_nobody_up():
    """It is told so, and the others run."""
    result = run_round(snapshot([known_job("a", gpus=4), known_job("b")], cluster(v100=2)), Isolated(), None)
    assert result.targets.keys() == {"b"}
    assert result.reasons["a"] == "even empty, the nodes that accept jobs could not run it on 4 GPUs"


def test_a_job_that_cannot_stop_keeps_its_gpus_and_the_others_share_the_rest():
    """It is granted what it holds, and is no part of the shares."""
    held = Placement(("v100",), 1, "v100")
    jobs = [
        known_job("a", preempt=Preempt.NO, status=Status.RUNNING, placement=held),
        known_job("b"),
        known_job("c"),
    ]
    assert shares(Isolated(), jobs, cluster(v100=2)) == {"b": {"v100": 0.5}, "c": {"v100": 0.5}}
    assert run_round(snapshot(jobs, cluster(v100=2)), Isolated(), None).targets["a"] == held


def test_shares_are_made_anew_when_jobs_come_and_go():
    """At every such round, unless a least time between two is given."""
    jobs = {0: [known_job("a")], 1: [known_job("b")]}
    often = Rounds(Isolated(), cluster(v100=1), jobs).run(2)
    assert often.state.data["ledger"]["since"] == ROUND
    seldom = Isolated(FractionParameters(recompute_seconds=10 * ROUND))
    rounds = Rounds(seldom, cluster(v100=1), jobs).run(2)
    assert rounds.state.data["ledger"]["since"] == 0.0
    assert rounds.run(9).state.data["ledger"]["since"] == 10 * ROUND


def test_shares_are_made_anew_when_what_is_wished_for_changes():
    """A job's weight, deadline and steps, and the policy's own parameters."""
    rounds = Rounds(Isolated(), cluster(v100=1), {0: [known_job("a"), known_job("b")]}).run(2)
    assert rounds.state.data["ledger"]["since"] == 0.0
    for number, change in enumerate(({"weight": 2.0}, {"slo_seconds": 60.0}, {"total_steps": 5.0}), 2):
        rounds.jobs["a"] = rounds.jobs["a"].evolve(**change)
        assert rounds.run(1).state.data["ledger"]["since"] == number * ROUND
    rounds.policy = Isolated(FractionParameters(seed=1))
    assert rounds.run(1).state.data["ledger"]["since"] == 5 * ROUND


def test_the_order_of_types_is_chance_that_a_seed_fixes():
    """Two runs agree; types that are not named are not used."""
    parameters = FractionParameters(types_in_turn=("v100", "k80"), shuffle_types=True, seed=3)
    jobs = {0: [known_job(uid) for uid in "ab"]}
    one, other = (Rounds(Isolated(parameters), cluster(v100=1, k80=1, p100=4), jobs).run(8) for _ in range(2))
    assert one.history == other.history
    assert {place.gpu_type for targets in one.history for place in targets.values()} == {"v100", "k80"}


@pytest.mark.parametrize("name", POLICIES)
@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_any_cluster_and_queue_gets_a_valid_decision_twice(name, data):
    """The engine finds no fault with it, the state is JSON, and the same input gives the same answer."""
    policy = POLICIES[name]
    view = data.draw(snapshots())
    first = run_round(view, policy, None)
    assert first == run_round(view, policy, None)
    assert json.loads(json.dumps(dict(first.state.data))) == first.state.data
    second = run_round(view, policy, first.state)
    assert second == run_round(view, policy, first.state)


@given(st.lists(st.sampled_from((1, 2)), min_size=1, max_size=8), st.integers(1, 4))
def test_no_gpu_idles_that_a_job_could_use(sizes, gpus):
    """After a round without fragmentation, no job that waits would fit on what is free."""
    jobs = [known_job(f"j{i}", gpus=size) for i, size in enumerate(sizes)]
    result = run_round(snapshot(jobs, cluster(v100=gpus, k80=1)), Isolated(), None)
    free = {"v100": gpus, "k80": 1}
    for place in result.targets.values():
        free[place.gpu_type] -= place.gpus
    assert all(job.gpus > max(free.values()) for job in jobs if job.uid not in result.targets)


def test_chance_goes_on_where_it_was():
    """A generator resumed from its seed and use draws what the first one draws next."""
    first = Chance.resume(7)
    first.sample(range(30), 2)
    first.shuffle([1, 2, 3])
    first.random()
    again = Chance.resume(7, first.used)
    assert [again.random(), again.randrange(1000)] == [first.random(), first.randrange(1000)]
    assert again.used == first.used
