"""How much later jobs end under Ares than under fair sharing, compared with the bound of Theorem 1 (section 3.4).

    python -m contrib.reproductions.ares_bound [--instances N] [--json]

Random arrivals on nodes of 8 GPUs, without restart costs. The theorem: no job ends later than under fair sharing by
more than (1/alpha - 1) times the longest busy period. Its proof assumes that jobs keep a parallel efficiency of alpha
up to all GPUs, so that the first job of the queue has them all. With two GPU types, that holds for each type and the
jobs that accept it alone. Jobs that no node can hold change nothing.

A job that can use at most m of M GPUs may be unable to end by its end under fair sharing, which gives it more than m
where few jobs are active. What holds instead, for sizes that are doublings: the job ends within

    (max(L / m, 2 L / M) + W / M) / alpha

of its arrival. L is its GPU time, and W that of the jobs which end earlier under fair sharing and have not ended when
it arrives. For at every instant these jobs leave the job all its m GPUs, or use some GPUs and leave it at least half of
the others. Gangs that cannot use the remaining GPUs have neither bound. The exit status is 1 if a bound is exceeded
where it is proven.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from contrib.benchmarks import common
from metasched.core.model import Node
from metasched.simulator.records import Settings, Submission, Workload, trace_job
from metasched.simulator.simulation import simulate
from metasched.throughput.scaling_curve import Curve, ScalingTraining
from policies.ares.policy import Ares, AresParameters
from policies.ares.reference_system import ReferenceSystem

GPUS = 8  # of each type
SIZES = (1, 2, 4, 8)
JOBS = 20  # of each type
MEAN_WORK = 1000.0  # GPU-seconds of a job
LOAD = 0.8  # of the cluster, at perfect scaling
ALPHAS = (0.6, 0.75, 0.9)
ROUNDING = 1e-6


@dataclass(frozen=True)
class Drawn:
    """A random job.

    Attributes:
        speeds: its speed by GPUs.
        min_gpus: its fewest GPUs.
        max_gpus: its most GPUs.
        usable: the most GPUs on which it has a parallel efficiency of alpha.
    """

    speeds: dict[int, float]
    min_gpus: int
    max_gpus: int
    usable: int


JobKind = Callable[[random.Random, float, int], Drawn]
"""Draws a job from (generator, alpha, GPUs asked for)."""


def assumed(rng: random.Random, alpha: float, asked: int) -> Drawn:
    """A job with a parallel efficiency of at least alpha on all GPUs."""
    kept = sorted((rng.uniform(alpha, 1.0) for size in SIZES if size > asked), reverse=True)
    efficiency = dict(zip([size for size in SIZES if size > asked], kept, strict=True))
    return Drawn({size: size * efficiency.get(size, 1.0) for size in SIZES}, 1, GPUS, GPUS)


def capped(rng: random.Random, alpha: float, asked: int) -> Drawn:
    """A job that scales perfectly up to some size, and is no faster beyond it."""
    del alpha
    most = rng.choice([size for size in SIZES if size >= asked])
    return Drawn({size: float(min(size, most)) for size in SIZES}, 1, GPUS, most)


def limited(rng: random.Random, alpha: float, asked: int) -> Drawn:
    """A job that scales perfectly up to its limit."""
    del alpha
    most = rng.choice([size for size in SIZES if size >= asked])
    return Drawn({size: float(size) for size in range(1, most + 1)}, 1, most, most)


def gangs(rng: random.Random, alpha: float, asked: int) -> Drawn:
    """A rigid job: it runs on the GPUs that it asks for."""
    del rng, alpha
    return Drawn({asked: float(asked)}, asked, asked, asked)


@dataclass(frozen=True)
class Setting:
    """A kind of workload.

    Attributes:
        kind: draws the jobs.
        types: the GPU types. Each job accepts one of them.
        never: the number of jobs that no node can hold, all submitted at the beginning.
        theorem: whether the bound of Theorem 1 is proven.
        limits: whether the bound for jobs that cannot use all GPUs is proven.
    """

    kind: JobKind
    types: tuple[str, ...] = ("gpu",)
    never: int = 0
    theorem: bool = False
    limits: bool = True


KINDS: dict[str, Setting] = {
    "as the proof assumes": Setting(assumed, theorem=True),
    "also two types, and jobs that cannot run": Setting(assumed, ("fast", "slow"), never=5, theorem=True),
    "some cannot use all GPUs": Setting(capped),
    "some are limited, two types, and jobs that cannot run": Setting(limited, ("fast", "slow"), never=5),
    "gangs": Setting(gangs, limits=False),
}


@dataclass
class Delays:
    """Delays against fair sharing, over all instances of one kind of jobs.

    Attributes:
        jobs: the number of jobs.
        late: the number of jobs that end later than under fair sharing.
        beyond: the number of jobs that end later by more than the bound of Theorem 1.
        beyond_limits: the number of jobs that end later than the bound for jobs that cannot use all GPUs.
        worst: the largest delay, in longest busy periods.
        worst_alone: likewise, against the later one of fair sharing and the job's isolated completion.
    """

    jobs: int = 0
    late: int = 0
    beyond: int = 0
    beyond_limits: int = 0
    worst: float = 0.0
    worst_alone: float = 0.0


@dataclass(frozen=True)
class _Arrival:
    """A job of one instance: when it arrives, its GPU-seconds and usable GPUs, and when it would end in isolation."""

    uid: str
    at: float
    work: float
    usable: int
    isolated: float


def instance(setting: Setting, alpha: float, seed: int, found: Delays) -> None:
    """Simulate one random workload, and add its delays to ``found``."""
    rng = random.Random(f"{seed}")  # noqa: S311  no secret
    submissions = []
    arrivals: dict[str, list[_Arrival]] = {}
    fair: dict[str, float] = {}  # completions
    for gpu_type in setting.types:
        at, reference = 0.0, ReferenceSystem({gpu_type: GPUS}, 0.0)
        for number in range(JOBS):
            at += rng.expovariate(LOAD * GPUS / MEAN_WORK)
            uid, asked = f"{gpu_type}{number:02}", rng.choice(SIZES)
            drawn = setting.kind(rng, alpha, asked)
            work = rng.expovariate(1 / MEAN_WORK)
            job = trace_job(uid, uid, at, asked, min_gpus=drawn.min_gpus, max_gpus=drawn.max_gpus)
            curves = {gpu_type: Curve(tuple(sorted(drawn.speeds.items())))}
            training = ScalingTraining(work / asked * drawn.speeds[asked], curves)
            submissions.append(Submission(job.evolve(gpu_types=(gpu_type,)), training))
            isolated = at + work / asked * drawn.speeds[asked] / max(drawn.speeds.values())
            arrivals.setdefault(gpu_type, []).append(_Arrival(uid, at, work, drawn.usable, isolated))
            fair |= dict(reference.advance(at))
            reference.clocks[0].arrive(uid, work)
        fair |= dict(reference.advance(float("inf")))
    for number in range(setting.never):
        job = trace_job(f"never{number}", "never", 0.0, GPUS * len(setting.types) + 1)
        submissions.append(Submission(job, ScalingTraining(MEAN_WORK, {"": Curve(((job.gpus, 1.0),))})))
    submissions.sort(key=lambda one: (one.job.submitted, one.job.uid))
    window = range(setting.never, len(submissions))
    nodes = tuple(Node(gpu_type, gpu_type, GPUS, 0, 0) for gpu_type in setting.types)
    settings = Settings(min_round_seconds=0.0)
    workload = Workload(f"seed {seed}", tuple(submissions))
    outcome = simulate(workload, nodes, Ares(AresParameters(alpha=alpha)), settings, window=window)
    ends = {one.uid: one.finished or 0.0 for one in outcome.jobs}
    for jobs in arrivals.values():
        _compare(jobs, ends, fair, alpha, found)


def _compare(
    jobs: Sequence[_Arrival], ends: Mapping[str, float], fair: Mapping[str, float], alpha: float, found: Delays
) -> None:
    """Add the delays of the jobs of one GPU type to ``found``."""
    busy = longest_busy([(job.at, ends[job.uid]) for job in jobs])
    for job in jobs:
        end = ends[job.uid]
        late = (end - fair[job.uid]) / busy
        earlier = sum(
            other.work
            for other in jobs
            if other is not job and fair[other.uid] <= fair[job.uid] + ROUNDING and ends[other.uid] > job.at
        )
        bound = (max(job.work / job.usable, 2 * job.work / GPUS) + earlier / GPUS) / alpha
        found.jobs += 1
        found.late += late > ROUNDING
        found.beyond += late > 1 / alpha - 1 + ROUNDING
        found.beyond_limits += end - job.at > bound * (1 + ROUNDING) + ROUNDING
        found.worst = max(found.worst, late)
        found.worst_alone = max(found.worst_alone, (end - max(fair[job.uid], job.isolated)) / busy)


def longest_busy(spans: Sequence[tuple[float, float]]) -> float:
    """The length in seconds of the longest time in which at least one of the spans (from, to) is open."""
    longest, began, until = 0.0, spans[0][0], spans[0][0]
    for low, high in sorted(spans):
        began = low if low > until else began
        until = max(until, high)
        longest = max(longest, until - began)
    return longest


def main(given: Sequence[str] | None = None) -> int:
    """Simulate, and print the table; returns the exit status."""
    parser = common.arguments(__doc__ or "")
    parser.add_argument(
        "--instances",
        type=common.positive,
        default=200,
        help="workloads of each kind, of 20 jobs of each GPU type",
    )
    options = parser.parse_args(given)
    columns = (
        "bound, busy periods",
        "largest delay",
        "beyond isolated duration",
        "late",
        "beyond",
        "beyond limits",
    )
    print(f"| jobs | alpha | {' | '.join(columns)} |")
    print("|---|---|---|---|---|---|---|---|")
    result = {}
    exceeded = False
    for name, setting in KINDS.items():
        for alpha in ALPHAS:
            found = result[f"{name}, {alpha:g}"] = Delays()
            for seed in range(options.instances):
                instance(setting, alpha, seed, found)
            parts = (f"{100 * part / found.jobs:.1f} %" for part in (found.late, found.beyond, found.beyond_limits))
            cells = f"{1 / alpha - 1:.2f} | {found.worst:.2f} | {found.worst_alone:.2f} | {' | '.join(parts)}"
            print(f"| {name} | {alpha:g} | {cells} |", flush=True)
            exceeded |= bool((setting.theorem and found.beyond) or (setting.limits and found.beyond_limits))
    common.finish({name: vars(found) for name, found in result.items()}, as_json=options.json)
    return 1 if exceeded else 0


if __name__ == "__main__":
    sys.exit(main())
