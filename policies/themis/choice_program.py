"""An exact program: one row of each table, with the largest sum of worths, within capacities; also without each table.

This is a multiple-choice knapsack with several constraints. Prices of the capacities (dual values of the linear
relaxation) bound what a partial choice can reach: every row has a loss against the best row at these prices, and a
choice's losses, with the worth of capacities that it leaves unused, add up to its distance from the bound. A search
goes through the tables, one after the other, with all partial choices whose losses may still lead to an optimum; of
several that use the same capacities, only the best is retained (dynamic programming). The programs without one table
share their partial choices: a search over one half of the tables begins with what the other half has in common.

Worths are integers, so sums are exact and ties are ties. Budgets are numbers of partial choices, so answers do not
depend on a machine's speed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import highspy
import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

FIRST_WIDTH, WIDTH_GROWTH = 16, 8
"""Partial choices retained in the first search, for lower bounds, and by what factor later searches retain more."""

MOST_PARTIAL_CHOICES = 2**17
"""Partial choices retained, at most, unless a caller allows another number; some 100 bytes each."""

UNREACHED = -(2**62)
"""The worth of a program for which no choice was found."""

COMMON_PRICES = 1e-4
"""How far a bound at the prices of another program can be above that at the program's own prices, for both to share
partial choices; relative to the largest difference between a table's rows."""

KEY_STATES = 2**62
"""States that one key tells apart, at most."""

ROUNDING = 1e-9
"""Losses are compared with this slack, relative to the largest difference between a table's rows."""


class Table(NamedTuple):
    """The rows of one table.

    Attributes:
        worths: R integers.
        usage: R x K, what each row needs of each capacity; at least 0.
    """

    worths: Ints
    usage: Ints


class Optimum(NamedTuple):
    """The answer of one program.

    Attributes:
        worth: the sum of the worths of the best choice found; ``UNREACHED`` where there is none.
        bound: a sum that no choice exceeds; the worth itself, if the program was solved exactly.
    """

    worth: int
    bound: int

    @property
    def exact(self) -> bool:
        """Whether no choice is better."""
        return self.bound <= self.worth


class Solution(NamedTuple):
    """The answers of all programs over some tables.

    Attributes:
        rows: the row of each table in the best choice from all tables; empty where no choice was found.
        whole: the program with all tables.
        without: for each table, the program without it.
    """

    rows: tuple[int, ...]
    whole: Optimum
    without: tuple[Optimum, ...]


class _Partial(NamedTuple):
    """Partial choices from the same tables.

    Attributes:
        used: L x K, what they use of the capacities.
        losses: L distances from the bound.
        worths: L sums of worths.
        trace: how they were made: the trace before, and the number of the choice before, the table, and its row.
    """

    used: Ints
    losses: Floats
    worths: Ints
    trace: tuple[object, Ints, int, Ints] | None = None


class _Limits(NamedTuple):
    """Which partial choices are retained.

    Attributes:
        free: what they may use of the capacities, at most.
        allowed: the largest loss.
        width: the number of them, those with the least losses first.
    """

    free: Ints
    allowed: float
    width: int


@dataclass(frozen=True)
class _Group:
    """Programs without one table each that have almost the same prices; and the losses of all rows at these prices.

    Attributes:
        left_out: the tables that the programs leave out; the number of tables stands for none.
        bounds: for each program, the bound at these prices.
        losses: for each table, the losses of its rows.
    """

    left_out: Ints
    bounds: Floats
    losses: list[Floats]


