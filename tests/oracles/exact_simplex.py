"""Linear programs in exact arithmetic: a simplex method over integers, independent of the solver of the policies.

The tableau holds integers with one common denominator (Edmonds' integral pivoting), so no result is rounded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import lcm

Row = Mapping[int, Fraction | int]


class InfeasibleError(Exception):
    """No x satisfies the constraints."""


class UnboundedError(Exception):
    """The objective has no maximum."""


@dataclass
class Program:
    """Maximise a linear objective over x >= 0 and rows ``sum(coefficient * x) <= bound``.

    Attributes:
        variables: the number of variables.
        rows: coefficients by variable, and the bound, of each constraint.
    """

    variables: int
    rows: list[tuple[Row, Fraction]] = field(default_factory=list)

    def at_most(self, row: Row, bound: Fraction | int) -> None:
        """Add the constraint ``row @ x <= bound``."""
        self.rows.append((dict(row), Fraction(bound)))

    def at_least(self, row: Row, bound: Fraction | int) -> None:
        """Add the constraint ``row @ x >= bound``."""
        self.rows.append(({i: -value for i, value in row.items()}, -Fraction(bound)))

    def copy(self) -> Program:
        """A program with the same constraints, to which others can be added."""
        return Program(self.variables, list(self.rows))

    def maximise(self, objective: Row) -> tuple[Fraction, list[Fraction]]:
        """The largest value of the objective, and an x that reaches it.

        Raises:
            InfeasibleError: no x satisfies the constraints.
            UnboundedError: the objective has no maximum.
        """
        return _Tableau(self).maximise(objective)


class _Tableau:
    """Rows of integers over the variables, a slack for each constraint, an auxiliary variable, and the bound."""

    def __init__(self, program: Program) -> None:
        self.n, self.m = program.variables, len(program.rows)
        self.auxiliary = self.n + self.m
        self.denominator = 1
        self.rows: list[list[int]] = []
        self.scale: list[int] = []
        for i, (row, bound) in enumerate(program.rows):
            values = {k: Fraction(value) for k, value in row.items()}
            scale = lcm(bound.denominator, *(value.denominator for value in values.values()))
            cells = [0] * (self.auxiliary + 2)
            for k, value in values.items():
                cells[k] = int(value * scale)
            cells[self.n + i] = 1  # the slack is counted in the row's own unit
            cells[self.auxiliary] = -1
            cells[-1] = int(bound * scale)
            self.rows.append(cells)
        self.basis = [self.n + i for i in range(self.m)]

    def maximise(self, objective: Row) -> tuple[Fraction, list[Fraction]]:
        if any(row[-1] < 0 for row in self.rows):
            self._make_feasible()
        for row in self.rows:
            row[self.auxiliary] = 0
        fractions = {k: Fraction(value) for k, value in objective.items()}
        scale = lcm(1, *(value.denominator for value in fractions.values()))
        cost = [0] * (self.auxiliary + 2)
        for k, value in fractions.items():
            cost[k] = int(value * scale)
        cost = self._reduced(cost)
        cost = self._optimise(cost)
        x = [Fraction(0)] * (self.auxiliary + 1)
        for i, column in enumerate(self.basis):
            x[column] = Fraction(self.rows[i][-1], self.denominator)
        value = sum((value * x[k] for k, value in fractions.items()), Fraction(0))
        return value, x[: self.n]

    def _make_feasible(self) -> None:
        """Minimise the auxiliary variable, by which each row may exceed its bound, to 0."""
        worst = min(range(self.m), key=lambda i: self.rows[i][-1])
        cost = [0] * (self.auxiliary + 2)
        cost[self.auxiliary] = -1
        cost = self._pivot(worst, self.auxiliary, cost)
        cost = self._optimise(cost)
        if self.auxiliary in self.basis:
            i = self.basis.index(self.auxiliary)
            if self.rows[i][-1] != 0:
                raise InfeasibleError
            column = next((k for k in range(self.auxiliary) if self.rows[i][k] != 0), None)
            if column is None:  # the row says 0 = 0
                del self.rows[i], self.basis[i]
                self.m -= 1
            else:
                self._pivot(i, column, cost)

    def _reduced(self, cost: list[int]) -> list[int]:
        """The objective without basic variables; the last cell is minus its value, times the denominator."""
        found = [value * self.denominator for value in cost]
        for i, column in enumerate(self.basis):
            factor = cost[column]
            if factor:
                row = self.rows[i]
                found = [a - factor * b for a, b in zip(found, row, strict=True)]
        return found

    def _optimise(self, cost: list[int]) -> list[int]:
        """Pivot until no variable can raise the objective; Bland's rule after many pivots, so that it ends."""
        pivots = 0
        while True:
            columns = [k for k in range(self.auxiliary + 1) if cost[k] > 0]
            if not columns:
                return cost
            column = columns[0] if pivots > 50 else max(columns, key=cost.__getitem__)
            candidates = [i for i in range(self.m) if self.rows[i][column] > 0]
            if not candidates:
                raise UnboundedError
            row = min(candidates, key=lambda i: (Fraction(self.rows[i][-1], self.rows[i][column]), self.basis[i]))
            cost = self._pivot(row, column, cost)
            pivots += 1

    def _pivot(self, pivot: int, column: int, cost: list[int]) -> list[int]:
        """Bring a column into the basis; return the objective with it."""
        row = self.rows[pivot]
        if row[column] < 0:
            row = self.rows[pivot] = [-value for value in row]
        by, divisor = row[column], self.denominator

        def eliminated(other: list[int]) -> list[int]:
            factor = other[column]
            if not factor:
                return [value * by // divisor for value in other]
            return [(value * by - factor * mine) // divisor for value, mine in zip(other, row, strict=True)]

        self.rows = [other if other is row else eliminated(other) for other in self.rows]
        cost = eliminated(cost)
        self.denominator = by
        self.basis[pivot] = column
        return cost


def dot(row: Row, x: Sequence[Fraction]) -> Fraction:
    """The sum of coefficient times value."""
    return sum((Fraction(value) * x[k] for k, value in row.items()), Fraction(0))
