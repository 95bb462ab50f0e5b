"""Random allocation problems, and the best answer to small ones."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from policies.pollux.allocation_problem import AllocationProblem, JobQuota
from policies.pollux.direct_search import greedy_allocation
from policies.pollux.fitness import LEAST_EXPONENT


def problem(speedups, node_gpus, *, node_types=None, **more):
    """A problem of ``speedups`` (J x T x 2 x (G + 1)) without limits, of jobs that hold nothing."""
    jobs, nodes, most = len(speedups), len(node_gpus), speedups.shape[-1] - 1
    fields = {
        "keys": tuple(f"j{number:02}" for number in range(jobs)),
        "speedups": np.asarray(speedups, dtype=float),
        "node_gpus": np.asarray(node_gpus),
        "node_types": np.zeros(nodes, dtype=np.int64) if node_types is None else np.asarray(node_types),
        "node_limits": np.tile(np.asarray(node_gpus), (jobs, 1)),
        "present": np.zeros((jobs, nodes), dtype=np.int64),
        "factors": np.ones(jobs),
        "weights": np.ones(jobs),
        "least_gpus": np.ones(jobs, dtype=np.int64),
        "most_gpus": np.full(jobs, most),
        "most_nodes": np.full(jobs, nodes),
        "pinned": np.zeros(jobs, dtype=bool),
    }
    return AllocationProblem(**(fields | more))


def scaling(jobs, types, most, rng):
    """Speed-ups that grow with the GPUs, less on several nodes."""
    gpus = np.arange(most + 1)
    exponents, rates = rng.uniform(0.3, 1.0, (jobs, types, 2, 1)), rng.uniform(0.2, 3.0, (jobs, types, 1, 1))
    exponents[:, :, 1] = exponents[:, :, 0] * rng.uniform(0.6, 1.05, (jobs, types, 1))
    found = rates * np.where(gpus > 0, np.maximum(gpus, 1) ** exponents, 0.0)
    found[:, :, 1, :2] = 0.0
    return found


def random_problem(seed, jobs, nodes, *, most_gpus=4, types=1, uneven=False, p=-1.0, limited=True):
    """A random problem, in which some jobs hold GPUs, are pinned, or are limited."""
    rng = np.random.default_rng(seed)
    node_gpus = rng.integers(1, most_gpus + 1, nodes)
    most = int(min(node_gpus.sum(), 3 * most_gpus))
    found = problem(
        scaling(jobs, types, most, rng),
        node_gpus,
        node_types=rng.integers(0, types, nodes),
        factors=rng.uniform(0.3, 1.0, jobs),
        weights=rng.uniform(0.5, 2.0, jobs),
        uneven=uneven,
        p=p,
    )
    if limited:
        found = replace(
            found,
            least_gpus=np.where(rng.random(jobs) < 0.2, 2, 1),
            most_gpus=rng.integers(2, most + 2, jobs),
            most_nodes=rng.integers(1, nodes + 1, jobs),
            node_limits=np.where(rng.random((jobs, nodes)) < 0.1, 0, found.node_limits),
        )
        quota = rng.random(jobs) < 0.5
        of_jobs, gpu_type = bool(rng.random() < 0.3), None if rng.random() < 0.5 else int(rng.integers(0, types))
        found = replace(found, quotas=(JobQuota(quota, int(rng.integers(0, 6)), of_jobs, gpu_type),))
    held = greedy_allocation(replace(found, weights=rng.uniform(0.2, 5.0, jobs)))
    held[rng.random(jobs) < 0.4] = 0
    pinned = (rng.random(jobs) < 0.15) & held.any(axis=1)
    return replace(found, present=held, pinned=pinned & limited)


def best_fitness(asked):
    """The fitness of the best feasible allocation, by trying all of them."""
    choices = [
        [np.array(row) for row in itertools.product(*(range(int(most) + 1) for most in limits))]
        if not pinned
        else [present]
        for limits, pinned, present in zip(asked.node_limits, asked.pinned, asked.present, strict=True)
    ]
    choices = [
        [row for row in rows if asked.pinned[job] or not asked.faults(alone(asked, job, row))]
        for job, rows in enumerate(choices)
    ]
    feasible = (np.array(rows) for rows in itertools.product(*choices))
    return max(
        asked.fitness(found)
        for found in feasible
        if not (found.sum(axis=0) > asked.node_gpus).any() and not asked.faults(found)
    )


def alone(asked, job, row):
    """The allocation in which one job has a row, and only pinned jobs run besides."""
    found = np.where(asked.pinned[:, None], asked.present, 0)
    found[job] = row
    return found


@st.composite
def problems(draw, most_jobs=12, most_nodes=6):
    """Random problems of all kinds."""
    return random_problem(
        draw(st.integers(0, 10**6)),
        draw(st.integers(1, most_jobs)),
        draw(st.integers(1, most_nodes)),
        types=draw(st.integers(1, 2)),
        uneven=draw(st.booleans()),
        p=draw(st.sampled_from([1.0, 0.0, -1.0, -10.0, LEAST_EXPONENT])),
        limited=draw(st.booleans()),
    )
