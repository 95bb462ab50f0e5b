"""The duration and the fitness of Pollux's cluster-wide search, and the duration of its models of one job.

    python -m contrib.benchmarks.pollux_search [--sizes JOBSxNODES ...] [--artifact DIR --python PYTHON] [--json]

Jobs train the six applications of Pollux's paper on nodes of four GPUs, at random noise scales. They hold what a search
for other weights gave them, and 15 % of them hold nothing. Seconds are CPU time of one thread.
"""

from __future__ import annotations

import json
import math
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from contrib.benchmarks import common
from metasched.throughput.goodput import BatchLimits, Goodput
from metasched.throughput.iteration_fit import MeasuredIteration, fit_iteration
from metasched.throughput.iteration_time import IterationParameters
from policies.pollux.allocation_problem import AllocationProblem, Floats, Ints
from policies.pollux.direct_search import direct_search, fitness_bound, greedy_allocation
from policies.pollux.fitness import reallocation_factor
from policies.pollux.population_search import population_search
from policies.pollux.speedup_table import goodput_table, speedup_table

DRIVER = common.ROOT / "contrib" / "reproductions" / "artifact_drivers" / "pollux_search.py"
NODE_GPUS = 4
DELAY = 30.0
SIZES = ((20, 16), (40, 16), (160, 16), (160, 64), (1000, 256))
THEIRS = {(20, 16): 2.2, (40, 16): 3.0, (160, 16): 7.6, (160, 64): 25.0}
"""CPU seconds of the public code's search (100 individuals, 100 generations), by jobs and nodes, where known."""

FASTER = 20.0
MOST_SECONDS, MOST_MEGABYTES = 60.0, 1024.0
MOST_FIT_MS, MOST_BEST_MS = 20.0, 0.4
"""The targets: the ratio to the public code's time, a search of the largest size, the fit, and Eq. 13."""


class Application(NamedTuple):
    """One application of the paper: fitted parameters, batch limits, range of noise scales, and part of the jobs."""

    theta: IterationParameters
    limits: BatchLimits
    noise_scales: tuple[float, float]
    part: float


APPLICATIONS = {
    "imagenet": Application(
        IterationParameters(0.062, 0.0045, 0.0713, 0.0163, 0.3105, 0.0055, 2.8085),
        BatchLimits(200, 12800, 200, 20),
        (2e3, 3e4),
        0.02,
    ),
    "yolov3": Application(
        IterationParameters(0.1956, 0.0261, 0.0551, 0.0882, 0.6915, 0.0235, 1.1748),
        BatchLimits(8, 512, 8, 4),
        (30.0, 1e3),
        0.06,
    ),
    "deepspeech2": Application(
        IterationParameters(0.0145, 0.0333, 0.4795, 0.0837, 0.7839, 0.0268, 3.2243),
        BatchLimits(20, 640, 40, 10),
        (100.0, 3e3),
        0.10,
    ),
    "bert": Application(
        IterationParameters(0.2235, 0.0583, 0.1557, 0.0652, 1.3713, 0.0144, 2.124),
        BatchLimits(12, 384, 12, 4),
        (200.0, 800.0),
        0.10,
    ),
    "cifar10": Application(
        IterationParameters(0.0102, 0.0008, 0.0405, 0.0047, 0.1311, 0.0024, 2.8221),
        BatchLimits(128, 4096, 1024, 32),
        (300.0, 1e4),
        0.36,
    ),
    "ncf": Application(
        IterationParameters(0.007, 1.6e-6, 0.0029, 0.0012, 0.0151, 0.0004, 1.0),
        BatchLimits(256, 32768, 32768, 32),
        (3e3, 9e3),
        0.36,
    ),
}
"""The parameters are fits of the published measurements (``pollux_iteration``)."""


@dataclass(frozen=True)
class State:
    """One state of a cluster.

    Attributes:
        problem: the problem, uneven placements allowed.
        goodputs: the jobs' goodput.
        fair: the jobs' fair goodput.
        ages: seconds since the jobs' submissions.
        reallocations: how often each job was re-allocated.
    """

    problem: AllocationProblem
    goodputs: Sequence[Goodput]
    fair: Sequence[float]
    ages: Floats
    reallocations: Floats


