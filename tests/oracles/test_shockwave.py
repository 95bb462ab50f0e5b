"""Shockwave's schedules against the program of one variable a job and round (NSDI 2023, Eq. 11, Appendix H)."""

from __future__ import annotations

import pytest

from policies.shockwave.market import Market, Window
from policies.shockwave.solver import solve
from tests.oracles.examples import for_examples
from tests.oracles.shockwave_program import program_optimum
from tests.unit.policies.shockwave.markets import random_jobs

PRECISION = 1e-5


@pytest.mark.parametrize("restart_seconds", [0.0, 30.0])
@pytest.mark.parametrize(("types", "sizes"), [(1, 1), (2, 1), (1, 2)], ids=["gangs", "types", "elastic"])
def test_the_bound_is_above_the_optimum_and_that_above_the_schedule(types, sizes, restart_seconds):
    """On small random windows; the schedule loses little, by the mean over the examples."""
    lost = []

    def draw(rng):
        gpus, rounds, weight = rng.randint(2, 5), rng.randint(2, 6), rng.choice([0.0, 1.0, 10.0])
        jobs = random_jobs(
            rng.randrange(10**6),
            rng.randint(2, 6),
            min(3, gpus),
            types=types,
            sizes=sizes,
            restart_seconds=restart_seconds,
        )
        window = Window(rounds, 120.0, weight, elastic=sizes > 1)
        return Market.of(jobs, [float(gpus)] * types, gpus * types, window)

    def check(market):
        found, optimum = solve(market), program_optimum(market)
        assert found.bound >= optimum.objective - PRECISION
        assert optimum.bound >= found.objective - PRECISION
        lost.append(max(optimum.objective - found.objective, 0.0))

    for_examples(draw, check, every=20)
    assert sum(lost) / len(lost) < 0.05
