"""The duration of one decision of Gavel's policies, by the number of jobs: the program is built and solved.

    python -m contrib.benchmarks.gavel_policies [--jobs N ...] [--only WORDS] [--json]

Jobs have 26 synthetic job types, fixed by the seed, and 1 to 8 GPUs, on three GPU types with a quarter as many GPUs as
jobs. The first stage is the program that the public code solves, with its building: grouping of jobs into classes,
matrices, solver. The second stage is our addition. The table also has the public code's time for the same program on a
machine of the same kind. Small programs are also solved over single jobs: the minimum share must be the same. Seconds
are CPU time of one thread.
"""

from __future__ import annotations

import math
import random
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from contrib.benchmarks import common
from metasched.core.model import Job, Speed
from metasched.time_shares.allocation_inputs import AllocationInputs
from metasched.time_shares.policy_base import TimeSharePolicy
from policies.baselines.allox import AlloX
from policies.gavel.fairness_objectives import equal_share_factor, finish_time_level, throughput_level, water_filling
from policies.gavel.job_classes import ClassKey, JobClasses
from policies.gavel.policies import Entity, GavelHierarchical, GavelHierarchicalParameters
from policies.gavel.problem import Floats
from policies.gavel.solve import inverse, second_stage
from policies.gavel.sum_objectives import in_order

TYPES = ("v100", "p100", "k80")
JOB_TYPES = 26
ACCOUNTS = 4
TOLERANCE = 1e-4  # relative difference between equal objectives
SIZES = (128, 512, 2048, 8192)
THEIRS: Mapping[str, Mapping[int, float]] = {
    "max-min": {128: 0.04, 512: 0.02, 2048: 0.06},
    "finish-time fairness": {128: 0.28, 512: 1.2, 2048: 6.5},
    "makespan": {128: 0.06, 512: 0.07, 2048: 0.21},
    "water filling": {128: 0.12, 512: 2.8, 2048: 162.0},
    "max-min, sharing": {128: 0.44, 256: 5.3},
    "finish-time fairness, sharing": {},
    "makespan, sharing": {},
    "first come, sharing": {},
    "hierarchical": {},
    "hierarchical, FIFO inside": {},
    "AlloX": {128: 0.36, 512: 113.0},
}
"""Seconds of the public code with ECOS (water filling: and GLPK), by number of jobs, where they are known."""

FACTORS = {"water filling": 50.0, "max-min, sharing": 50.0, "AlloX": 50.0}
"""The least ratio of the public code's time to ours, at its largest size; 1 for other policies and sizes."""


@dataclass(frozen=True)
class JobType:
    """The speeds of a job type: a ``Speed``.

    Attributes:
        name: a number.
        isolated: steps per second on one GPU, by GPU type.
        pressure: the resources of a GPU that the job type uses, relative to others; decides co-located speeds.
    """

    name: int
    isolated: Mapping[str, float]
    pressure: float

    def __hash__(self) -> int:
        return self.name

    def steps_per_second(self, gpu_type: str, spread: tuple[int, ...]) -> float:
        """Steps per second on GPUs of a type."""
        return self.isolated[gpu_type] * math.pow(sum(spread), 0.9)

    def steps_per_second_with(self, other: Speed, gpu_type: str, spread: tuple[int, ...]) -> float:
        """Steps per second next to a co-runner."""
        assert isinstance(other, JobType)  # noqa: S101  all jobs of this benchmark have job types
        share = self.pressure / (self.pressure + other.pressure)
        return self.steps_per_second(gpu_type, spread) * 1.3 * share


def job_types(rng: random.Random) -> list[JobType]:
    """Random job types."""
    found = []
    for name in range(JOB_TYPES):
        fast = 10 ** rng.uniform(0, 2)
        isolated = {"v100": fast, "p100": fast * rng.uniform(0.3, 0.8), "k80": fast * rng.uniform(0.1, 0.5)}
        found.append(JobType(name, isolated, rng.uniform(0.3, 1.0)))
    return found


