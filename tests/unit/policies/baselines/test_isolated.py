from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metasched.core import reason_words
from metasched.core.model import Node, Placement, Preempt, Snapshot, Status
from metasched.core.resumable_rng import LIFE, SKIP, WORD, ResumableRng
from metasched.scheduling.engine import run_round
from metasched.time_shares.policy_base import TimeShareParameters
from policies.baselines.gandiva import Gandiva
from policies.baselines.gavel_fifo import GavelFifo, GavelFifoParameters
from policies.baselines.isolated import Isolated
from policies.baselines.max_sum_throughput import MaxSumThroughput
from tests.unit.gavel_tables import cluster, known_job, small_table
from tests.unit.rounds import ROUND, Rounds
from tests.unit.strategies import snapshots

POLICIES = {
    "isolated": Isolated(),
    "shuffled": Isolated(TimeShareParameters(types_in_turn=("v100", "a100"), shuffle_types=True)),
    "max_sum_throughput": MaxSumThroughput(),
    "gandiva": Gandiva(),
    "gavel_fifo": GavelFifo(),
    "agnostic": GavelFifo(GavelFifoParameters(aware=False)),
    "as_published": GavelFifo(GavelFifoParameters(aware=False, as_published=True)),
}


def snapshot(jobs, nodes, now=0.0, **more):
    return Snapshot(now, 1, ROUND, nodes, tuple(jobs), **more)


def shares(policy, jobs, nodes, **more):
    """The time shares that a policy computes, by uid."""
    result = run_round(snapshot(jobs, nodes, **more), policy, None)
    return {"+".join(combination): share for combination, share in result.state.data["ledger"]["shares"]}


def test_each_job_has_an_equal_share_of_every_type():
    """Each of n jobs has 1/n of the time of all GPUs of a type."""
    found = shares(Isolated(), [known_job(uid) for uid in "abcd"], cluster(v100=2, k80=1))
    assert found == {uid: {"v100": 0.5, "k80": 0.25} for uid in "abcd"}


def test_a_job_that_no_nodes_can_run_takes_no_share():
    """The others have all of the time."""
    found = shares(Isolated(), [known_job("a"), known_job("b"), known_job("huge", gpus=8)], cluster(v100=2))
    assert found == {"a": {"v100": 1.0}, "b": {"v100": 1.0}, "huge": {}}


def test_a_share_is_over_the_jobs_gpus_and_at_most_all_of_the_time():
    """A job of two GPUs has half of the time; a job's shares add up to 1 at most."""
    found = shares(Isolated(), [known_job("a"), known_job("b", gpus=2)], cluster(v100=4, k80=4))
    assert found["a"] == {"v100": 0.5, "k80": 0.5}
    assert found["b"] == {"v100": 0.5, "k80": 0.5}
    (found,) = shares(Isolated(), [known_job("a", gpus=2)], cluster(v100=2, k80=2)).values()
    assert found == {"v100": 0.5, "k80": 0.5}


def test_a_job_has_no_share_of_a_type_on_which_it_cannot_run():
    """The job does not accept the type, does not fit on it, or is known not to run there."""
    table = small_table()
    jobs = [
        known_job("picky", gpu_types=("v100",)),
        known_job("dead", "steady", 2, table=table),
        known_job("wide", gpus=3, max_nodes=1),
    ]
    found = shares(Isolated(), jobs, cluster(v100=3, k80=2))
    assert all(share.keys() == {"v100"} for share in found.values())


def test_jobs_with_equal_shares_alternate():
    """Three jobs on one GPU each run every third round."""
    rounds = Rounds(Isolated(), cluster(v100=1), {0: [known_job(uid) for uid in "abc"]}).run(9)
    assert [sum(rounds.gpus(uid)) for uid in "abc"] == [3, 3, 3]


def test_reasons_tell_the_time_share_of_a_job():
    """Both of jobs that run and of jobs that wait."""
    result = run_round(snapshot([known_job("a"), known_job("b")], cluster(v100=1)), Isolated(), None)
    assert reason_words.words(result.reasons["a"]) == "its turn on v100: its share of time is 50% of v100"
    assert reason_words.words(result.reasons["b"]).startswith("not its turn: its share of time is 50% of v100")


