import itertools

import numpy as np
import pytest

from policies.themis import choice_program
from policies.themis.choice_program import UNREACHED, Table, solve


def random_program(seed):
    """A few tables whose first row uses nothing, with a few capacities."""
    rng = np.random.default_rng(seed)
    kinds = int(rng.integers(0, 5))
    tables = []
    for rows in rng.integers(0, 4, rng.integers(1, 5)):
        usage = np.vstack([np.zeros((1, kinds)), rng.integers(0, 5, (rows, kinds))]).astype(np.int64)
        tables.append(Table(rng.integers(-50, 50, rows + 1), usage))
    return tables, rng.integers(0, 8, kinds)


def best(tables, capacity):
    """The largest sum of worths, by trying all rows."""
    return max(
        sum(int(table.worths[row]) for table, row in zip(tables, rows, strict=True))
        for rows in itertools.product(*(range(len(table.worths)) for table in tables))
        if (sum((table.usage[row] for table, row in zip(tables, rows, strict=True)), 0 * capacity) <= capacity).all()
    )


@pytest.mark.parametrize("states", [2**62, 20])
def test_all_programs_are_solved_exactly(states, monkeypatch):
    """With all tables and without each, also where uses of the capacities need several keys."""
    monkeypatch.setattr(choice_program, "KEY_STATES", states)
    for seed in range(60):
        tables, capacity = random_program(seed)
        found = solve(tables, capacity)
        assert found.whole.exact
        assert found.whole.worth == best(tables, capacity)
        assert found.whole.worth == sum(int(t.worths[row]) for t, row in zip(tables, found.rows, strict=True))
        for index, one in enumerate(found.without):
            assert one.exact
            assert one.worth == best(tables[:index] + tables[index + 1 :], capacity)


def test_a_program_without_a_choice_has_no_rows():
    """Two tables that need the same capacity in any case."""
    table = Table(np.array([5, 7]), np.array([[1], [2]]))
    found = solve([table, table], np.array([1]))
    assert found.rows == ()
    assert found.whole.worth == UNREACHED
    assert [one.worth for one in found.without] == [5, 5]


def test_bounds_hold_where_the_budget_is_too_small():
    """The bound is never below the optimum, and the worth never above."""
    rng = np.random.default_rng(1)
    inexact = 0
    for _ in range(20):
        usage = np.vstack([np.zeros((1, 3)), rng.integers(0, 9, (5, 3))]).astype(np.int64)
        tables = [Table(np.concatenate([[0], rng.integers(1, 1000, 5)]), usage) for _ in range(5)]
        capacity = rng.integers(5, 20, 3)
        small, exact = solve(tables, capacity, most_partial=1), solve(tables, capacity)
        assert small.whole.worth <= exact.whole.worth <= small.whole.bound
        for one, other in zip(small.without, exact.without, strict=True):
            assert one.worth <= other.worth <= one.bound
        inexact += not small.whole.exact
    assert inexact