def inputs(count: int, *, sharing: bool = False, single: bool = False) -> AllocationInputs:
    """The inputs of a decision with ``count`` jobs, with one GPU each if ``single``."""
    rng = random.Random(count)  # noqa: S311  no secret
    types, jobs = job_types(rng), []
    for number in range(count):
        gpus = 1 if single else rng.choices((1, 2, 4, 8), (70, 10, 15, 5))[0]
        steps = 10 ** rng.uniform(4, 7)
        jobs.append(
            Job(
                uid=f"{number:05}",
                slurm_job_id=str(number),
                name="",
                user="",
                submitted=float(number),
                gpus=gpus,
                min_gpus=gpus,
                max_gpus=gpus,
                speed=rng.choice(types),
                total_steps=steps,
                progress_steps=steps * rng.random(),
                account=str(number % ACCOUNTS),
            )
        )
    gpus_per_node = {job.uid: dict.fromkeys(TYPES, (job.gpus,)) for job in jobs}
    speeds = {
        job.uid: {gpu_type: job.speed.steps_per_second(gpu_type, (job.gpus,)) for gpu_type in TYPES}
        for job in jobs
        if job.speed is not None
    }
    gpus = max(count // 4 // len(TYPES), 8)
    return AllocationInputs(jobs, dict.fromkeys(TYPES, gpus), gpus_per_node, speeds, sharing, 2.0 * count)


@dataclass(frozen=True)
class Case:
    """A policy whose two stages are measured separately.

    Attributes:
        class_key: the key by which jobs are grouped into classes.
        first: the first stage; returns the floors for the second one, or, without a second one, the variables.
        stages: 1 or 2.
        sharing: whether jobs may share GPUs.
        checked: the most jobs for which the minimum share is compared with the program over single jobs.
        most: the most jobs that the policy is measured with.
    """

    class_key: ClassKey
    first: Callable[[JobClasses], Floats]
    stages: int = 2
    sharing: bool = False
    checked: int = 0
    most: int = SIZES[-1]


def _remaining_steps(classes: JobClasses) -> Floats:
    return classes.each(lambda job: job.remaining_steps or 0.0)


def _weights(classes: JobClasses) -> Floats:
    return np.ones(len(classes.members))


def _las(classes: JobClasses) -> Floats:
    return throughput_level(classes.problem, equal_share_factor(classes.problem, _weights(classes)))


def _ftf(classes: JobClasses) -> Floats:
    elapsed = classes.each(lambda job: 20000.0 - job.submitted)
    return finish_time_level(classes.problem, _remaining_steps(classes), elapsed, elapsed / 2)


def _makespan(classes: JobClasses) -> Floats:
    return throughput_level(classes.problem, inverse(_remaining_steps(classes)))


def _water_filling(classes: JobClasses) -> Floats:
    return water_filling(classes.problem, lambda growing: growing)


def _in_order(classes: JobClasses) -> Floats:
    return in_order(classes.problem, np.arange(len(classes.members), dtype=float))


def _uid(job: Job) -> str:
    return job.uid


CASES = {
    "max-min": Case(lambda _: None, _las, checked=2048),
    "finish-time fairness": Case(_uid, _ftf),
    "makespan": Case(_uid, _makespan),
    "water filling": Case(lambda _: None, _water_filling, stages=1, checked=512),
    "max-min, sharing": Case(lambda _: None, _las, sharing=True, checked=128),
    "finish-time fairness, sharing": Case(_uid, _ftf, sharing=True, most=512),
    "makespan, sharing": Case(_uid, _makespan, sharing=True, most=512),
    "first come, sharing": Case(_uid, _in_order, stages=1, sharing=True, most=512),
}


@dataclass
class StageSeconds:
    """The CPU seconds of the stages of one decision."""

    first: float
    second: float = 0.0


def decide(case: Case, asked: AllocationInputs) -> StageSeconds:
    """Measure the stages of one decision."""
    begun = time.process_time()
    classes = JobClasses.of(asked, aware=True, class_key=case.class_key)
    found = case.first(classes)
    between = time.process_time()
    if case.stages > 1:
        second_stage(classes.problem, found)
    return StageSeconds(between - begun, time.process_time() - between)


def difference(case: Case, asked: AllocationInputs) -> float:
    """The relative difference between the minimum shares of the programs over classes and over single jobs."""
    minima = []
    for class_key in (case.class_key, _uid):
        classes = JobClasses.of(asked, aware=True, class_key=class_key)
        found = case.first(classes)
        reached = found if case.stages > 1 else classes.problem.throughput @ found
        minima.append(float((equal_share_factor(classes.problem, _weights(classes)) * reached).min()))
    return abs(minima[0] / minima[1] - 1.0)


@dataclass(frozen=True)
class Whole:
    """A policy that is measured as a whole.

    Attributes:
        policy: the policy.
        single: whether jobs have one GPU each.
        most: the most jobs that the policy is measured with.
    """

    policy: TimeSharePolicy
    single: bool = False
    most: int = SIZES[-1]


WHOLE = {
    "hierarchical": Whole(GavelHierarchical()),
    "hierarchical, FIFO inside": Whole(
        GavelHierarchical(GavelHierarchicalParameters(others=Entity(inside="fifo"))), most=512
    ),
    "AlloX": Whole(AlloX(), single=True),  # as in its paper
}


def decide_whole(one: Whole, count: int) -> StageSeconds:
    """Measure one decision; its time counts as the first stage."""
    asked = inputs(count, single=one.single)
    begun = time.process_time()
    one.policy.time_shares(asked, {})
    return StageSeconds(time.process_time() - begun)


def measure(name: str, count: int, repeat: int) -> StageSeconds:
    """The medians over ``repeat`` decisions.

    Raises:
        SystemExit: the programs over classes and over single jobs have different objectives.
    """
    common.say(f"{name}, {count} jobs")
    if name in WHOLE:
        found = [decide_whole(WHOLE[name], count) for _ in range(repeat)]
    else:
        case = CASES[name]
        asked = inputs(count, sharing=case.sharing)
        found = [decide(case, asked) for _ in range(repeat)]
        if count <= case.checked and (differs := difference(case, asked)) > TOLERANCE:
            raise SystemExit(f"{name}, {count} jobs: the objective differs by {differs:.1e} from that over single jobs")
    return StageSeconds(statistics.median(taken.first for taken in found), statistics.median(t.second for t in found))


def report(found: Mapping[str, Mapping[int, StageSeconds]]) -> list[str]:
    """The table as Markdown."""
    lines = [
        "| policy | jobs | first stage, s | second, s | the public code's, s | times as fast |",
        "|---|---|---|---|---|---|",
    ]
    for name, sizes in found.items():
        for count, taken in sizes.items():
            theirs = THEIRS[name].get(count)
            cells = ("", "") if theirs is None else (f"{theirs:g}", f"{theirs / taken.first:.0f}")
            lines.append(f"| {name} | {count} | {taken.first:.4f} | {taken.second:.4f} | {cells[0]} | {cells[1]} |")
        if len(sizes) > 1:
            slope = common.growth({count: taken.first for count, taken in sizes.items()})
            lines.append(f"| {name} | growth | {slope} | | | |")
    return lines


def main(given: Sequence[str] | None = None) -> int:
    """Measure, and print the table; the exit status is 1 if a policy is slower than it may be."""
    parser = common.arguments(__doc__ or "")
    parser.add_argument("--jobs", type=common.positive, nargs="+", default=SIZES, help="numbers of jobs")
    parser.add_argument("--repeat", type=common.positive, default=3, help="decisions each; the median counts")
    parser.add_argument("--only", default="", help="policies whose name contains these words")
    options = parser.parse_args(given)
    found: dict[str, dict[int, StageSeconds]] = {}
    for name, theirs in THEIRS.items():
        if options.only in name:
            most = (CASES[name] if name in CASES else WHOLE[name]).most
            counts = sorted({*(count for count in options.jobs if count <= most), *list(theirs)[-1:]})
            found[name] = {count: measure(name, count, options.repeat) for count in counts}
    print("\n".join(report(found)))
    as_json = {name: {n: [t.first, t.second] for n, t in sizes.items()} for name, sizes in found.items()}
    common.finish(as_json, as_json=options.json)
    return 1 if any(slow(name, count, taken) for name, sizes in found.items() for count, taken in sizes.items()) else 0


def slow(name: str, count: int, taken: StageSeconds) -> bool:
    """Whether the first stage takes longer than the public code's time and ``FACTORS`` allow."""
    theirs = THEIRS[name]
    factor = FACTORS.get(name, 1.0) if count == max(theirs, default=None) else 1.0
    return count in theirs and taken.first * factor > theirs[count]


if __name__ == "__main__":
    sys.exit(main())
