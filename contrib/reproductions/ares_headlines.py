"""The headlines of Ares (Liu et al., 2025, section 5), in our simulator at the paper's settings.

    python -m contrib.reproductions.ares_headlines --data DIR [--scale N] [--only NAME ...] [--json]

16 nodes of 4 GPUs. Jobs are submissions of the Philly trace: by their GPU time they become trainings of Pollux's
applications at the two largest batch sizes (the paper's Table 2), whose batch stays the same on any number of GPUs.
Work is optimizer steps, so speeds and demands are known exactly, as to the paper's simulator. --scale is the number of
traces of each set (the paper: 8).
"""

from __future__ import annotations

import csv
import random
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from statistics import fmean

from contrib.benchmarks import bench
from contrib.reproductions.published_loops.pollux import MostFreeFirst, simulate_pollux
from metasched.core.model import Job, Node, Placement, Speed
from metasched.core.policy import Policy, installed_policies
from metasched.simulator.metrics import Metrics, measure
from metasched.simulator.records import Settings, Submission, Workload
from metasched.simulator.simulation import simulate
from metasched.simulator.traces.pollux import read_pollux, read_profiles
from metasched.throughput.goodput_profile import Profile, ProfileTraining
from metasched.throughput.training import COLOCATED_FRACTION, Pace, Training
from policies.ares.policy import Ares, AresParameters
from policies.baselines.allox import AlloX
from policies.baselines.las import Las, LasParameters
from policies.baselines.optimus import Optimus
from policies.baselines.srtf import Srtf
from policies.gavel.policies import GavelFinishTimeFairness, GavelLas

HOUR = 3600.0
NODES = tuple(Node(f"n{i:02}", "t4", 4, cpus=0, memory=0) for i in range(16))
MOST = 64
SIZES: Mapping[float, tuple[str, ...]] = {
    1.0: ("cifar10", "ncf"),
    10.0: ("bert", "deepspeech2"),
    100.0: ("yolov3",),
    float("inf"): ("imagenet",),
}
"""Applications by the GPU-hours below which a submission becomes one of them (Table 2)."""
RESTARTS = {"imagenet": 4.0, "cifar10": 8.0, "yolov3": 4.0, "bert": 73.0, "deepspeech2": 1.0, "ncf": 1.0}
"""Seconds to stop and start again (section 5.2; of NeuMF nothing is said)."""
ALPHAS = (0.3, 0.5, 0.6, 0.7, 0.75, 0.8, 0.9, 1.0)
TIRESIAS = Las(
    LasParameters(queue_thresholds_gpu_seconds=(57600.0,), promote_knob=None, order="entry", elastic=False)
)  # as in Pollux's comparison
SLOW_ROUNDS = (GavelLas, GavelFinishTimeFairness, AlloX)


@dataclass(frozen=True)
class FixedBatch:
    """A training of an application at one batch size, in optimizer steps: a ``Training`` and its ``Speed``.

    Attributes:
        profile: what was measured of it.
        batch: its global batch size, on any number of GPUs.
        total: steps.
    """

    profile: Profile
    batch: int
    total: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "total", self.profile.steps_after(self.batch, len(self.profile.ends) - 1))

    def steps_per_second(self, gpu_type: str, spread: tuple[int, ...]) -> float | None:
        """With accumulation where memory asks for it; None where nothing near was measured."""
        if gpu_type != self.profile.gpu_type:
            return None
        split = self.profile.split(self.batch, sum(spread))
        times = self.profile.step_time(spread, split.local)
        return None if times is None else 1.0 / (times.step + (times.step - times.sync) * split.accumulated)

    def steps_per_second_with(self, other: Speed, gpu_type: str, spread: tuple[int, ...]) -> float | None:
        """Not known."""
        del other, gpu_type, spread

    def pace(self, done: float, placement: Placement, beside: Training | None = None) -> Pace:
        """The same to the end."""
        del done
        speed = self.steps_per_second(placement.gpu_type or "", placement.spread) or 0.0
        return Pace(speed if beside is None else speed * COLOCATED_FRACTION, float("inf"))

    def known(self, done: float) -> Speed:
        """The truth."""
        del done
        return self


