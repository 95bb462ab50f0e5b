"""Whether 80 % ranges of queue forecasts hold the truth, on traces and on the demo's set-up.

    METASCHED_DATA=DIR python -m contrib.benchmarks.forecasts [--cases NAME ...] [--workloads N] [--jobs N]
                                                              [--samples N] [--json]

A trace is simulated; that simulation is the truth. At intervals the queue is forecast from the round's snapshot, with
what a daemon would know then: jobs of traces do not declare their work, and durations are known of ended jobs alone.
Ranges are calibrated with the outcomes known by then, as the daemon does. Of each job the first forecast counts, and
the one halfway to the first one's median, as the daemon keeps them; of the first two fifths of the jobs none. "all" is
the share of all forecasts that held the truth, those in between as well. "width" is the median width of the ranges, of
the median time from the forecast to the truth, and "width / time" the median of their ratio: a range may hold the truth
by being wide.

One delay moves a whole queue, so each row has the outcomes of several workloads (``--workloads``), each of which is
forecast with a calibration of its own. No two workloads of a trace have a job in common, nor jobs of one burst; more
workloads than a trace holds are refused.
"""

from __future__ import annotations

import math
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import NamedTuple

from contrib.benchmarks import common
from metasched.core.apps import AppsState
from metasched.core.model import Job, Node, Snapshot
from metasched.core.policy import Policy, PolicyState
from metasched.forecast.calibration import Calibration
from metasched.forecast.durations import EarlierJob, EarlierJobs, bursts_of
from metasched.forecast.queue_forecast import Effort, Situation, forecast_queue
from metasched.forecast.records import InstantRange
from metasched.scheduling.engine import RoundResult
from metasched.simulator.records import JobOutcome, Outcome, Settings, Submission, Workload, trace_job
from metasched.simulator.simulation import simulate
from metasched.simulator.traces.microsoft import read_microsoft
from metasched.simulator.what_if import Estimate
from metasched.throughput.scaling_curve import PowerLaw, ScalingTraining, training_of_run
from policies.baselines.fifo import Fifo
from policies.baselines.las import Las, LasParameters

LEAST_COVERED, MOST_COVERED = 0.7, 0.9
"""The targets: the share of truths inside 80 % ranges."""
WARM_UP = 0.4
HOUR = 3600.0
ASSUMED_SECONDS = 4 * HOUR
MOST_JOB_GPUS, NODES = 8, 4
FORECASTS = 60
"""Forecasts until the last arrival of a trace, at most."""
LEAST_OUTCOMES = 20
"""A share of fewer outcomes than this number is printed, and is no target."""


class TooManyWorkloadsError(ValueError):
    """A trace does not hold so many workloads."""

    def __init__(self, trace: Path, jobs: int, bursts: int, workload_jobs: int, most: int) -> None:
        super().__init__(
            f"{trace}: its {jobs} jobs of at most {MOST_JOB_GPUS} GPUs, in {bursts} bursts, are {most} workloads of "
            f"{workload_jobs} jobs: give --workloads {most} or less, or fewer --jobs"
        )


@dataclass(frozen=True)
class Case:
    """A truth to forecast.

    Attributes:
        name: of the row.
        workload: the jobs.
        nodes: the cluster.
        policy: the policy.
        every: seconds between forecasts.
        round_seconds: the length of a round.
    """

    name: str
    workload: Workload
    nodes: tuple[Node, ...]
    policy: Policy
    every: float
    round_seconds: float = 360.0


class Moment(NamedTuple):
    """The input of a round."""

    snapshot: Snapshot
    state: PolicyState | None
    apps: AppsState


