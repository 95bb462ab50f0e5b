from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metasched.capacity.max_min import max_min_bottlenecks

WEIGHTS = st.sampled_from((1.0, 1.0, 2.0, 0.5, 1e-3, 1e-9))


def parts(weights, gpus):
    return {node_set: one.part(weights[node_set]) for node_set, one in max_min_bottlenecks(weights, gpus).items()}


def by_all_subsets(weights, gpus):
    """GPUs per weight: the least ratio of all subsets of node sets is fixed, then the rest is divided likewise."""
    level, remaining, free = {}, dict(weights), dict(gpus)
    while remaining:
        ratios = []
        for size in range(1, len(remaining) + 1):
            for subset in itertools.combinations(remaining, size):
                amount = sum(free[group] for group in free if any(group & node_set for node_set in subset))
                ratios.append((amount / sum(remaining[node_set] for node_set in subset), subset))
        least, tightest = min(ratios)
        for node_set in tightest:
            level[node_set] = least
            del remaining[node_set]
        free = {group: n for group, n in free.items() if not any(group & node_set for node_set in tightest)}
    return level


def test_users_of_one_node_set_have_all_of_it():
    assert parts({0b1: 3.0}, {0b1: 8, 0b10: 8}) == {0b1: 8}


def test_disjoint_node_sets_have_their_own_gpus():
    assert parts({0b1: 1.0, 0b10: 100.0}, {0b1: 8, 0b10: 2}) == {0b1: 8, 0b10: 2}


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ({0b1: 1.0, 0b11: 1.0}, {0b1: 8, 0b11: 8}),
        ({0b1: 3.0, 0b11: 1.0}, {0b1: 8, 0b11: 8}),
        ({0b1: 1.0, 0b11: 3.0}, {0b1: 4, 0b11: 12}),
    ],
)
def test_a_wide_node_set_gives_way_on_groups_that_a_narrow_one_needs(weights, expected):
    assert parts(weights, {0b1: 8, 0b10: 8}) == pytest.approx(expected)


def test_overlapping_node_sets_share_what_they_have_in_common():
    assert parts({0b011: 1.0, 0b110: 1.0}, {0b1: 0, 0b10: 4, 0b100: 8}) == pytest.approx({0b011: 4, 0b110: 8})
    assert parts({0b011: 1.0, 0b110: 1.0}, {0b1: 2, 0b10: 4, 0b100: 2}) == pytest.approx({0b011: 4, 0b110: 4})


def test_a_node_set_without_gpus_has_none():
    assert parts({0: 1.0, 0b1: 2.0, 0b10: 1.0}, {0b1: 4}) == {0: 0, 0b1: 4, 0b10: 0}


@given(st.dictionaries(st.integers(1, 31), WEIGHTS, min_size=1, max_size=5), st.lists(st.integers(0, 9), min_size=5))
def test_parts_equal_those_by_exhaustive_search(weights, amounts):
    """For any node sets, weights over nine orders of magnitude, and GPUs."""
    gpus = {1 << i: amount for i, amount in enumerate(amounts[:5])}
    found = {node_set: one.gpus / one.weight for node_set, one in max_min_bottlenecks(weights, gpus).items()}
    assert found == pytest.approx(by_all_subsets(weights, gpus), rel=1e-6, abs=1e-9)
