"""The headlines of Shockwave (Zheng et al., NSDI 2023, section 8), in our simulator.

    python -m contrib.reproductions.shockwave_headlines --data DIR [--only NAME ...] [--seeds N ...] [--scale F]
                                                        [--results FILE] [--json]

Jobs are drawn by the paper's distributions (section 8.1), with the speeds that its authors measured, on nodes of four
GPUs. ``--scale F`` takes the fraction F of the jobs and of the nodes. ``--results FILE`` stores each finished
simulation as a line of JSON; another run skips the simulations that the file has. Themis is the auction of its paper;
Gavel's finish-time fairness, which others call Themis, is beside it.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Protocol

from contrib.benchmarks import common
from contrib.reproductions.measured_runs import without_quanta
from contrib.reproductions.replayed_batches import RecordingPollux, replayed
from contrib.reproductions.stored_results import Results, add_tables, means, print_tables
from metasched.core.model import Decision, Node, Placement, Snapshot
from metasched.core.policy import Policy, PolicyState
from metasched.simulator.generate.shockwave import GPUS, SHORT_SECONDS, ShockwaveWorkloadParameters, shockwave_jobs
from metasched.simulator.metrics import isolated_seconds, measure
from metasched.simulator.records import Outcome, Settings, Submission, Workload, trace_job
from metasched.simulator.simulation import simulate
from metasched.simulator.traces.pollux import read_pollux, read_profiles
from metasched.throughput.batch_size_regimes import Mode, RegimeTraining, model_name
from metasched.throughput.goodput_profile import packed
from metasched.throughput.throughput_table import ThroughputTable
from policies.baselines.allox import AlloX
from policies.baselines.gandiva_fair import GandivaFair
from policies.baselines.max_sum_throughput import MaxSumThroughput
from policies.gavel.policies import GavelFinishTimeFairness, GavelLas, GavelMakespan
from policies.shockwave.policy import Shockwave, ShockwaveParameters
from policies.themis.policy import Themis

GPUS_OF_NODE = 4
ROUND, RESTART = 120.0, 20.0
TRACE_GPUS, TRACE_JOBS, TRACE_GAP = 32, 120, 40.0
"""The published trace: GPUs, jobs, and the mean time between arrivals in seconds."""

POLLUX_GPUS, POLLUX_ROUND, POLLUX_RESTART = 64, 60.0, 30.0
"""GPUs of Pollux's cluster, and seconds of its rounds and of a start."""
PUBLISHED = ("workload-6", "workload-1")
"""The published workloads of Pollux."""

SIZES: Mapping[int, int] = {64: 220, 128: 460, 256: 900}
"""Jobs by GPUs (Figure 9)."""
CONTENTIONS = (1.5, 2.0, 3.0)
NOISES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
MIXES: Mapping[str, tuple[float, float, float]] = {
    "all static": (1.0, 0.0, 0.0),
    "half static": (0.5, 0.25, 0.25),
    "all dynamic": (0.0, 0.5, 0.5),
}
"""By name, the fractions of jobs that are static, and that adapt like Accordion and by GNS (Figure 10)."""
DYNAMIC = "all dynamic"

POLICIES: Mapping[str, Callable[[], Policy]] = {
    "shockwave": Shockwave,
    "themis": Themis,
    "gavel_ftf": lambda: without_quanta(GavelFinishTimeFairness),
    "gavel_las": lambda: without_quanta(GavelLas),
    "allox": lambda: without_quanta(AlloX),
    "max_sum_throughput": lambda: without_quanta(MaxSumThroughput),
    "gandiva_fair": lambda: without_quanta(GandivaFair),
    "gavel_makespan": lambda: without_quanta(GavelMakespan),
}
"""The paper's Gavel is ``gavel_las``, MST ``max_sum_throughput``, and OSSP ``gavel_makespan``."""
TRACE_POLICIES = ("shockwave", "themis", "gavel_ftf", "gavel_las", "allox")
FAIR_POLICIES = ("shockwave", "themis", "gavel_ftf", "gavel_las")