def test_a_job_none_of_whose_types_is_in_turn_has_a_reason_of_its_own():
    """A misspelt type, for example, must not look like a wait for other jobs."""
    policy = Isolated(TimeShareParameters(types_in_turn=("v10O",)))
    result = run_round(snapshot([known_job("a")], cluster(v100=1)), policy, None)
    assert reason_words.words(result.reasons["a"]) == "not its turn: types_in_turn names none of its types"


def test_a_job_that_no_nodes_can_hold_waits_and_delays_no_other_job():
    """Its reason says so, and the other jobs run."""
    result = run_round(snapshot([known_job("a", gpus=4), known_job("b")], cluster(v100=2)), Isolated(), None)
    assert result.targets.keys() == {"b"}
    assert reason_words.words(result.reasons["a"]) == "even empty, the nodes that accept jobs could not give it 4 GPUs"


def test_a_pinned_job_keeps_its_gpus_and_the_others_share_the_rest():
    """It is granted its present GPUs, and has no time share."""
    held = Placement(("v100",), 1, "v100")
    jobs = [
        known_job("a", preempt=Preempt.NO, status=Status.RUNNING, placement=held),
        known_job("b"),
        known_job("c"),
    ]
    assert shares(Isolated(), jobs, cluster(v100=2)) == {"b": {"v100": 0.5}, "c": {"v100": 0.5}}
    assert run_round(snapshot(jobs, cluster(v100=2)), Isolated(), None).targets["a"] == held


def held(uid, *nodes, gpus=1, gpu_type="v100", **more):
    """A job that runs on these nodes, with that many GPUs on each."""
    place = Placement(nodes, gpus, gpu_type)
    return known_job(uid, gpus=place.gpus, status=Status.RUNNING, placement=place, **more)


ROOMY = Node("k80", "k80", 4, 32, 2**35)


@pytest.mark.parametrize(
    ("fast", "more"),
    [
        ((Node("v100", "v100", 4, 8, 2**35),), {"cpus_per_unit": 8}),
        ((Node("v100", "v100", 4, 32, 2**32),), {"memory_per_unit": 2**33}),
        ((Node("n1", "v100", 4, 32, 2**35), Node("n2", "v100", 4, 32, 2**35)), {"nodes": 1, "max_nodes": 1}),
    ],
    ids=["cpus", "memory", "fragments"],
)
@pytest.mark.parametrize("name", ["isolated", "max_sum_throughput", "gandiva", "gavel_fifo", "agnostic"])
def test_a_gang_has_no_share_of_a_type_on_whose_nodes_it_cannot_be_placed(name, fast, more):
    """For lack of CPUs, memory, or GPUs that retained jobs leave on each node: it runs on the other type at once."""
    retained = [held(f"p{number}", f"n{number}", preempt=Preempt.NO) for number in (1, 2)] if len(fast) > 1 else []
    view = snapshot([*retained, known_job("gang", gpus=4, **more)], (*fast, ROOMY))
    assert run_round(view, POLICIES[name], None).targets["gang"].gpu_type == "k80"


@pytest.mark.parametrize("heed_speeds", [True, False])
def test_a_job_without_nodes_because_of_retained_jobs_has_a_reason_of_its_own(heed_speeds):
    """It has a time share as soon as retained jobs leave it nodes, even if they hold as many GPUs as before."""
    policy = GavelFifo(GavelFifoParameters(heed_speeds=heed_speeds))
    nodes = tuple(Node(name, "v100", 4, 0, 0) for name in ("n1", "n2"))
    retained = [held("p", "n1", preempt=Preempt.NO), held("q", "n2", preempt=Preempt.NO)]
    waits = [known_job("gang", gpus=4, nodes=1), known_job("huge", gpus=8, nodes=1)]
    first = run_round(snapshot([*retained, *waits], nodes), policy, None)
    words = "the nodes that accept jobs could not give it"
    assert reason_words.words(first.reasons["gang"]) == f"without what non-preemptible jobs hold, {words} 4 GPUs"
    assert reason_words.words(first.reasons["huge"]) == f"even empty, {words} 8 GPUs"
    retained = [held("p", "n1", gpus=2, preempt=Preempt.NO)]
    second = run_round(snapshot([*retained, *waits], nodes, now=1.0), policy, first.state)
    assert second.targets["gang"].nodes == ("n2",)


