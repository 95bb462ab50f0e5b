"""The duration of every policy's decisions on 4,096 GPUs, by the number of jobs.

    OMP_NUM_THREADS=1 python -m contrib.benchmarks.policy_decisions [--jobs N ...] [--only WORDS ...] [--json]

512 nodes of 8 GPUs: of three types, with rigid jobs of 26 synthetic job types, or of one type, with elastic jobs of
synthetic applications, for policies that change sizes. In the first round all jobs are there and nothing runs. Then the
targets come true, a job ends and one arrives in each of two more rounds, and in the last round nothing has changed.
Each case runs in a process of its own, as under the daemon: what a policy solves in the background is measured apart,
and is part of the next round; and what earlier rounds have left is kept out of the garbage collector's searches.
Seconds are CPU time of one thread.
"""

from __future__ import annotations

import functools
import multiprocessing
import random
import resource
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from contrib.benchmarks import common
from contrib.benchmarks.gavel_policies import ACCOUNTS, JobType, job_types
from metasched.core.apps import AppsState
from metasched.core.model import Decision, Node, Placement, Snapshot, Speed
from metasched.core.policy import Policy, PolicyState, installed_policies
from metasched.daemon.garbage import GarbageCollection
from metasched.scheduling.engine import precompute, run_round
from metasched.scheduling.plan import Timeouts, plan
from metasched.simulator.generate.pollux import PolluxWorkloadParameters, generate_pollux, synthetic_profiles
from metasched.simulator.records import Settings, Submission, trace_job
from metasched.simulator.simulated_cluster import Cluster
from metasched.throughput.training import COLOCATED_FRACTION, Pace, Training
from policies.gavel.policies import Entity

SIZES = (512, 2048, 10_000)
NODES, NODE_GPUS, RACK_NODES = 512, 8, 16
TYPES = ("v100", "p100", "k80")
ROUND_SECONDS, HOUR = 60.0, 3600.0
APP_MEMBERS = 8
LIMIT_SECONDS = 300
MOST_SECONDS, MOST_STILL_SECONDS = 5.0, 0.2
"""The targets: of a first answer or a decision, and of placement and plan where nothing has changed."""
FIFO_INSIDE = Entity(inside="fifo").model_dump()


@dataclass(frozen=True, slots=True)
class TypedTraining:
    """A rigid training of one of the synthetic job types: a ``Training`` whose speed policies know."""

    total: float
    job_type: JobType

    def pace(self, done: float, placement: Placement, co_runner: Training | None = None) -> Pace:
        """The pace on the placement's GPU type, to the end."""
        del done
        factor = 1.0 if co_runner is None else COLOCATED_FRACTION
        return Pace(factor * self.job_type.steps_per_second(placement.gpu_type or "", placement.spread), self.total)

    def known(self, done: float) -> Speed | None:
        """The speeds of the job type."""
        del done
        return self.job_type


def rigid(count: int) -> list[Submission]:
    """Rigid jobs of all job types, of four accounts, with declared steps, from 17 minutes to a week on one V100."""
    rng = random.Random(count)  # noqa: S311  no secret
    types, found = job_types(rng), []
    for number in range(count):
        gpus = rng.choices((1, 2, 4, 8), (70, 10, 15, 5))[0]
        job_type = rng.choice(types)
        steps = job_type.steps_per_second("v100", (gpus,)) * 10 ** rng.uniform(3.0, 5.8)
        job = trace_job(f"{number:06}", "job", 2.0 * HOUR * number / count, gpus)
        found.append(Submission(job.evolve(account=str(number % ACCOUNTS)), TypedTraining(steps, job_type)))
    return found


def elastic(count: int, *, adaptive: bool = False, apps: bool = False) -> list[Submission]:
    """Jobs of synthetic applications that resemble Pollux's, elastic up to 8 GPUs; with ``apps``, in apps of 8."""
    parameters = PolluxWorkloadParameters(jobs=count, hours=2.0, tuned=False, adaptive=adaptive)
    found = []
    for number, one in enumerate(generate_pollux(parameters, 0, synthetic_profiles(TYPES[0])).submissions):
        job = one.job.evolve(max_gpus=max(one.job.gpus, NODE_GPUS))
        if apps:
            job = job.evolve(app=f"array:{number // APP_MEMBERS:06}")
        found.append(replace(one, job=job))
    return found


