"""Time shares within quotas."""

from __future__ import annotations

import pytest

from metasched.core.model import Quota
from metasched.time_shares.quota_limits import within_quotas

GPUS = {"a": 1, "b": 2, "c": 1}


def quota(left, members, **more):
    return Quota("q", frozenset(members), left, **more)


def test_the_members_of_an_exceeded_quota_have_less_in_proportion():
    """Half a GPU and two GPUs become one GPU in all; other jobs keep what they have."""
    shares = {("a",): {"v100": 0.5}, ("b",): {"v100": 1.0}, ("c",): {"v100": 1.0}}
    found = within_quotas(shares, [quota(1, "ab")], GPUS)
    assert found == {("a",): {"v100": pytest.approx(0.2)}, ("b",): {"v100": pytest.approx(0.4)}, ("c",): {"v100": 1.0}}


@pytest.mark.parametrize("limit", [quota(3, "ab"), quota(2, "ab", of_jobs=True), quota(0, "ab", gpu_type="k80")])
def test_time_shares_within_the_quota_stay(limit):
    """A quota of jobs counts jobs, and one of a GPU type only its GPUs."""
    shares = {("a",): {"v100": 1.0}, ("b",): {"v100": 1.0}}
    assert within_quotas(shares, [limit], GPUS) == shares


def test_a_quota_of_a_type_reduces_time_on_that_type_alone():
    """Consolidated and unconsolidated GPUs are of one type."""
    shares = {("a",): {"v100": 0.5, "v100 unconsolidated": 0.5, "k80": 0.2}}
    found = within_quotas(shares, [quota(0, "a", gpu_type="v100")], GPUS)
    assert found == {("a",): {"v100": 0.0, "v100 unconsolidated": 0.0, "k80": 0.2}}


def test_the_co_runner_has_the_time_that_its_pair_loses():
    """The co-runner is no member of the quota."""
    shares = {("a", "c"): {"v100": 0.8}, ("a",): {"v100": 0.2}, ("b",): {"v100": 0.5}, ("c",): {"v100": 0.1}}
    found = within_quotas(shares, [quota(1, "ab")], GPUS)  # of two GPUs that a and b would have
    assert found == {
        ("a", "c"): {"v100": 0.4},
        ("a",): {"v100": 0.1},
        ("b",): {"v100": 0.25},
        ("c",): {"v100": pytest.approx(0.5)},
    }
    assert within_quotas({("a", "c"): {"v100": 0.8}}, [quota(0, "a")], GPUS) == {("c",): {"v100": 0.8}}


def test_the_order_of_quotas_does_not_matter():
    """The tightest one comes first, so that its members leave the others what they cannot use."""
    limits = [quota(3, "abc"), quota(0.25, "b", of_jobs=True)]
    shares = {(uid,): {"v100": 1.0} for uid in "abc"}
    found = [within_quotas(shares, order, GPUS) for order in (limits, limits[::-1])]
    assert found[0] == found[1] == {("a",): {"v100": 1.0}, ("b",): {"v100": 0.25}, ("c",): {"v100": 1.0}}


def test_a_pair_that_its_quota_never_allows_becomes_single_jobs():
    """Each has half of the time."""
    found = within_quotas({("a", "c"): {"v100": 0.8}}, [quota(1, "ac")], GPUS)
    assert found == {("a",): {"v100": 0.4}, ("c",): {"v100": 0.4}}
    assert within_quotas({("a", "c"): {"v100": 0.8}}, [quota(2, "ac")], GPUS) == {("a", "c"): {"v100": 0.8}}


def test_time_that_a_co_runner_has_alone_counts_against_its_own_quota():
    """Each quota is met, whichever comes first."""
    pairs = {("a", "b"): {"v100": 1.0}, ("c", "d"): {"v100": 1.0}}
    limits = [quota(1, "ac"), quota(1, "bd")]
    for order in (limits, limits[::-1]):
        found = within_quotas(pairs, order, dict.fromkeys("abcd", 1))
        for limit in limits:
            times = [share["v100"] for one, share in found.items() for uid in one if uid in limit.members]
            assert sum(times) == pytest.approx(1.0)
