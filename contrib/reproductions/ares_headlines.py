"""The headlines of Ares (Liu et al., 2025, section 5), in our simulator with the paper's settings.

    python -m contrib.reproductions.ares_headlines --data DIR [--scale N] [--only NAME ...] [--sets NAME ...]
                                                [--results FILE] [--json]

The cluster has 16 nodes of 4 GPUs. Jobs are submissions of the Philly trace: by their GPU time they become trainings of
Pollux's applications at the two largest batch sizes (the paper's Table 2), and the batch size is the same on any number
of GPUs. Work is counted in optimizer steps, so policies know speeds and work exactly, as in the paper's simulator.
--scale N simulates N traces of each set (8 in the paper). --results FILE stores each finished simulation as a line of
JSON; another run skips the simulations that the file has.
"""

from __future__ import annotations

import csv
import json
import random
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from statistics import fmean

from contrib.benchmarks import common
from contrib.reproductions.demand import EXACT, HALF, QUARTER, UNKNOWN, UNPREDICTABLE, WRONG
from contrib.reproductions.measured_runs import HOUR, jct_hours, p99_hours, simulate_and_measure, without_quanta
from contrib.reproductions.parity_rows.pollux import TIRESIAS
from contrib.reproductions.published_loops.pollux import PolluxLoop
from contrib.reproductions.stored_results import Results, add_tables, means, print_tables
from metasched.core.model import Decision, Node, Placement, Snapshot, Speed
from metasched.core.policy import Policy, PolicyState, installed_policies
from metasched.simulator.metrics import Metrics
from metasched.simulator.records import Settings, Submission, Workload, trace_job
from metasched.simulator.traces.pollux import read_pollux, read_profiles
from metasched.throughput.goodput_profile import GoodputProfile, ProfileTraining
from metasched.throughput.training import COLOCATED_FRACTION, Pace, Training
from policies.ares.policy import Ares, AresParameters
from policies.baselines.allox import AlloX
from policies.baselines.las import Las
from policies.baselines.optimus import Optimus
from policies.baselines.srtf import Srtf
from policies.gavel.policies import GavelFinishTimeFairness, GavelLas

NODES = tuple(Node(f"n{i:02}", "t4", 4, cpus=0, memory=0) for i in range(16))
MAX_GPUS = 64
APPLICATIONS: Mapping[float, tuple[str, ...]] = {
    1.0: ("cifar10", "ncf"),
    10.0: ("bert", "deepspeech2"),
    100.0: ("yolov3",),
    float("inf"): ("imagenet",),
}
"""Applications by the GPU-hours below which a submission becomes one of them (Table 2)."""
RESTARTS = {"imagenet": 4.0, "cifar10": 8.0, "yolov3": 4.0, "bert": 73.0, "deepspeech2": 1.0, "ncf": 1.0}
"""Seconds of a restart by application (section 5.2, which does not mention NeuMF)."""
ALPHAS = (0.3, 0.5, 0.6, 0.7, 0.75, 0.8, 0.9, 1.0)
LONG_ROUNDS = (GavelLas, GavelFinishTimeFairness, AlloX)
LONG_RESTART = 60.0
"""Seconds of a restart in the second half of the table of restarts: the policy's own assumption."""
LEAST_ROUNDS = (0.0, 10.0, 30.0)
"""Seconds between two decisions, at least; 10 is the daemon's default."""


@dataclass(frozen=True)
class FixedBatch:
    """A training of an application at one batch size, in optimizer steps: a ``Training`` and its ``Speed``.

    Attributes:
        profile: the application's measurements.
        batch: the global batch size, on any number of GPUs.
        total: steps in all.
    """

    profile: GoodputProfile
    batch: int
    total: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "total", self.profile.steps_after(self.batch, len(self.profile.ends) - 1))

    def steps_per_second(self, gpu_type: str, spread: tuple[int, ...]) -> float | None:
        """The speed, with gradient accumulation where memory requires it; None where no near size was measured."""
        if gpu_type != self.profile.gpu_type:
            return None
        split = self.profile.split(self.batch, sum(spread))
        times = self.profile.step_time(spread, split.local)
        return None if times is None else 1.0 / (times.step + (times.step - times.sync) * split.accumulated)

    def steps_per_second_with(self, other: Speed, gpu_type: str, spread: tuple[int, ...]) -> float | None:
        """None: the speed next to a co-runner is not known."""
        del other, gpu_type, spread
        return None

    def pace(self, done: float, placement: Placement, co_runner: Training | None = None) -> Pace:
        """A pace that stays the same to the end."""
        del done
        speed = self.steps_per_second(placement.gpu_type or "", placement.spread) or 0.0
        return Pace(speed if co_runner is None else speed * COLOCATED_FRACTION, float("inf"))

    def known(self, done: float) -> Speed:
        """The training's true speed, as policies know it after ``done`` steps."""
        del done
        return self