@dataclass
class Tally:
    """Outcomes of ranges."""

    held: int = 0
    early: int = 0
    late: int = 0
    widths: list[float] = field(default_factory=list)
    ahead: list[float] = field(default_factory=list)

    def add(self, at: float, found: InstantRange, truth: float) -> None:
        """Count one outcome of a forecast of the instant ``at``."""
        self.widths.append((math.inf if found.high is None else found.high) - found.low)
        self.ahead.append(truth - at)
        if found.holds(truth):
            self.held += 1
        elif truth < found.low:
            self.early += 1
        else:
            self.late += 1

    def __add__(self, other: Tally) -> Tally:
        """The outcomes of both."""
        return Tally(
            self.held + other.held,
            self.early + other.early,
            self.late + other.late,
            self.widths + other.widths,
            self.ahead + other.ahead,
        )

    @property
    def count(self) -> int:
        """The number of outcomes."""
        return self.held + self.early + self.late

    def __str__(self) -> str:
        """The share and the number of outcomes."""
        return "none" if self.share is None else f"{self.share:.0%} of {self.count}"

    @property
    def width(self) -> str:
        """The median width of the ranges, and the median time from the forecast to the truth, in minutes."""
        minutes = [median(each) / 60 for each in (self.widths, self.ahead) if each]
        return " of ".join(f"{each:.{0 if each >= 10 else 1}f}" for each in minutes)  # noqa: PLR2004  two digits

    @property
    def ratio(self) -> float | None:
        """The median ratio of a range's width to the time from the forecast to the truth; None without outcomes."""
        ratios = [width / max(ahead, 1.0) for width, ahead in zip(self.widths, self.ahead, strict=True)]
        return median(ratios) if ratios else None

    @property
    def share(self) -> float | None:
        """The share of outcomes inside their ranges; None without outcomes."""
        return self.held / self.count if self.count else None


@dataclass
class Kind:
    """The calibration, the open forecasts and the outcomes of starts or of ends.

    Attributes:
        calibration: learned from the outcomes so far.
        first: the open first forecasts, each with its instant, by uid.
        halfway: the open forecasts halfway, likewise.
        first_tally: the outcomes of first forecasts.
        halfway_tally: the outcomes of forecasts halfway.
        tally: the outcomes of all forecasts, also those between first and halfway.
    """

    calibration: Calibration = field(default_factory=Calibration)
    first: dict[str, tuple[float, InstantRange]] = field(default_factory=dict)
    halfway: dict[str, tuple[float, InstantRange]] = field(default_factory=dict)
    first_tally: Tally = field(default_factory=Tally)
    halfway_tally: Tally = field(default_factory=Tally)
    tally: Tally = field(default_factory=Tally)
    _known: set[tuple[str, bool]] = field(default_factory=set)

    def take_outcomes(self, other: Kind) -> None:
        """Count the outcomes of another workload, too."""
        self.first_tally += other.first_tally
        self.halfway_tally += other.halfway_tally
        self.tally += other.tally

    @property
    def both(self) -> Tally:
        """The outcomes of first forecasts and of those halfway together."""
        return self.first_tally + self.halfway_tally

    def add(self, uid: str, at: float, found: InstantRange) -> None:
        """Keep a forecast, if it is the job's first, or the one halfway to the median of an open first one."""
        if (uid, False) not in self._known:
            self.first[uid] = at, found
            self._known.add((uid, False))
        elif uid in self.first and (uid, True) not in self._known:
            begun, first = self.first[uid]
            if at >= (begun + first.median) / 2:
                self.halfway[uid] = at, found
                self._known.add((uid, True))

    def resolve(self, now: float, truth: Callable[[str, float], float | None], counted: Callable[[str], bool]) -> None:
        """Compare the forecasts whose truth is known by now, and learn from them."""
        outcomes = []
        for held, tally in ((self.first, self.first_tally), (self.halfway, self.halfway_tally)):
            came = {uid: instant for uid, (at, _) in held.items() if (instant := truth(uid, at)) is not None}
            for uid, instant in came.items():
                if instant > now:
                    continue
                at, found = held.pop(uid)
                outcomes.append((found, instant))
                if counted(uid):
                    tally.add(at, found, instant)
        if outcomes:
            self.calibration = self.calibration.learned(outcomes)


def cluster(nodes: int, gpus: int, gpu_type: str = "v100") -> tuple[Node, ...]:
    """Nodes of one type."""
    return tuple(Node(f"n{at:03}", gpu_type, gpus, 64, 1 << 40) for at in range(nodes))