def state(jobs: int, nodes: int, seed: int = 0) -> State:
    """A random state with that many jobs and nodes."""
    rng = np.random.default_rng([seed, jobs, nodes])
    kinds = list(APPLICATIONS.values())
    goodputs = []
    for kind in rng.choice(len(kinds), jobs, p=[kind.part for kind in kinds]):
        low, high = kinds[kind].noise_scales
        phi = math.exp(rng.uniform(math.log(low), math.log(high)))
        goodputs.append(Goodput(kinds[kind].theta, kinds[kind].limits, phi))
    held = 2 ** rng.integers(0, 6, jobs)
    most_gpus = np.array([min(2 * n, job.limits.most_gpus()) for n, job in zip(held, goodputs, strict=True)])
    widest, total = np.array([NODE_GPUS]), NODE_GPUS * nodes
    most_gpus = np.minimum(most_gpus, total)
    table = goodput_table(
        [{"t4": job} for job in goodputs], ["t4"], widest, max(int(most_gpus.max()), total // jobs + 1)
    )
    speedups = speedup_table(table, np.array([total]), widest)
    problem = AllocationProblem(
        keys=tuple(f"{number:05}" for number in range(jobs)),
        speedups=speedups,
        node_gpus=np.full(nodes, NODE_GPUS),
        node_types=np.zeros(nodes, dtype=np.int64),
        node_limits=np.full((jobs, nodes), NODE_GPUS),
        present=np.zeros((jobs, nodes), dtype=np.int64),
        factors=np.ones(jobs),
        weights=np.ones(jobs),
        least_gpus=np.ones(jobs, dtype=np.int64),
        most_gpus=most_gpus,
        most_nodes=np.full(jobs, min(nodes, 16)),  # 16: as the public code has it
        pinned=np.zeros(jobs, dtype=bool),
        uneven=True,
    )
    present = direct_search(replace(problem, weights=rng.uniform(0.5, 2.0, jobs), uneven=False), seed=0, improvements=0)
    present[rng.random(jobs) < 0.15] = 0  # noqa: PLR2004  as the page says
    ages = rng.uniform(300.0, 7200.0, jobs)
    reallocations = np.floor(ages / 600.0 * rng.random(jobs))
    factors = reallocation_factor(ages, reallocations, np.full(jobs, DELAY))
    fair = [float((row[row > 0] / ratio[row > 0])[0]) for row, ratio in zip(table, speedups, strict=True)]
    return State(replace(problem, present=present, factors=factors), goodputs, fair, ages, reallocations)


class Found(NamedTuple):
    """One answer: CPU seconds, and the fitness."""

    seconds: float
    fitness: float


def timed(problem: AllocationProblem, search: Callable[[AllocationProblem], Ints]) -> Found:
    """The answer of a search, without what the problem caches from before."""
    fresh = replace(problem)
    begun = time.process_time()
    allocation = search(fresh)
    seconds = time.process_time() - begun
    assert not problem.faults(allocation)  # noqa: S101  an infeasible answer has no fitness
    return Found(seconds, problem.fitness(allocation))


def direct(problem: AllocationProblem) -> Ints:
    """The direct search as the policy would use it."""
    return direct_search(problem, seed=0, improvements=100)


def population(problem: AllocationProblem) -> Ints:
    """The population search with the public code's budget; smaller populations for the largest problems."""
    size = int(np.clip(2e6 / problem.present.size, 10, 100))
    survivors = population_search(problem, seed=0, generations=100, size=size)
    return np.asarray(survivors[0])


SEARCHES: Mapping[str, Callable[[AllocationProblem], Ints]] = {
    "greedy": greedy_allocation,
    "direct": direct,
    "population": population,
}


def public_code(asked: State, python: str, simulator: Path) -> Found:
    """The answer of the artifact's search on the same state."""
    problem = asked.problem
    jobs = [
        {
            "key": key,
            "theta": list(goodput.iteration),  # type: ignore[call-overload]
            "noise_scale": goodput.noise_scale,
            "first_batch": goodput.limits.first_batch,
            "max_batch": goodput.limits.max_batch,
            "min_per_gpu": goodput.limits.min_per_gpu,
            "max_per_gpu": goodput.limits.max_per_gpu,
            "fair_goodput": asked.fair[number],
            "created": number,
            "age": asked.ages[number],
            "reallocations": asked.reallocations[number],
            "most_gpus": int(problem.most_gpus[number]),
        }
        for number, (key, goodput) in enumerate(zip(problem.keys, asked.goodputs, strict=True))
    ]
    held = {
        key: [int(node) for node in np.flatnonzero(row) for _ in range(row[node])]
        for key, row in zip(problem.keys, problem.present, strict=True)
    }
    given = json.dumps({"jobs": jobs, "nodes": problem.node_gpus.tolist(), "present": held})
    command = [python, str(DRIVER), str(simulator)]
    done = subprocess.run(command, input=given, check=True, capture_output=True, text=True, timeout=3600)
    answer = json.loads(done.stdout.splitlines()[-1])
    allocation = np.zeros_like(problem.present)
    for number, key in enumerate(problem.keys):
        for node in answer["allocations"].get(key, ()):
            allocation[number, node] += 1
    return Found(answer["seconds"], problem.fitness(allocation))


def models() -> dict[str, float]:
    """The CPU milliseconds of a fit of 100 configurations, and of the best batch of one allocation (Eq. 13)."""
    rng = np.random.default_rng(0)
    fits, bests = [], []
    for kind in APPLICATIONS.values():
        measured = []
        for _ in range(100):
            gpus, per_gpu = int(rng.integers(1, 65)), int(rng.integers(kind.limits.min_per_gpu, 257))
            multi_node = gpus > NODE_GPUS
            seconds = kind.theta.iteration_seconds(gpus, per_gpu, 1, multi_node=multi_node)
            measured.append(MeasuredIteration(gpus, multi_node, per_gpu, 1, seconds * math.exp(rng.normal(0.0, 0.08))))
        fits.append(milliseconds(lambda data=measured: fit_iteration(data), 5))  # type: ignore[misc]
        job = Goodput(kind.theta, kind.limits, kind.noise_scales[0])
        bests.append(milliseconds(lambda job=job: job.best(8, multi_node=True), 100))  # type: ignore[misc]
    return {"fit": max(fits), "best": max(bests)}


def milliseconds(action: Callable[[], object], times: int) -> float:
    """The median CPU milliseconds of an action."""
    taken = []
    for _ in range(times):
        begun = time.process_time()
        action()
        taken.append(1e3 * (time.process_time() - begun))
    return statistics.median(taken)


def measure(of: tuple[int, int], options: Any) -> dict[str, Any]:
    """All searches on one state, of (jobs, nodes)."""
    jobs, nodes = of
    common.say(f"{jobs} jobs on {nodes} nodes")
    asked = state(jobs, nodes)
    even = replace(asked.problem, uneven=False)
    found: dict[str, Any] = {name: timed(asked.problem, search) for name, search in SEARCHES.items()}
    found["direct, even places"] = timed(even, direct)
    if options.artifact is not None and jobs * nodes <= options.most_public:
        found["public code"] = public_code(asked, options.python, options.artifact.resolve())
    megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"searches": found, "bound": fitness_bound(asked.problem), "megabytes": megabytes}


