from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.baselines.max_min_division import divide, divide_over_types, regions

GPUS = {"v100": 4, "p100": 2, "k80": 1}
SETS = st.sets(st.sampled_from(sorted(GPUS)), min_size=1).map(frozenset)
ANY = frozenset(GPUS)


def free(limits):
    """GPUs by region."""
    return {region: float(sum(GPUS[gpu_type] for gpu_type in region)) for region in regions(limits)}


@given(
    st.floats(0.1, 100),
    st.lists(st.tuples(st.floats(0.1, 10), st.floats(0.1, 50)), min_size=1, max_size=8),
)
def test_parts_of_one_region_are_in_proportion_or_at_their_limit(total, parts):
    """No part is above its limit, all is given out if possible, and parts below their limits are equal per ticket."""
    tickets, most = zip(*parts, strict=True)
    found = divide({ANY: total}, tickets, [{ANY: limit} for limit in most])
    assert all(amount <= limit * (1 + 1e-9) for amount, limit in zip(found, most, strict=True))
    assert sum(found) == pytest.approx(min(total, sum(most)))
    rates = [found[i] / tickets[i] for i in range(len(found))]
    open_ended = [rates[i] for i in range(len(found)) if found[i] < most[i] * (1 - 1e-6)]
    assert all(rate == pytest.approx(max(rates), rel=1e-6) for rate in open_ended)


def test_entities_that_a_full_region_stops_leave_the_rest_to_the_others():
    """The K80 is divided by tickets between those that can use nothing else; the third has the six other GPUs."""
    k80 = frozenset({"k80"})
    limits = [{k80: 5.0}, {k80: 5.0}, {ANY: 20.0}]
    assert divide(free(limits), [1.0, 3.0, 1.0], limits) == pytest.approx([0.25, 0.75, 6.0])


def test_an_entity_with_two_sets_leaves_a_full_one():
    """It has as much as it can outside the K80, and the other entity has the K80."""
    k80, p100 = frozenset({"k80"}), frozenset({"p100"})
    limits = [{k80: 1.0, p100: 1.0}, {k80: 1.0}]
    assert divide(free(limits), [1.0, 1.0], limits) == pytest.approx([1.0, 1.0])


@given(st.lists(st.tuples(st.floats(0.1, 10), st.dictionaries(SETS, st.floats(0.1, 9), min_size=1)), min_size=1))
def test_what_jobs_are_given_is_divided_over_types_without_excess(entities):
    """No type has more than its GPUs, and every job has all of its amount, on its own types."""
    limits = [{types: most} for _, one in entities for types, most in one.items()]
    tickets = [tickets for tickets, one in entities for _ in one]
    amounts = {}
    for one, amount in zip(limits, divide(free(limits), tickets, limits), strict=True):
        amounts[next(iter(one))] = amounts.get(next(iter(one)), 0.0) + amount
    found = divide_over_types(amounts, GPUS)
    assert all(row.keys() == types and sum(row.values()) == pytest.approx(1) for types, row in found.items())
    for gpu_type, count in GPUS.items():
        assert sum(amounts[types] * row.get(gpu_type, 0.0) for types, row in found.items()) <= count * (1 + 1e-6)


def test_amounts_are_in_proportion_to_the_gpus_of_types_where_all_fit():
    """Types that hold more than their GPUs pass the excess on, and no more."""
    some = frozenset({"v100", "p100"})
    assert divide_over_types({ANY: 3.5}, GPUS) == {ANY: pytest.approx({"v100": 4 / 7, "p100": 2 / 7, "k80": 1 / 7})}
    found = divide_over_types({ANY: 3.5, some: 3.0, frozenset({"k80"}): 0.5}, GPUS)
    assert found[ANY] == pytest.approx({"v100": 4 / 7, "p100": 2 / 7, "k80": 1 / 7})
    found = divide_over_types({ANY: 3.5, frozenset({"k80"}): 1.0}, GPUS)
    assert found[ANY]["k80"] == pytest.approx(0.0)
