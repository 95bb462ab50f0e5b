"""The speed of the simulator: compared with Gavel's public one, by the number of jobs, and on a large cluster."""

from __future__ import annotations

import itertools
import json
import math
import multiprocessing
import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contrib.benchmarks.common import ROOT, arguments, finish, positive, say
from metasched.cli.tables import console, row, table
from metasched.core.model import Node, Placement, Speed
from metasched.core.policy import installed_policies
from metasched.simulator.generate.gavel import GavelWorkloadParameters, gavel_jobs
from metasched.simulator.records import Outcome, Settings, Submission, Workload, trace_job
from metasched.simulator.simulation import simulate
from metasched.throughput.throughput_table import ThroughputTable
from metasched.throughput.training import Pace, Training

HOUR = 3600.0
TYPES: Mapping[str, float] = {"v100": 1.0, "p100": 0.5, "k80": 0.25}  # relative speeds, where no table is given
GPUS_OF_TYPE = 36
RATE = 4.0  # jobs per hour
WINDOW = range(4000, 5000)
ROUND = 360.0
AFTERWARDS = 600  # jobs that arrive after the window
GROWTH = (1000, 2000, 4000, 8000)
LARGE_JOBS = 100_000
LARGE_NODES, LARGE_GPUS = 512, 8
SIZES = (1, 1, 1, 1, 2, 2, 4, 8, 16)
MEDIAN_SECONDS, SIGMA = 2400.0, 1.4
LOAD = 0.8
DRIVER = ROOT / "contrib" / "reproductions" / "artifact_drivers" / "gavel_simulator.py"


@dataclass(frozen=True, slots=True)
class Constant:
    """A training whose speed depends on the GPU type, and is proportional to the number of GPUs: a ``Training``."""

    total: float
    gpus: int
    rates: Mapping[str, float]

    def pace(self, done: float, placement: Placement, co_runner: Training | None = None) -> Pace:
        """The pace on the placement's GPU type, to the end."""
        del done, co_runner
        return Pace(self.rates[placement.gpu_type or ""] * placement.gpus / self.gpus, math.inf)

    def known(self, done: float) -> Speed | None:
        """None: policies know no speed."""
        del done
        return None


def submission(number: int, at: float, gpus: int, seconds: float, rates: Mapping[str, float]) -> Submission:
    """A rigid job that takes this number of seconds at rate 1."""
    return Submission(trace_job(f"{number:06}", "job", at, gpus), Constant(seconds, gpus, rates))


def gavel_like(jobs: int, seed: int = 0) -> Workload:
    """Single-GPU jobs as in Gavel's continuous trace: Poisson arrivals, 30 minutes to a week, most of them short."""
    rng = random.Random(seed)  # noqa: S311  no secret
    at, found = 0.0, []
    for number in range(jobs):
        exponent = rng.uniform(1.5, 3.0) if rng.random() < 0.8 else rng.uniform(3.0, 4.0)  # noqa: PLR2004
        found.append(submission(number, at, 1, 60.0 * 10**exponent, TYPES))
        at += rng.expovariate(RATE / HOUR)
    return Workload("like Gavel's", tuple(found))


def large(jobs: int, seed: int = 0) -> Workload:
    """Jobs of 1 to 16 GPUs with log-normal durations, at a load of 80 %."""
    rng = random.Random(seed)  # noqa: S311  no secret
    mean = MEDIAN_SECONDS * math.exp(SIGMA**2 / 2) * sum(SIZES) / len(SIZES)
    rate = LOAD * LARGE_NODES * LARGE_GPUS / mean
    arrivals = itertools.accumulate((rng.expovariate(rate) for _ in itertools.count()), initial=0.0)
    made = (
        submission(n, at, rng.choice(SIZES), rng.lognormvariate(math.log(MEDIAN_SECONDS), SIGMA), {"v100": 1.0})
        for n, at in zip(range(jobs), arrivals, strict=False)
    )
    return Workload("large", tuple(made))


def small_nodes() -> Sequence[Node]:
    """108 nodes of one GPU, 36 of each type."""
    return [Node(f"{gpu_type}-{i:02}", gpu_type, 1, 1, 1) for gpu_type in TYPES for i in range(GPUS_OF_TYPE)]


def large_nodes() -> Sequence[Node]:
    """The nodes of the large cluster: 512 of 8 GPUs each."""
    return [Node(f"n{i:03}", "v100", LARGE_GPUS, 64, 1) for i in range(LARGE_NODES)]


