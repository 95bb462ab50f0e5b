"""What one decision of Gavel's policies takes: the program built and solved, by the number of jobs, one thread.

    python -m contrib.benchmarks.gavel_policies [--jobs N ...] [--only WORDS] [--json]

Jobs are of Gavel's 26 job types in their real proportions of speed (made up here, fixed by the seed), of 1 to 8 GPUs,
on three GPU types with a quarter as many GPUs as jobs. "First stage" is the program that the public code solves, with
its building: grouping jobs into classes, matrices, solver. "Second stage" is what ours does beyond that. Beside them
stands what the public code takes for the same program on a machine of the same kind. Where it is small enough, the
program over single jobs is solved, too: the least share must be the same. Seconds are of the processor.
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

from contrib.benchmarks import bench
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
MODELS = 26
ACCOUNTS = 4
SAME = 1e-4  # relative: objectives that differ by less are the same
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
"""Seconds that the public code takes, with ECOS (water filling: and GLPK), where that is known."""

FACTORS = {"water filling": 50.0, "max-min, sharing": 50.0, "AlloX": 50.0}
"""So many times as fast ours has to be at the public code's largest size; elsewhere no slower."""


@dataclass(frozen=True)
class Model:
    """A job type's speeds."""

    name: int
    alone: Mapping[str, float]
    part: float

    def __hash__(self) -> int:
        return self.name

    def steps_per_second(self, gpu_type: str, spread: tuple[int, ...]) -> float:
        """On so many GPUs."""
        return self.alone[gpu_type] * math.pow(sum(spread), 0.9)

    def steps_per_second_with(self, other: Speed, gpu_type: str, spread: tuple[int, ...]) -> float:
        """What is left beside another."""
        assert isinstance(other, Model)  # noqa: S101  there are no others here
        return self.steps_per_second(gpu_type, spread) * 1.3 * self.part / (self.part + other.part)


