from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metasched.time_shares import granting
from metasched.time_shares.round_mechanism import (
    Candidate,
    TimeAccounts,
    as_single_combinations,
    jobs_with_shares,
    priorities,
    with_expired_shares,
)
from tests import builders

ROUND = 100.0


def accounts_of(shares, received=None, deficit=None):
    return TimeAccounts(shares=shares, since=0.0, received=received or {}, deficit=deficit or {})


def single(uid, gpus=1, worker_types=("v100", "k80")):
    return Candidate((uid,), gpus, worker_types)


def choose(accounts, candidates, capacity, **more):
    return granting.choose(accounts, candidates, capacity, priorities(accounts, ROUND), **more)


def chosen(round_grants):
    return [(grant.combination, grant.gpu_type) for grant in round_grants]


def job(uid, gpus=1, **attained):
    return builders.job(uid, gpus, attained=attained)


def test_a_priority_is_the_share_over_the_rounds_received():
    """Half a round counts as received from the start; one more round reduces the priority to a third."""
    found = priorities(
        accounts_of(as_single_combinations({"a": {"v100": 0.5}, "b": {"v100": 0.5}}), {("b",): {"v100": 100.0}}), ROUND
    )
    assert found["a",]["v100"] == 0.5 / 0.5
    assert found["b",]["v100"] == 0.5 / 1.5


def test_with_deficits_a_priority_is_the_time_until_a_combination_is_due():
    """Due at (received rounds - deficit + 0.5) / share; earlier is a higher priority, and overdue the highest."""
    shares = as_single_combinations({"a": {"v100": 0.5, "k80": 0.0}, "b": {"v100": 0.25}})
    found = priorities(accounts_of(shares, {("b",): {"v100": 200.0}}, {("b",): {"v100": 350.0}}), ROUND, carry=True)
    assert found == {("a",): {"v100": -1.0}, ("b",): {"v100": 4.0}}


def test_received_time_and_deficits_give_the_same_order_as_a_renewal_in_every_round():
    """The order after three rounds is that after three renewals."""
    shares = as_single_combinations({"a": {"v100": 0.6}, "b": {"v100": 0.4}})
    received = {("a",): {"v100": 200.0}, ("b",): {"v100": 100.0}}
    once = accounts_of(shares, received)
    renewed = once.renew(shares, 300.0)
    due = [priorities(accounts, ROUND, carry=True) for accounts in (once, renewed)]
    for combination in shares:
        assert due[0][combination]["v100"] == pytest.approx(due[1][combination]["v100"] - 3.0)


def test_surplus_time_that_an_earlier_version_stored_as_received_counts_alike():
    """States of that version have no negative deficits."""
    shares = as_single_combinations({"a": {"v100": 0.8}, "b": {"v100": 0.2}})
    stored = accounts_of(shares, {("a",): {"v100": 20.0}}, {("a",): {"v100": 0.0}, ("b",): {"v100": 20.0}})
    now = accounts_of(shares, deficit={("a",): {"v100": -20.0}, ("b",): {"v100": 20.0}})
    assert priorities(stored, ROUND, carry=True) == priorities(now, ROUND, carry=True)
    assert stored.renew({}, 100.0).deficit == now.renew({}, 100.0).deficit


def test_the_deficit_of_a_pair_passes_to_the_job_that_remains():
    """The pair has had half of the time for 100 seconds, and received 20 of them."""
    accounts = accounts_of({("a", "b"): {"v100": 0.5}}, {("a", "b"): {"v100": 20.0}}, {("a",): {"v100": 1.0}})
    assert accounts.split_pairs([job("a"), job("b")], 100.0) == accounts
    assert accounts.split_pairs([job("a")], 100.0).deficit["a",] == {"v100": 31.0}
    assert accounts.split_pairs([job("b")], 100.0).deficit["b",] == {"v100": 30.0}