ABLATIONS: Mapping[str, Mapping[str, Any]] = {
    "defaults": {},
    "predictor bayes": {"predictor": "bayes"},
    "predictor greedy": {"predictor": "greedy"},
    "lazy": {"reactive": False},
    "k = 0": {"k": 0.0},
    "k = 10": {"k": 10.0},
    "lambda = 0": {"regularisation": 0.0},
    "lambda = 1": {"regularisation": 1.0},
    "progress of the whole job": {"whole_job": True},
}

Figures = Mapping[str, float]


class PublishedWorkloads(Protocol):
    """Pollux's workload of a name; policies may change the batches of its jobs if it is ``adaptive``."""

    def __call__(self, name: str, *, adaptive: bool) -> Workload:
        """The workload."""


@dataclass(frozen=True)
class Case:
    """One simulation.

    Attributes:
        policy: the policy.
        seed: of the workload.
        gpus: GPUs of the cluster, before the scale.
        jobs: the number of jobs, before the scale.
        mix: the name of a mix.
        parameters: of Shockwave, other than the defaults, by name.
        noise: the largest relative error of the remaining work that Shockwave is told.
        restart_seconds: the duration of a restart.
        trace: the published workload of Pollux whose arrivals, durations and GPUs the jobs have; empty for the paper's
            distributions.
    """

    policy: str = "shockwave"
    seed: int = 1
    gpus: int = TRACE_GPUS
    jobs: int = TRACE_JOBS
    mix: str = DYNAMIC
    parameters: tuple[tuple[str, Any], ...] = ()
    noise: float = 0.0
    restart_seconds: float = RESTART
    trace: str = ""

    def made_policy(self) -> Policy:
        """The policy with its parameters."""
        if self.policy == "shockwave":
            return MisinformedShockwave(ShockwaveParameters(**dict(self.parameters)), self.noise)
        return POLICIES[self.policy]()


class MisinformedShockwave(Shockwave):
    """Shockwave that is told too much or too little remaining work of each job.

    Args:
        parameters: of Shockwave.
        noise: the largest relative error, from 0; each job's is drawn once, by its uid.
    """

    def __init__(self, parameters: ShockwaveParameters, noise: float) -> None:
        super().__init__(parameters)
        self._noise = noise

    def decide(self, snapshot: Snapshot, state: PolicyState) -> tuple[Decision, PolicyState]:
        """Shockwave's decision on what it is told."""
        if not self._noise:
            return super().decide(snapshot, state)
        told = []
        for job in snapshot.jobs:
            factor = 1.0 + random.Random(f"noise {job.uid}").uniform(-self._noise, self._noise)  # noqa: S311  no secret
            left = job.remaining_steps
            told.append(job.evolve(total_steps=(job.progress_steps or 0.0) + left * factor) if left else job)
        return super().decide(replace(snapshot, jobs=tuple(told)), state)