def figures(outcome: Outcome) -> dict[str, Any]:
    """The durations of a simulation in seconds, and its size; ``ours`` is all but the policy."""
    ours = outcome.total_seconds - outcome.policy_seconds
    job_rounds = sum(one.jobs for one in outcome.rounds)
    return {
        "total": outcome.total_seconds,
        "policy": outcome.policy_seconds,
        "engine": outcome.engine_seconds,
        "loop": ours - outcome.engine_seconds,
        "ours": ours,
        "rounds": len(outcome.rounds),
        "job_rounds": job_rounds,
        "finished": sum(job.finished is not None for job in outcome.jobs),
        "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def in_new_process(measure: Callable[..., dict[str, Any]], *args: Any) -> dict[str, Any]:
    """The result of a measurement in a new process, whose peak memory is that of the measurement alone."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(measure, *args).result()


def run_gavel(policy: str, scheduler: Path | None) -> dict[str, Any]:
    """Figures of Gavel's continuous trace up to jobs 4,000 to 5,000, with the CPU seconds (``cpu``)."""
    jobs = WINDOW.stop + AFTERWARDS
    if scheduler is None:
        workload = gavel_like(jobs)
    else:
        speeds = ThroughputTable.read(scheduler / "simulation_throughputs.json")
        workload = gavel_jobs(speeds, GavelWorkloadParameters(jobs=jobs, jobs_per_hour=RATE), seed=2)
    begun = time.process_time()
    outcome = simulate(workload, small_nodes(), _policy(policy), _settings(), window=WINDOW)
    return {**figures(outcome), "cpu": time.process_time() - begun}


def run_growth(policy: str, jobs: int) -> dict[str, Any]:
    """Figures of a trace like Gavel's with this number of jobs, to its end."""
    return figures(simulate(gavel_like(jobs), small_nodes(), _policy(policy), _settings()))


def run_large(policy: str, jobs: int) -> dict[str, Any]:
    """Figures of this number of jobs on 4,096 GPUs."""
    return figures(simulate(large(jobs), large_nodes(), _policy(policy), _settings()))


def _policy(name: str) -> Any:
    return installed_policies().get(name)()


def _settings() -> Settings:
    return Settings(round_seconds=ROUND, early_rounds=False)


def run_artifact(python: str, scheduler: Path, policy: str) -> dict[str, float]:
    """The figures of Gavel's public simulator, run by another Python: wall, CPU and policy seconds."""
    command = [python, str(DRIVER), str(scheduler), "--policy", policy, "--rate", str(RATE)]
    command += ["--window", str(WINDOW.start), str(WINDOW.stop)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=3600)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def show(title: str, found: Mapping[str, Mapping[str, Any]]) -> None:
    """Print the figures as a table."""
    names = ("total", "policy", "engine", "loop", "rounds", "finished", "us", "MB")
    made = table("", *names, title=title, right=names)
    for name, facts in found.items():
        seconds = [f"{facts[key]:.2f}" for key in ("total", "policy", "engine", "loop")]
        each = f"{1e6 * facts['ours'] / max(facts['job_rounds'], 1):.2f}"
        row(made, name, *seconds, facts["rounds"], facts["finished"], each, f"{facts['megabytes']:.0f}")
    console().print(made)


def main() -> None:
    """Measure the three workloads, and the artifact if it is given; print the tables."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--artifact", type=Path, metavar="DIR", help="Gavel's scheduler folder, to compare with")
    parser.add_argument("--python", default=sys.executable, help="a Python that can run the artifact")
    parser.add_argument("--policy", action="append", help="policies of the first two tables (default: fifo)")
    parser.add_argument("--jobs", type=positive, default=LARGE_JOBS, help="in the large trace (default: 100,000)")
    given = parser.parse_args()
    policies = given.policy or ["fifo"]
    scheduler = None if given.artifact is None else given.artifact.resolve()
    result: dict[str, Any] = {}
    say("Gavel's continuous trace")
    result["gavel"] = {policy: in_new_process(run_gavel, policy, scheduler) for policy in policies}
    show(
        "Gavel's continuous trace, 108 GPUs: seconds; us is per live job and round, without the policy", result["gavel"]
    )
    if scheduler is not None:
        say("the artifact: some minutes")
        result["artifact"] = run_artifact(given.python, scheduler, "fifo")
        theirs = result["artifact"]
        facts = result["gavel"][policies[0]]
        ours = facts["cpu"] * facts["ours"] / facts["total"]
        result["ratio"] = theirs["cpu"] * theirs["loop"] / theirs["wall"] / ours
        console().print(
            f"The artifact under fifo: {theirs['wall']:.1f} s, {theirs['policy']:.1f} s of them in its policy. "
            f"Without the policies ours needs 1/{result['ratio']:.0f} of its CPU time."
        )
    say("growth")
    result["growth"] = {
        f"{policy}, {jobs} jobs": in_new_process(run_growth, policy, jobs) for policy in policies for jobs in GROWTH
    }
    show("By the number of jobs", result["growth"])
    say(f"{given.jobs} jobs on {LARGE_NODES * LARGE_GPUS} GPUs")
    result["large"] = {policy: in_new_process(run_large, policy, given.jobs) for policy in ("fifo", "las")}
    show(f"{given.jobs} jobs on {LARGE_NODES * LARGE_GPUS} GPUs", result["large"])
    finish(result, as_json=given.json)


if __name__ == "__main__":
    main()
