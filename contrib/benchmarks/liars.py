"""What a user gains by lies in tags and reports, under each policy, with and without metasched's checks.

    python -m contrib.benchmarks.liars [--only POLICY ...] [--lies LIE ...] [--seeds N] [--json]

One of four users tells one lie in all jobs. The gain is the part of the mean completion time that the lie saves the
user; the loss is what it adds to the others'. The checks are those of the daemon: declared steps that the job has
passed, or that its running time contradicts, count as not known; speeds are those by the clock; and the GPUs of jobs
that cannot be preempted are limited. No tag can raise a job's weight.
"""

from __future__ import annotations

import enum
import random
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from contrib.benchmarks import common
from metasched.core.declared_work import work_contradiction
from metasched.core.model import Job, Node, Preempt, Quota, Snapshot, Speed
from metasched.core.policy import Policy, installed_policies
from metasched.simulator.records import InitialState, Settings, Submission, Workload, trace_job
from metasched.simulator.simulation import simulate
from metasched.throughput.linear_scaling import LinearTraining

GPUS = 4
USERS = 4
JOBS_OF_USER = 4
HOURS = (0.25, 0.5, 1.0, 2.0, 3.0)
LIMIT = 1
"""GPUs that one user's jobs with preempt=no may hold under the limit."""


class Lie(enum.Enum):
    """What the liar writes into all tags, or lets all trainers report."""

    NONE = "nothing"
    STEPS = "total_steps=2"
    UNDECLARED = "no total_steps"
    SPEED_1000 = "speeds x 1000"
    SPEED_9 = "speeds x 9"
    SPEED_1_1 = "speeds x 1.1"
    PREEMPT = "preempt=no"


SPEEDS = {Lie.SPEED_1000: 1000.0, Lie.SPEED_9: 9.0, Lie.SPEED_1_1: 1.1}


@dataclass(frozen=True, slots=True)
class ReportedSpeed:
    """A speed with a factor: a ``Speed``."""

    speed: Speed
    factor: float

    def steps_per_second(self, gpu_type: str, spread: tuple[int, ...]) -> float | None:
        """The reported speed alone."""
        rate = self.speed.steps_per_second(gpu_type, spread)
        return None if rate is None else rate * self.factor

    def steps_per_second_with(self, other: Speed, gpu_type: str, spread: tuple[int, ...]) -> float | None:
        """The reported speed with a co-runner."""
        rate = self.speed.steps_per_second_with(other, gpu_type, spread)
        return None if rate is None else rate * self.factor


def let_see(policy: Policy, lie: Lie, *, checked: bool) -> Policy:
    """Return the policy, which from now on sees what the liar tells, after the daemon's checks if ``checked``."""
    factor = 1.0 if checked else SPEEDS.get(lie, 1.0)  # the speed by the clock counts

    def told(job: Job) -> Job:
        if factor != 1.0 and job.user == "user0":
            speed = None if job.speed is None else ReportedSpeed(job.speed, factor)
            rate = None if job.steps_per_second is None else job.steps_per_second * factor
            job = job.evolve(speed=speed, steps_per_second=rate)
        return job.evolve(total_steps=None) if checked and work_contradiction(job) is not None else job

    def seen(snapshot: Snapshot) -> Snapshot:
        return replace(snapshot, jobs=tuple(map(told, snapshot.jobs)))

    for name in ("decide", "precompute"):
        if (method := getattr(policy, name, None)) is not None:
            setattr(policy, name, lambda snapshot, *more, method=method: method(seen(snapshot), *more))
    return policy


@cache
def completion_times(name: str, lie: Lie, seed: int, *, checked: bool) -> tuple[float, float]:
    """The mean seconds from submission to completion of the liar's jobs, and of the others'."""
    rng = random.Random(seed)  # noqa: S311  no secret
    submissions = []
    arrivals = sorted(rng.uniform(0.0, 3600.0) for _ in range(USERS * JOBS_OF_USER))
    for number, at in enumerate(arrivals):
        user, total = f"user{number % USERS}", 3600.0 * rng.choice(HOURS)
        job = trace_job(f"{number:03}", "job", at, 1).evolve(user=user)
        lies = number % USERS == 0
        if lies and lie is Lie.PREEMPT:
            job = job.evolve(preempt=Preempt.NO)
        ratio = 2.0 / total if lies and lie is Lie.STEPS else 1.0
        declared = not (lies and lie is Lie.UNDECLARED)
        submissions.append(Submission(job, LinearTraining(total, 1.0), declared=declared, declared_ratio=ratio))
    liars = frozenset(one.job.uid for one in submissions if one.job.user == "user0")
    limits = (Quota("preempt=no", liars, LIMIT),) if checked and lie is Lie.PREEMPT else ()
    outcome = simulate(
        Workload("liars", tuple(submissions)),
        (Node("n1", "v100", GPUS, 64, 1 << 40),),
        let_see(installed_policies().get(name)(), lie, checked=checked),
        Settings(round_seconds=300.0),
        begin=InitialState(quotas=limits),
    )
    times = {job.uid: job.finished - job.submitted for job in outcome.jobs if job.finished is not None}
    mine = [seconds for uid, seconds in times.items() if uid in liars]
    return statistics.fmean(mine), statistics.fmean(seconds for uid, seconds in times.items() if uid not in liars)


def gains(name: str, lie: Lie, seeds: int, *, checked: bool) -> dict[str, float]:
    """The part of the mean completion time that the lie saves the liar, and the part that it adds to the others'."""
    pairs = [
        (completion_times(name, Lie.NONE, seed, checked=False), completion_times(name, lie, seed, checked=checked))
        for seed in range(seeds)
    ]
    true, lied = (statistics.fmean(one[at][0] for one in pairs) for at in (0, 1))
    honest, harmed = (statistics.fmean(one[at][1] for one in pairs) for at in (0, 1))
    return {"gain": 1.0 - lied / true, "loss": harmed / honest - 1.0}


def main(given: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = common.arguments(__doc__ or "")
    parser.add_argument("--only", nargs="+", metavar="POLICY", help="policies (default: all)")
    lies = {lie.value: lie for lie in Lie if lie is not Lie.NONE}
    parser.add_argument("--lies", nargs="+", choices=lies, default=list(lies), help="lies (default: all)")
    parser.add_argument("--seeds", type=common.positive, default=5, help="workloads (default 5)")
    options = parser.parse_args(given)
    print("| policy | lie | gain without checks | with checks | loss of the others without checks | with checks |")
    print("|---|---|---|---|---|---|")
    found: dict[str, Any] = {}
    for name in options.only or installed_policies().names():
        for lie in map(lies.__getitem__, options.lies):
            before, after = (gains(name, lie, options.seeds, checked=checked) for checked in (False, True))
            found[f"{name}, {lie.value}"] = {"without": before, "with": after}
            cells = (before["gain"], after["gain"], before["loss"], after["loss"])
            print(f"| {name} | {lie.value} | {' | '.join(f'{cell:+.0%}' for cell in cells)} |", flush=True)
    common.finish(found, as_json=options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
