"""Simulations on 4,096 GPUs under every policy, by the number of jobs: seconds, memory, and how both grow.

    OMP_NUM_THREADS=1 python -m contrib.benchmarks.simulator_growth [--jobs N,N,...] [--only NAME ...] [--limit SECONDS]

512 nodes of 8 GPUs at a load of 80 %: jobs of 1 to 16 GPUs of 26 types whose speeds policies know, and a quarter of
which are elastic. Each simulation runs in a process of its own; seconds are its processor time. The number of live jobs
soon stays the same, so that the rounds grow with the jobs, and the growth should be that of jobs x log(jobs) at most.
"""

from __future__ import annotations

import functools
import random
import sys
import time
from collections.abc import Sequence
from typing import Any

from contrib.benchmarks import common
from contrib.benchmarks.gavel_policies import job_types
from contrib.benchmarks.policy_decisions import TypedTraining, in_limited_process
from contrib.benchmarks.simulator_speed import ROUND, figures, large, large_nodes
from metasched.core.policy import installed_policies
from metasched.simulator.records import Settings, Submission, Workload
from metasched.simulator.simulation import simulate

SIZES = (12_500, 25_000, 50_000, 100_000)
LIMIT_SECONDS = 3600
GPU_TYPE = "v100"
ELASTIC = 4
"""Every fourth job is elastic, up to twice its GPUs."""
MOST_GROWTH = 1.15
"""Exponents up to here count as jobs x log(jobs), whose slope is 1.1 from 12,500 to 100,000 jobs."""


def workload(jobs: int) -> Workload:
    """The jobs of ``simulator_speed``'s large trace, with speeds that policies know, some of them elastic."""
    rng = random.Random(jobs)  # noqa: S311  no secret
    types, found = job_types(rng), []
    for number, one in enumerate(large(jobs).submissions):
        job, job_type = one.job, rng.choice(types)
        steps = one.training.total * job_type.steps_per_second(GPU_TYPE, (job.gpus,))
        if number % ELASTIC == 0:
            job = job.evolve(min_gpus=1, max_gpus=2 * job.gpus)
        found.append(Submission(job, TypedTraining(steps, job_type)))
    return Workload("large, with known speeds", tuple(found))


def measure(policy: str, jobs: int) -> dict[str, Any]:
    """The figures of a simulation, and its processor time in seconds (``cpu``)."""
    begun = time.process_time()
    settings = Settings(round_seconds=ROUND, early_rounds=False)
    outcome = simulate(workload(jobs), large_nodes(), installed_policies().get(policy)(), settings)
    return {**figures(outcome), "cpu": time.process_time() - begun}


def main(given: Sequence[str] | None = None) -> int:
    """Measure, and print the table; the exit status is 1 if something grows faster than jobs x log(jobs)."""
    parser = common.arguments(__doc__ or "")
    common.add_numbers(parser, "--jobs", SIZES, "numbers of jobs")
    parser.add_argument("--only", nargs="+", default=installed_policies().names(), help="names of policies")
    parser.add_argument("--limit", type=common.positive, default=LIMIT_SECONDS, help="CPU seconds of one simulation")
    options = parser.parse_args(given)
    print("| policy | jobs | seconds | in the policy | rounds | finished | MB |")
    print("|---|---|---|---|---|---|---|")
    result: dict[str, dict[int, Any]] = {}
    fast: list[str] = []
    for name in options.only:
        found: dict[int, Any] = {}
        for jobs in options.jobs:
            figures_of = in_limited_process(functools.partial(measure, name, jobs), options.limit)
            if figures_of is None:
                print(f"| {name} | {jobs} | over {options.limit} | | | | |", flush=True)
                break
            found[jobs] = figures_of
            share = figures_of["policy"] / figures_of["total"]
            print(
                f"| {name} | {jobs} | {figures_of['cpu']:.1f} | {share:.0%} | {figures_of['rounds']} "
                f"| {figures_of['finished']} | {figures_of['megabytes']:.0f} |",
                flush=True,
            )
        result[name] = found
        if len(found) > 1:
            seconds = {jobs: one["cpu"] for jobs, one in found.items()}
            memory = {jobs: one["megabytes"] for jobs, one in found.items()}
            print(f"| {name} | growth | {common.growth(seconds)} | | | | {common.growth(memory)} |", flush=True)
            if common.exponent(seconds) > MOST_GROWTH or common.exponent(memory) > MOST_GROWTH:
                fast.append(name)
    print("\n".join(["", *(f"grows faster than jobs x log(jobs): {name}" for name in fast)]))
    common.finish(result, as_json=options.json)
    return 1 if fast else 0


if __name__ == "__main__":
    sys.exit(main())