class Case(NamedTuple):
    """One policy with its parameters and its jobs.

    Attributes:
        policy: the policy's name.
        parameters: the parameters that differ from the defaults.
        jobs: from a number of jobs to submissions.
        types: GPU types of the cluster.
        sharing: whether two jobs can be on the same GPUs.
    """

    policy: str
    parameters: Mapping[str, Any]
    jobs: Callable[[int], list[Submission]] = rigid
    types: Sequence[str] = TYPES
    sharing: bool = False


def _adaptive(count: int) -> list[Submission]:
    return elastic(count, adaptive=True)


def _apps(count: int) -> list[Submission]:
    return elastic(count, apps=True)


ELASTIC: Mapping[str, Callable[[int], list[Submission]]] = {
    "ares": elastic,
    "optimus": elastic,
    "pollux": _adaptive,
    "shockwave": _adaptive,
    "slaq": elastic,
    "themis": _apps,
}
SHARING = ("gandiva", "gavel_las", "gavel_ftf", "gavel_makespan", "gavel_fcfs", "gavel_throughput")


def cases() -> dict[str, Case]:
    """Every installed policy with its defaults, and the costly variants, by name."""
    found = {}
    for name in installed_policies().names():
        jobs = ELASTIC.get(name)
        found[name] = Case(name, {}) if jobs is None else Case(name, {}, jobs, TYPES[:1])
        if name in SHARING:
            found[f"{name}, sharing"] = Case(name, {}, sharing=True)
    found["gavel_las, fill"] = Case("gavel_las", {"fill": True})
    found["gavel_las, placement"] = Case("gavel_las", {"placement": True})
    found["gavel_hierarchical, FIFO inside"] = Case("gavel_hierarchical", {"others": FIFO_INSIDE})
    return dict(sorted(found.items()))


class Clocked(Policy):
    """A policy whose decisions' CPU seconds are added up in ``seconds``."""

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy.parameters)
        self.policy, self.seconds = policy, 0.0
        self.name = policy.name  # type: ignore[misc]
        self.reads_apps = policy.reads_apps  # type: ignore[misc]

    def initial_state(self, snapshot: Snapshot) -> PolicyState:
        """The initial state of the policy."""
        return self.policy.initial_state(snapshot)

    def decide(self, snapshot: Snapshot, state: PolicyState) -> tuple[Decision, PolicyState]:
        """The decision of the policy."""
        begun = time.process_time()
        found = self.policy.decide(snapshot, state)
        self.seconds += time.process_time() - begun
        return found


@dataclass
class Durations:
    """CPU seconds of one case at one size.

    Attributes:
        first: the first round, placement and checks included.
        decide: the longest decision of the policy.
        work: the longest computation beside the rounds; 0 where the policy has none.
        later: the longest round after the first one.
        still: placement, checks and plan of a round in which nothing has changed, without the policy.
        megabytes: peak memory of the process.
        granted: GPUs of the last round's targets.
    """

    first: float = 0.0
    decide: float = 0.0
    work: float = 0.0
    later: float = 0.0
    still: float = 0.0
    megabytes: float = 0.0
    granted: int = 0


def cluster_nodes(types: Sequence[str]) -> list[Node]:
    """The nodes, their types in turn."""
    return [
        Node(f"n{at:04}", types[at % len(types)], NODE_GPUS, 64, 1 << 40, rack=f"r{at // RACK_NODES:03}")
        for at in range(NODES)
    ]


def measure(case: Case, count: int) -> Durations:
    """Decide four rounds."""
    policy = Clocked(installed_policies().get(case.policy)(_parameters(case)))
    cluster = Cluster(
        cluster_nodes(case.types), Settings(sharing=case.sharing), fits_iterations=policy.policy.fits_iterations
    )
    *present, one, two = case.jobs(count + 2)
    cluster.now = 2.0 * HOUR
    for submission in present:
        cluster.arrive(submission)
    times, state, apps = Durations(), None, AppsState()
    solved: Mapping[str, Any] = {}
    garbage = GarbageCollection()
    for number, arriving in enumerate((None, one, two, None)):
        if arriving is not None:
            cluster.arrive(arriving)
            _finish_one(cluster)
        still = number > 0 and arriving is None
        view = Snapshot(
            now=cluster.now,
            round=number + 1,
            round_seconds=ROUND_SECONDS,
            nodes=cluster.node_view(),
            jobs=cluster.job_view(),
            sharing=case.sharing,
        )
        background = policy.policy.solves_in_background and policy.policy.precomputes(view)
        view = replace(view, precomputed=solved if background else None)
        garbage.after_poll()
        policy.seconds, begun = 0.0, time.process_time()
        result = run_round(view, policy, state, apps)
        round_seconds = time.process_time() - begun
        state, apps = result.state, result.apps
        times.decide = max(times.decide, policy.seconds)
        if number == 0:
            times.first = round_seconds
        else:
            times.later = max(times.later, round_seconds)
        if background:
            begun = time.process_time()
            solved = dict(precompute(view, policy.policy, state, apps) or {})
            times.work = max(times.work, time.process_time() - begun)
        if still:
            begun = time.process_time()
            plan(view, result.targets, Timeouts(60.0, 60.0))
            times.still = round_seconds - policy.seconds + time.process_time() - begun
            times.granted = sum(place.gpus for place in result.targets.values())
        cluster.set_targets(result.targets, result.co_runners, result.batches)
        if number != 2:  # noqa: PLR2004  before the last round, nothing happens
            cluster.now += ROUND_SECONDS
            cluster.process_events()
    times.megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return times