def test_the_round_goes_to_the_highest_priorities_over_all_types():
    """Each job runs once, on the type where its priority is highest."""
    accounts = accounts_of(as_single_combinations({"a": {"v100": 0.9, "k80": 0.1}, "b": {"v100": 0.1, "k80": 0.9}}))
    round_grants = choose(accounts, [single("a"), single("b")], {"v100": 1, "k80": 1})
    assert sorted(chosen(round_grants)) == [(("a",), "v100"), (("b",), "k80")]


def test_a_combination_that_does_not_fit_is_passed_over():
    """A gang of highest priority needs all of its GPUs; where these are not free, the next combination gets them."""
    accounts = accounts_of(as_single_combinations({"big": {"v100": 0.9}, "small": {"v100": 0.1}}))
    candidates = [single("big", 4), single("small")]
    assert chosen(choose(accounts, candidates, {"v100": 2})) == [(("small",), "v100")]
    assert chosen(choose(accounts, candidates, {"v100": 4})) == [(("big",), "v100")]


def test_a_job_of_a_granted_pair_gets_no_other_round_grant():
    """Combinations that contain a job with a round grant are left out (Algorithm 1)."""
    accounts = accounts_of({("a", "b"): {"v100": 0.8}, ("a",): {"k80": 0.2}, ("c",): {"v100": 0.2}})
    candidates = [single("a"), single("b"), single("c"), Candidate(("a", "b"), 1, ("v100",))]
    assert chosen(choose(accounts, candidates, {"v100": 1, "k80": 1})) == [(("a", "b"), "v100"), (("c",), "k80")]


def test_jobs_without_a_time_share_get_remaining_gpus_only_with_fill():
    """With ``fill``, remaining GPUs go to combinations without a time share; without it they stay idle."""
    accounts = accounts_of(as_single_combinations({"a": {"v100": 1.0}}))
    candidates = [single("b"), single("a")]
    free = {"v100": 1, "k80": 1}
    assert chosen(choose(accounts, candidates, free)) == [(("a",), "v100"), (("b",), "k80")]
    assert chosen(choose(accounts, candidates, free, fill=False)) == [(("a",), "v100")]


def test_types_can_be_filled_one_after_the_other():
    """With ``types_in_turn``, a job runs on the first type that it is chosen for, whatever its priorities."""
    accounts = accounts_of(as_single_combinations({"a": {"v100": 0.9, "k80": 0.1}, "b": {"v100": 0.1, "k80": 0.9}}))
    candidates = [single("a"), single("b")]
    round_grants = choose(accounts, candidates, {"v100": 2, "k80": 2}, types_in_turn=("k80", "v100"))
    assert chosen(round_grants) == [(("b",), "k80"), (("a",), "k80")]
    round_grants = choose(accounts, candidates, {"v100": 1, "k80": 1}, types_in_turn=("v100",))
    assert chosen(round_grants) == [(("a",), "v100")]


def test_equal_priorities_are_ordered_by_deficit_then_by_candidate():
    """The larger deficit under earlier time shares decides, and then the order of the candidates."""
    shares = as_single_combinations({uid: {"v100": 0.5} for uid in "abc"})
    candidates = [single(uid) for uid in "abc"]
    assert chosen(choose(accounts_of(shares), candidates, {"v100": 1})) == [(("a",), "v100")]
    lacking = accounts_of(shares, deficit={("b",): {"v100": 30.0}, ("a",): {"v100": -30.0}})
    assert chosen(choose(lacking, candidates, {"v100": 2})) == [(("b",), "v100"), (("c",), "v100")]
    credit = [single("a"), Candidate(("b",), 1, ("v100",), credit=1.0)]
    assert chosen(choose(accounts_of(shares), credit, {"v100": 1})) == [(("b",), "v100")]


