"""The duration of one decision of Ares at an arrival and at a completion, by the size of the cluster (Figure 11).

    python -m contrib.benchmarks.ares_policies [--gpus N ...] [--repeat N] [--json]

Nodes have 8 GPUs, and there are half as many live jobs as GPUs, as in the paper. Jobs train synthetic applications that
resemble Pollux's. On a busy cluster, one decision is measured after an arrival and one after a completion. A decision
is all that the policy does: it reads its state, advances the reference system, and gives every live job GPUs or a
reason. An event is one arrival and one completion in the reference system alone: comparisons in its heap, and time.
Seconds are medians of CPU time.
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

from contrib.benchmarks import common
from metasched.core.model import Job, Node, Snapshot, Status
from metasched.core.policy import PolicyState
from metasched.scheduling.engine import run_round
from metasched.simulator.generate.pollux import PolluxWorkloadParameters, generate_pollux, synthetic_profiles
from policies.ares.policy import Ares
from policies.ares.reference_system import ReferenceSystem

SIZES = (64, 128, 256, 512, 1024, 2048, 4096)
NODE_GPUS = 8
JOBS_PER_GPU = 0.5
PAPER_SECONDS = 0.06  # the largest duration of a decision in the paper, at PAPER_GPUS
PAPER_GPUS = 2048
EVENTS = 1000


@dataclass(frozen=True)
class Durations:
    """The results at one size of the cluster.

    Attributes:
        jobs: the number of live jobs.
        arrival: seconds of a decision after an arrival.
        end: seconds of a decision after a completion.
        comparisons: comparisons of finish times in one event.
        event: seconds of one event.
    """

    jobs: int
    arrival: float
    end: float
    comparisons: float
    event: float


class CountedTime(float):
    """A finish time that counts all comparisons of such times."""

    count = 0

    def __lt__(self, other: float) -> bool:
        CountedTime.count += 1
        return float(self) < float(other)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, float) and float(self) == float(other)

    __hash__ = float.__hash__


class CountedWork(float):
    """GPU-seconds of work, from which the reference system computes a ``CountedTime``."""

    def __truediv__(self, other: float) -> CountedWork:
        return CountedWork(float(self) / other)

    def __radd__(self, other: float) -> CountedTime:
        return CountedTime(other + float(self))


def cluster(gpus: int, seed: int) -> tuple[Snapshot, PolicyState, Job]:
    """The snapshot of a busy cluster, Ares's state after a round on it, and the next job to arrive."""
    rng = random.Random(f"{gpus} {seed}")  # noqa: S311  no secret
    count = int(gpus * JOBS_PER_GPU)
    parameters = PolluxWorkloadParameters(jobs=count + 1, hours=2.0, tuned=False)
    workload = generate_pollux(parameters, seed, synthetic_profiles())
    jobs = [
        one.job.evolve(
            total_steps=one.training.total,
            progress_steps=rng.random() * 0.9 * one.training.total,
            speed=one.training.known(0.0),
        )
        for one in workload.submissions
    ]
    nodes = tuple(Node(f"n{i:03}", "t4", NODE_GPUS, 0, 0) for i in range(gpus // NODE_GPUS))
    *live, new = jobs
    snapshot = Snapshot(new.submitted, 1, 60.0, nodes, tuple(live))
    result = run_round(snapshot, Ares(), None)
    started = tuple(
        job.evolve(status=Status.RUNNING, placement=result.targets[job.uid]) if job.uid in result.targets else job
        for job in live
    )
    after = Snapshot(snapshot.now + 1.0, 2, 60.0, nodes, started)
    stored = PolicyState(result.state.version, json.loads(json.dumps(dict(result.state.data))))
    return after, stored, new.evolve(submitted=snapshot.now + 0.5)


def decision(snapshot: Snapshot, state: PolicyState) -> float:
    """The CPU seconds of one decision."""
    policy = Ares()
    begun = time.process_time()
    policy.decide(snapshot, state)
    return time.process_time() - begun


def event(active: int) -> tuple[float, float]:
    """The comparisons and CPU seconds of one event, with this number of active jobs in the reference system."""
    seconds = []
    for number in (CountedWork, float):
        rng = random.Random(active)  # noqa: S311  no secret
        reference = ReferenceSystem({"node": 64}, 0.0)
        works = [number(rng.uniform(1e3, 1e6)) for _ in range(active + EVENTS)]
        for i in range(active):
            reference.clocks[0].arrive(f"{i}", works[i])
        CountedTime.count = 0
        begun = time.process_time()
        for i in range(EVENTS):
            reference.clocks[0].arrive(f"new {i}", works[active + i])
            reference.advance(reference.next_end)
        seconds.append(time.process_time() - begun)
        if number is CountedWork:
            comparisons = CountedTime.count / EVENTS
    return comparisons, seconds[1] / EVENTS


def measure(gpus: int, repeat: int) -> Durations:
    """The medians over ``repeat`` clusters of one size."""
    common.say(f"{gpus} GPUs")
    arrivals, ends, jobs = [], [], 0
    for seed in range(repeat):
        snapshot, state, new = cluster(gpus, seed)
        jobs = len(snapshot.jobs)
        decision(snapshot, state)  # so that the speeds of all jobs are cached
        arrivals.append(decision(Snapshot(snapshot.now, 2, 60.0, snapshot.nodes, (*snapshot.jobs, new)), state))
        ended = next(job for job in snapshot.jobs if job.placement is not None)
        left = tuple(job for job in snapshot.jobs if job is not ended)
        ends.append(decision(Snapshot(snapshot.now, 2, 60.0, snapshot.nodes, left), state))
    comparisons, seconds = event(jobs)
    return Durations(jobs, statistics.median(arrivals), statistics.median(ends), comparisons, seconds)


def report(found: Mapping[int, Durations]) -> list[str]:
    """The table as Markdown."""
    lines = [
        "| GPUs | live jobs | decision at arrival, s | at completion, s | event: comparisons | over log2(jobs) | us |",
        "|---|---|---|---|---|---|---|",
    ]
    for gpus, one in found.items():
        by_log = one.comparisons / math.log2(one.jobs)
        cells = f"{one.arrival:.4f} | {one.end:.4f} | {one.comparisons:.1f} | {by_log:.2f} | {1e6 * one.event:.1f}"
        lines.append(f"| {gpus} | {one.jobs} | {cells} |")
    if len(found) > 1:
        decided = common.growth({one.jobs: one.arrival for one in found.values()})
        compared = common.growth({one.jobs: one.comparisons for one in found.values()})
        timed = common.growth({one.jobs: one.event for one in found.values()})
        lines.append(f"| growth | | {decided} | | {compared} | | {timed} |")
    return lines


def main(given: Sequence[str] | None = None) -> int:
    """Measure, and print the table; the exit status is 1 if a decision takes longer than the paper's."""
    parser = common.arguments(__doc__ or "")
    parser.add_argument("--gpus", type=common.positive, nargs="+", default=SIZES, help="GPUs of the cluster")
    parser.add_argument("--repeat", type=common.positive, default=5, help="clusters of each size; the median counts")
    options = parser.parse_args(given)
    found = {gpus: measure(gpus, options.repeat) for gpus in options.gpus}
    print("\n".join(report(found)))
    common.finish({gpus: vars(one) for gpus, one in found.items()}, as_json=options.json)
    slow = [gpus for gpus, one in found.items() if gpus <= PAPER_GPUS and max(one.arrival, one.end) > PAPER_SECONDS]
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
