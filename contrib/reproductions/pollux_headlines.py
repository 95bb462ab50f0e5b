"""The headlines of Pollux (Qiao et al., OSDI 2021, section 5), with the artifact's measurements.

    python -m contrib.reproductions.pollux_headlines --data DIR [--only NAME ...] [--workloads N ...] [--scale F]
                                                 [--results FILE] [--json]

The cluster has 16 nodes of 4 T4; jobs train the applications that the authors measured. All tables but ``types`` run in
the loop of the artifact's simulator, where a new placement costs 30 s. ``--workloads`` chooses published workloads by
number (of those in the data folder), and seeds of generated ones. ``--scale F`` takes the fraction F of the nodes, and
of the jobs, evenly spread; jobs ask for as many GPUs as the nodes of one type have, at most. ``--results FILE`` stores
each finished simulation as a line of JSON; another run skips the simulations that the file has. "Public code" are the
figures that the artifact's authors published with it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from contrib.benchmarks import common
from contrib.reproductions.measured_runs import without_quanta
from contrib.reproductions.parity_rows.pollux import NODES, SETTINGS, TIRESIAS
from contrib.reproductions.pollux_iteration import fitted
from contrib.reproductions.published_loops.pollux import PolluxLoop
from contrib.reproductions.stored_results import Results, add_tables, means, print_tables
from contrib.reproductions.typed_training import on_types
from metasched.core.policy import Policy
from metasched.simulator.generate.pollux import PolluxWorkloadParameters, generate_pollux
from metasched.simulator.metrics import IsolatedDurations, measure, percentile
from metasched.simulator.records import Outcome, Settings, Submission, Workload
from metasched.simulator.simulation import simulate
from metasched.simulator.traces.pollux import read_pollux, read_profiles
from metasched.throughput.iteration_time import IterationParameters
from policies.baselines.las import Las
from policies.baselines.optimus import Optimus
from policies.gavel.policies import GavelLas
from policies.pollux.policy import Pollux, PolluxParameters

HOUR = 3600.0
MAX_GPUS = 64
RHO = 2.0
"""The finish-time fairness below which the paper says that 99 % of the jobs are (section 5.3.1)."""
LONG = 300.0
"""Seconds that a long job takes alone: several intervals, so that a start and the wait for one hardly count."""

LOADS: Mapping[float, str] = {0.5: "workloads-0.5", 1.0: "workloads", 1.5: "workloads-1.5", 2.0: "workloads-2.0"}
PUBLIC_LOADS: Mapping[str, Mapping[float, float]] = {
    "pollux": {0.5: 1534, 1.0: 2751, 1.5: 3685, 2.0: 5289},
    "optimus": {0.5: 2395, 1.0: 5682, 1.5: 7235, 2.0: 9721},
    "tiresias": {0.5: 2091, 1.0: 4038, 1.5: 6182, 2.0: 10040},
}
"""Average JCT in s by load, over eight workloads (Figure 8a; ``results-jobload`` of the artifact)."""

PUBLIC_INTERVALS: Mapping[float, tuple[float, float]] = {
    30.0: (2729, 2464),
    60.0: (2751, 2446),
    120.0: (2806, 2511),
    240.0: (2969, 2693),
    480.0: (3354, 3127),
}
"""By interval in s, the average JCT in s over eight workloads, and on workload-6 (Figure 8b; ``results-period``)."""

PUBLIC_INTERFERENCE: Mapping[tuple[bool, int], tuple[float, float]] = {
    (True, 0): (2751, 2446),
    (False, 0): (2758, 2442),
    (False, 25): (3177, 2808),
    (False, 50): (3903, 3457),
}
"""By avoidance and slow-down in %, the same (Figure 8c; ``results-inter``)."""

PAPER_P: Mapping[float, tuple[float, float, float]] = {
    -1.0: (0.76, 11.0, 16.0),
    1.0: (0.83, 10.0, 16.0),
    -10.0: (0.84, 12.0, 18.0),
}
"""By p, average JCT, 99th percentile and makespan in h on the testbed (Table 2)."""

PAPER_RATIOS: Mapping[tuple[str, str], tuple[str, str]] = {
    ("tuned", "optimus"): ("-50 %, -27 %, -20 %", "-48 %"),
    ("tuned", "tiresias"): ("-37 %, -27 %, -33 %", "-32 %"),
    ("realistic", "optimus"): ("-72 %, -50 %, -43 %", ""),
    ("realistic", "tiresias"): ("-73 %, -56 %, -48 %", ""),
}
"""By jobs and policy, how much less Pollux has: average JCT, p99 and makespan (testbed), average JCT (simulated)."""

PUBLIC_RATIOS: Mapping[tuple[str, str], str] = {
    ("tuned", "optimus"): "JCT -52 %; workload-6 -54 %",
    ("tuned", "tiresias"): "JCT -32 %; workload-6 -29 %",
}
"""The same of the average JCT, from ``results-jobload`` and the artifact's README."""