class _Programs:
    """All programs, and what is known of their optima so far.

    The last program is that with all tables: it is "without" a table that does not exist.
    """

    def __init__(self, tables: Sequence[Table], capacity: Ints) -> None:
        self.tables, self.capacity, count = tables, capacity, len(tables)
        self.worths = np.concatenate([table.worths for table in tables])
        self.usage = np.concatenate([table.usage for table in tables])
        self.starts = np.cumsum([0, *(len(table.worths) for table in tables)])
        self.least = np.array([table.usage.min(axis=0) for table in tables]).reshape(count, len(capacity))
        self.span = max(int(table.worths.max()) - int(table.worths.min()) for table in tables)
        self.slack = ROUNDING * self.span + 1.0
        self.radix = _radix(capacity)
        self.prices = _prices(tables, capacity)
        self.bounds = np.array([self._bounds(prices)[index] for index, prices in enumerate(self.prices)])
        self.found = np.full(count + 1, UNREACHED, dtype=np.int64)
        self.dropped = np.zeros(count + 1)
        self.rows: tuple[int, ...] = ()

    @property
    def unsolved(self) -> NDArray[np.bool_]:
        """For each program, whether a choice that the search has left out might be better than the best one found."""
        return np.asarray(self.bounds - self.dropped > self.found)

    def search(self, width: int) -> None:
        """Search the programs that are not solved, with at most so many partial choices at a time."""
        unsolved = np.flatnonzero(self.unsolved)
        order = np.lexsort((unsolved, self.prices[unsolved] @ self.capacity))
        self.dropped[unsolved] = np.inf
        for group in self._groups(unsolved[order]):
            begin = _Partial(
                np.zeros((1, len(self.capacity)), dtype=np.int64), np.zeros(1), np.zeros(1, dtype=np.int64)
            )
            others = np.setdiff1d(np.arange(len(self.tables)), group.left_out)
            every = np.arange(len(group.left_out))
            self._descend(group, self._extended(group, begin, others, every, width), every, width)

    def _bounds(self, prices: Floats) -> Floats:
        """For each program, the bound at these prices."""
        priced = self.worths - self.usage @ prices
        best = np.maximum.reduceat(priced, self.starts[:-1])
        total = float(prices @ self.capacity) + best.sum()
        return np.append(total - best, total)

    def _groups(self, left_out: Ints) -> list[_Group]:
        """Programs, in the order of their prices, in groups for which common prices are good enough."""
        prices = self.prices[left_out[len(left_out) // 2]]
        bounds = self._bounds(prices)[left_out]
        if len(left_out) > 1 and (bounds - self.bounds[left_out]).max() > COMMON_PRICES * self.span:
            middle = len(left_out) // 2
            return [*self._groups(left_out[:middle]), *self._groups(left_out[middle:])]
        priced = np.split(self.worths - self.usage @ prices, self.starts[1:-1])
        return [_Group(left_out, bounds, [one.max() - one for one in priced])]

    def _descend(self, group: _Group, partial: _Partial, left_out: Ints, width: int) -> None:
        """Solve the programs of a group without one of some tables, given partial choices from all other tables."""
        if not len(partial.worths):
            return
        if len(left_out) == 1:
            self._record(partial, int(group.left_out[left_out[0]]))
            return
        first, second = np.array_split(left_out, 2)
        for added, rest in ((first, second), (second, first)):
            self._descend(group, self._extended(group, partial, group.left_out[added], rest, width), rest, width)

    def _extended(self, group: _Group, partial: _Partial, added: Ints, left_out: Ints, width: int) -> _Partial:
        """Partial choices with the rows of more tables; those that can be optimal without one of ``left_out``."""
        programs = group.left_out[left_out]
        others = self.least[programs[programs < len(self.tables)]]
        free = self.capacity - others.sum(axis=0) + others.max(axis=0, initial=0)
        allowed = float((group.bounds[left_out] - self.found[programs]).max()) + self.slack
        tables = added[added < len(self.tables)]
        needed = self.least[tables].sum(axis=0)
        for table in tables.tolist():
            needed = needed - self.least[table]
            partial, dropped = self._with_table(group, partial, table, _Limits(free - needed, allowed, width))
            beyond = dropped + self.bounds[programs] - group.bounds[left_out]
            self.dropped[programs] = np.minimum(self.dropped[programs], beyond)
        return partial

    def _with_table(self, group: _Group, partial: _Partial, table: int, limits: _Limits) -> tuple[_Partial, float]:
        """Partial choices with each row of one more table; and the least loss of those that are beyond the width."""
        losses, (free, allowed, width) = group.losses[table], limits
        rows = np.flatnonzero(losses <= allowed)
        together = partial.losses[:, None] + losses[rows]
        before, row = np.nonzero(together <= allowed)
        found = together[before, row]
        row = rows[row]
        used = partial.used[before] + self.tables[table].usage[row]
        fits = np.flatnonzero((used <= free).all(axis=1))
        worths = partial.worths[before[fits]] + self.tables[table].worths[row[fits]]
        keys = used[fits] @ self.radix
        order = np.lexsort((-worths, *keys.T))
        first = np.ones(len(order), dtype=bool)
        first[1:] = (keys[order[1:]] != keys[order[:-1]]).any(axis=1)
        chosen = order[first]
        dropped = np.inf
        if len(chosen) > width:
            ranked = chosen[np.argsort(found[fits[chosen]], kind="stable")]
            dropped = float(found[fits[ranked[width]]])
            chosen = ranked[:width]
        kept = fits[chosen]
        trace = (partial.trace, before[kept], table, row[kept])
        return _Partial(used[kept], found[kept], worths[chosen], trace), dropped

    def _record(self, partial: _Partial, left_out: int) -> None:
        best = int(partial.worths.argmax())
        worth = int(partial.worths[best])
        if worth < self.found[left_out] or (worth == self.found[left_out] and left_out < len(self.tables)):
            return
        self.found[left_out] = worth
        if left_out == len(self.tables):
            rows = [0] * len(self.tables)
            trace, at = partial.trace, best
            while trace is not None:
                earlier, before, table, row = trace
                rows[table] = int(row[at])
                trace, at = earlier, int(before[at])  # type: ignore[assignment]
            self.rows = tuple(rows)

    def optimum(self, left_out: int) -> Optimum:
        """The answer of one program, with what the last search has left out."""
        worth = int(self.found[left_out])
        if not self.unsolved[left_out]:
            return Optimum(worth, worth)
        return Optimum(worth, max(worth, math.ceil(self.bounds[left_out] - self.dropped[left_out])))


def solve(tables: Sequence[Table], capacity: Ints, *, most_partial: int = MOST_PARTIAL_CHOICES) -> Solution:
    """The best choices of one row of each table: from all tables, and without each of them.

    Args:
        tables: the tables; each has a row.
        capacity: K capacities.
        most_partial: the most partial choices at a time. Where they are too few, answers may not be optimal, and
            their bounds are above their worths.
    """
    if not tables:
        return Solution((), Optimum(0, 0), ())
    programs = _Programs(tables, capacity)
    width = min(FIRST_WIDTH, most_partial)
    programs.search(width)
    while programs.unsolved.any() and width < most_partial:
        width = min(width * WIDTH_GROWTH, most_partial)
        programs.search(width)
    answers = [programs.optimum(left_out) for left_out in range(len(tables) + 1)]
    return Solution(programs.rows, answers[-1], tuple(answers[:-1]))


def _radix(capacity: Ints) -> Ints:
    """K x M: numbers that turn uses of the capacities into M keys, equal only for equal uses; one where 64 bits do."""
    keys: list[Ints] = []
    states = 1
    for index, most in enumerate(capacity.tolist()):
        if not keys or states * (most + 1) > KEY_STATES:
            keys.append(np.zeros(len(capacity), dtype=np.int64))
            states = 1
        keys[-1][index] = states
        states *= most + 1
    return np.array(keys).reshape(len(keys), len(capacity)).T.astype(np.int64)


def _prices(tables: Sequence[Table], capacity: Ints) -> Floats:
    """For each program, prices of the capacities at which its bound is lowest; the last row is that with all tables.

    The prices are dual values of the linear relaxation. Each relaxation begins with the solution of the one before.
    """
    sizes = [len(table.worths) for table in tables]
    owners = np.repeat(np.arange(len(tables)), sizes)
    worths = np.concatenate([table.worths for table in tables]).astype(float)
    unit = float(np.abs(worths).max()) or 1.0
    one_row = sp.csr_array((np.ones(len(owners)), (owners, np.arange(len(owners)))))
    usage = np.concatenate([table.usage for table in tables]).T.astype(float)
    matrix = sp.vstack([one_row, sp.csr_array(usage)], format="csc")
    program = highspy.HighsLp()
    program.num_row_, program.num_col_ = matrix.shape
    program.col_cost_ = -worths / unit
    program.col_lower_, program.col_upper_ = np.zeros(len(owners)), np.full(len(owners), highspy.kHighsInf)
    program.row_lower_ = np.concatenate([np.ones(len(tables)), np.full(len(capacity), -highspy.kHighsInf)])
    program.row_upper_ = np.concatenate([np.ones(len(tables)), capacity.astype(float)])
    program.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    program.a_matrix_.start_, program.a_matrix_.index_ = matrix.indptr, matrix.indices
    program.a_matrix_.value_ = matrix.data
    solver = highspy.Highs()  # type: ignore[no-untyped-call]
    for option, value in (("output_flag", False), ("threads", 1), ("solver", "simplex"), ("presolve", "off")):
        solver.setOptionValue(option, value)
    solver.passModel(program)
    found = np.zeros((len(tables) + 1, len(capacity)))
    for left_out in (len(tables), *range(len(tables))):
        if left_out < len(tables):
            solver.changeRowBounds(left_out, 0.0, 0.0)
        solver.run()
        duals = np.array(solver.getSolution().row_dual)[len(tables) :]
        found[left_out] = np.maximum(-duals, 0.0) * unit if len(duals) == len(capacity) else found[-1]
        if left_out < len(tables):
            solver.changeRowBounds(left_out, 1.0, 1.0)
    return found
