"""The headlines of Themis (Mahajan et al., NSDI 2020, section 6), in our simulator.

    python -m contrib.reproductions.themis_headlines [--only NAME ...] [--gpus N ...] [--seeds N ...] [--scale F]
                                                     [--results FILE] [--json]

The testbed has 64 GPUs (8 nodes of 2, 12 of 4), the simulated cluster 256 (24 nodes of 8, 10 of 4, 24 of 1: the nodes
of footnote 6 add up to 168, and here have their proportions). Apps are drawn by the distributions of sections 2.2 and
6.1: workload 1 with performance curves, workload 2 with successive halving. Their trials have hidden learning curves,
the same under every policy. ``--scale F`` takes the fraction F of the apps, with as many at a time. ``--results FILE``
stores each finished simulation as a line of JSON; another run skips the simulations that the file has.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import fmean
from typing import Any

from contrib.benchmarks import common
from contrib.reproductions.measured_runs import without_quanta
from contrib.reproductions.stored_results import Results, add_tables, means, print_tables
from metasched.core.model import Node, Placement, Speed
from metasched.core.policy import Policy
from metasched.simulator.generate.themis import SLOWDOWN, ThemisWorkloadParameters, themis_apps
from metasched.simulator.metrics import app_of, measure
from metasched.simulator.records import Outcome, Settings, Submission, Workload, trace_job
from metasched.simulator.simulation import simulate
from metasched.throughput.linear_scaling import LinearTraining
from metasched.throughput.training import Pace, Training
from policies.baselines.gandiva_apps import GandivaApps
from policies.baselines.las import Las, LasParameters
from policies.baselines.optimus import Optimus, OptimusParameters
from policies.baselines.slaq import Slaq
from policies.baselines.srsf import Srsf
from policies.baselines.srtf import ShortestParameters, Srtf
from policies.gavel.policies import GavelFinishTimeFairness
from policies.themis.policy import Themis, ThemisParameters

HOUR = 3600.0
TESTBED, SIMULATED, LIARS = "64", "256", "liar"
CLUSTERS: Mapping[str, Sequence[tuple[int, int]]] = {
    TESTBED: ((8, 2), (12, 4)),
    "32": ((4, 2), (6, 4)),
    "16": ((2, 2), (3, 4)),
    SIMULATED: ((24, 8), (10, 4), (24, 1)),
    LIARS: ((1, 8), (28, 2)),
}
"""By name, the number of nodes with each number of GPUs."""
TUNERS: Mapping[str, str] = {"1": "curve", "2": "halving"}
"""By number of the paper's workload, the tuner of its apps."""
BASELINES = ("gandiva", "tiresias", "optimus", "slaq", "srtf", "srsf", "gavel_ftf")
APPS = 24
"""Apps for each 64 GPUs."""
GPU_HOURS = 6.0
"""The median GPU time of an app. Those of table 5 have 1.4 and 9.7 h."""
GAP_SECONDS = 300.0
"""The mean time between arrivals of apps, for each 64 GPUs."""
MOST_TRIALS = 16
LEASE = 600.0
ROUNDS: Mapping[str, float] = {"themis": 60.0, "gavel_ftf": 360.0}
"""Seconds of a round; of other policies as long as a lease. Themis's GPUs are on offer when their lease ends."""
START, CHECKPOINT = 35.0, 7.5
"""Seconds of a change of allocation, and of the checkpoint before (section 6.2.3)."""

PAPER_MAX_RHO = "2.2 to 3.25 x that of themis"
PAPER_TIME: Mapping[str, str] = {"gandiva": "+4.8 % (workload 2)", "slaq": "+250 % (workload 2)"}
"""By policy, its GPU time over that of Themis on the testbed (Figures 11 and 12)."""

Figures = Mapping[str, float]