PAPER_RHO: Mapping[str, tuple[str, str]] = {
    "pollux, p = -1": ("99 %", ""),
    "tiresias": ("", "1.5 x that of p = -1"),
    "optimus": ("", "5.4 x that of p = -1"),
}
"""By policy, the jobs with a rho below 2, and the worst rho (section 5.3.1)."""

PAPER_SEEDED: Mapping[str, str] = {"jct": "", "jct cifar10": "-2 to -5 %", "jct ncf": "-2 to -5 %"}
"""The change of the average JCT by seeded models (section 5.3.2): less for short jobs."""

KINDS: Mapping[str, str] = {"tuned": "workloads", "realistic": "workloads-realistic"}
"""Folders of the workloads by how their jobs were configured."""

TYPES = (("t4", 1.0), ("slow", 0.5))
"""Speed by GPU type, relative to the measurements, for the table ``types``."""

JOBS, GENERATED = 160, 8
"""Jobs of a generated workload at load 1, and the number of generated workloads."""

Figures = Mapping[str, float]
"""Of one simulation: ``jct``, ``p99`` and ``makespan`` in s, restarts of a job, rho, and ``jct APPLICATION`` in s."""


@dataclass(frozen=True)
class Case:
    """One simulation.

    Attributes:
        workload: its name: a folder and a number.
        policy: ``pollux``, ``optimus`` or ``tiresias``.
        parameters: of Pollux, other than the defaults, by name.
        interval: the scheduling interval, in seconds.
        slow_down: the slow-down by interference, in %.
        even: whether jobs have the same number of GPUs on each of their nodes, as on Slurm.
        seeded: whether jobs know the time of their iterations from the begin, as if from earlier jobs.
        types: speed by GPU type, relative to the measurements, of equally many nodes of each; empty for T4 alone.
    """

    workload: str
    policy: str = "pollux"
    parameters: tuple[tuple[str, Any], ...] = ()
    interval: float = 60.0
    slow_down: int = 0
    even: bool = False
    seeded: bool = False
    types: tuple[tuple[str, float], ...] = ()

    @property
    def settings(self) -> Settings:
        """How the cluster behaves."""
        factor = 1.0 - self.slow_down / 100.0
        return replace(SETTINGS, round_seconds=self.interval, interference_factor=factor, uneven=not self.even)

    def made_policy(self) -> Policy:
        """The policy with its parameters."""
        made: Mapping[str, Callable[[], Policy]] = {
            "pollux": lambda: Pollux(PolluxParameters(**dict(self.parameters))),
            "optimus": Optimus,
            "tiresias": lambda: Las(TIRESIAS),
            "gavel": lambda: without_quanta(GavelLas),
        }
        return made[self.policy]()