def report(found: Mapping[tuple[int, int], Mapping[str, Any]]) -> list[str]:
    """The table as Markdown."""
    lines = [
        "| jobs | nodes | search | CPU s | times as fast | fitness | of the bound | peak MB |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for (jobs, nodes), facts in found.items():
        theirs = facts["searches"].get("public code", Found(THEIRS.get((jobs, nodes), math.nan), math.nan)).seconds
        for name, one in facts["searches"].items():
            ratio = "" if math.isnan(theirs) else f"{theirs / one.seconds:.0f}"
            part = f"{one.fitness / facts['bound']:.4f}"
            cells = (jobs, nodes, name, f"{one.seconds:.3f}", ratio, f"{one.fitness:.5f}", part)
            lines.append(f"| {' | '.join(map(str, cells))} | {facts['megabytes']:.0f} |")
    return lines


def missed(speed: Mapping[str, float], found: Mapping[tuple[int, int], Mapping[str, Any]]) -> list[str]:
    """The targets that are missed, in words."""
    words = []
    if speed["fit"] > MOST_FIT_MS or speed["best"] > MOST_BEST_MS:
        words.append(f"a fit takes {speed['fit']:.1f} ms, Eq. 13 {speed['best']:.2f} ms")
    for key, facts in found.items():
        ours, theirs = facts["searches"]["direct"], facts["searches"].get("public code")
        seconds = THEIRS.get(key, math.inf) if theirs is None else theirs.seconds
        if ours.seconds * FASTER > seconds or ours.seconds > MOST_SECONDS or facts["megabytes"] > MOST_MEGABYTES:
            words.append(f"{key}: {ours.seconds:.2f} s, {facts['megabytes']:.0f} MB")
        if theirs is not None and ours.fitness < theirs.fitness:
            words.append(f"{key}: the public code's fitness is {theirs.fitness:.5f}")
    return words


def main(given: Sequence[str] | None = None) -> int:
    """Measure, and print the tables; the exit status is 1 if a target is missed."""
    parser = common.arguments(__doc__ or "")
    parser.add_argument(
        "--sizes", type=common.size, nargs="+", default=SIZES, metavar="JOBSxNODES", help="sizes of states"
    )
    parser.add_argument(
        "--artifact", type=Path, metavar="DIR", help="the public code's simulator folder, to compare with"
    )
    parser.add_argument("--python", default=sys.executable, help="a Python that can run the public code")
    parser.add_argument(
        "--most-public", type=common.positive, default=160 * 64, help="jobs x nodes up to which it is run"
    )
    options = parser.parse_args(given)
    speed = models()
    print(f"Fit of 100 configurations: {speed['fit']:.1f} ms. Best batch of an allocation: {speed['best']:.2f} ms.\n")
    found = {key: measure(key, options) for key in options.sizes}
    print("\n".join(report(found)))
    words = missed(speed, found)
    print("\n".join(["", *(f"missed: {each}" for each in words)]))
    as_json = {f"{jobs}x{nodes}": facts for (jobs, nodes), facts in found.items()}
    common.finish({"models": speed, "searches": as_json}, as_json=options.json)
    return 1 if words else 0


if __name__ == "__main__":
    sys.exit(main())
