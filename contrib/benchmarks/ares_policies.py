"""What a decision of Ares takes at an arrival or an end, by the size of the cluster (Figure 11).

    python -m contrib.benchmarks.ares_policies [--gpus N ...] [--repeat N] [--json]

Nodes of 8 GPUs, and live jobs in proportion, as in the paper; on 64 GPUs there are 32. Jobs are trainings of made-up
applications like Pollux's. A cluster in the middle of its work is looked at again after one arrival, and after one end.
A decision is all that the policy does then: reading its state, the reference system, who gets what, and the reason for
every live job. Events are what an arrival and an end together cost the reference system alone: comparisons in its heap,
and time. Seconds are of the processor, medians.
"""

from __future__ import annotations

import json
import math
import random
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from contrib.benchmarks import bench
from metasched.core.model import Job, Node, Snapshot, Status
from metasched.core.policy import PolicyState
from metasched.scheduling.engine import run_round
from metasched.simulator.generate.pollux import PolluxWorkloadParameters, generate_pollux, synthetic_profiles
from policies.ares.policy import Ares
from policies.ares.reference_system import ReferenceSystem

SIZES = (64, 128, 256, 512, 1024, 2048, 4096)
NODE_GPUS = 8
PER_GPU = 0.5  # live jobs
PAPER = 0.06  # s, at most, at 2,048 GPUs
PAPER_GPUS = 2048
EVENTS = 1000


@dataclass(frozen=True)
class Taken:
    """What was found at one size.

    Attributes:
        jobs: live.
        arrival, end: seconds of a decision.
        comparisons: of finish times, for an arrival and an end together.
        event: seconds of the two.
    """

    jobs: int
    arrival: float
    end: float
    comparisons: float
    event: float


class Counted(float):
    """A number that counts how often it is compared with others."""

    count = 0

    def __lt__(self, other: float) -> bool:
        Counted.count += 1
        return float(self) < float(other)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, float) and float(self) == float(other)

    __hash__ = float.__hash__


class Work(float):
    """GPU-seconds that make finish times counted."""

    def __truediv__(self, other: float) -> Work:
        return Work(float(self) / other)

    def __radd__(self, other: float) -> Counted:
        return Counted(other + float(self))


def cluster(gpus: int, seed: int) -> tuple[Snapshot, PolicyState, Job]:
    """A cluster at work, what Ares remembers of it, and a job that comes next."""
    chance = random.Random(f"{gpus} {seed}")  # noqa: S311  no secret
    count = int(gpus * PER_GPU)
    parameters = PolluxWorkloadParameters(jobs=count + 1, hours=2.0, tuned=False)
    made = generate_pollux(parameters, seed, synthetic_profiles())
    jobs = [
        one.job.evolve(
            total_steps=one.training.total,
            progress_steps=chance.random() * 0.9 * one.training.total,
            speed=one.training.known(0.0),
        )
        for one in made.submissions
    ]
    nodes = tuple(Node(f"n{i:03}", "t4", NODE_GPUS, 0, 0) for i in range(gpus // NODE_GPUS))
    *live, new = jobs
    view = Snapshot(new.submitted, 1, 60.0, nodes, tuple(live))
    result = run_round(view, Ares(), None)
    started = tuple(
        job.evolve(status=Status.RUNNING, placement=result.targets[job.uid]) if job.uid in result.targets else job
        for job in live
    )
    after = Snapshot(view.now + 1.0, 2, 60.0, nodes, started)
    stored = PolicyState(result.state.version, json.loads(json.dumps(dict(result.state.data))))
    return after, stored, new.evolve(submitted=view.now + 0.5)


def decision(view: Snapshot, state: PolicyState) -> float:
    """Seconds of one."""
    policy = Ares()
    begun = time.process_time()
    policy.decide(view, state)
    return time.process_time() - begun


def event(active: int) -> tuple[float, float]:
    """Comparisons and seconds of an arrival and an end, with so many jobs active in the reference system."""
    seconds = []
    for number in (Work, float):
        chance = random.Random(active)  # noqa: S311  no secret
        reference = ReferenceSystem(64, 0.0)
        works = [number(chance.uniform(1e3, 1e6)) for _ in range(active + EVENTS)]
        for i in range(active):
            reference.arrive(f"{i}", works[i])
        Counted.count = 0
        begun = time.process_time()
        for i in range(EVENTS):
            reference.arrive(f"new {i}", works[active + i])
            reference.advance(reference.next_end)
        seconds.append(time.process_time() - begun)
        if number is Work:
            comparisons = Counted.count / EVENTS
    return comparisons, seconds[1] / EVENTS


def measure(gpus: int, repeat: int) -> Taken:
    """The medians of some clusters of one size."""
    bench.say(f"{gpus} GPUs")
    arrivals, ends, jobs = [], [], 0
    for seed in range(repeat):
        view, state, new = cluster(gpus, seed)
        jobs = len(view.jobs)
        decision(view, state)  # speeds are looked up once, whoever asks
        arrivals.append(decision(Snapshot(view.now, 2, 60.0, view.nodes, (*view.jobs, new)), state))
        gone = next(job for job in view.jobs if job.placement is not None)
        left = tuple(job for job in view.jobs if job is not gone)
        ends.append(decision(Snapshot(view.now, 2, 60.0, view.nodes, left), state))
    comparisons, seconds = event(jobs)
    return Taken(jobs, statistics.median(arrivals), statistics.median(ends), comparisons, seconds)


def exponent(found: Mapping[int, float]) -> float:
    """The slope over the live jobs, both logarithmic, by least squares; 1 is linear, near 0 a logarithm."""
    points = [(math.log(jobs), math.log(value)) for jobs, value in found.items()]
    return statistics.linear_regression(*zip(*points, strict=True)).slope if len(points) > 1 else math.nan


def report(found: Mapping[int, Taken]) -> list[str]:
    """The table as Markdown."""
    lines = [
        "| GPUs | live jobs | decision at an arrival, s | at an end, s | events: comparisons | of log2 of jobs | us |",
        "|---|---|---|---|---|---|---|",
    ]
    for gpus, one in found.items():
        by_log = one.comparisons / math.log2(one.jobs)
        cells = f"{one.arrival:.4f} | {one.end:.4f} | {one.comparisons:.1f} | {by_log:.2f} | {1e6 * one.event:.1f}"
        lines.append(f"| {gpus} | {one.jobs} | {cells} |")
    whole = exponent({one.jobs: one.arrival for one in found.values()})
    compared = exponent({one.jobs: one.comparisons for one in found.values()})
    timed = exponent({one.jobs: one.event for one in found.values()})
    lines.append(f"| growth | | jobs^{whole:.2f} | | jobs^{compared:.2f} | | jobs^{timed:.2f} |")
    return lines


def main(given: Sequence[str] | None = None) -> int:
    """Measure and print; 1 if a decision at the paper's size takes longer than the paper says."""
    parser = bench.arguments(__doc__ or "")
    parser.add_argument("--gpus", type=bench.positive, nargs="+", default=SIZES, help="sizes of clusters")
    parser.add_argument("--repeat", type=bench.positive, default=5, help="clusters of each size; the median counts")
    options = parser.parse_args(given)
    found = {gpus: measure(gpus, options.repeat) for gpus in options.gpus}
    print("\n".join(report(found)))
    bench.finish({gpus: vars(one) for gpus, one in found.items()}, as_json=options.json)
    slow = [gpus for gpus, one in found.items() if gpus <= PAPER_GPUS and max(one.arrival, one.end) > PAPER]
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
