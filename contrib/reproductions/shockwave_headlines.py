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
from functools import partial
from pathlib import Path
from typing import Any

from contrib.benchmarks import common
from contrib.reproductions.stored_results import Results, add_tables, means, print_tables
from metasched.core.model import Decision, Node, Snapshot
from metasched.core.policy import Policy, PolicyState
from metasched.simulator.generate.shockwave import ShockwaveWorkloadParameters, shockwave_jobs
from metasched.simulator.metrics import measure
from metasched.simulator.records import Settings
from metasched.simulator.simulation import simulate
from metasched.throughput.batch_size_regimes import Mode
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
    "gavel_ftf": GavelFinishTimeFairness,
    "gavel_las": GavelLas,
    "allox": AlloX,
    "max_sum_throughput": MaxSumThroughput,
    "gandiva_fair": GandivaFair,
    "gavel_makespan": GavelMakespan,
}
"""The paper's Gavel is ``gavel_las``, MST ``max_sum_throughput``, and OSSP ``gavel_makespan``."""
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
    """

    policy: str = "shockwave"
    seed: int = 1
    gpus: int = TRACE_GPUS
    jobs: int = TRACE_JOBS
    mix: str = DYNAMIC
    parameters: tuple[tuple[str, Any], ...] = ()
    noise: float = 0.0
    restart_seconds: float = RESTART

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
        seeds: of the workloads, over which figures are means.
        scale: the fraction of the jobs and nodes.
        results: of this and earlier runs.
    """

    def __init__(self, table: ThroughputTable, seeds: Sequence[int], scale: float, results: Results) -> None:
        self.table = table
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
        count = max(round(case.gpus * self.scale / GPUS_OF_NODE), 2)  # the widest jobs have two nodes
        nodes = tuple(Node(f"n{each:02}", "v100", GPUS_OF_NODE, cpus=0, memory=0) for each in range(count))
        given = ShockwaveWorkloadParameters(
            jobs=max(round(case.jobs * self.scale), 2),
            gap_seconds=TRACE_GAP * TRACE_GPUS / (count * GPUS_OF_NODE),
        )
        modes = dict(zip((Mode.STATIC, Mode.ACCORDION, Mode.GNS), MIXES[case.mix], strict=True))
        workload = shockwave_jobs(self.table, given, case.seed, modes=modes)
        settings = Settings(round_seconds=ROUND, restart_seconds=case.restart_seconds)
        measured = measure(simulate(workload, nodes, case.made_policy(), settings), workload)
        rho = measured.fairness["shockwave"]
        found = {
            "makespan": (measured.makespan or 0.0) / 3600.0,
            "jct": (measured.jct_mean or 0.0) / 3600.0,
            "worst": rho.worst or 0.0,
            "unfair": 100.0 * (rho.unfair or 0.0),
        }
        common.say(f"{case}: makespan {found['makespan']:.2f} h, {time.process_time() - begun:.0f} s")
        return found


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


TABLES: Mapping[str, Callable[[Headlines], Iterator[str]]] = {
    "compare": compare,
    "sizes": sizes,
    "mixes": mixes,
    "noise": noise,
    "contention": contention,
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
    table = ThroughputTable.read(Path(options.data) / "shockwave" / "tacc_throughputs.json")
    runs = Headlines(table, options.seeds, options.scale, Results(options.results))
    print_tables(options.only, {name: partial(each, runs) for name, each in TABLES.items()}, as_json=options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
