from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metasched.time_shares.deficits import FULL_ROUNDS, carried_over
from metasched.time_shares.round_mechanism import TimeAccounts, as_single_combinations

ROUND = 100.0
MOST = FULL_ROUNDS * ROUND
GPUS = {"a": 2, "b": 1, "c": 1, "d": 1}


def carried(deficit, shares, elapsed=ROUND):
    return carried_over(deficit, shares, GPUS, elapsed, ROUND)[0]


def test_a_surplus_counts_only_as_far_as_others_have_a_deficit():
    """Of two surplus GPU-seconds, one counts where other jobs lack one GPU-second; time on idle GPUs does not count."""
    shares = as_single_combinations({"a": {"v100": 0.5}, "b": {"v100": 0.5}, "c": {"k80": 0.5}})
    alone = {("a",): {"v100": -20.0}, ("c",): {"k80": 90.0}}
    assert carried(alone, shares)["a",] == {"v100": 0.0}
    short = {**alone, ("b",): {"v100": 20.0}}
    assert carried(short, shares) == {("a",): {"v100": -10.0}, ("b",): {"v100": 20.0}, ("c",): {"k80": 90.0}}


def test_a_surplus_counts_only_on_types_of_which_the_job_has_a_time_share():
    """Time on GPUs that other jobs left is no surplus, and neither is it one on other types."""
    shares = as_single_combinations({"a": {"v100": 1.0}, "b": {"k80": 1.0}})
    found = carried({("a",): {"k80": -50.0}, ("b",): {"k80": 70.0}}, shares)
    assert found == {("b",): {"k80": 70.0}}


def test_a_deficit_follows_a_job_to_other_types():
    """It is divided in proportion to the new time shares, and added to the deficits there."""
    shares = as_single_combinations({"a": {"k80": 0.3, "p100": 0.1}})
    found = carried({("a",): {"v100": 40.0, "k80": 1.0}}, shares)
    assert found["a",] == pytest.approx({"k80": 31.0, "p100": 10.0})


def test_a_deficit_follows_both_jobs_of_a_pair_and_is_not_multiplied():
    """Both jobs lack the pair's time; where they are a pair again, that pair lacks it once."""
    apart = carried({("b", "c"): {"v100": 40.0}}, {("b",): {"v100": 0.5}, ("c", "d"): {"k80": 0.5}})
    assert apart == {("b",): {"v100": 40.0}, ("c", "d"): {"k80": 40.0}}
    assert carried(apart, {("b", "c"): {"v100": 0.5}}) == {("b", "c"): {"v100": 40.0}, ("d",): {"k80": 40.0}}


def test_the_deficit_of_a_job_without_any_time_share_waits_for_one():
    """The job may have one again after the next computation."""
    kept = carried({("b",): {"v100": 40.0}, ("c",): {"v100": -40.0}}, {("d",): {"v100": 1.0}})
    assert kept == {("b",): {"v100": 40.0}}
    assert carried(kept, {("b",): {"v100": 1.0}}) == {("b",): {"v100": 40.0}}


@given(st.floats(1.0, 1e6), st.lists(st.floats(-1e7, 1e7), min_size=2, max_size=5))
def test_no_deficit_exceeds_its_limit_and_their_order_remains(elapsed, before):
    """A deficit of a share of 1.0 grows by all of the time, at renewals of any interval."""
    shares = as_single_combinations({"b": {"v100": 1.0}, "c": {"v100": 1.0}})
    lacking, longer = 0.0, 1.0
    for _ in range(200):
        found = carried({("b",): {"v100": lacking + elapsed}, ("c",): {"v100": longer + elapsed}}, shares, elapsed)
        lacking, longer = found["b",]["v100"], found["c",]["v100"]
    assert lacking <= longer <= 2 * MOST * (1 + 1e-9)
    kinds = {f"t{number}": seconds for number, seconds in enumerate(before) if seconds > 0}
    found = carried({("b",): kinds}, as_single_combinations({"b": dict.fromkeys(kinds, 0.1)}), elapsed).get(("b",), {})
    assert sorted(found, key=lambda kind: (found[kind], kind)) == sorted(kinds, key=lambda kind: (kinds[kind], kind))
    assert all(found[kind] == seconds for kind, seconds in kinds.items() if seconds <= MOST)


def test_small_deficits_are_exact_after_months_of_renewals():
    """A share of a millionth has earned a tenth of a round after 100,000 rounds."""
    shares = as_single_combinations({"b": {"v100": 1e-6}})
    since = 1.8e9
    accounts = TimeAccounts(shares=shares, since=since)
    for number in range(1, 20_001):
        now = since + number * 5 * ROUND
        deficit, _ = carried_over(accounts.renew(shares, now).deficit, shares, GPUS, 5 * ROUND, ROUND)
        accounts = TimeAccounts(shares=shares, since=now, deficit=deficit)
    assert accounts.deficit["b",]["v100"] == pytest.approx(0.1 * ROUND, rel=1e-9)


def test_what_was_received_in_advance_counts_though_nobody_has_a_deficit():
    """Of 300 seconds of surplus, 200 were received in advance; those that waited for them have ended."""
    shares = as_single_combinations({"a": {"v100": 0.5}, "b": {"v100": 0.5}})
    deficit, advances = {("a",): {"v100": -300.0}}, {("a",): {"v100": 200.0}}
    found, left = carried_over(deficit, shares, GPUS, ROUND, ROUND, advances=advances)
    assert found == {("a",): {"v100": -200.0}}
    assert left == {("a",): {"v100": 200.0}}


def test_an_advance_is_at_most_the_surplus():
    shares = as_single_combinations({"a": {"v100": 0.5}, "b": {"v100": 0.5}})
    for surplus, left in ((50.0, {("a",): {"v100": 50.0}}), (-10.0, {})):
        deficit, advances = {("a",): {"v100": -surplus}}, {("a",): {"v100": 200.0}}
        assert carried_over(deficit, shares, GPUS, ROUND, ROUND, advances=advances) == (deficit, left)


def test_an_advance_follows_a_job_to_other_types_and_co_runners():
    """As a deficit does; the surplus that was not received in advance is dropped."""
    deficit, advances = {("a",): {"v100": -300.0}}, {("a",): {"v100": 200.0}}
    for shares, found in (
        ({("a",): {"k80": 0.3, "p100": 0.1}}, {("a",): {"k80": -150.0, "p100": -50.0}}),
        ({("a", "b"): {"v100": 0.4}}, {("a", "b"): {"v100": -200.0}}),
    ):
        (combination,) = found
        deficits, left = carried_over(deficit, shares, {"a": 1, "b": 1}, ROUND, ROUND, advances=advances)
        assert deficits[combination] == pytest.approx(found[combination])
        assert left[combination] == pytest.approx({kind: -seconds for kind, seconds in found[combination].items()})