class Headlines:
    """The simulations of the headlines.

    Args:
        table: the speeds of the models.
        published: the published workloads of Pollux.
        seeds: of the workloads, over which figures are means.
        scale: the fraction of the jobs and nodes.
        results: of this and earlier runs.
    """

    def __init__(
        self,
        table: ThroughputTable,
        published: PublishedWorkloads,
        seeds: Sequence[int],
        scale: float,
        results: Results,
    ) -> None:
        self.table = table
        self.published = published
        self.seeds = seeds
        self.scale = scale
        self.results = results

    def mean(self, **case: Any) -> Figures:
        """The means of the figures over the seeds."""
        return means([self.figures(Case(seed=seed, **case)) for seed in self.seeds])

    def figures(self, case: Case) -> Figures:
        """Makespan and average JCT in hours, worst rho, and the percentage of unfair jobs."""
        return self.results.figures((f"{self.scale:g}", repr(case)), partial(self._simulated, case))

    def _simulated(self, case: Case) -> dict[str, float]:
        begun = time.process_time()
        nodes = self._nodes(case.gpus, "v100")
        modes = dict(zip((Mode.STATIC, Mode.ACCORDION, Mode.GNS), MIXES[case.mix], strict=True))
        if case.trace:
            workload = on_trace(self.table, self._thinned(self.published(case.trace, adaptive=False)), case.seed, modes)
        else:
            given = ShockwaveWorkloadParameters(
                jobs=max(round(case.jobs * self.scale), 2),
                gap_seconds=TRACE_GAP * TRACE_GPUS / (len(nodes) * GPUS_OF_NODE),
            )
            workload = shockwave_jobs(self.table, given, case.seed, modes=modes)
        settings = Settings(round_seconds=ROUND, restart_seconds=case.restart_seconds)
        found = figures(simulate(workload, nodes, case.made_policy(), settings), workload)
        common.say(f"{case}: makespan {found['makespan']:.2f} h, {time.process_time() - begun:.0f} s")
        return found

    def replay(self, name: str) -> Mapping[str, Figures]:
        """By policy, the figures of Pollux on a workload, and of Shockwave on the batches that Pollux chose."""
        stored = self.results.figures((f"{self.scale:g}", f"replay {name}"), partial(self._replayed, name))
        by_policy: dict[str, dict[str, float]] = {}
        for key, value in stored.items():
            policy, _, figure = key.partition(" ")
            by_policy.setdefault(policy, {})[figure] = value
        return by_policy

    def _replayed(self, name: str) -> dict[str, float]:
        begun = time.process_time()
        nodes = self._nodes(POLLUX_GPUS, "t4")
        most = len(nodes) * GPUS_OF_NODE
        fixed, adaptive = (self._thinned(self.published(name, adaptive=free), most) for free in (False, True))
        pollux = RecordingPollux()
        chosen = simulate(adaptive, nodes, pollux, _costly(POLLUX_ROUND))
        jobs = replayed(fixed, pollux.regimes)
        found = {
            "pollux": figures(chosen, jobs),
            "shockwave": figures(simulate(jobs, nodes, Shockwave(), _costly(ROUND)), jobs),
        }
        common.say(f"replay {name}: {time.process_time() - begun:.0f} s")
        return {f"{policy} {key}": value for policy, row in found.items() for key, value in row.items()}

    def _nodes(self, gpus: int, gpu_type: str) -> tuple[Node, ...]:
        count = max(round(gpus * self.scale / GPUS_OF_NODE), 2)  # the widest jobs have two nodes
        return tuple(Node(f"n{each:02}", gpu_type, GPUS_OF_NODE, cpus=0, memory=0) for each in range(count))

    def _thinned(self, workload: Workload, most_gpus: int = POLLUX_GPUS) -> Workload:
        """The fraction of the jobs, evenly spread, which ask for so many GPUs at most."""
        chosen = workload.submissions[:: max(round(1 / self.scale), 1)]
        limited = (
            one if one.job.gpus <= most_gpus else replace(one, job=one.job.evolve(gpus=most_gpus)) for one in chosen
        )
        return replace(workload, submissions=tuple(limited))


def figures(outcome: Outcome, workload: Workload) -> dict[str, float]:
    """Makespan and average JCT in hours, worst rho, the percentage of unfair jobs, and GPU-hours of a job."""
    measured = measure(outcome, workload)
    rho = measured.fairness["shockwave"]
    return {
        "makespan": (measured.makespan or 0.0) / 3600.0,
        "jct": (measured.jct_mean or 0.0) / 3600.0,
        "worst": rho.worst or 0.0,
        "unfair": 100.0 * (rho.unfair or 0.0),
        "gpu hours": measured.gpu_hours / len(workload.submissions),
    }


