"""Shockwave's program of one variable a job and round (NSDI 2023, Eq. 11 and Appendix H), exact, solved by HiGHS.

It has no relaxation, no prices and no layout: binary variables say which job runs in which round, and which of the
possible numbers of rounds and starts that makes.
"""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import numpy as np
import pulp

from policies.shockwave.market import Market


class Optimum(NamedTuple):
    """The best objective found, and a bound of it; they are equal unless the time was over.

    Without any schedule found in time, the objective is minus infinity.
    """

    objective: float
    bound: float


def program_optimum(market: Market, *, seconds: float = 60.0) -> Optimum:
    """The highest objective of all schedules.

    Args:
        market: a window; pinned jobs are not supported.
        seconds: the time limit of the solver.
    """
    rounds = range(market.window.rounds)
    program = pulp.LpProblem("shockwave", pulp.LpMaximize)
    makespan = program.add_variable("makespan", 0)
    runs = {
        (row, t): program.add_variable(f"x_{row}_{t}", cat="Binary") for row in range(len(market.job)) for t in rounds
    }
    objective: list[pulp.LpAffineExpression] = []
    loads: list[pulp.LpAffineExpression] = []
    constraints: list[pulp.LpConstraint] = []
    for job, group in itertools.groupby(range(len(market.job)), key=lambda row: int(market.job[row])):
        picks: list[tuple[pulp.LpVariable, float, float]] = []
        for row in group:
            begun = [program.add_variable(f"y_{row}_{t}", 0, 1) for t in rounds]
            before = [int(market.running[row]), *(runs[row, t] for t in rounds[:-1])]
            constraints += [begun[t] >= runs[row, t] - before[t] for t in rounds]
            chosen = []
            for count, starts in itertools.product(range(len(rounds) + 1), range(len(rounds) // 2 + 2)):
                if starts > 1 and (market.restart_seconds[row] == 0 or starts > count):
                    continue
                pick = program.add_variable(f"z_{row}_{count}_{starts}", cat="Binary")
                lost = starts * market.restart_seconds[row]
                chosen.append((pick, count, starts))
                picks.append((pick, *_outcome(market, job, row, count * market.window.round_seconds - lost)))
            constraints.append(pulp.lpSum(runs[row, t] for t in rounds) == pulp.lpSum(c * z for z, c, _ in chosen))
            if market.restart_seconds[row] > 0:
                constraints.append(pulp.lpSum(begun) <= pulp.lpSum(s * z for z, _, s in chosen))
        constraints.append(pulp.lpSum(z for z, _, _ in picks) == 1)
        objective.append(pulp.lpSum(welfare * z for z, welfare, _ in picks))
        remaining = pulp.lpSum(left * z for z, _, left in picks)
        constraints.append(makespan >= remaining)
        loads.append(float(market.row_gpus[market.first_row[job]] / market.gpus) * remaining)
    constraints.append(makespan >= pulp.lpSum(loads))
    for resource, t in itertools.product(range(len(market.capacity)), rounds):
        used = pulp.lpSum(float(market.needs[row, resource]) * runs[row, t] for row in range(len(market.job)))
        constraints.append(used <= float(market.capacity[resource]))
    program += pulp.lpSum(objective) - market.makespan_weight * makespan
    for constraint in constraints:
        program += constraint
    solver = pulp.HiGHS(msg=False, timeLimit=seconds, threads=1, gapRel=1e-9)
    program.solve(solver)
    solved = program.sol_status != pulp.LpSolutionNoSolutionFound
    best = float(pulp.value(program.objective)) if solved else -math.inf
    return Optimum(best, -float(program.solverModel.getInfo().mip_dual_bound))


def _outcome(market: Market, job: int, row: int, seconds: float) -> tuple[float, float]:
    """Welfare and remaining run time of a job that trains for that long in a mode."""
    rows, jobs = np.array([row]), np.array([job])
    progress = market.progress(rows, np.array([[max(seconds, 0.0)]]))
    return float(market.welfare(jobs, progress)[0, 0]), float(market.remaining(jobs, progress)[0, 0])