def truth_of(case: Case) -> tuple[Outcome, list[Moment]]:
    """Simulate a case; returns its outcome and the rounds to forecast from."""
    moments: list[Moment] = []
    before: list[tuple[PolicyState | None, AppsState]] = [(None, AppsState())]

    def watch(snapshot: Snapshot, result: RoundResult) -> None:
        if not moments or snapshot.now >= moments[-1].snapshot.now + case.every:
            moments.append(Moment(snapshot, *before[0]))
        before[0] = result.state, result.apps

    settings = Settings(round_seconds=case.round_seconds, start_seconds=30.0, restart_seconds=60.0)
    return simulate(case.workload, case.nodes, case.policy, settings, watch=watch), moments


def known_jobs(case: Case, outcome: Mapping[str, JobOutcome], now: float) -> EarlierJobs:
    """What a daemon knows of the jobs submitted by now: the durations of those that are complete."""
    found = []
    for one in case.workload.submissions:
        seen = outcome.get(one.job.uid)
        if seen is not None and one.job.submitted <= now:
            ended = seen.finished is not None and seen.finished <= now
            service = sum(interval.gpu_seconds(ended=now) for interval in seen.intervals if interval.began < now)
            found.append(EarlierJob(one.job, service / max(one.job.gpus, 1), ended))
    since = case.workload.submissions[0].job.submitted
    return EarlierJobs(found, max(since, now - 7 * 24 * HOUR), now) if found else EarlierJobs((), now, now)


def estimate(job: Job, submission: Submission) -> Estimate:
    """What a daemon would estimate of a job's work: its declaration at its measured speed, else an assumption."""
    if submission.declared and job.total_steps:
        training = submission.training
        assert isinstance(training, ScalingTraining)  # noqa: S101  of this program's own cases
        return Estimate(
            training.with_total(job.total_steps), job.progress_steps or 0.0, "its own reports", declared=True
        )
    return Estimate(training_of_run(ASSUMED_SECONDS, job.gpus), 0.0, "assumed")


def measure(case: Case, samples: int) -> tuple[Kind, Kind, int, float]:
    """Forecast a case; returns starts, ends, the number of forecasts and their CPU seconds."""
    outcome, moments = truth_of(case)
    of = {one.uid: one for one in outcome.jobs}
    submissions = {one.job.uid: one for one in case.workload.submissions}
    warm = {one.job.uid for one in case.workload.submissions[: int(WARM_UP * len(case.workload.submissions))]}
    settings = Settings(round_seconds=case.round_seconds, start_seconds=30.0, restart_seconds=60.0)
    starts, ends = Kind(), Kind()
    begun = time.process_time()

    def started(uid: str, at: float) -> float | None:
        return next((one.began for one in of[uid].intervals if one.began >= at), None)

    def ended(uid: str, at: float) -> float | None:
        del at
        return of[uid].finished

    for moment in (*moments, None):
        now = math.inf if moment is None else moment.snapshot.now
        starts.resolve(now, started, lambda uid: uid not in warm)
        ends.resolve(now, ended, lambda uid: uid not in warm)
        if moment is None:
            break
        earlier = known_jobs(case, of, now)
        found = forecast_queue(
            Situation(
                snapshot=moment.snapshot,
                policy=case.policy,
                state=moment.state,
                apps=moment.apps,
                estimates={job.uid: estimate(job, submissions[job.uid]) for job in moment.snapshot.jobs},
                earlier=earlier,
                settings=settings,
                starts=starts.calibration,
                ends=ends.calibration,
            ),
            Effort(samples=samples, jobs=300, arrivals=300, horizon_seconds=5 * 24 * HOUR),
        )
        assert found is not None  # noqa: S101  nothing limits its time
        for one in found.jobs:
            for kind, instant, truth in ((starts, one.start, started), (ends, one.end, ended)):
                if instant is None:
                    continue
                kind.add(one.uid, now, instant)
                came = truth(one.uid, now)
                if came is not None and one.uid not in warm:
                    kind.tally.add(now, instant, came)
    return starts, ends, len(moments), time.process_time() - begun