def on_trace(table: ThroughputTable, published: Workload, seed: int, modes: Mapping[Mode, float]) -> Workload:
    """Jobs with the arrivals, durations and GPUs of a published workload, and models and modes of the paper's mix.

    A job has a power of two of GPUs, at most as many as the table has: the largest one that it asked for.
    """
    widths: dict[int, list[Submission]] = {}
    for one in published.submissions:
        width = min(1 << (one.job.gpus.bit_length() - 1), max(GPUS))
        widths.setdefault(width, []).append(one)
    submissions = []
    for width, jobs in sorted(widths.items()):
        drawn = shockwave_jobs(table, ShockwaveWorkloadParameters(jobs=len(jobs)), seed, gpus={width: 1.0}, modes=modes)
        for given, made in zip(jobs, drawn.submissions, strict=True):
            training, spread = made.training, packed(given.job.gpus, GPUS_OF_NODE)
            assert isinstance(training, RegimeTraining)  # noqa: S101  by the generator
            names = tuple(f"n{each}" for each in range(len(spread)))
            place = Placement(names, max(spread), given.job.gpu_types[0], spread)
            seconds = isolated_seconds(given.training, place)
            mode = Mode.STATIC if seconds < SHORT_SECONDS and training.mode is Mode.ACCORDION else training.mode
            model = model_name(training.family, training.regimes[0].batch)
            steps = max(seconds * (table.speed(model, "v100", packed(width, GPUS_OF_NODE)) or 0.0), 1.0)
            job = trace_job(given.job.uid, f"{model}, {mode.value}", given.job.submitted, width)
            submissions.append(Submission(job, RegimeTraining.of(table, mode, model, width, steps)))
    return Workload(f"{published.source}, seed {seed}", tuple(sorted(submissions, key=lambda one: one.job.uid)))


def _costly(round_seconds: float) -> Settings:
    """The settings of Pollux's artifact: each start of a run takes 30 s."""
    return Settings(round_seconds=round_seconds, start_seconds=POLLUX_RESTART, restart_seconds=POLLUX_RESTART)


HEAD = "makespan, h | over shockwave | average JCT, h | worst rho | over shockwave | unfair, %"
RULE = "---|" * 6


def cells(row: Figures, ours: Figures) -> str:
    """The cells of one row, in the order of ``HEAD``."""
    return (
        f"{row['makespan']:.2f} | {row['makespan'] / ours['makespan']:.2f} x | {row['jct']:.2f} | {row['worst']:.2f} | "
        f"{row['worst'] / ours['worst']:.2f} x | {row['unfair']:.1f} |"
    )


def rows(runs: Headlines, label: str, policies: Iterable[str], **case: Any) -> Iterator[str]:
    """A row for each policy on one case, compared with Shockwave on it; ``label`` is the text before the policy."""
    ours = runs.mean(**case)
    for policy in policies:
        yield f"| {label}{policy} | {cells(runs.mean(policy=policy, **case), ours)}"


def compare(runs: Headlines) -> Iterator[str]:
    """Figure 7: 120 jobs on 32 GPUs (paper: makespan 1.3 x, worst rho 2 x, unfair jobs 2.7 x those of Shockwave)."""
    yield f"| policy | {HEAD} |"
    yield f"|---|{RULE}"
    yield from rows(runs, "", POLICIES)


def sizes(runs: Headlines) -> Iterator[str]:
    """Figure 9: larger clusters (paper, makespan: themis 1.26 to 1.35 x, gavel 1.3 to 1.34 x, allox 1.35 to 1.37 x)."""
    yield f"| GPUs | policy | {HEAD} |"
    yield f"|---|---|{RULE}"
    for gpus, jobs in SIZES.items():
        yield from rows(runs, f"{gpus} | ", POLICIES, gpus=gpus, jobs=jobs)