def _parameters(case: Case) -> Any:
    return installed_policies().get(case.policy).Parameters.model_validate(case.parameters)


def _finish_one(cluster: Cluster) -> None:
    """Let the first running job end for good."""
    running = next((uid for uid, live in cluster.live.items() if live.gpus is not None), None)
    if running is not None:
        cluster.end([running])
        cluster.process_events()


def measured(name: str, count: int, limit: int) -> Durations | None:
    """The durations of a case; None where it takes more CPU seconds than the limit."""
    found = in_limited_process(functools.partial(_durations, name, count), limit)
    return None if found is None else Durations(**found)


def _durations(name: str, count: int) -> dict[str, Any]:
    return asdict(measure(cases()[name], count))


def in_limited_process(measurement: Callable[[], dict[str, Any]], limit: int) -> dict[str, Any] | None:
    """The result of a measurement in a new process; None where it takes more CPU seconds than the limit.

    Raises:
        RuntimeError: the process failed.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(theirs, measurement, limit))
    process.start()
    theirs.close()
    try:
        found: dict[str, Any] = ours.recv()
    except EOFError as error:
        process.join()
        if process.exitcode == -signal.SIGXCPU:
            return None
        raise RuntimeError(f"{measurement}: the measurement failed") from error
    else:
        return found
    finally:
        process.kill()
        process.join()


def _send(pipe: Connection, measurement: Callable[[], dict[str, Any]], limit: int) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 1))
    pipe.send(measurement())


def missed(name: str, count: int, found: Durations | None) -> list[str]:
    """The targets that a case misses, in words."""
    if found is None:
        return [f"{name}, {count} jobs: not done within the limit"]
    words = []
    if max(found.first, found.decide) > MOST_SECONDS:
        words.append(f"{name}, {count} jobs: {max(found.first, found.decide):.1f} s, target {MOST_SECONDS:g}")
    if found.still > MOST_STILL_SECONDS:
        words.append(f"{name}, {count} jobs: nothing changed, {found.still:.2f} s, target {MOST_STILL_SECONDS:g}")
    return words


def main(given: Sequence[str] | None = None) -> int:
    """Measure, and print the table; the exit status is 1 if a target is missed."""
    parser = common.arguments(__doc__ or "")
    parser.add_argument("--jobs", type=common.positive, nargs="+", default=SIZES, help="numbers of jobs")
    parser.add_argument("--only", nargs="+", default=[""], help="cases whose name contains one of these words")
    parser.add_argument("--limit", type=common.positive, default=LIMIT_SECONDS, help="CPU seconds of one case, at most")
    options = parser.parse_args(given)
    print("| policy | jobs | first answer s | decide s | work s | later rounds s | still s | GPUs | MB |")
    print("|---|---|---|---|---|---|---|---|---|")
    result: dict[str, dict[int, Any]] = {}
    words = []
    for name in (name for name in cases() if any(only in name for only in options.only)):
        totals = {}
        for count in options.jobs:
            found = measured(name, count, options.limit)
            words += missed(name, count, found)
            if found is None:
                print(f"| {name} | {count} | over {options.limit} | | | | | | |", flush=True)
                continue
            result.setdefault(name, {})[count] = asdict(found)
            totals[count] = found.decide + found.work
            print(
                f"| {name} | {count} | {found.first:.2f} | {found.decide:.2f} | {found.work:.2f} | {found.later:.2f} "
                f"| {found.still:.3f} | {found.granted} | {found.megabytes:.0f} |",
                flush=True,
            )
        if len(totals) > 1:
            print(f"| {name} | growth | | {common.growth(totals)} | | | | | |", flush=True)
    print("\n".join(["", *(f"missed: {each}" for each in words)]))
    common.finish(result, as_json=options.json)
    return 1 if words else 0


if __name__ == "__main__":
    sys.exit(main())