class Philly:
    """Random parts of the Philly trace.

    Args:
        path: CSV with the columns timestamp, gpu_time (GPU-seconds) and num_gpus.
        profiles: the applications by name.
    """

    def __init__(self, path: Path, profiles: Mapping[str, GoodputProfile]) -> None:
        with path.open(encoding="utf-8", newline="") as file:
            rows = [
                (datetime.fromisoformat(row["timestamp"]).timestamp(), int(row["num_gpus"]), float(row["gpu_time"]))
                for row in csv.DictReader(file)
            ]
        self.rows = sorted(rows)
        self.profiles = profiles

    def trace(self, seed: int, *, jobs: int, hours: float) -> Workload:
        """A number of ``jobs`` from a span of some ``hours``; the span and the submissions are drawn at random."""
        rng = random.Random(f"philly {seed} {jobs}")  # noqa: S311  no secret
        found: list[tuple[float, int, float]] = []
        while len(found) < jobs:
            begin = rng.uniform(self.rows[0][0], self.rows[-1][0] - hours * HOUR)
            found = [row for row in self.rows if begin <= row[0] < begin + hours * HOUR]
        chosen = sorted(rng.sample(found, jobs))
        submissions = [self._submission(f"{i:04}", row, begin, rng) for i, row in enumerate(chosen)]
        return Workload(f"Philly, {jobs} jobs in {hours:g} h, seed {seed}", tuple(submissions))

    def _submission(self, uid: str, row: tuple[float, int, float], begin: float, rng: random.Random) -> Submission:
        at, gpus, gpu_seconds = row
        names = next(names for gpu_hours, names in APPLICATIONS.items() if gpu_seconds < gpu_hours * HOUR)
        profile = self.profiles[rng.choice(names)]
        batch = profile.most_batch // rng.choice((1, 2))
        return submission(uid, profile, batch, gpus, at - begin)