def test_gpus_that_two_retained_jobs_share_are_subtracted_once():
    """A third job gets the GPUs that these leave."""
    pair = [held(uid, "v100", gpus=2, preempt=Preempt.NO, co_runner=other) for uid, other in (("a", "b"), ("b", "a"))]
    view = snapshot([*pair, known_job("c", gpus=2)], cluster(v100=4), sharing=True)
    for policy in (Isolated(), GavelFifo()):
        assert run_round(view, policy, None).targets.keys() == {"a", "b", "c"}


@pytest.mark.parametrize("sharing", [False, True])
@pytest.mark.parametrize("name", POLICIES)
def test_a_job_on_closed_nodes_continues_and_reduces_no_other_share(name, sharing):
    """So do two jobs on the same GPUs; the other jobs share the open node."""
    nodes = (Node("old", "v100", 1, 0, 0, accepts=False), *cluster(v100=1, a100=1))
    jobs = [held("a", "old"), known_job("b", gpu_types=("v100",))]
    if sharing:
        pair = {"co_runner": "c"}, {"co_runner": "a"}
        jobs = [held("a", "old", **pair[0]), jobs[1], held("c", "old", **pair[1])]
    result = run_round(snapshot(jobs, nodes, sharing=sharing), POLICIES[name], None)
    assert {uid: place.nodes for uid, place in result.targets.items()} == {
        **dict.fromkeys("ac" if sharing else "a", ("old",)),
        "b": ("v100",),
    }
    assert reason_words.words(result.reasons["a"]) == "it runs on: its nodes accept no other jobs now"
    assert not any("a" in combination or "c" in combination for combination, _ in result.state.data["ledger"]["shares"])


@pytest.mark.parametrize("submitted", [0.0, 2.0])
def test_two_jobs_on_closed_nodes_continue_if_one_is_pinned(submitted):
    """The order of their submission does not matter."""
    nodes = (Node("old", "v100", 1, 0, 0, accepts=False), *cluster(v100=1))
    one = held("a", "old", submitted=1.0, co_runner="b")
    other = held("b", "old", submitted=submitted, preempt=Preempt.NO, co_runner="a")
    view = snapshot([one, other, known_job("c", submitted=3.0)], nodes, sharing=True)
    result = run_round(view, Isolated(), None)
    assert {uid: place.nodes for uid, place in result.targets.items()} == {"a": ("old",), "b": ("old",), "c": ("v100",)}


def test_a_job_on_closed_nodes_continues_at_any_size():
    """It continues on two GPUs although it requested four: no other job could use them."""
    nodes = (Node("old", "v100", 4, 0, 0, accepts=False), *cluster(v100=4))
    shrunk = held("a", "old", gpus=2).evolve(gpus=4, max_gpus=4)
    result = run_round(snapshot([shrunk, known_job("b", gpus=4)], nodes), Isolated(), None)
    assert {uid: (place.nodes, place.gpus) for uid, place in result.targets.items()} == {
        "a": (("old",), 2),
        "b": (("v100",), 4),
    }


def test_shares_are_recomputed_when_jobs_arrive_or_end():
    """At every such round, unless a least time between two computations is given."""
    jobs = {0: [known_job("a")], 1: [known_job("b")]}
    often = Rounds(Isolated(), cluster(v100=1), jobs).run(2)
    assert often.state.data["ledger"]["since"] == ROUND
    seldom = Isolated(TimeShareParameters(recompute_seconds=10 * ROUND))
    rounds = Rounds(seldom, cluster(v100=1), jobs).run(2)
    assert rounds.state.data["ledger"]["since"] == 0.0
    assert rounds.run(9).state.data["ledger"]["since"] == 10 * ROUND


