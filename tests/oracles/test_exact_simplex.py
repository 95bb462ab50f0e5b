"""The oracles' simplex method against CBC."""

from __future__ import annotations

from fractions import Fraction

import pulp
import pytest

from tests.oracles.exact_simplex import InfeasibleError, Program, dot
from tests.oracles.examples import for_examples


def draw_program(rng):
    """Up to eight variables and constraints, with bounds of both signs; and an objective."""
    made = Program(rng.randint(1, 8))
    columns = range(made.variables)
    for _ in range(rng.randint(1, 8)):
        row = {k: Fraction(rng.randint(-3, 9), rng.choice((1, 2, 7))) for k in columns if rng.random() < 0.6}
        made.at_most(row, rng.randint(-3, 20))
    made.at_most(dict.fromkeys(columns, 1), 30)
    return made, {k: rng.randint(-5, 9) for k in columns}


def by_cbc(program, objective):
    """The largest value of the objective by CBC; None where no x satisfies the constraints."""
    made = pulp.LpProblem("oracle", pulp.LpMaximize)
    x = [pulp.LpVariable(f"x{k}", 0) for k in range(program.variables)]
    made += pulp.lpSum(value * x[k] for k, value in objective.items())
    for row, bound in program.rows:
        made += pulp.lpSum(float(value) * x[k] for k, value in row.items()) <= float(bound)
    status = made.solve(pulp.PULP_CBC_CMD(msg=False, timeLimit=60))
    if status != pulp.LpStatusOptimal:
        return None
    return sum(value * x[k].varValue for k, value in objective.items())  # PuLP has no value of an objective of zeros


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # PuLP 4 will have another way to call CBC
def test_the_exact_simplex_agrees_with_cbc():
    """The optimum is the same, its x satisfies all constraints exactly, and infeasible programs are recognised."""

    def check(example):
        program, objective = example
        expected = by_cbc(program, objective)
        try:
            value, x = program.maximise(objective)
        except InfeasibleError:
            assert expected is None
            return
        assert float(value) == pytest.approx(expected, rel=1e-6, abs=1e-5)  # CBC may exceed bounds by 1e-7 each
        assert dot(objective, x) == value
        assert min(x) >= 0
        assert all(dot(row, x) <= bound for row, bound in program.rows)

    for_examples(draw_program, check, every=4)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_an_objective_of_zeros_has_the_optimum_zero():
    """One of 5,000 random programs has such an objective."""
    program = Program(1)
    program.at_most({0: 1}, 30)
    assert by_cbc(program, {0: 0}) == program.maximise({0: 0})[0] == 0
