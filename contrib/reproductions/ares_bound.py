"""How much later jobs end under Ares than under fair sharing, compared with the bound of Theorem 1 (section 3.4).

    python -m contrib.reproductions.ares_bound [--instances N] [--json]

Random arrivals on one node of 8 GPUs, without restart costs. The theorem: no job ends later than under fair sharing by
more than (1/alpha - 1) times the longest busy period. Its proof assumes that jobs keep a parallel efficiency of alpha
up to all GPUs, so that the first job of the queue has them all. Jobs that cannot use all GPUs, and gangs that cannot
use the remaining ones, are not covered. The exit status is 1 if the bound is exceeded where it is proven.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from contrib.benchmarks import common
from metasched.core.model import Node
from metasched.simulator.records import Settings, Submission, Workload, trace_job
from metasched.simulator.simulation import simulate
from metasched.throughput.scaling_curve import Curve, ScalingTraining
from policies.ares.policy import Ares, AresParameters
from policies.ares.reference_system import ReferenceSystem

GPUS = 8
SIZES = (1, 2, 4, 8)
JOBS = 20
MEAN_WORK = 1000.0  # GPU-seconds of a job
LOAD = 0.8  # of the cluster, at perfect scaling
ALPHAS = (0.6, 0.75, 0.9)
ROUNDING = 1e-6

JobKind = Callable[[random.Random, float, int], tuple[dict[int, float], int, int]]
"""Draws a job from (generator, alpha, GPUs asked for): speeds by GPUs, and its fewest and most GPUs."""


def assumed(rng: random.Random, alpha: float, asked: int) -> tuple[dict[int, float], int, int]:
    """A job with a parallel efficiency of at least alpha on all GPUs."""
    kept = sorted((rng.uniform(alpha, 1.0) for size in SIZES if size > asked), reverse=True)
    efficiency = dict(zip([size for size in SIZES if size > asked], kept, strict=True))
    return {size: size * efficiency.get(size, 1.0) for size in SIZES}, 1, GPUS


def capped(rng: random.Random, alpha: float, asked: int) -> tuple[dict[int, float], int, int]:
    """A job that scales perfectly up to some size, and is no faster beyond it."""
    del alpha
    most = rng.choice([size for size in SIZES if size >= asked])
    return {size: float(min(size, most)) for size in SIZES}, 1, GPUS


def gangs(rng: random.Random, alpha: float, asked: int) -> tuple[dict[int, float], int, int]:
    """A rigid job: it runs on the GPUs that it asks for."""
    del rng, alpha
    return {asked: float(asked)}, asked, asked


KINDS: dict[str, JobKind] = {"as the proof assumes": assumed, "some cannot use all GPUs": capped, "gangs": gangs}


@dataclass
class Delays:
    """Delays against fair sharing, over all instances of one kind of jobs.

    Attributes:
        jobs: the number of jobs.
        late: the number of jobs that end later than under fair sharing.
        beyond: the number of jobs that end later by more than the bound.
        worst: the largest delay, in longest busy periods.
        worst_alone: likewise, against the later one of fair sharing and the job's isolated completion.
    """

    jobs: int = 0
    late: int = 0
    beyond: int = 0
    worst: float = 0.0
    worst_alone: float = 0.0


def instance(kind: JobKind, alpha: float, seed: int, found: Delays) -> None:
    """Simulate one random workload, and add its delays to ``found``."""
    rng = random.Random(f"{seed}")  # noqa: S311  no secret
    at, submissions = 0.0, []
    work: dict[str, float] = {}  # GPU-seconds
    isolated: dict[str, float] = {}  # completions
    fair: dict[str, float] = {}  # completions
    reference = ReferenceSystem({"n0": GPUS}, 0.0)
    for number in range(JOBS):
        at += rng.expovariate(LOAD * GPUS / MEAN_WORK)
        uid, asked = f"{number:02}", rng.choice(SIZES)
        speeds, low, high = kind(rng, alpha, asked)
        work[uid] = rng.expovariate(1 / MEAN_WORK)
        isolated[uid] = at + work[uid] / asked * speeds[asked] / max(speeds.values())
        job = trace_job(uid, uid, at, asked, min_gpus=low, max_gpus=high)
        curve = Curve(tuple(sorted(speeds.items())))
        submissions.append(Submission(job, ScalingTraining(work[uid] / asked * speeds[asked], {"": curve})))
        fair |= dict(reference.advance(at))
        reference.clocks[0].arrive(uid, work[uid])
    fair |= dict(reference.advance(float("inf")))
    settings = Settings(min_round_seconds=0.0)
    nodes = (Node("n0", "gpu", GPUS, 0, 0),)
    policy = Ares(AresParameters(alpha=alpha))
    outcome = simulate(Workload(f"seed {seed}", tuple(submissions)), nodes, policy, settings)
    ends = {one.uid: one.finished or 0.0 for one in outcome.jobs}
    busy = longest_busy([(one.submitted, ends[one.uid]) for one in outcome.jobs])
    for uid, end in ends.items():
        late = (end - fair[uid]) / busy
        found.jobs += 1
        found.late += late > ROUNDING
        found.beyond += late > 1 / alpha - 1 + ROUNDING
        found.worst = max(found.worst, late)
        found.worst_alone = max(found.worst_alone, (end - max(fair[uid], isolated[uid])) / busy)


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
        help="workloads of each kind, of 20 jobs each",
    )
    options = parser.parse_args(given)
    print("| jobs | alpha | bound, busy periods | largest delay | beyond isolated duration | late | beyond the bound |")
    print("|---|---|---|---|---|---|---|")
    result = {}
    for name, kind in KINDS.items():
        for alpha in ALPHAS:
            found = result[f"{name}, {alpha:g}"] = Delays()
            for seed in range(options.instances):
                instance(kind, alpha, seed, found)
            parts = (f"{100 * part / found.jobs:.1f} %" for part in (found.late, found.beyond))
            cells = f"{1 / alpha - 1:.2f} | {found.worst:.2f} | {found.worst_alone:.2f} | {' | '.join(parts)}"
            print(f"| {name} | {alpha:g} | {cells} |", flush=True)
    common.finish({name: vars(found) for name, found in result.items()}, as_json=options.json)
    return 1 if any(found.beyond for name, found in result.items() if name.startswith("as the proof")) else 0


if __name__ == "__main__":
    sys.exit(main())