@dataclass(frozen=True)
class Case:
    """One simulation.

    Attributes:
        cluster: the name of a cluster.
        workload: the number of the paper's workload; ``liar`` for eight identical apps.
        policy: the policy.
        seed: of the workload.
        parameters: of Themis, other than the defaults, by name.
        network: the fraction of network-intensive apps; None for the mix of table 4.
        error: the largest relative error of an app's known speed and slowdown.
        lie: by how much the first app over-reports its slowdown over several nodes.
        load: the cluster whose apps these are.
    """

    cluster: str
    workload: str
    policy: str = "themis"
    seed: int = 1
    parameters: tuple[tuple[str, Any], ...] = ()
    network: float | None = None
    error: float = 0.0
    lie: float = 0.0
    load: str = TESTBED

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes, in racks of ten."""
        sizes = [gpus for count, gpus in CLUSTERS[self.cluster] for _ in range(count)]
        return tuple(
            Node(f"n{number:02}", "k80", gpus, cpus=0, memory=0, rack=f"r{number // 10}")
            for number, gpus in enumerate(sizes)
        )

    def made_policy(self) -> Policy:
        """The policy with its parameters."""
        made: Mapping[str, Callable[[], Policy]] = {
            "themis": lambda: Themis(ThemisParameters(**dict(self.parameters))),
            "gandiva": GandivaApps,
            "tiresias": lambda: Las(LasParameters(by_app=True)),
            "optimus": lambda: Optimus(OptimusParameters(by_app=True)),
            "slaq": Slaq,
            "srtf": lambda: Srtf(ShortestParameters(by_app=True)),
            "srsf": lambda: Srsf(ShortestParameters(by_app=True)),
            "gavel_ftf": lambda: without_quanta(GavelFinishTimeFairness),
        }
        return made[self.policy]()

    @property
    def settings(self) -> Settings:
        """How the cluster behaves."""
        seconds = ROUNDS.get(self.policy, LEASE)
        return Settings(
            round_seconds=seconds,
            min_round_seconds=30.0,
            start_seconds=START,
            restart_seconds=START,
            checkpoint_seconds=CHECKPOINT,
        )


@dataclass(frozen=True, slots=True)
class MisknownTraining:
    """A training of whose speed policies know something wrong: a ``Training``.

    Attributes:
        true: the training.
        told: what policies know of it.
        total: steps in all.
    """

    true: LinearTraining
    told: LinearTraining
    total: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "total", self.true.total)

    @property
    def slowdown(self) -> float:
        """The true slowdown over several nodes."""
        return self.true.slowdown

    def pace(self, done: float, placement: Placement, co_runner: Training | None = None) -> Pace:
        """The true speed."""
        return self.true.pace(done, placement, co_runner)

    def known(self, done: float) -> Speed:
        """The wrong speed."""
        del done
        return self.told


def misknown(workload: Workload, case: Case) -> Workload:
    """The workload with errors of each app's speed and slowdown, or with the first app's lie."""
    if not case.error and not case.lie:
        return workload
    rng = random.Random(f"errors {case.seed}")  # noqa: S311  no secret
    errors: dict[str, tuple[float, float]] = {}
    found = []
    for one in workload.submissions:
        app, true = app_of(one.job.uid), one.training
        assert isinstance(true, LinearTraining)  # noqa: S101  by the generator
        if app not in errors:
            errors[app] = rng.uniform(-case.error, case.error), rng.uniform(-case.error, case.error)
        speed, slowdown = errors[app]
        lie = case.lie if app == app_of(workload.submissions[0].job.uid) else 0.0
        wrong = max(true.slowdown * (1 + slowdown) * (1 + lie), 1.0)
        told = replace(true, seconds_per_step=true.seconds_per_step * (1 + speed), slowdown=wrong)
        found.append(replace(one, training=MisknownTraining(true, told)))
    return replace(workload, submissions=tuple(found))


def identical_apps() -> Workload:
    """Eight apps of one network-intensive job each, which can use eight GPUs (Figure 18)."""
    found = []
    for number in range(8):
        job = trace_job(f"{number}_0", "VGG16", 0.0, 8, min_gpus=1)
        job = job.evolve(user=f"app{number}", app=f"array:{number}")
        found.append(Submission(job, LinearTraining(10_000.0, 8 * 5 * HOUR / 10_000.0, SLOWDOWN)))
    return Workload("eight identical apps", tuple(found))


class Headlines:
    """The simulations of the headlines.

    Args:
        gpus: the clusters of the comparison.
        seeds: of the workloads, over which figures are means.
        scale: the fraction of the apps.
        results: of this and earlier runs.
    """

    def __init__(self, gpus: Sequence[str], seeds: Sequence[int], scale: float, results: Results) -> None:
        self.gpus = gpus
        self.seeds = seeds
        self.scale = scale
        self.results = results

    def mean(self, **case: Any) -> Figures:
        """The means of the figures over the seeds."""
        return means([self.figures(Case(seed=seed, **case)) for seed in self.seeds])

    def max_rho(self, **case: Any) -> str:
        """The mean of the max rho over the seeds, with the least and the most of several seeds."""
        found = [self.figures(Case(seed=seed, **case))["max rho"] for seed in self.seeds]
        return f"{fmean(found):.2f}" + (f" ({min(found):.2f} to {max(found):.2f})" if len(found) > 1 else "")

    def figures(self, case: Case) -> Figures:
        """The figures of one simulation."""
        return self.results.figures((f"{self.scale:g}", repr(case)), partial(self._simulated, case))

    def workload(self, case: Case) -> Workload:
        """The jobs of a case."""
        if case.workload == LIARS:
            return misknown(identical_apps(), case)
        width = sum(count * gpus for count, gpus in CLUSTERS[case.load]) / 64
        parameters = ThemisWorkloadParameters(
            apps=max(round(APPS * width * self.scale), 2),
            gap_seconds=GAP_SECONDS / width,
            tuner="curve" if TUNERS[case.workload] == "curve" else "halving",
            gpu_hours=GPU_HOURS,
            most_trials=MOST_TRIALS,
            network_intensive=case.network,
        )
        return misknown(themis_apps(parameters, case.seed), case)

    def _simulated(self, case: Case) -> dict[str, float]:
        begun = time.perf_counter()
        workload = self.workload(case)
        outcome = simulate(workload, case.nodes, case.made_policy(), case.settings)
        found = figures(outcome, workload)
        common.say(f"{case}: max rho {found['max rho']:.2f}, {time.perf_counter() - begun:.0f} s")
        return found


def figures(outcome: Outcome, workload: Workload) -> dict[str, float]:
    """The figures of a simulation: rho and JCT (h) of apps, GPU-hours, placement score, and unfinished jobs.

    ``first`` is the JCT of the first app, and ``others`` the mean of the others. ``short`` and ``long`` are the mean
    rho of the quarter of the apps with the least and the most GPU time.
    """
    measured = measure(outcome, workload)
    rho = measured.fairness["themis"].rho
    slowdowns = {one.job.uid: getattr(one.training, "slowdown", 1.0) for one in workload.submissions}
    apps: dict[str, list[Any]] = {}
    for job in outcome.jobs:
        apps.setdefault(app_of(job.uid), []).append(job)
    jct = {app: max(job.left or outcome.ended for job in jobs) - jobs[0].submitted for app, jobs in apps.items()}
    spent = {app: sum(job.gpu_seconds for job in jobs) for app, jobs in apps.items()}
    by_size = sorted((app for app in apps if app in rho), key=spent.__getitem__)
    quarter = max(len(by_size) // 4, 1)
    first, *others = jct
    held = [
        (one.gpu_seconds(), 1.0 if len(one.placement.nodes) == 1 else 1.0 / slowdowns[job.uid])
        for job in outcome.jobs
        for one in job.intervals
    ]
    return {
        "max rho": max(rho.values()),
        "mean rho": fmean(rho.values()),
        "short": fmean(rho[app] for app in by_size[:quarter]),
        "long": fmean(rho[app] for app in by_size[-quarter:]),
        "gpu hours": measured.gpu_hours,
        "placement": sum(seconds * score for seconds, score in held) / sum(seconds for seconds, _ in held),
        "packed": sum(seconds for seconds, score in held if score == 1.0) / sum(seconds for seconds, _ in held),
        "jct": fmean(jct.values()) / HOUR,
        "first": jct[first] / HOUR,
        "others": fmean(jct[app] for app in others) / HOUR,
        "unfinished": float(measured.unfinished),
    }


def more(other: float, ours: float) -> str:
    """How much more another figure is than ours, in %."""
    return f"{100 * (other / ours - 1):+.1f} %"


def compare(runs: Headlines) -> Iterator[str]:
    """Figures 9 to 13: rho, GPU time and placement scores on both workloads."""
    head = "GPUs | workload | policy | max rho | over themis: paper | ours | mean rho"
    yield f"| {head} | GPU-hours | over themis: paper | ours | placement score |"
    yield "|---|---|---|---|---|---|---|---|---|---|---|"
    for gpus in runs.gpus:
        for workload in TUNERS:
            cases = {
                policy: {"cluster": gpus, "workload": workload, "policy": policy, "load": gpus}
                for policy in ("themis", *BASELINES)
            }
            rows = {policy: runs.mean(**case) for policy, case in cases.items()}
            ours = rows["themis"]
            for policy, row in rows.items():
                over = f"{row['max rho'] / ours['max rho']:.2f} x"
                paper = "" if policy in ("themis", "gavel_ftf") else PAPER_MAX_RHO
                time_cells = f"{row['gpu hours']:.0f} | {PAPER_TIME.get(policy, '')} | "
                time_cells += more(row["gpu hours"], ours["gpu hours"])
                yield (
                    f"| {gpus} | {workload} | {policy} | {runs.max_rho(**cases[policy])} | {paper} | {over} | "
                    f"{row['mean rho']:.2f} | {time_cells} | {row['placement']:.3f} |"
                )


def contention(runs: Headlines) -> Iterator[str]:
    """Figure 14: the same apps on half and a quarter of the GPUs."""
    yield "| policy | max rho at contention 1 | 2 | 4 |"
    yield "|---|---|---|---|"
    for policy in ("themis", *BASELINES):
        cells = [runs.max_rho(cluster=gpus, workload="1", policy=policy) for gpus in (TESTBED, "32", "16")]
        yield f"| {policy} | {' | '.join(cells)} |"


def network(runs: Headlines) -> Iterator[str]:
    """Figures 15 and 16: the fraction of network-intensive apps (paper at 100 %: 1.24 to 1.77 x, Gandiva +8.1 %)."""
    parts = (0.0, 0.5, 1.0)
    yield f"| policy | {' | '.join(f'max rho, {part:.0%}' for part in parts)} | {_cells('over themis', parts)} |"
    yield f"|---|{'---|' * (2 * len(parts))}"
    rows = {
        policy: [runs.mean(cluster=TESTBED, workload="2", policy=policy, network=part) for part in parts]
        for policy in ("themis", *BASELINES)
    }
    for policy, row in rows.items():
        cases = ({"cluster": TESTBED, "workload": "2", "policy": policy, "network": part} for part in parts)
        rho = " | ".join(runs.max_rho(**case) for case in cases)
        times = " | ".join(
            more(one["gpu hours"], ours["gpu hours"]) for one, ours in zip(row, rows["themis"], strict=True)
        )
        yield f"| {policy} | {rho} | {times} |"


def _cells(label: str, parts: Sequence[float]) -> str:
    return " | ".join(f"GPU time {label}, {part:.0%}" for part in parts)


def errors(runs: Headlines) -> Iterator[str]:
    """Figure 17: errors of the known speeds and slowdowns (paper at 20 %: max rho +10.76 %)."""
    yield "| error | max rho | change |"
    yield "|---|---|---|"
    exact = runs.mean(cluster=TESTBED, workload="2")["max rho"]
    for error in (0.0, 0.1, 0.2):
        case = {"cluster": TESTBED, "workload": "2", "error": error}
        yield f"| {error:.0%} | {runs.max_rho(**case)} | {more(runs.mean(**case)['max rho'], exact)} |"


def liar(runs: Headlines) -> Iterator[str]:
    """Figure 18: one of eight identical apps over-reports its slowdown (paper: from 34 % on it ends later)."""
    yield "| over-reported by | liar's JCT, h | the others' |"
    yield "|---|---|---|"
    for lie in (0.0, 0.1, 0.2, 0.34, 0.5, 1.0):
        found = runs.mean(cluster=LIARS, workload=LIARS, lie=lie)
        yield f"| {lie:.0%} | {found['first']:.2f} | {found['others']:.2f} |"


def knobs(runs: Headlines) -> Iterator[str]:
    """Figure 19: the fairness knob and the lease (paper: best max rho at 0.8 and 10 min, f = 1 1.5 x as high)."""
    yield "| f | lease, min | max rho | GPU-hours |"
    yield "|---|---|---|---|"
    cases: list[tuple[tuple[str, float], ...]] = [(("fairness", f),) for f in (0.01, 0.4, 0.8, 0.99)]
    cases += [(("lease_seconds", minutes * 60.0),) for minutes in (5, 20, 40)]
    for parameters in cases:
        chosen = tuple(one for one in parameters if one not in (("fairness", 0.8), ("lease_seconds", LEASE)))
        case, given = {"cluster": TESTBED, "workload": "2", "parameters": chosen}, dict(parameters)
        lease, hours = given.get("lease_seconds", LEASE) / 60, runs.mean(**case)["gpu hours"]
        yield f"| {given.get('fairness', 0.8):g} | {lease:g} | {runs.max_rho(**case)} | {hours:.0f} |"


def pair(runs: Headlines) -> Iterator[str]:
    """Table 5: short and long apps (paper: rho 1.2 and 1.0 under Themis, 1.9 and 0.9 under Tiresias)."""
    yield "| policy | mean rho of the shortest quarter | of the longest quarter |"
    yield "|---|---|---|"
    for policy in ("themis", "tiresias"):
        row = runs.mean(cluster=TESTBED, workload="1", policy=policy)
        yield f"| {policy} | {row['short']:.2f} | {row['long']:.2f} |"


TABLES: Mapping[str, Callable[[Headlines], Iterator[str]]] = {
    "compare": compare,
    "contention": contention,
    "network": network,
    "errors": errors,
    "liar": liar,
    "knobs": knobs,
    "pair": pair,
}


def main(given: Sequence[str] | None = None) -> int:
    """Simulate, and print the tables; returns the exit status."""
    parser = common.arguments(__doc__ or "")
    add_tables(parser, TABLES)
    parser.add_argument("--gpus", nargs="+", choices=(TESTBED, SIMULATED), default=[TESTBED, SIMULATED])
    parser.add_argument("--seeds", nargs="+", type=common.positive, default=[1, 2, 3], help="of the workloads")
    parser.add_argument("--scale", type=float, default=1.0, help="fraction of the apps")
    options = parser.parse_args(given)
    runs = Headlines(options.gpus, options.seeds, options.scale, Results(options.results))
    tables = {name: partial(table, runs) for name, table in TABLES.items()}
    print_tables(options.only, tables, as_json=options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
