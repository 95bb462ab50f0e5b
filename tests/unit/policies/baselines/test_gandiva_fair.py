import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metasched.core.model import Snapshot
from metasched.scheduling.engine import run_round
from policies.baselines.gandiva_fair import GandivaFair, GandivaFairParameters, divide
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
    jobs = [known_job("a", user="ann"), known_job("b", user="bob", gpu_types=("k80",))]
    found = shares(GandivaFair(), jobs, cluster(v100=1, k80=1))
    assert found == {"a": {"v100": 0.5, "k80": 0.5}, "b": {"k80": 1.0}}


def test_received_gpu_time_is_in_proportion_to_tickets():
    """After many rounds a gang and two single jobs of another user differ by at most a round."""
    jobs = [known_job("a", gpus=2, user="ann"), known_job("b", user="bob"), known_job("c", user="bob")]
    rounds = Rounds(GandivaFair(), cluster(v100=2), {0: jobs}).run(20)
    had = {uid: job.attained_service for uid, job in rounds.jobs.items()}
    assert had["a"] == pytest.approx(had["b"] + had["c"], abs=2 * ROUND)


@given(
    st.floats(0.1, 100),
    st.lists(st.tuples(st.floats(0.1, 10), st.floats(0.1, 50)), min_size=1, max_size=8),
)
def test_divided_parts_are_in_proportion_or_at_their_most(total, parts):
    """No part is above its most, all is given out if possible, and parts below their most are equal per ticket."""
    tickets, most = zip(*parts, strict=True)
    found = divide(total, tickets, most)
    assert all(amount <= limit * (1 + 1e-9) for amount, limit in zip(found, most, strict=True))
    assert sum(found) == pytest.approx(min(total, sum(most)))
    rates = [found[i] / tickets[i] for i in range(len(found))]
    open_ended = [rates[i] for i in range(len(found)) if found[i] < most[i] * (1 - 1e-6)]
    assert all(rate == pytest.approx(max(rates), rel=1e-6) for rate in open_ended)


@settings(deadline=None, max_examples=40)
@given(snapshots(), st.booleans())
def test_any_cluster_and_queue_gets_a_valid_decision_twice(view, as_published):
    """The decision keeps the contract, the state is JSON, and the same input gives the same answer."""
    policy = GandivaFair(GandivaFairParameters(as_published=as_published))
    first = run_round(view, policy, None)
    assert json.loads(json.dumps(dict(first.state.data))) == first.state.data
    assert run_round(view, policy, first.state) == run_round(view, policy, first.state)