class Philly:
    """Traces out of the Philly trace (the columns timestamp and gpu_time in seconds, num_gpus)."""

    def __init__(self, path: Path, profiles: Mapping[str, Profile]) -> None:
        with path.open(encoding="utf-8", newline="") as file:
            rows = [
                (datetime.fromisoformat(row["timestamp"]).timestamp(), int(row["num_gpus"]), float(row["gpu_time"]))
                for row in csv.DictReader(file)
            ]
        self.rows = sorted(rows)
        self.profiles = profiles

    def trace(self, seed: int, *, jobs: int, hours: float) -> Workload:
        """So many submissions of a span of so many hours, both drawn by chance."""
        chance = random.Random(f"philly {seed} {jobs}")  # noqa: S311  no secret
        found: list[tuple[float, int, float]] = []
        while len(found) < jobs:
            begin = chance.uniform(self.rows[0][0], self.rows[-1][0] - hours * HOUR)
            found = [row for row in self.rows if begin <= row[0] < begin + hours * HOUR]
        chosen = sorted(chance.sample(found, jobs))
        one = [self._submission(f"{i:04}", row, begin, chance) for i, row in enumerate(chosen)]
        return Workload(f"Philly, {jobs} jobs in {hours:g} h, seed {seed}", tuple(one))

    def _submission(self, uid: str, row: tuple[float, int, float], begin: float, chance: random.Random) -> Submission:
        at, gpus, gpu_seconds = row
        names = next(names for most, names in SIZES.items() if gpu_seconds < most * HOUR)
        profile = self.profiles[chance.choice(names)]
        batch = profile.most_batch // chance.choice((1, 2))
        return submission(uid, profile, batch, gpus, at - begin)


