"""Markets for tests: jobs of few parameters, and random windows."""

from __future__ import annotations

import numpy as np

from policies.shockwave.market import Market, MarketJob, Mode, Window
from policies.shockwave.progress_curve import ProgressCurve


def one_mode(gpus, seconds, steps, *, need=None, running=False, restart_seconds=0.0):
    """A mode on the only resource; seconds and steps are the corners of the curve after (0, 0)."""
    curve = ProgressCurve((0.0, *np.atleast_1d(seconds)), (0.0, *np.atleast_1d(steps)))
    needs = (float(gpus),) if need is None else need
    return Mode(gpus, needs, curve, running=running, restart_seconds=restart_seconds)


def simple_job(key, seconds, gpus=1, *, done=0.0, budget=1.0, pinned=False, **more):
    """A job of one regime that takes ``seconds`` for what is left of one step."""
    return MarketJob(key, done, (one_mode(gpus, seconds, 1.0 - done, **more),), budget=budget, pinned=pinned)


def simple_market(jobs, gpus, rounds=10, **window):
    """A market of one GPU type."""
    return Market.of(jobs, [float(gpus)], gpus, Window(rounds, **window))


def random_jobs(seed, count, widest, *, types=1, sizes=1, restart_seconds=0.0, regimes=3, unit=1.0, steps=1.0):
    """Random jobs; ``unit`` is the length of a second, and ``steps`` the steps of a whole job."""
    rng = np.random.default_rng(seed)
    jobs = []
    for number in range(count):
        gpus, parts = int(rng.integers(1, widest + 1)), int(rng.integers(1, regimes + 1))
        seconds = unit * np.cumsum(rng.exponential(900.0 / parts, parts))
        done = float(rng.choice([0.0, rng.random()]))
        progress = np.cumsum(rng.dirichlet(np.ones(parts))) * (1.0 - done) * steps
        runs = rng.random() < 0.3
        modes = tuple(
            one_mode(
                gpus + size,
                seconds * (1.0 + 0.5 * kind) / (1.0 + 0.6 * size),
                progress,
                need=tuple(float(gpus + size) * (kind == other) for other in range(types)),
                running=bool(runs and kind == size == 0),
                restart_seconds=restart_seconds * unit,
            )
            for kind in range(types)
            for size in range(sizes)
        )
        jobs.append(MarketJob(f"j{number:03}", done * steps, modes, budget=float(rng.uniform(0.2, 2.0))))
    return jobs


def used(market, schedule):
    """Rounds x resources, amounts that a schedule uses."""
    rows = [
        int(np.flatnonzero((market.job == job) & (market.mode == mode))[0]) for job, mode in enumerate(schedule.modes)
    ]
    return np.einsum("jt,jr->tr", schedule.runs.astype(float), market.needs[rows])