def test_accounts_count_seconds_not_gpu_seconds():
    """A job of four GPUs that ran for a minute has received a minute."""
    accounts = (
        TimeAccounts()
        .record_received([job("a", 4)])
        .renew(as_single_combinations({"a": {"v100": 1.0}}), 0.0)
        .record_received([job("a", 4, v100=240.0)])
    )
    assert accounts.received == {("a",): {"v100": 60.0}}
    assert accounts.record_received([job("a", 4, v100=240.0)]).received == {("a",): {"v100": 60.0}}


def test_time_before_a_job_was_present_is_not_received():
    """The same holds for a job that returns, or that another policy served."""
    assert not TimeAccounts().record_received([job("a", v100=240.0)]).received


def test_time_of_a_pair_is_received_once_on_the_pairs_account():
    """Two jobs that ran on the same GPUs have received the longer of their times, as a pair."""
    accounts = TimeAccounts().record_received([job("a"), job("b")])
    (grant,) = choose(accounts_of({("a", "b"): {"v100": 1.0}}), [Candidate(("a", "b"), 1, ("v100",))], {"v100": 1})
    accounts = accounts.assign([grant]).record_received([job("a", v100=60.0), job("b", v100=50.0)])
    assert accounts.received == {("a", "b"): {"v100": 60.0}}


def test_combinations_of_ended_jobs_leave_the_accounts():
    """Neither the jobs nor pairs with them remain."""
    accounts = accounts_of(
        {("a", "b"): {"v100": 1.0}, ("c",): {"v100": 1.0}}, {("a",): {"v100": 5.0}}, {("b",): {"v100": 5.0}}
    )
    accounts = accounts.record_received([job("b"), job("c")])
    assert accounts.shares.keys() == {("c",)}
    assert not accounts.received
    assert accounts.deficit.keys() == {("b",)}


def test_missing_time_of_earlier_shares_is_added_to_the_deficit():
    """The deficit grows by time share x time, less the received time, at every renewal."""
    accounts = accounts_of(
        as_single_combinations({"a": {"v100": 0.5}}), {("a",): {"v100": 20.0, "k80": 10.0}}, {("a",): {"v100": 1.0}}
    )
    renewed = accounts.renew(as_single_combinations({"a": {"k80": 1.0}}), 100.0)
    assert renewed.deficit == {("a",): {"v100": 31.0, "k80": -10.0}}
    assert renewed.received == {}
    assert renewed.since == 100.0


def test_accounts_survive_json():
    """Accounts that are written as JSON and read again are equal."""
    accounts = TimeAccounts().record_received([job("a", v100=5.0), job("b")]).renew({("a", "b"): {"v100": 0.5}}, 7.0)
    accounts = accounts.assign(choose(accounts, [single("a")], {"v100": 1})).record_received(
        [job("a", v100=9.0), job("b")]
    )
    assert TimeAccounts.from_json(json.loads(json.dumps(accounts.to_json()))) == accounts


def test_time_shares_can_be_expired():
    """The data of a state with accounts say so; data without accounts remain unchanged."""
    data = with_expired_shares({"ledger": TimeAccounts().to_json(), "made_for": {"jobs": ["a"]}})
    assert TimeAccounts.from_json(data["ledger"]).expired
    assert jobs_with_shares(data) == {"a"}
    assert with_expired_shares({"x": 1}) == {"x": 1}
    assert jobs_with_shares({"x": 1}) is None


def test_time_of_an_unconsolidated_grant_is_received_on_that_worker_type():
    """That holds until the next round is granted. Attained service is by GPU type."""
    accounts = TimeAccounts().record_received([job("a", 2)])
    both = Candidate(("a",), 2, ("v100", "v100 unconsolidated"), consolidated={"v100": (2,)})
    shares = accounts_of({("a",): {"v100 unconsolidated": 1.0}})
    (grant,) = choose(shares, [both], {"v100": 2}, nodes={"v100": (1, 1)})
    assert (grant.gpu_type, grant.unconsolidated) == ("v100", True)
    accounts = TimeAccounts.from_json(json.loads(json.dumps(accounts.assign([grant]).to_json()))).record_received(
        [job("a", 2, v100=120.0)]
    )
    assert accounts.received == {("a",): {"v100 unconsolidated": 60.0}}
    (grant,) = choose(accounts_of({("a",): {"v100": 1.0}}), [both], {"v100": 2}, nodes={"v100": (2,)})
    accounts = accounts.assign([grant]).record_received([job("a", 2, v100=200.0)])
    assert accounts.received["a",]["v100"] == 40.0