def submission(uid: str, profile: Profile, batch: int, gpus: int, at: float) -> Submission:
    """A job that trains at a batch size; it asks for so many GPUs, or for as many as the batch can be divided among."""
    most = min(batch // profile.least_local, MOST)
    asked = min(gpus, most)
    job = Job(
        uid=uid,
        slurm_job_id=uid,
        name=profile.name,
        user="trace",
        submitted=at,
        gpus=asked,
        min_gpus=1,
        max_gpus=most,
        gpu_types=(profile.gpu_type,),
        cpus_per_unit=0,
    )
    return Submission(job, FixedBatch(profile, batch), restart_seconds=RESTARTS[profile.name])


def pollux(path: Path, profiles: Mapping[str, Profile]) -> Workload:
    """A published workload of Pollux, with trainings as above."""
    made = read_pollux(path, profiles, most_gpus=MOST)
    found = []
    for one in made.submissions:
        assert isinstance(one.training, ProfileTraining)  # noqa: S101  the reader's
        profile, batch, job = one.training.profile, one.training.batch, one.job
        found.append(submission(job.uid, profile, batch, job.gpus, job.submitted))
    return Workload(f"{path.parent.name}/{path.name}", tuple(found))


@dataclass(frozen=True)
class Data:
    """Where traces come from.

    Attributes:
        folder: of the published data.
        scale: traces of a set.
    """

    folder: Path
    scale: int

    def sets(self) -> Mapping[str, list[Workload]]:
        """Traces by set."""
        profiles = read_profiles(self.folder / "traces")
        philly = Philly(self.folder / "traces" / "philly.csv", profiles)
        published = sorted(self.folder.glob("workloads*/workload-*.csv"))
        return {
            "Philly": [philly.trace(seed, jobs=160, hours=8.0) for seed in range(self.scale)],
            "Philly, long": [philly.trace(seed, jobs=960, hours=48.0) for seed in range(self.scale)],
            "Pollux": [pollux(path, profiles) for path in published[: self.scale]],
        }


def rivals() -> dict[str, Policy]:
    """Ares, and those that the paper compares it with, as far as they are here."""
    found: dict[str, Policy] = {
        "ares": Ares(),
        "ares, leftovers none": Ares(AresParameters(leftovers="none")),
        "ares, leftovers faster": Ares(AresParameters(leftovers="faster")),
        "gavel": GavelLas(),
        "themis": GavelFinishTimeFairness(),
        "allox": AlloX(),
        "tiresias": TIRESIAS,
        "optimus": Optimus(),
        "srtf": Srtf(),
    }
    installed = installed_policies()
    if "pollux" in installed.names():
        found["pollux"] = installed.get("pollux")()
    return found


def run(workload: Workload, policy: Policy) -> Metrics:
    """A simulation, measured."""
    begun = time.perf_counter()
    seconds = 360.0 if isinstance(policy, SLOW_ROUNDS) else 60.0
    settings = Settings(round_seconds=seconds, min_round_seconds=0.0)
    metrics = measure(simulate(workload, NODES, policy, settings), workload)
    ares = metrics.fairness["ares"]
    bench.say(
        f"{workload.source}: {policy.name} {policy.parameters.model_dump(exclude_defaults=True)}: "
        f"JCT {(metrics.jct_mean or 0) / HOUR:.2f} h, unfair {ares.unfair:.3f}, worst {ares.worst:.2f}, "
        f"{metrics.unfinished} unfinished, {time.perf_counter() - begun:.0f} s"
    )
    return metrics


@dataclass(frozen=True)
class Row:
    """One policy on one set: means over its traces.

    Attributes:
        jct, p99: hours.
        unfair: fraction of jobs that end later than under fair sharing, by Ares's definition.
        worst: the largest finish-time fairness.
        preemptions: of each job.
    """

    jct: float
    p99: float
    unfair: float
    worst: float
    preemptions: float

    @classmethod
    def of(cls, found: Sequence[Metrics]) -> Row:
        """The means."""
        return cls(
            fmean((m.jct_mean or 0.0) / HOUR for m in found),
            fmean((m.jct_p99 or 0.0) / HOUR for m in found),
            fmean(m.fairness["ares"].unfair or 0.0 for m in found),
            fmean(m.fairness["ares"].worst or 0.0 for m in found),
            fmean(m.preemptions_mean or 0.0 for m in found),
        )


def compare(sets: Mapping[str, list[Workload]]) -> Iterator[str]:
    """Figures 6, 7 and 12."""
    yield "| traces | policy | average JCT, h | p99, h | unfair | worst FTF | preemptions of a job |"
    yield "|---|---|---|---|---|---|---|"
    for name, workloads in sets.items():
        rows = {rival: Row.of([run(one, policy) for one in workloads]) for rival, policy in rivals().items()}
        for rival, row in rows.items():
            cells = f"{row.jct:.2f} | {row.p99:.1f} | {row.unfair:.3f} | {row.worst:.2f} | {row.preemptions:.2f}"
            yield f"| {name} | {rival} | {cells} |"
        ours = rows["ares"]
        others = {rival: row for rival, row in rows.items() if not rival.startswith("ares")}
        cells = []
        for measured in ("jct", "p99", "unfair", "worst"):
            best = min(others, key=lambda rival: getattr(others[rival], measured))
            second = getattr(others[best], measured)
            cells.append(f"{100 * (1 - getattr(ours, measured) / second):+.0f} % ({best})" if second else "")
        yield f"| {name} | less than the best other | {' | '.join(cells)} | |"


def alphas(sets: Mapping[str, list[Workload]]) -> Iterator[str]:
    """Figure 10."""
    yield "| traces | alpha | average JCT, h: median | quartiles | unfair | preemptions of a job |"
    yield "|---|---|---|---|---|---|"
    for name, workloads in sets.items():
        for alpha in ALPHAS:
            found = [run(one, Ares(AresParameters(alpha=alpha))) for one in workloads]
            times = [(metrics.jct_mean or 0.0) / HOUR for metrics in found]
            low, middle, high = statistics.quantiles(times, n=4) if len(times) > 1 else times * 3
            row = Row.of(found)
            cells = f"{middle:.2f} | {low:.2f} to {high:.2f} | {row.unfair:.3f} | {row.preemptions:.2f}"
            yield f"| {name} | {alpha:g} | {cells} |"


def loop(data: Data) -> Iterator[str]:
    """Ares in the loop of Pollux's public simulator, on its published workloads, with a move costing 30 s."""
    yield "| workload | policy | average JCT in Pollux's simulator, s |"
    yield "|---|---|---|"
    profiles = read_profiles(data.folder / "traces")
    settings = Settings(round_seconds=60.0, restart_seconds=30.0, uneven=True)
    for path in sorted(data.folder.glob("workloads/workload-*.csv")):
        workload = read_pollux(path, profiles, most_gpus=MOST)
        for name, policy in (("ares", Ares()), ("tiresias", MostFreeFirst(TIRESIAS)), ("optimus", Optimus())):
            outcome = simulate_pollux(workload, NODES, policy, settings)
            yield f"| {path.stem} | {name} | {fmean(job.jct for job in outcome.jobs if job.jct is not None):.0f} |"


TABLES = ("compare", "alpha", "loop")


def main(given: Sequence[str] | None = None) -> int:
    """Simulate and print."""
    parser = bench.arguments(__doc__ or "")
    bench.add_data(parser)
    parser.add_argument("--scale", type=bench.positive, default=8, help="traces of each set")
    parser.add_argument("--only", nargs="+", choices=TABLES, default=TABLES, help="tables")
    parser.add_argument("--sets", nargs="+", default=[], help="sets of traces whose names are among these")
    options = parser.parse_args(given)
    data = Data(options.data / "pollux", options.scale)
    sets = {name: traces for name, traces in data.sets().items() if not options.sets or name in options.sets}
    made = {"compare": lambda: compare(sets), "alpha": lambda: alphas(sets), "loop": lambda: loop(data)}
    tables: dict[str, list[str]] = {}
    for table in options.only:
        for line in made[table]():
            tables.setdefault(table, []).append(line)
            print(line, flush=True)
        print()
    bench.finish(tables, as_json=options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