class Headlines:
    """The simulations of the headlines.

    Args:
        folder: Pollux's folder of the public data.
        numbers: of the workloads; none for all published ones, and for eight generated ones.
        scale: the fraction of nodes and jobs.
        results: of this and earlier runs.
    """

    def __init__(self, folder: Path, numbers: Sequence[int], scale: float, results: Results) -> None:
        self.folder = folder
        self.numbers = numbers
        self.scale = scale
        self.results = results
        self.profiles = read_profiles(folder / "traces")

    def workloads(self, kind: str) -> list[str]:
        """The names of the workloads of a folder; of generated ones where the data has no such folder.

        Raises:
            SystemExit: the folder has none of the wanted workloads.
        """
        published = [path.stem for path in sorted((self.folder / kind).glob("workload-*.csv"))]
        if not published:
            return [f"{kind}/generated-{number}" for number in self.numbers or range(1, GENERATED + 1)]
        wanted = {f"workload-{number}" for number in self.numbers}
        found = [f"{kind}/{name}" for name in published if not wanted or name in wanted]
        if not found:
            raise SystemExit(f"{self.folder / kind} has no {', '.join(sorted(wanted))}, but {', '.join(published)}")
        return found

    def mean(self, kind: str, **case: Any) -> Figures:
        """The means of the figures over the workloads of a folder."""
        return means([self.figures(Case(name, **case)) for name in self.workloads(kind)])

    def figures(self, case: Case) -> Figures:
        """The figures of one simulation."""
        return self.results.figures((f"{self.scale:g}", repr(case)), partial(self._simulated, case))

    def jobs(self, name: str, *, adaptive: bool, most_gpus: int = MAX_GPUS) -> Workload:
        """A workload, with batches that users chose, or that may change.

        Args:
            name: the name of the workload.
            adaptive: whether batches may change.
            most_gpus: the GPUs for which jobs ask at most; those that asked for more ask for as many.
        """
        kind, _, stem = name.partition("/")
        if stem.startswith("generated"):
            load = next((load for load, folder in LOADS.items() if folder == kind), 1.0)
            tuned = kind != KINDS["realistic"]
            given = PolluxWorkloadParameters(jobs=round(load * JOBS), tuned=tuned, adaptive=adaptive)
            found = generate_pollux(given, int(stem.rpartition("-")[2]), self.profiles)
        else:
            path = self.folder / kind / f"{stem}.csv"
            found = read_pollux(path, self.profiles, most_gpus=MAX_GPUS, adaptive=adaptive)
        chosen = found.submissions[:: max(round(1 / self.scale), 1)]
        return replace(found, submissions=tuple(_with_most_gpus(one, most_gpus) for one in chosen))

    def _simulated(self, case: Case) -> dict[str, float]:
        begun = time.perf_counter()
        nodes = NODES[: max(round(self.scale * len(NODES)), 1)]
        most_gpus = sum(node.gpus for node in nodes) // max(len(case.types), 1)
        policy = case.made_policy()
        workload = self.jobs(case.workload, adaptive=case.policy == "pollux", most_gpus=most_gpus)
        if case.types:
            factors = dict(case.types)
            names = [name for name in factors for _ in range(len(nodes) // len(factors))]
            nodes = tuple(replace(node, gpu_type=name) for node, name in zip(nodes, names, strict=False))
            workload = on_types(workload, factors)
            outcome = simulate(workload, nodes, policy, replace(case.settings, start_seconds=30.0))
        else:
            known = self._iterations() if case.seeded else {}
            outcome = PolluxLoop(workload, nodes, policy, case.settings, known=known).run()
        found = _figures(outcome, workload)
        if not case.types:
            found |= _fairness(outcome, self.jobs(case.workload, adaptive=False, most_gpus=most_gpus))
        common.say(f"{case}: average JCT {found['jct']:.0f} s, {time.perf_counter() - begun:.0f} s")
        return found

    def _iterations(self) -> dict[str, IterationParameters]:
        """The time of an iteration by application, fitted to all measured placements."""
        return {name: fitted(self.folder / "traces" / name / "placements.csv").theta for name in self.profiles}


def _with_most_gpus(one: Submission, most: int) -> Submission:
    return one if one.job.gpus <= most else replace(one, job=one.job.evolve(gpus=most))


def _figures(outcome: Outcome, workload: Workload) -> dict[str, float]:
    names = {one.job.uid: one.job.name.rpartition("-")[0] for one in workload.submissions}
    jcts = {job.uid: job.jct for job in outcome.jobs if job.jct is not None}
    found = {
        "jct": fmean(jcts.values()),
        "p99": percentile(jcts.values(), 0.99),
        "makespan": max(job.finished or 0.0 for job in outcome.jobs) - min(job.submitted for job in outcome.jobs),
        "restarts": fmean(max(len(job.intervals) - 1, 0) for job in outcome.jobs),
        "unfinished": float(len(outcome.jobs) - len(jcts)),
    }
    for name in sorted({names[uid] for uid in jcts}):
        found[f"jct {name}"] = fmean(jct for uid, jct in jcts.items() if names[uid] == name)
    return found


def _fairness(outcome: Outcome, workload: Workload) -> dict[str, float]:
    """The figures of finish-time fairness, of all jobs and of long ones; the workload's jobs are not adaptive."""
    rho = measure(outcome, workload).rho
    isolated = IsolatedDurations(outcome.nodes, outcome.settings.locality)
    alone = {one.job.uid: min(isolated.by_type(one).values()) for one in workload.submissions if one.job.uid in rho}
    found = {"rho below 2": fmean(one < RHO for one in rho.values()), "worst rho": max(rho.values())}
    long = [rho[uid] for uid, seconds in alone.items() if seconds >= LONG]
    if long:
        found |= {"long rho below 2": fmean(one < RHO for one in long), "worst long rho": max(long)}
    return found


def less(ours: float, other: float) -> str:
    """How much less one figure is than another one, in %."""
    return f"{100 * (ours / other - 1):+.0f} %"


def compare(runs: Headlines) -> Iterator[str]:
    """Table 2: Pollux against the other policies, whose users chose GPUs and batch well, or as in the Philly trace."""
    yield "| jobs | policy | average JCT, h | p99, h | makespan, h | restarts of a job |"
    yield "|---|---|---|---|---|---|"
    ratios = []
    for jobs, kind in KINDS.items():
        ours = runs.mean(kind)
        yield f"| {jobs} | pollux | {hours(ours)} | {ours['restarts']:.1f} |"
        for policy in ("optimus", "tiresias"):
            other = runs.mean(kind, policy=policy)
            yield f"| {jobs} | {policy} | {hours(other)} | {other['restarts']:.1f} |"
            cells = [less(ours[name], other[name]) for name in ("jct", "p99", "makespan")]
            testbed, simulated = PAPER_RATIOS[jobs, policy]
            public = PUBLIC_RATIOS.get((jobs, policy), "")
            ratios.append(f"| {jobs} | {policy} | {testbed} | {simulated} | {public} | {', '.join(cells)} |")
    yield ""
    yield "| jobs | Pollux against | paper, testbed: JCT, p99, makespan | simulated: JCT | public code | ours |"
    yield "|---|---|---|---|---|---|"
    yield from ratios


def exponents(runs: Headlines) -> Iterator[str]:
    """Table 2: the fairness knob."""
    yield "| p | paper, testbed: average JCT, p99, makespan, h | public code | ours: average JCT, h | p99 | makespan |"
    yield "|---|---|---|---|---|---|"
    for p, paper in PAPER_P.items():
        ours = runs.mean("workloads", parameters=_knob(p))
        yield f"| {p:g} | {', '.join(f'{one:g}' for one in paper)} | | {hours(ours)} |"


def fairness(runs: Headlines) -> Iterator[str]:
    """Figure 7: finish-time fairness."""
    yield (
        "| policy | jobs with rho below 2: paper | ours | worst rho: paper | ours | ours, over that of p = -1 "
        "| long jobs with rho below 2 | worst rho of long jobs |"
    )
    yield "|---|---|---|---|---|---|---|---|"
    rows = {f"pollux, p = {p:g}": runs.mean("workloads", parameters=_knob(p)) for p in PAPER_P}
    rows |= {policy: runs.mean("workloads", policy=policy) for policy in ("tiresias", "optimus")}
    best = rows["pollux, p = -1"]["worst rho"]
    for label, row in rows.items():
        below, worst = PAPER_RHO.get(label, ("", ""))
        times = f"{row['worst rho'] / best:.1f} x"
        long = f"{row['long rho below 2']:.1%} | {row['worst long rho']:.2f}" if "worst long rho" in row else " | "
        yield f"| {label} | {below} | {row['rho below 2']:.1%} | {worst} | {row['worst rho']:.1f} | {times} | {long} |"


def load(runs: Headlines) -> Iterator[str]:
    """Figure 8a: the load."""
    yield "| load | policy | workloads | public code, eight workloads: JCT, s | ours | public: over Pollux | ours |"
    yield "|---|---|---|---|---|---|---|"
    for factor, kind in LOADS.items():
        rows = {policy: runs.mean(kind, policy=policy)["jct"] for policy in PUBLIC_LOADS}
        names = ", ".join(name.rpartition("/")[2] for name in runs.workloads(kind))
        for policy, ours in rows.items():
            public = PUBLIC_LOADS[policy][factor]
            over = f"{public / PUBLIC_LOADS['pollux'][factor]:.2f} | {ours / rows['pollux']:.2f}"
            yield f"| {factor:g} | {policy} | {names} | {public:.0f} | {ours:.0f} | {over} |"


def intervals(runs: Headlines) -> Iterator[str]:
    """Figure 8b: the scheduling interval."""
    yield "| interval, s | public code, eight workloads: average JCT, s | public code, workload-6 | ours |"
    yield "|---|---|---|---|"
    for seconds, (mean, sixth) in PUBLIC_INTERVALS.items():
        ours = runs.mean("workloads", interval=seconds)["jct"]
        yield f"| {seconds:g} | {mean:.0f} | {sixth:.0f} | {ours:.0f} |"


def interference(runs: Headlines) -> Iterator[str]:
    """Figure 8c: interference between jobs on several nodes."""
    yield "| avoidance | slow-down | public code, eight workloads: average JCT, s | public code, workload-6 | ours |"
    yield "|---|---|---|---|---|"
    for (avoids, slow_down), (mean, sixth) in PUBLIC_INTERFERENCE.items():
        parameters = () if avoids else (("avoid_interference", False),)
        ours = runs.mean("workloads", parameters=parameters, slow_down=slow_down)["jct"]
        yield f"| {'yes' if avoids else 'no'} | {slow_down} % | {mean:.0f} | {sixth:.0f} | {ours:.0f} |"


def seeded(runs: Headlines) -> Iterator[str]:
    """Section 5.3.2: jobs that know the time of their iterations from the begin, and need not explore."""
    yield "| jobs | paper | ours: average JCT, s | seeded | change |"
    yield "|---|---|---|---|---|"
    plain, known = runs.mean("workloads"), runs.mean("workloads", seeded=True)
    for name in (one for one in plain if one.startswith("jct")):
        paper = PAPER_SEEDED.get(name, "no significant change")
        ours = f"{plain[name]:.0f} | {known[name]:.0f} | {less(known[name], plain[name])}"
        yield f"| {name[4:] or 'all'} | {paper} | {ours} |"


def even(runs: Headlines) -> Iterator[str]:
    """What it costs that Slurm gives a job the same number of GPUs on each of its nodes."""
    yield "| placements | paper | public code, workload-6: average JCT, s | ours: average JCT, h | p99 | makespan |"
    yield "|---|---|---|---|---|---|"
    for label, same, public in (("any", False, "2446"), ("even", True, "")):
        yield f"| {label} | | {public} | {hours(runs.mean('workloads', even=same))} |"


def types(runs: Headlines) -> Iterator[str]:
    """Two GPU types, one of which is half as fast, in our own simulator."""
    yield "| policy | paper | public code | ours: average JCT, h | p99 | makespan |"
    yield "|---|---|---|---|---|---|"
    for policy, interval in (("pollux", 60.0), ("tiresias", 60.0), ("gavel", 360.0)):
        ours = runs.mean("workloads", policy=policy, interval=interval, types=TYPES)
        yield f"| {policy} | | | {hours(ours)} |"


def hours(row: Figures) -> str:
    """The cells of average JCT, 99th percentile and makespan, in hours."""
    return " | ".join(f"{row[name] / HOUR:.2f}" for name in ("jct", "p99", "makespan"))


def _knob(p: float) -> tuple[tuple[str, Any], ...]:
    return () if p == PolluxParameters().p else (("p", p),)


TABLES: Mapping[str, Callable[[Headlines], Iterator[str]]] = {
    "compare": compare,
    "p": exponents,
    "fairness": fairness,
    "load": load,
    "intervals": intervals,
    "interference": interference,
    "seeded": seeded,
    "even": even,
    "types": types,
}


def main(given: Sequence[str] | None = None) -> int:
    """Simulate, and print the tables; returns the exit status."""
    parser = common.arguments(__doc__ or "")
    common.add_data(parser)
    add_tables(parser, TABLES)
    parser.add_argument("--workloads", nargs="+", type=common.positive, default=[], help="numbers (default: all)")
    parser.add_argument("--scale", type=float, default=1.0, help="fraction of nodes and jobs")
    options = parser.parse_args(given)
    runs = Headlines(options.data / "pollux", options.workloads, options.scale, Results(options.results))
    tables = {name: partial(table, runs) for name, table in TABLES.items()}
    print_tables(options.only, tables, as_json=options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