def test_a_gang_that_does_not_fit_consolidated_runs_unconsolidated_or_not_at_all():
    """Of three gangs of four, two fit on nodes of six; the third has an unconsolidated round grant, or none."""
    gpu_types = ("v100", "v100 unconsolidated")
    gangs = [Candidate((uid,), 4, gpu_types, consolidated={"v100": (4,)}) for uid in "abc"]
    accounts = accounts_of(as_single_combinations({uid: {"v100": 1.0} for uid in "abc"}))
    round_grants = choose(accounts, gangs, {"v100": 12}, nodes={"v100": (6, 6)})
    assert [(grant.combination[0], grant.unconsolidated) for grant in round_grants] == [
        ("a", False),
        ("b", False),
        ("c", True),
    ]
    round_grants = choose(accounts, gangs, {"v100": 12}, nodes={"v100": (6, 6)}, fill=False)
    assert [grant.combination[0] for grant in round_grants] == ["a", "b"]


def test_admitted_jobs_have_no_deficit():
    """Their time before admission does not count, and the accounts of the other jobs are unchanged."""
    accounts = accounts_of(as_single_combinations({"a": {"v100": 1.0}})).admit(
        as_single_combinations({"b": {"v100": 0.5}}), 60.0
    )
    assert accounts.shares == {("a",): {"v100": 1.0}, ("b",): {"v100": 0.5}}
    assert accounts.since == 0.0
    assert accounts.renew({}, 100.0).deficit == {("a",): {"v100": 100.0}, ("b",): {"v100": 20.0}}


def test_admitted_jobs_keep_an_earlier_deficit():
    """A job whose pair has ended lacks the pair's time still."""
    accounts = accounts_of({}, deficit={("b",): {"v100": 30.0}}).admit(
        as_single_combinations({"b": {"v100": 0.5}}), 60.0
    )
    assert accounts.renew({}, 100.0).deficit == {("b",): {"v100": 50.0}}


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.integers(1, 10), min_size=2, max_size=6),
    st.lists(st.integers(1, 10), min_size=2, max_size=6),
    st.integers(1, 3),
)
def test_received_time_approaches_the_time_shares(weights_a, weights_b, gpus):
    """Over many rounds, received time approaches share x time on each type, for any valid shares of single-GPU jobs."""
    count = min(len(weights_a), len(weights_b))
    rows = list(zip(weights_a[:count], weights_b[:count], strict=True))
    by_type = [sum(row[i] for row in rows) for i in (0, 1)]
    scale = min(*(gpus / total for total in by_type), *(1 / sum(row) for row in rows))
    shares = {str(i): {"v100": a * scale, "k80": b * scale} for i, (a, b) in enumerate(rows)}
    accounts = TimeAccounts().renew(as_single_combinations(shares), 0.0)
    received = {uid: {"v100": 0.0, "k80": 0.0} for uid in shares}
    rounds = 150
    for _ in range(rounds):
        accounts = accounts.record_received([job(uid, **times) for uid, times in received.items()])
        round_grants = choose(accounts, [single(uid) for uid in shares], {"v100": gpus, "k80": gpus}, fill=False)
        assert len({uid for grant in round_grants for uid in grant.combination}) == len(round_grants)
        for grant in round_grants:
            received[grant.combination[0]][grant.gpu_type] += ROUND
    for uid, share in shares.items():
        for gpu_type, part in share.items():
            assert received[uid][gpu_type] / (rounds * ROUND) >= part - 0.05
