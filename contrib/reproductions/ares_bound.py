"""How much later than under fair sharing jobs end under Ares, beside what Theorem 1 allows (section 3.4).

    python -m contrib.reproductions.ares_bound [--instances N] [--json]

Random arrivals on one node of 8 GPUs, without costs of restarts. The theorem: no job ends later than under fair sharing
by more than (1/alpha - 1) times the longest busy period. Its proof assumes that each GPU keeps alpha of its speed up to
all GPUs, so that whoever is first has them all. Jobs that cannot use them all, and gangs that cannot use what is left,
are not covered. The status is 1 if the bound is exceeded where it is proven.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from contrib.benchmarks import bench
from metasched.core.model import Job, Node
from metasched.simulator.records import Settings, Submission, Workload
from metasched.simulator.simulation import simulate
from metasched.throughput.scaling_curve import Curve, ScalingTraining
from policies.ares.policy import Ares, AresParameters
from policies.ares.reference_system import ReferenceSystem

GPUS = 8
SIZES = (1, 2, 4, 8)
JOBS = 20
WORK = 1000.0  # GPU-seconds, on average
LOAD = 0.8  # of the cluster, if jobs scaled without loss
ALPHAS = (0.6, 0.75, 0.9)
ROUNDING = 1e-6

Kind = Callable[[random.Random, float, int], tuple[dict[int, float], int, int]]
"""Speeds by GPUs, and the fewest and the most GPUs of a job that asks for so many."""


def assumed(chance: random.Random, alpha: float, asked: int) -> tuple[dict[int, float], int, int]:
    """Efficient up to all GPUs."""
    kept = sorted((chance.uniform(alpha, 1.0) for size in SIZES if size > asked), reverse=True)
    efficiency = dict(zip([size for size in SIZES if size > asked], kept, strict=True))
    return {size: size * efficiency.get(size, 1.0) for size in SIZES}, 1, GPUS


def capped(chance: random.Random, alpha: float, asked: int) -> tuple[dict[int, float], int, int]:
    """Efficient up to some size, and no faster beyond it."""
    del alpha
    most = chance.choice([size for size in SIZES if size >= asked])
    return {size: float(min(size, most)) for size in SIZES}, 1, GPUS


def gangs(chance: random.Random, alpha: float, asked: int) -> tuple[dict[int, float], int, int]:
    """As many GPUs as it asked for, or none."""
    del chance, alpha
    return {asked: float(asked)}, asked, asked


KINDS: dict[str, Kind] = {"as the proof assumes": assumed, "some cannot use all GPUs": capped, "gangs": gangs}


@dataclass
class Found:
    """Over all instances of a kind.

    Attributes:
        jobs: how many.
        late: of these, how many end later than under fair sharing.
        beyond: and by more than the bound.
        worst: the most by which one is later, in longest busy periods.
        worst_alone: the same where fair sharing, too, gives a job no more than all that it can use from the start.
    """

    jobs: int = 0
    late: int = 0
    beyond: int = 0
    worst: float = 0.0
    worst_alone: float = 0.0


def instance(kind: Kind, alpha: float, seed: int, found: Found) -> None:
    """Simulate one, and note what it shows."""
    chance = random.Random(f"{seed}")  # noqa: S311  no secret
    at, submissions, work, alone = 0.0, [], {}, {}
    reference, fair = ReferenceSystem(GPUS, 0.0), {}
    for number in range(JOBS):
        at += chance.expovariate(LOAD * GPUS / WORK)
        uid, asked = f"{number:02}", chance.choice(SIZES)
        speeds, low, high = kind(chance, alpha, asked)
        work[uid] = chance.expovariate(1 / WORK)
        alone[uid] = at + work[uid] / asked * speeds[asked] / max(speeds.values())
        job = Job(
            uid=uid,
            slurm_job_id=uid,
            name=uid,
            user="ann",
            submitted=at,
            gpus=asked,
            min_gpus=low,
            max_gpus=high,
            cpus_per_unit=0,
        )
        curve = Curve(tuple(sorted(speeds.items())))
        submissions.append(Submission(job, ScalingTraining(work[uid] / asked * speeds[asked], {"": curve})))
        fair |= dict(reference.advance(at))
        reference.arrive(uid, work[uid])
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
        found.worst_alone = max(found.worst_alone, (end - max(fair[uid], alone[uid])) / busy)


def longest_busy(spans: Sequence[tuple[float, float]]) -> float:
    """The longest time in which somebody was always there."""
    longest, began, until = 0.0, spans[0][0], spans[0][0]
    for low, high in sorted(spans):
        began = low if low > until else began
        until = max(until, high)
        longest = max(longest, until - began)
    return longest


def main(given: Sequence[str] | None = None) -> int:
    """Simulate and print."""
    parser = bench.arguments(__doc__ or "")
    parser.add_argument("--instances", type=bench.positive, default=200, help="of each kind, of 20 jobs each")
    options = parser.parse_args(given)
    print(
        "| jobs | alpha | bound, busy periods | latest | latest, beyond what it takes alone | late | beyond the bound |"
    )
    print("|---|---|---|---|---|---|---|")
    result = {}
    for name, kind in KINDS.items():
        for alpha in ALPHAS:
            found = result[f"{name}, {alpha:g}"] = Found()
            for seed in range(options.instances):
                instance(kind, alpha, seed, found)
            parts = (f"{100 * part / found.jobs:.1f} %" for part in (found.late, found.beyond))
            cells = f"{1 / alpha - 1:.2f} | {found.worst:.2f} | {found.worst_alone:.2f} | {' | '.join(parts)}"
            print(f"| {name} | {alpha:g} | {cells} |", flush=True)
    bench.finish({name: vars(found) for name, found in result.items()}, as_json=options.json)
    return 1 if any(found.beyond for name, found in result.items() if name.startswith("as the proof")) else 0


if __name__ == "__main__":
    sys.exit(main())