def mixes(runs: Headlines) -> Iterator[str]:
    """Figure 10: static and dynamic jobs (paper, unfair: all static below 5 %; all dynamic 9 %, others 22 and 28 %)."""
    yield f"| mix | policy | {HEAD} |"
    yield f"|---|---|{RULE}"
    for mix in MIXES:
        yield from rows(runs, f"{mix} | ", FAIR_POLICIES, mix=mix)


def noise(runs: Headlines) -> Iterator[str]:
    """Figure 13: errors of the remaining work (paper: at 100 %, a makespan of up to 1.36 x)."""
    yield f"| error up to | {HEAD} |"
    yield f"|---|{RULE}"
    ours = runs.mean()
    for error in NOISES:
        yield f"| {error:.0%} | {cells(runs.mean(noise=error), ours)}"


def contention(runs: Headlines) -> Iterator[str]:
    """Figure 16: fewer jobs on the same cluster."""
    yield f"| contention | policy | {HEAD} |"
    yield f"|---|---|{RULE}"
    for factor in CONTENTIONS:
        jobs = round(TRACE_JOBS * factor / max(CONTENTIONS))
        yield from rows(runs, f"{factor:g} | ", FAIR_POLICIES, jobs=jobs)


def ablations(runs: Headlines) -> Iterator[str]:
    """Shockwave without one of its parts each, and with longer restarts."""
    yield f"| variant | {HEAD} |"
    yield f"|---|{RULE}"
    ours = runs.mean()
    for name, parameters in ABLATIONS.items():
        yield f"| {name} | {cells(runs.mean(parameters=tuple(parameters.items())), ours)}"
    for seconds in (0.0, 60.0):
        yield f"| restarts of {seconds:g} s | {cells(runs.mean(restart_seconds=seconds), ours)}"


def pollux(runs: Headlines) -> Iterator[str]:
    """Figure 11: Pollux's batches replayed (paper: Pollux has a third of the JCT, and 2.4 times less GPU time)."""
    yield f"| workload | policy | {HEAD} | GPU-hours of a job |"
    yield f"|---|---|{RULE}---|"
    for name in PUBLISHED:
        found = runs.replay(name)
        for policy, row in found.items():
            yield f"| {name} | {policy} | {cells(row, found['shockwave'])} {row['gpu hours']:.2f} |"


def trace(runs: Headlines) -> Iterator[str]:
    """Figure 17: arrivals, durations and GPUs of Pollux's trace (paper: makespan 1.2 x that of Shockwave)."""
    yield f"| workload | policy | {HEAD} |"
    yield f"|---|---|{RULE}"
    for name in PUBLISHED:
        yield from rows(runs, f"{name} | ", TRACE_POLICIES, trace=name)


TABLES: Mapping[str, Callable[[Headlines], Iterator[str]]] = {
    "compare": compare,
    "sizes": sizes,
    "mixes": mixes,
    "pollux": pollux,
    "noise": noise,
    "contention": contention,
    "trace": trace,
    "ablations": ablations,
}


def main(given: Sequence[str] | None = None) -> int:
    """Simulate, and print the tables; returns the exit status."""
    parser = common.arguments(__doc__ or "")
    common.add_data(parser)
    add_tables(parser, TABLES)
    parser.add_argument("--seeds", nargs="+", type=common.positive, default=[1, 2, 3], help="of the workloads")
    parser.add_argument("--scale", type=float, default=1.0, help="fraction of the jobs and nodes")
    options = parser.parse_args(given)
    data = Path(options.data)
    table = ThroughputTable.read(data / "shockwave" / "tacc_throughputs.json")
    profiles = cache(lambda: read_profiles(data / "pollux" / "traces"))

    def published(name: str, *, adaptive: bool) -> Workload:
        path = data / "pollux" / "workloads" / f"{name}.csv"
        return read_pollux(path, profiles(), most_gpus=POLLUX_GPUS, adaptive=adaptive)

    runs = Headlines(table, published, options.seeds, options.scale, Results(options.results))
    print_tables(options.only, {name: partial(each, runs) for name, each in TABLES.items()}, as_json=options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
