"""The duration and the gap of Shockwave's solver, by the size of the window, and a comparison with the paper's program.

    python -m contrib.benchmarks.shockwave_solver [--sizes JOBSxGPUS ...] [--program JOBSxGPUS] [--seconds S] [--json]

Jobs are those of the paper's mix: 1 to 8 GPUs, up to four regimes, sizes from 0.2 to 100 GPU hours, some of them
running. Windows have 20 rounds of 120 s. Each size is solved without restarts, as in the paper; with restarts of 20 s;
and again, one round later, from the last schedule. The program of one binary variable a job and round is solved by
HiGHS on one thread. Seconds are CPU time of one thread.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from contrib.benchmarks import common
from policies.shockwave.budgets import budgets, estimated_rho
from policies.shockwave.market import Market, MarketJob, Mode, Window
from policies.shockwave.progress_curve import ProgressCurve
from policies.shockwave.solver import Schedule, solve
from tests.oracles.shockwave_program import program_optimum

SIZES = ((500, 256), (1000, 256), (2000, 256), (10000, 4096))
PROGRAM = (120, 32)
CONTENTION, EXPONENT, RESTART = 3.0, 5.0, 20.0
COSTLY = "restarts"
"""The start at which restarts take ``RESTART`` seconds, of which the paper's program (Eq. 11) knows nothing."""

LEAST_RATIO = 20.0
MOST_MEGABYTES = 1024.0


class Target(NamedTuple):
    """What one size must reach: CPU seconds, and the relative gap where restarts are free, at most."""

    seconds: float
    gap: float


TARGETS = {
    500: Target(2.0, 3e-4),
    1000: Target(2.0, 1.1e-3),
    2000: Target(2.0, 4.4e-3),
    10000: Target(30.0, 4.4e-3),
}
"""The paper's gaps with Gurobi on 24 threads after 15 s (section 8.9), by number of jobs."""


def window(jobs: int, gpus: int, restart_seconds: float, seed: int = 0) -> Market:
    """A random window with that many jobs; those that run fit into the GPUs together."""
    rng = np.random.default_rng([seed, jobs, gpus])
    ranges = np.array([(0.2, 8.0), (8.0, 16.0), (16.0, 72.0), (72.0, 100.0)])
    made, rho, free = [], [], gpus
    for number in range(jobs):
        width = int(rng.choice([1, 2, 4, 8], p=[0.6, 0.3, 0.09, 0.01]))
        hours = rng.uniform(*ranges[rng.choice(4, p=[0.72, 0.2, 0.05, 0.03])])
        total = min(hours * 3600.0 / width, 5 * 3600.0)
        done = float(rng.random() * rng.binomial(1, 0.7))
        regimes = rng.dirichlet(np.ones(int(rng.integers(1, 5))))
        lengths = regimes / np.cumprod([1.0, *rng.uniform(1.0, 2.0, len(regimes) - 1)])
        seconds = np.append(0.0, np.cumsum(lengths * total / lengths.sum()))
        steps = np.append(0.0, np.cumsum(regimes))
        trained = float(np.interp(done, steps, seconds))
        left = ProgressCurve(
            (0.0, *(seconds[steps > done] - trained).tolist()), (0.0, *(steps[steps > done] - done).tolist())
        )
        rho.append(estimated_rho(trained + rng.exponential(2.0 * total), left.end, total, CONTENTION))
        running = bool(done > 0 and rng.binomial(1, 0.5) and width <= free)
        free -= width if running else 0
        mode = Mode(width, (float(width),), left, running=running, restart_seconds=restart_seconds)
        made.append(MarketJob(f"{number:05}", done, (mode,)))
    bought = budgets(rho, EXPONENT, [1.0] * jobs)
    priced = [MarketJob(job.key, job.done, job.modes, float(budget)) for job, budget in zip(made, bought, strict=True)]
    return Market.of(priced, [float(gpus)], gpus, Window())


def timed(market: Market, last: Schedule | None = None) -> tuple[Schedule, float]:
    """A schedule, and its CPU seconds."""
    begun = time.process_time()
    found = solve(market, last, 1)
    return found, time.process_time() - begun


def measure(jobs: int, gpus: int) -> list[dict[str, Any]]:
    """The rows of one size."""
    common.say(f"{jobs} jobs on {gpus} GPUs")
    free, costly = window(jobs, gpus, 0.0), window(jobs, gpus, RESTART)
    first, seconds = timed(free)
    rows = [("cold", first, seconds), (COSTLY, *timed(costly)), ("warm", *timed(free, first))]
    megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return [
        {"jobs": jobs, "gpus": gpus, "start": start, "seconds": took, "gap": found.gap, "megabytes": megabytes}
        for start, found, took in rows
    ]


def compared(jobs: int, gpus: int, *, seconds: float) -> dict[str, float]:
    """Our solver and the paper's program with HiGHS on the same window."""
    common.say(f"the program for {jobs} jobs on {gpus} GPUs")
    market = window(jobs, gpus, 0.0)
    ours, took = timed(market)
    begun = time.process_time()
    theirs = program_optimum(market, seconds=seconds)
    program_seconds = time.process_time() - begun
    return {
        "seconds": took,
        "program_seconds": program_seconds,
        "ratio": program_seconds / took,
        "objective": ours.objective,
        "program_objective": theirs.objective,
        "bound": ours.bound,
        "program_bound": theirs.bound,
    }


def missed(rows: Sequence[dict[str, Any]], program: dict[str, float]) -> list[str]:
    """The targets that are missed, in words."""
    words = []
    for row in rows:
        target = TARGETS.get(row["jobs"])
        if target is None:
            continue
        wide = row["start"] != COSTLY and row["gap"] > target.gap
        if wide or row["seconds"] > target.seconds or row["megabytes"] > MOST_MEGABYTES:
            words.append(f"{row['jobs']} jobs, {row['start']}: {row['seconds']:.2f} s, gap {row['gap']:.1e}")
    if program["ratio"] < LEAST_RATIO:
        words.append(f"only {program['ratio']:.0f} times as fast as the program")
    if program["objective"] < program["program_objective"] - 1e-3 * abs(program["program_objective"]):
        words.append(f"the program's objective is {program['program_objective']:.6f}")
    return words


def main(given: Sequence[str] | None = None) -> int:
    """Measure, and print the tables; the exit status is 1 if a target is missed."""
    parser = common.arguments(__doc__ or "")
    parser.add_argument(
        "--sizes", type=common.size, nargs="+", default=SIZES, metavar="JOBSxGPUS", help="sizes of windows"
    )
    parser.add_argument(
        "--program", type=common.size, default=PROGRAM, metavar="JOBSxGPUS", help="the size for the program"
    )
    parser.add_argument("--seconds", type=float, default=120.0, help="the program's time limit, in seconds")
    options = parser.parse_args(given)
    rows = [row for jobs, gpus in options.sizes for row in measure(jobs, gpus)]
    print("| jobs | GPUs | start | CPU s | gap | peak MB |\n|---|---|---|---|---|---|")
    for row in rows:
        cells = (row["jobs"], row["gpus"], row["start"], f"{row['seconds']:.2f}", f"{row['gap']:.1e}")
        print(f"| {' | '.join(map(str, cells))} | {row['megabytes']:.0f} |")
    program = compared(*options.program, seconds=options.seconds)
    print("\n" + json.dumps(program, indent=1))
    words = missed(rows, program)
    print("\n".join(["", *(f"missed: {each}" for each in words)]))
    common.finish({"sizes": rows, "program": program}, as_json=options.json)
    return 1 if words else 0


if __name__ == "__main__":
    sys.exit(main())
