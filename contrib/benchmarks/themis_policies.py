"""The duration of Themis's rounds as a policy: in the round, and in the background.

    python -m contrib.benchmarks.themis_policies [--sizes APPSxNODES ...] [--json]

Apps have 1 to 16 elastic jobs of up to 8 GPUs, on nodes of 8 GPUs in racks of 16. In the first round all GPUs are on
offer, and the auction is held in the background; its result is used in the second round. In the rounds after it,
leases hold, and a few jobs end in each. Seconds are CPU time of one thread.
"""

from __future__ import annotations

import random
import resource
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from contrib.benchmarks import common
from metasched.core.apps import AppsState
from metasched.core.model import Job, Node, Snapshot, Status
from metasched.scheduling.engine import RoundResult, precompute, run_round
from metasched.simulator.records import trace_job
from metasched.throughput.scaling_curve import training_of_run
from policies.themis.policy import Themis

SIZES = ((60, 8), (200, 32), (1000, 512))
NODE_GPUS, RACK_NODES, ROUND_SECONDS, ROUNDS = 8, 16, 60.0, 6
ENDING = 0.002
"""The part of the jobs that end in each round."""
MOST_BACKGROUND_SECONDS, MOST_ROUND_SECONDS, MOST_MEGABYTES = 10.0, 2.0, 1024.0
"""The targets: of an auction in the background, of a round while leases hold, and of the process."""


class Times(NamedTuple):
    """CPU seconds: the first round and its auction in the background, the round that uses it, later rounds' median."""

    first: float
    background: float
    second: float
    later: float
    leases: int


def random_jobs(apps: int, seed: int = 0) -> list[Job]:
    """The jobs of that many apps."""
    rng = random.Random(seed)  # noqa: S311
    speed, jobs = training_of_run(1.0, 1, exponent=1.0).known(0.0), []
    for app in range(apps):
        for member in range(rng.choice((1, 4, 8, 16))):
            uid = f"{app:05}_{member}"
            job = trace_job(uid, "search", float(app), 1, max_gpus=rng.choice((1, 2, 4, 8)))
            jobs.append(job.evolve(app=f"array:{app:05}", speed=speed, total_steps=rng.uniform(1e4, 1e5)))
    return jobs


def after(jobs: Sequence[Job], result: RoundResult, now: float, rng: random.Random) -> list[Job]:
    """The jobs when the round's targets have come true, and some jobs have ended."""
    left = []
    for job in jobs:
        place = result.targets.get(job.uid)
        status = Status.HELD if place is None else Status.RUNNING
        if rng.random() >= ENDING:
            left.append(job.evolve(status=status, placement=place, run_started=now, run=int(place is not None)))
    return left


def measure(apps: int, nodes: int) -> Times:
    """Decide some rounds."""
    cluster = tuple(Node(f"n{at:04}", "g", NODE_GPUS, 64, 1 << 40, rack=f"r{at // RACK_NODES}") for at in range(nodes))
    policy, rng, jobs = Themis(), random.Random(1), random_jobs(apps)  # noqa: S311
    state, apps_state, solved = None, AppsState(), dict[str, Any]()
    rounds, background, leases = [], [], 0
    for number in range(1, ROUNDS + 1):
        now = float(apps) + ROUND_SECONDS * number
        view = Snapshot(now, number, ROUND_SECONDS, cluster, tuple(jobs), precomputed=solved)
        begun = time.process_time()
        result = run_round(view, policy, state, apps_state)
        rounds.append(time.process_time() - begun)
        state, apps_state = result.state, result.apps
        begun = time.process_time()
        solved = dict(precompute(view, policy, state, apps_state) or {})
        background.append(time.process_time() - begun)
        leases = max(leases, len(state.data["leases"]))
        jobs = after(jobs, result, now, rng)
    return Times(rounds[0], max(background), rounds[1], statistics.median(rounds[2:]), leases)


def missed(size: str, times: Times, megabytes: float) -> list[str]:
    """The targets that one size misses, in words."""
    found = []
    if times.background > MOST_BACKGROUND_SECONDS:
        found.append(f"{size}: an auction of {times.background:.1f} s, target {MOST_BACKGROUND_SECONDS:.0f}")
    if times.later > MOST_ROUND_SECONDS:
        found.append(f"{size}: a round of {times.later:.1f} s, target {MOST_ROUND_SECONDS:.0f}")
    if megabytes > MOST_MEGABYTES:
        found.append(f"{size}: {megabytes:.0f} MB, target {MOST_MEGABYTES:.0f}")
    return found


def main(given: Sequence[str] | None = None) -> int:
    """Measure, and print the table; the exit status is 1 if a target is missed."""
    parser = common.arguments(__doc__ or "")
    parser.add_argument("--sizes", nargs="+", type=common.size, default=SIZES, help="APPSxNODES (default: three)")
    options = parser.parse_args(given)
    print("| apps x nodes | first round s | its auction s | round that uses it s | later rounds s | leases | MB |")
    print("|---|---|---|---|---|---|---|")
    found: dict[str, Mapping[str, Any]] = {}
    words = []
    for apps, nodes in options.sizes:
        times, size = measure(apps, nodes), f"{apps} x {nodes}"
        megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        found[size] = times._asdict() | {"megabytes": megabytes}
        words += missed(size, times, megabytes)
        print(
            f"| {size} | {times.first:.2f} | {times.background:.2f} | {times.second:.2f} | {times.later:.2f} "
            f"| {times.leases} | {megabytes:.0f} |",
            flush=True,
        )
    print("\n".join(["", *(f"missed: {each}" for each in words)]))
    common.finish(found, as_json=options.json)
    return 1 if words else 0


if __name__ == "__main__":
    sys.exit(main())