def inputs(count: int, *, sharing: bool = False, single: bool = False) -> AllocationInputs:
    """So many jobs; of one GPU each if ``single``."""
    chance = random.Random(count)  # noqa: S311  no secret
    models = []
    for name in range(MODELS):
        fast = 10 ** chance.uniform(0, 2)
        alone = {"v100": fast, "p100": fast * chance.uniform(0.3, 0.8), "k80": fast * chance.uniform(0.1, 0.5)}
        models.append(Model(name, alone, chance.uniform(0.3, 1.0)))
    jobs = []
    for number in range(count):
        gpus = 1 if single else chance.choices((1, 2, 4, 8), (70, 10, 15, 5))[0]
        steps = 10 ** chance.uniform(4, 7)
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
                speed=chance.choice(models),
                total_steps=steps,
                progress_steps=steps * chance.random(),
                account=str(number % ACCOUNTS),
            )
        )
    gpus_per_node = {job.uid: dict.fromkeys(TYPES, (job.gpus,)) for job in jobs}
    speeds = {
        job.uid: {kind: job.speed.steps_per_second(kind, (job.gpus,)) for kind in TYPES}
        for job in jobs
        if job.speed is not None
    }
    gpus = max(count // 4 // len(TYPES), 8)
    return AllocationInputs(jobs, dict.fromkeys(TYPES, gpus), gpus_per_node, speeds, sharing, 2.0 * count)


@dataclass(frozen=True)
class Case:
    """One policy.

    Attributes:
        mark: how jobs are told apart.
        first: the first stage: the floors for the second; or, where there is none, the variables.
        stages: how many.
        sharing: whether jobs may share GPUs.
        checked: up to so many jobs, the least share is compared with that of the program over single jobs.
        most: jobs that it is measured with.
    """

    class_key: ClassKey
    first: Callable[[JobClasses], Floats]
    stages: int = 2
    sharing: bool = False
    checked: int = 0
    most: int = SIZES[-1]


def _left(classes: JobClasses) -> Floats:
    return classes.each(lambda job: job.remaining_steps or 0.0)


def _weights(classes: JobClasses) -> Floats:
    return np.ones(len(classes.members))


def _las(classes: JobClasses) -> Floats:
    return throughput_level(classes.problem, equal_share_factor(classes.problem, _weights(classes)))


def _ftf(classes: JobClasses) -> Floats:
    elapsed = classes.each(lambda job: 20000.0 - job.submitted)
    return finish_time_level(classes.problem, _left(classes), elapsed, elapsed / 2)


def _makespan(classes: JobClasses) -> Floats:
    return throughput_level(classes.problem, inverse(_left(classes)))


def _filled(classes: JobClasses) -> Floats:
    return water_filling(classes.problem, lambda growing: growing)


def _in_order(classes: JobClasses) -> Floats:
    return in_order(classes.problem, np.arange(len(classes.members), dtype=float))


def _own(job: Job) -> str:
    return job.uid


CASES = {
    "max-min": Case(lambda _: None, _las, checked=2048),
    "finish-time fairness": Case(_own, _ftf),
    "makespan": Case(_own, _makespan),
    "water filling": Case(lambda _: None, _filled, stages=1, checked=512),
    "max-min, sharing": Case(lambda _: None, _las, sharing=True, checked=128),
    "finish-time fairness, sharing": Case(_own, _ftf, sharing=True, most=512),
    "makespan, sharing": Case(_own, _makespan, sharing=True, most=512),
    "first come, sharing": Case(_own, _in_order, stages=1, sharing=True, most=512),
}


@dataclass
class Taken:
    """Seconds of one decision's stages."""

    first: float
    second: float = 0.0


def decide(case: Case, asked: AllocationInputs) -> Taken:
    """One decision."""
    begun = time.process_time()
    classes = JobClasses.of(asked, aware=True, class_key=case.class_key)
    found = case.first(classes)
    between = time.process_time()
    if case.stages > 1:
        second_stage(classes.problem, found)
    return Taken(between - begun, time.process_time() - between)


def difference(case: Case, asked: AllocationInputs) -> float:
    """Relative, of the least share of the program over classes from that over single jobs."""
    least = []
    for class_key in (case.class_key, lambda job: job.uid):
        classes = JobClasses.of(asked, aware=True, class_key=class_key)
        found = case.first(classes)
        reached = found if case.stages > 1 else classes.problem.throughput @ found
        least.append(float((equal_share_factor(classes.problem, _weights(classes)) * reached).min()))
    return abs(least[0] / least[1] - 1.0)


@dataclass(frozen=True)
class Whole:
    """A policy that is measured in one piece.

    Attributes:
        policy: it.
        single: whether jobs have one GPU each.
        most: jobs that it is measured with.
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


def shared_out(one: Whole, count: int) -> Taken:
    """One decision."""
    asked = inputs(count, single=one.single)
    begun = time.process_time()
    one.policy.time_shares(asked, {})
    return Taken(time.process_time() - begun)


def measure(name: str, count: int, repeat: int) -> Taken:
    """The medians of some decisions.

    Raises:
        SystemExit: classes and single jobs have other objectives.
    """
    bench.say(f"{name}, {count} jobs")
    if name in WHOLE:
        found = [shared_out(WHOLE[name], count) for _ in range(repeat)]
    else:
        case = CASES[name]
        asked = inputs(count, sharing=case.sharing)
        found = [decide(case, asked) for _ in range(repeat)]
        if count <= case.checked and (apart := difference(case, asked)) > SAME:
            raise SystemExit(f"{name}, {count} jobs: the objective differs by {apart:.1e} from that over single jobs")
    return Taken(statistics.median(taken.first for taken in found), statistics.median(t.second for t in found))


def report(found: Mapping[str, Mapping[int, Taken]]) -> list[str]:
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
        slope = bench.exponent({count: taken.first for count, taken in sizes.items()})
        if slope is not None:
            lines.append(f"| {name} | growth | jobs^{slope:.2f} | | | |")
    return lines


def main(given: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = bench.arguments(__doc__ or "")
    parser.add_argument("--jobs", type=bench.positive, nargs="+", default=SIZES, help="numbers of jobs")
    parser.add_argument("--repeat", type=bench.positive, default=3, help="decisions each; the median counts")
    parser.add_argument("--only", default="", help="policies whose name contains these words")
    options = parser.parse_args(given)
    found: dict[str, dict[int, Taken]] = {}
    for name, theirs in THEIRS.items():
        if options.only in name:
            most = (CASES[name] if name in CASES else WHOLE[name]).most
            counts = sorted({*(count for count in options.jobs if count <= most), *list(theirs)[-1:]})
            found[name] = {count: measure(name, count, options.repeat) for count in counts}
    print("\n".join(report(found)))
    as_json = {name: {n: [t.first, t.second] for n, t in sizes.items()} for name, sizes in found.items()}
    bench.finish(as_json, as_json=options.json)
    return 1 if any(slow(name, count, taken) for name, sizes in found.items() for count, taken in sizes.items()) else 0


def slow(name: str, count: int, taken: Taken) -> bool:
    """Whether ours takes longer than it may beside the public code's figure, if there is one."""
    theirs = THEIRS[name]
    factor = FACTORS.get(name, 1.0) if count == max(theirs, default=None) else 1.0
    return count in theirs and taken.first * factor > theirs[count]


if __name__ == "__main__":
    sys.exit(main())
