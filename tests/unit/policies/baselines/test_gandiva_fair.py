import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metasched.core.model import Snapshot
from metasched.scheduling.engine import run_round
from metasched.time_shares.allocation_inputs import allocation_inputs
from policies.baselines.gandiva_fair import GandivaFair, GandivaFairParameters
from tests.unit.gavel_tables import cluster, known_job
from tests.unit.rounds import ROUND, Rounds
from tests.unit.strategies import snapshots


def shares(policy, jobs, nodes):
    """The time shares that a policy computes, by uid."""
    result = run_round(Snapshot(0.0, 1, ROUND, nodes, tuple(jobs)), policy, None)
    return {"+".join(combination): share for combination, share in result.state.data["ledger"]["shares"]}


def test_users_have_equal_shares_however_many_jobs_they_have():
    """One user's only job has as much GPU time as another's four together."""
    jobs = [known_job("a", user="ann"), *(known_job(uid, user="bob") for uid in "bcde")]
    found = shares(GandivaFair(), jobs, cluster(v100=1))
    assert found == {"a": {"v100": 0.5}, **{uid: {"v100": 0.125} for uid in "bcde"}}


def test_a_users_tickets_are_divided_by_weight():
    """A job of twice the weight has twice the time."""
    jobs = [known_job("a", weight=1.0), known_job("b", weight=0.5)]
    found = shares(GandivaFair(), jobs, cluster(v100=1))
    assert found == {"a": {"v100": pytest.approx(2 / 3)}, "b": {"v100": pytest.approx(1 / 3)}}


def test_a_gang_pays_for_all_of_its_gpus():
    """Of four GPUs each user has two: a gang of four runs half of the time, and so do four single jobs."""
    jobs = [known_job("a", gpus=4, user="ann"), *(known_job(uid, user="bob") for uid in "bcde")]
    assert shares(GandivaFair(), jobs, cluster(v100=4)) == {uid: {"v100": 0.5} for uid in "abcde"}


def test_gpus_that_one_user_cannot_use_go_to_the_others():
    """A user with one job of one GPU leaves three of four to the other."""
    jobs = [known_job("a", user="ann"), *(known_job(uid, user="bob") for uid in "bcdefg")]
    found = shares(GandivaFair(), jobs, cluster(v100=4))
    assert found["a"] == {"v100": 1.0}
    assert found["b"] == {"v100": pytest.approx(0.5)}


def test_a_user_can_use_no_more_gpus_than_the_accepted_types_have():
    """Four jobs that accept a V100 alone can use one GPU of eight; the other user has the seven others."""
    jobs = [known_job(uid, user="ann", gpu_types=("v100",)) for uid in "abcd"]
    jobs += [known_job(f"b{number}", user="bob") for number in range(8)]
    found = shares(GandivaFair(), jobs, cluster(v100=1, k80=7))
    assert [found[uid] for uid in "abcd"] == [{"v100": 0.25}] * 4
    assert sum(found["b0"].values()) == pytest.approx(7 / 8)


def test_jobs_may_have_tickets_of_their_own():
    """Then a user with more jobs has more GPU time."""
    jobs = [known_job("a", user="ann"), *(known_job(uid, user="bob") for uid in "bcd")]
    found = shares(GandivaFair(GandivaFairParameters(by_user=False)), jobs, cluster(v100=2))
    assert found == {uid: {"v100": 0.5} for uid in "abcd"}


def test_as_published_all_jobs_have_equal_time():
    """Neither numbers of GPUs nor users count."""
    jobs = [known_job("a", gpus=2, user="ann"), *(known_job(uid, user="bob") for uid in "bcd")]
    found = shares(GandivaFair(GandivaFairParameters(as_published=True)), jobs, cluster(v100=2))
    assert found == {uid: {"v100": 0.5} for uid in "abcd"}


def test_shares_are_divided_over_all_types_that_a_job_can_use():
    """They are in proportion to the types' GPUs."""
    jobs = [known_job("a", user="ann"), known_job("b", gpus=2, user="bob")]
    found = shares(GandivaFair(), jobs, cluster(v100=2, k80=6))
    assert found == {uid: {"v100": 0.25, "k80": 0.75} for uid in "ab"}


def test_a_job_leaves_a_gpu_type_to_jobs_that_can_use_no_other():
    """Both run all of the time: the first job's share is on the type that the second cannot use."""
    jobs = [known_job("a", user="ann"), known_job("b", user="bob", gpu_types=("k80",))]
    found = shares(GandivaFair(), jobs, cluster(v100=1, k80=1))
    assert found == {"a": {"v100": 1.0}, "b": {"k80": 1.0}}


def test_gpus_that_no_job_can_use_do_not_count():
    """Users have equal parts of the one GPU that they can use."""
    jobs = [known_job(uid, user=user, gpu_types=("k80",)) for uid, user in (("a", "ann"), ("b", "bob"), ("c", "bob"))]
    found = shares(GandivaFair(), jobs, cluster(k80=1, v100=24))
    assert found == {"a": {"k80": 0.5}, "b": {"k80": 0.25}, "c": {"k80": 0.25}}


def test_a_type_without_gpus_has_no_time_shares():
    """Retained jobs have all of its GPUs; a job that was placed there has its time on other types."""
    jobs = [known_job("a", user="ann"), known_job("b", user="bob")]
    inputs = allocation_inputs(Snapshot(0.0, 1, ROUND, cluster(v100=1, k80=1), tuple(jobs)))
    inputs = replace(
        inputs, capacity={"v100": 1, "k80": 0}, gpus_per_node={"a": {"k80": (1,), "v100": (1,)}, "b": {"k80": (1,)}}
    )
    assert GandivaFair().time_shares(inputs, {}) == ({("a",): {"v100": 1.0}}, {})


def test_a_user_whose_job_finds_its_type_full_has_more_time_with_another_job():
    """Each user has one of two GPUs: as bob can use the K80 alone, ann has the V100."""
    jobs = [
        known_job("a", user="ann", gpu_types=("k80",)),
        known_job("b", user="ann", gpu_types=("v100",)),
        known_job("c", user="bob", gpu_types=("k80",)),
    ]
    found = shares(GandivaFair(), jobs, cluster(v100=1, k80=1))
    assert found == {"b": {"v100": 1.0}, "c": {"k80": 1.0}, "a": {}}


def test_received_gpu_time_is_in_proportion_to_tickets():
    """After many rounds a gang and two single jobs of another user differ by at most a round."""
    jobs = [known_job("a", gpus=2, user="ann"), known_job("b", user="bob"), known_job("c", user="bob")]
    rounds = Rounds(GandivaFair(), cluster(v100=2), {0: jobs}).run(20)
    had = {uid: job.attained_service for uid, job in rounds.jobs.items()}
    assert had["a"] == pytest.approx(had["b"] + had["c"], abs=2 * ROUND)


@settings(deadline=None, max_examples=40)
@given(snapshots(), st.booleans())
def test_any_cluster_and_queue_gets_a_valid_decision_twice(view, as_published):
    """The decision keeps the contract, the state is JSON, and the same input gives the same answer."""
    policy = GandivaFair(GandivaFairParameters(as_published=as_published))
    first = run_round(view, policy, None)
    assert json.loads(json.dumps(dict(first.state.data))) == first.state.data
    assert run_round(view, policy, first.state) == run_round(view, policy, first.state)