def traced(trace: Path, workloads: int, jobs: int, load: float, round_seconds: float = 360.0) -> list[Case]:
    """Disjoint workloads of a trace of Microsoft's clusters (elasticflow-traces), of the jobs that fit.

    Bursts are as in forecasts, jobs of one number of GPUs that were submitted within a minute of each other: the trace
    names no users. They are dealt to the workloads in turn, each as a whole. Of a workload's jobs at most ``jobs``
    stay, taken evenly from the whole trace, because few bursts are few observations, whatever the number of their jobs
    is. Arrivals are scaled so that a workload's jobs ask for ``load`` of the cluster's GPU time until the last arrival.

    Args:
        trace: its file.
        workloads: how many.
        jobs: most jobs of a workload.
        load: of the cluster, 1 for all of its GPU time.
        round_seconds: the length of a round.

    Raises:
        TooManyWorkloadsError: the trace has fewer jobs or bursts.
    """
    fitting = {one.job.uid: one for one in read_microsoft(trace).submissions if one.job.gpus <= MOST_JOB_GPUS}
    bursts = bursts_of([EarlierJob(one.job, one.training.total, ended=True) for one in fitting.values()])
    most = max(min(len(fitting) // jobs, len(bursts) // 2), 1)
    if workloads > most:
        raise TooManyWorkloadsError(trace, len(fitting), len(bursts), jobs, most)
    found = []
    for number in range(workloads):
        dealt = [fitting[one.job.uid] for burst in bursts[number::workloads] for one in burst]
        dealt.sort(key=lambda one: (one.job.submitted, one.job.uid))
        count = min(jobs, len(dealt))
        chosen = [dealt[place * len(dealt) // count] for place in range(count)]
        found.append(_at_load(trace.stem, chosen, load, round_seconds))
    return found


def _at_load(name: str, chosen: Sequence[Submission], load: float, round_seconds: float) -> Case:
    """Return a case of jobs of a trace, in the order of their submissions; see ``traced``."""
    first = chosen[0].job.submitted
    span = chosen[-1].job.submitted - first
    scale = sum(one.training.total * one.job.gpus for one in chosen) / (load * 8 * NODES) / span
    scaled = [
        replace(one, declared=False, job=one.job.evolve(submitted=(one.job.submitted - first) * scale))
        for one in chosen
    ]
    every = max(span * scale / FORECASTS, 600.0)
    return Case(f"{name}, fifo", Workload(name, tuple(scaled)), cluster(NODES, 8), Fifo(), every, round_seconds)


def generated(number: int, jobs: int) -> Case:
    """A generated workload of recurring jobs, in Pollux's mix, each name with a typical duration."""
    rng = random.Random(f"forecasts {number}")  # noqa: S311  no secret
    arrivals, at = [], 0.0
    for job_number in range(jobs):
        at += rng.expovariate(1 / 1100.0)
        name = rng.randrange(12)
        gpus = (1, 1, 2, 4, 8)[name % 5]
        seconds = 600.0 * (1 + name) * math.exp(rng.gauss(0.0, 0.6))
        job = common_job(f"{job_number:05}", f"train{name}", f"user{name % 4}", at, gpus)
        arrivals.append(Submission(job, training_of_run(seconds, gpus), declared=False))
    return Case("generated, las", Workload("generated", tuple(arrivals)), cluster(4, 4), Las(), every=3600.0)


def demo_like(number: int, jobs: int) -> Case:
    """The demo's set-up, longer: two nodes of two GPUs, short rounds, jobs that declare their steps."""
    rng = random.Random(f"demo {number}")  # noqa: S311  no secret
    arrivals, at = [], 0.0
    for job_number in range(jobs):
        at += rng.expovariate(1 / 60.0)
        gpus = rng.choice((1, 1, 2))
        steps = rng.choice((60.0, 120.0, 240.0))
        training = ScalingTraining(steps, {"": PowerLaw(gpus, 0.9)})
        ratio = math.exp(rng.gauss(0.0, 0.1))
        job = common_job(f"{job_number:05}", "demo", "user", at, gpus)
        arrivals.append(Submission(job, training, start_seconds=4.0, restart_seconds=4.0, declared_ratio=ratio))
    policy = Las(LasParameters(queue_thresholds_gpu_seconds=(60.0,)))
    workload = Workload("demo", tuple(arrivals))
    return Case("demo, las", workload, cluster(2, 2), policy, every=120.0, round_seconds=10.0)


def common_job(uid: str, name: str, user: str, submitted: float, gpus: int) -> Job:
    """A rigid job."""
    return trace_job(uid, name, submitted, gpus).evolve(user=user)


def main(given: Sequence[str] | None = None) -> int:
    """Measure, and print the table; the exit status is 1 if a share misses its target."""
    parser = common.arguments(__doc__ or "")
    common.add_data(parser)
    cases: dict[str, Callable[[Path, int, int | None], list[Case]]] = {
        "cluster01": lambda data, count, jobs: traced(data / "microsoft" / "cluster01.csv", count, jobs or 240, 0.7),
        "cluster02": lambda data, count, jobs: traced(
            data / "microsoft" / "cluster02.csv", count, jobs or 400, 0.9, 1800.0
        ),
        "generated": lambda _, count, jobs: [generated(number, jobs or 240) for number in range(count)],
        "demo": lambda _, count, jobs: [demo_like(number, jobs or 240) for number in range(count)],
    }
    parser.add_argument("--cases", nargs="+", choices=cases, default=list(cases), help="the rows to measure")
    parser.add_argument("--workloads", type=common.positive, default=5, help="workloads of each row (default 5)")
    parser.add_argument("--jobs", type=common.positive, help="jobs of a workload (default 400 of cluster02, else 240)")
    parser.add_argument("--samples", type=common.positive, default=10, help="simulations of a forecast (default 10)")
    options = parser.parse_args(given)
    try:
        chosen = {name: cases[name](options.data, options.workloads, options.jobs) for name in options.cases}
    except TooManyWorkloadsError as error:
        parser.error(str(error))
    columns = (
        *("held / outcomes", "width / time", "first ones", "width, min", "halfway", "width, min"),
        *("early, late", "all"),
    )
    print(f"| case | forecasts | CPU s each | of | {' | '.join(columns)} |")
    print("|---" * (4 + len(columns)) + "|")
    missed, rows = [], {}
    for name, workloads in chosen.items():
        starts, ends, forecasts, total = Kind(), Kind(), 0, 0.0
        for number, case in enumerate(workloads):
            found_starts, found_ends, moments, seconds = measure(case, options.samples)
            starts.take_outcomes(found_starts)
            ends.take_outcomes(found_ends)
            forecasts, total = forecasts + moments, total + seconds
            common.say(f"{case.name}, workload {number}: starts {found_starts.both}, ends {found_ends.both}")
        for what, kind in (("starts", starts), ("ends", ends)):
            both, share = kind.both, kind.both.share
            known = {"share": share, "outcomes": both.count, "width_ratio": both.ratio, "all": kind.tally.share}
            rows[f"{name} {what}"] = known
            if share is not None and both.count >= LEAST_OUTCOMES and not LEAST_COVERED <= share <= MOST_COVERED:
                missed.append(
                    f"{workloads[0].name}, {what}: {share:.0%}, target {LEAST_COVERED:.0%} to {MOST_COVERED:.0%}"
                )
            ratio = "" if both.ratio is None else f"{both.ratio:.1f}"
            cells = " | ".join(
                [str(both), ratio, *(f"{each} | {each.width}" for each in (kind.first_tally, kind.halfway_tally))]
            )
            print(f"| {workloads[0].name} | {forecasts} | {total / max(forecasts, 1):.1f} | {what}", end=" | ")
            print(f"{cells} | {both.early}, {both.late} | {kind.tally} |", flush=True)
    print("\n".join(["", *(f"missed: {each}" for each in missed)]))
    common.finish(rows, as_json=options.json)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