def test_shares_are_recomputed_when_weights_deadlines_or_steps_change():
    """So they are when the policy's parameters change."""
    rounds = Rounds(Isolated(), cluster(v100=1), {0: [known_job("a"), known_job("b")]}).run(2)
    assert rounds.state.data["ledger"]["since"] == 0.0
    for number, change in enumerate(({"weight": 2.0}, {"slo_seconds": 60.0}, {"total_steps": 5.0}), 2):
        rounds.jobs["a"] = rounds.jobs["a"].evolve(**change)
        assert rounds.run(1).state.data["ledger"]["since"] == number * ROUND
    rounds.policy = Isolated(TimeShareParameters(seed=1))
    assert rounds.run(1).state.data["ledger"]["since"] == 5 * ROUND


def test_the_order_of_types_is_random_by_seed():
    """Two simulations agree; types that are not named are not used."""
    parameters = TimeShareParameters(types_in_turn=("v100", "k80"), shuffle_types=True, seed=3)
    jobs = {0: [known_job(uid) for uid in "ab"]}
    one, other = (Rounds(Isolated(parameters), cluster(v100=1, k80=1, p100=4), jobs).run(8) for _ in range(2))
    assert one.history == other.history
    assert {place.gpu_type for targets in one.history for place in targets.values()} == {"v100", "k80"}


@pytest.mark.parametrize("name", POLICIES)
@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_any_cluster_and_queue_gets_a_valid_decision_twice(name, data):
    """The decision keeps the contract, the state is JSON, and the same input gives the same answer."""
    policy = POLICIES[name]
    view = data.draw(snapshots())
    first = run_round(view, policy, None)
    assert first == run_round(view, policy, None)
    assert json.loads(json.dumps(dict(first.state.data))) == first.state.data
    second = run_round(view, policy, first.state)
    assert second == run_round(view, policy, first.state)


@given(st.lists(st.sampled_from((1, 2)), min_size=1, max_size=8), st.integers(1, 4))
def test_no_gpu_idles_that_a_job_could_use(sizes, gpus):
    """After a round without fragmentation, no waiting job would fit on the free GPUs."""
    jobs = [known_job(f"j{i}", gpus=size) for i, size in enumerate(sizes)]
    result = run_round(snapshot(jobs, cluster(v100=gpus, k80=1)), Isolated(), None)
    free = {"v100": gpus, "k80": 1}
    for place in result.targets.values():
        free[place.gpu_type] -= place.gpus
    assert all(job.gpus > max(free.values()) for job in jobs if job.uid not in result.targets)


def test_a_resumed_generator_continues_its_sequence():
    """A generator resumed from its seed and use draws the number that the first one draws next."""
    first = ResumableRng.resume(7)
    first.sample(range(30), 2)
    first.shuffle([1, 2, 3])
    first.random()
    again = ResumableRng.resume(7, first.used)
    assert [again.random(), again.randrange(1000)] == [first.random(), first.randrange(1000)]
    assert again.used == first.used


def test_a_generator_can_be_resumed_after_any_use():
    """Skipping many words at a time or few gives the same numbers."""
    whole = ResumableRng(7)
    whole.getrandbits(WORD * (SKIP + 1))
    assert ResumableRng.resume(7, SKIP + 1).random() == whole.random()
    later = [ResumableRng.resume(seed, life * LIFE + 3) for seed, life in ((7, 0), (7, 1), (7, 1), (7, 2), (8, 1))]
    assert later[1].used == LIFE + 3
    first, *others = [chance.random() for chance in later]
    assert first not in others
    assert len(set(others)) == 3
    assert others[0] == others[1]


def test_a_job_that_was_hidden_for_a_round_has_an_interim_share():
    """New time shares come into force only some rounds later."""
    late = Isolated(TimeShareParameters(recompute_rounds=8))
    rounds = Rounds(late, cluster(v100=1), {0: [known_job(uid) for uid in "abc"]}).run(10)
    away = rounds.jobs.pop("a")
    rounds.run(1)
    rounds.jobs["a"] = away.evolve(status=Status.HELD, placement=None)
    rounds.run(6)
    assert sum(rounds.gpus("a")[11:]) >= 2