def submission(uid: str, profile: GoodputProfile, batch: int, gpus: int, at: float) -> Submission:
    """A job that trains at a batch size; it asks for ``gpus``, or the most that the batch can be divided among."""
    most = min(batch // profile.least_local, MAX_GPUS)
    job = trace_job(uid, profile.name, at, min(gpus, most), min_gpus=1, max_gpus=most)
    job = job.evolve(gpu_types=(profile.gpu_type,))
    return Submission(job, FixedBatch(profile, batch), restart_seconds=RESTARTS[profile.name])


def pollux(path: Path, profiles: Mapping[str, GoodputProfile]) -> Workload:
    """A published workload of Pollux, with trainings of fixed batch size."""
    published = read_pollux(path, profiles, most_gpus=MAX_GPUS)
    found = []
    for one in published.submissions:
        assert isinstance(one.training, ProfileTraining)  # noqa: S101  the reader's
        profile, batch, job = one.training.profile, one.training.batch, one.job
        found.append(submission(job.uid, profile, batch, job.gpus, job.submitted))
    return Workload(f"{path.parent.name}/{path.name}", tuple(found))


def with_restarts(workload: Workload, seconds: float) -> Workload:
    """The workload, every restart of which takes so many seconds."""
    return replace(workload, submissions=tuple(replace(one, restart_seconds=seconds) for one in workload.submissions))


@dataclass(frozen=True)
class Data:
    """The source of the traces.

    Attributes:
        folder: the folder of Pollux's published data.
        scale: the number of traces of a set.
    """

    folder: Path
    scale: int

    def sets(self) -> Mapping[str, list[Workload]]:
        """The traces of each set, by name."""
        profiles = read_profiles(self.folder / "traces")
        philly = Philly(self.folder / "traces" / "philly.csv", profiles)
        published = sorted(self.folder.glob("workloads*/workload-*.csv"))
        return {
            "Philly": [philly.trace(seed, jobs=160, hours=8.0) for seed in range(self.scale)],
            "Philly, long": [philly.trace(seed, jobs=960, hours=48.0) for seed in range(self.scale)],
            "Pollux": [pollux(path, profiles) for path in published[: self.scale]],
        }


def compared_policies() -> dict[str, Policy]:
    """Ares, and the installed ones of the policies that the paper compares it with, by name."""
    found: dict[str, Policy] = {
        "ares": Ares(),
        "ares, leftovers none": Ares(AresParameters(leftovers="none")),
        "ares, leftovers faster": Ares(AresParameters(leftovers="faster")),
        "gavel": without_quanta(GavelLas),
        "themis": without_quanta(GavelFinishTimeFairness),
        "allox": without_quanta(AlloX),
        "tiresias": Las(TIRESIAS),
        "optimus": Optimus(),
        "srtf": Srtf(),
    }
    installed = installed_policies()
    if "pollux" in installed.names():
        found["pollux"] = installed.get("pollux")()
    return found


@dataclass(frozen=True)
class Row:
    """One policy on one trace, or the means over several.

    Attributes:
        jct: the mean JCT, in hours.
        p99: the 99th percentile of the JCT, in hours.
        unfair: the fraction of jobs that end later than under fair sharing, as Ares defines it.
        worst: the largest finish-time fairness.
        preemptions: the mean number of preemptions of a job.
    """

    jct: float
    p99: float
    unfair: float
    worst: float
    preemptions: float

    @classmethod
    def of(cls, metrics: Metrics) -> Row:
        """The row of one simulation."""
        fairness = metrics.fairness["ares"]
        return cls(
            jct_hours(metrics),
            p99_hours(metrics),
            fairness.unfair or 0.0,
            fairness.worst or 0.0,
            metrics.preemptions_mean or 0.0,
        )

    @classmethod
    def mean(cls, rows: Sequence[Row]) -> Row:
        """The means over traces."""
        return cls(*(fmean(getattr(row, field.name) for row in rows) for field in fields(cls)))

    @property
    def cells(self) -> str:
        """The row's cells in a table."""
        return f"{self.jct:.2f} | {self.p99:.1f} | {self.unfair:.3f} | {self.worst:.2f} | {self.preemptions:.2f}"


CELLS = "average JCT, h | p99, h | unfair | worst FTF | preemptions of a job"


def _row(results: Results, workload: Workload, policy: Policy) -> Row:
    parameters = json.dumps(policy.parameters.model_dump(mode="json"), sort_keys=True)
    simulation = workload.source, policy.name, parameters
    return Row(**results.figures(simulation, lambda: asdict(_simulate(workload, policy))))


def _simulate(workload: Workload, policy: Policy) -> Row:
    seconds = 360.0 if isinstance(policy, LONG_ROUNDS) else 60.0
    settings = Settings(round_seconds=seconds, min_round_seconds=0.0)
    return Row.of(simulate_and_measure(workload, NODES, policy, settings)[1])


def compare(sets: Mapping[str, list[Workload]], results: Results) -> Iterator[str]:
    """The table of Figures 6, 7 and 12: Ares and other policies."""
    yield f"| traces | policy | {CELLS} |"
    yield "|---|---|---|---|---|---|---|"
    for name, workloads in sets.items():
        rows = {
            label: Row.mean([_row(results, one, policy) for one in workloads])
            for label, policy in compared_policies().items()
        }
        for label, row in rows.items():
            yield f"| {name} | {label} | {row.cells} |"
        ours = rows["ares"]
        others = {label: row for label, row in rows.items() if not label.startswith("ares")}
        gains = []
        for metric in ("jct", "p99", "unfair", "worst"):
            best = min(others, key=lambda label: float(getattr(others[label], metric)))
            second = getattr(others[best], metric)
            gains.append(f"{100 * (1 - getattr(ours, metric) / second):+.0f} % ({best})" if second else "")
        yield f"| {name} | less than the best other | {' | '.join(gains)} | |"


def demands(sets: Mapping[str, list[Workload]], results: Results) -> Iterator[str]:
    """The table of policies that need the jobs' demand, where it is wrong or not known; Tiresias needs none."""
    yield f"| traces | demand | policy | {CELLS} |"
    yield "|---|---|---|---|---|---|---|---|"
    needing: dict[str, Policy] = {
        "ares": Ares(),
        "srtf": Srtf(),
        "allox": without_quanta(AlloX),
        "themis": without_quanta(GavelFinishTimeFairness),
    }
    for name, workloads in sets.items():
        row = Row.mean([_row(results, one, Las(TIRESIAS)) for one in workloads])
        yield f"| {name} | none needed | tiresias | {row.cells} |"
        for known in (EXACT, WRONG, QUARTER, HALF, UNKNOWN, UNPREDICTABLE):
            for label, policy in needing.items():
                if known == UNPREDICTABLE and label != "ares":
                    continue  # the other policies do not read predictions
                row = Row.mean([_row(results, known.known(one, seed), policy) for seed, one in enumerate(workloads)])
                yield f"| {name} | {known.name} | {label} | {row.cells} |"


def alphas(sets: Mapping[str, list[Workload]], results: Results) -> Iterator[str]:
    """The table of Figure 10: the scaling control threshold."""
    yield "| traces | alpha | average JCT, h: median | quartiles | unfair | preemptions of a job |"
    yield "|---|---|---|---|---|---|"
    for name, workloads in sets.items():
        for alpha in ALPHAS:
            found = [_row(results, one, Ares(AresParameters(alpha=alpha))) for one in workloads]
            times = [row.jct for row in found]
            low, middle, high = statistics.quantiles(times, n=4) if len(times) > 1 else times * 3
            row = Row.mean(found)
            cells = f"{middle:.2f} | {low:.2f} to {high:.2f} | {row.unfair:.3f} | {row.preemptions:.2f}"
            yield f"| {name} | {alpha:g} | {cells} |"


class FreeRestarts(Ares):
    """Ares without its rules on restarts by choice: it takes every restart to cost nothing."""

    name = "ares, restarts taken for free"

    def decide(self, snapshot: Snapshot, state: PolicyState) -> tuple[Decision, PolicyState]:
        """The decision for jobs whose restarts cost nothing."""
        jobs = tuple(job.evolve(restart_seconds=0.0) for job in snapshot.jobs)
        return super().decide(replace(snapshot, jobs=jobs), state)


def restarts(sets: Mapping[str, list[Workload]], results: Results) -> Iterator[str]:
    """The table of restarts: Ares with and without its rules on restarts by choice, and the causes of the others."""
    yield "| traces | a restart | between decisions, at least | policy | average JCT, h | p99, h | restarts of a job |"
    yield "|---|---|---|---|---|---|---|"
    measured = [(None, seconds, policy) for seconds in LEAST_ROUNDS for policy in (Ares(), Las(TIRESIAS))]
    long = [(LONG_RESTART, 0.0, policy) for policy in (FreeRestarts(), Ares())]
    for name, workloads in sets.items():
        for restart, seconds, policy in ((None, 0.0, FreeRestarts()), *measured, *long):
            found = means([_restarts(results, one, policy, restart, seconds) for one in workloads])
            cost = "as measured" if restart is None else f"{restart:g} s"
            cells = f"{found['jct']:.3f} | {found['p99']:.2f} | {found['restarts']:.2f}"
            yield f"| {name} | {cost} | {seconds:g} s | {policy.name} | {cells} |"


def _restarts(
    results: Results, workload: Workload, policy: Policy, restart: float | None, seconds: float
) -> Mapping[str, float]:
    """The figures of one simulation; a restart costs ``restart`` seconds, or, if None, what the paper measured."""
    if restart is not None:
        workload = with_restarts(workload, restart)

    def simulated() -> dict[str, float]:
        settings = Settings(round_seconds=60.0, min_round_seconds=seconds)
        metrics = simulate_and_measure(workload, NODES, policy, settings)[1]
        return {"jct": jct_hours(metrics), "p99": p99_hours(metrics), "restarts": metrics.restarts_mean or 0.0}

    cost = "measured" if restart is None else f"{restart:g} s"
    return results.figures(("restarts", workload.source, policy.name, cost, f"{seconds:g} s"), simulated)


def loop(data: Data, results: Results) -> Iterator[str]:
    """The table of Ares in the loop of Pollux's public simulator, on its published workloads; a move costs 30 s."""
    yield "| workload | policy | average JCT in Pollux's simulator, s |"
    yield "|---|---|---|"
    profiles = read_profiles(data.folder / "traces")
    settings = Settings(round_seconds=60.0, restart_seconds=30.0, uneven=True)

    def simulated(workload: Workload, policy: Policy) -> dict[str, float]:
        outcome = PolluxLoop(workload, NODES, policy, settings).run()
        return {"jct_seconds": fmean(job.jct for job in outcome.jobs if job.jct is not None)}

    for path in sorted(data.folder.glob("workloads/workload-*.csv")):
        workload = read_pollux(path, profiles, most_gpus=MAX_GPUS)
        for name, policy in (("ares", Ares()), ("tiresias", Las(TIRESIAS)), ("optimus", Optimus())):
            found = results.figures(("Pollux's loop", path.stem, name), partial(simulated, workload, policy))
            yield f"| {path.stem} | {name} | {found['jct_seconds']:.0f} |"


TABLES = ("compare", "alpha", "loop", "demand", "restarts")


def main(given: Sequence[str] | None = None) -> int:
    """Simulate, and print the tables; returns the exit status."""
    parser = common.arguments(__doc__ or "")
    common.add_data(parser)
    parser.add_argument("--scale", type=common.positive, default=8, help="number of traces of each set")
    add_tables(parser, TABLES)
    parser.add_argument("--sets", nargs="+", default=[], help="sets of traces (default: all)")
    options = parser.parse_args(given)
    data = Data(options.data / "pollux", options.scale)
    sets = {name: traces for name, traces in data.sets().items() if not options.sets or name in options.sets}
    results = Results(options.results)
    tables = {
        "compare": lambda: compare(sets, results),
        "alpha": lambda: alphas(sets, results),
        "loop": lambda: loop(data, results),
        "demand": lambda: demands(sets, results),
        "restarts": lambda: restarts(sets, results),
    }
    print_tables(options.only, tables, as_json=options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
