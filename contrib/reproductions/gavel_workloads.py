"""Scale and figures that the experiments of Gavel's headlines share."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from contrib.benchmarks import bench
from metasched.core.model import Node
from metasched.core.policy import Policy
from metasched.simulator.generate.gavel import GavelWorkloadParameters, gavel_jobs
from metasched.simulator.metrics import Metrics, measure
from metasched.simulator.records import Outcome, Settings, Workload
from metasched.simulator.simulation import simulate
from metasched.throughput.throughput_table import Table

TYPES = ("v100", "p100", "k80")
PRICES = {"v100": 2.48, "p100": 1.46, "k80": 0.45}  # $ an hour, Google's on-demand prices then
HOUR = 3600.0
GPUS = 36  # of each type, in the paper


@dataclass(frozen=True)
class Scale:
    """How large simulations are.

    Attributes:
        table: speeds.
        gpus: of each type.
        window: the jobs that are measured.
        batch: jobs of a workload that is there at once.
        seeds: of the workloads.
        plots: where pictures go, if anywhere.
    """

    table: Table
    gpus: int
    window: range
    batch: int
    seeds: range
    plots: Path | None

    def nodes(self, gpus: int | None = None) -> tuple[Node, ...]:
        """One for each type, as the paper's simulator counts GPUs."""
        return tuple(Node(kind, kind, self.gpus if gpus is None else gpus, cpus=0, memory=0) for kind in TYPES)

    def arriving(self, rate: float, seed: int, *, multiple: bool = False, weights: bool = False) -> Workload:
        """Jobs at so many an hour in the paper's cluster, until long after the window."""
        parameters = GavelWorkloadParameters(
            jobs=2 * self.window.stop, jobs_per_hour=rate * self.gpus / GPUS, multiple=multiple, weights=weights
        )
        return gavel_jobs(self.table, parameters, seed)


@dataclass(frozen=True)
class Line:
    """One figure.

    Attributes:
        what: is measured.
        paper: says what.
        ours: by seed.
        unit: of ours.
        public: what the public code's runs gave, from the authors' notebooks.
    """

    what: str
    paper: str
    ours: tuple[float, ...]
    unit: str = "x"
    public: str = ""

    @property
    def cell(self) -> str:
        """Mean and standard deviation."""
        spread = f" +- {statistics.stdev(self.ours):.2f}" if len(self.ours) > 1 else ""
        return f"{fmean(self.ours):.2f}{spread} {self.unit}"


def run(
    workload: Workload,
    nodes: Sequence[Node],
    policy: Policy,
    *,
    window: range | None = None,
    sharing: bool = False,
    seconds: float = 360.0,
) -> tuple[Outcome, Metrics]:
    """A simulation, measured."""
    begun = time.perf_counter()
    settings = Settings(round_seconds=seconds, early_rounds=False, sharing=sharing)
    outcome = simulate(workload, nodes, policy, settings, window=window)
    metrics = measure(outcome, workload, window=window, prices=PRICES)
    words = f"{workload.source}: {policy.name} {policy.parameters.model_dump(exclude_defaults=True)}"
    bench.say(
        f"{words}{', sharing' if sharing else ''}: JCT {(metrics.jct_mean or 0) / HOUR:.2f} h, "
        f"{time.perf_counter() - begun:.0f} s"
    )
    return outcome, metrics


def jct(metrics: Metrics) -> float:
    """The mean, h."""
    return (metrics.jct_mean or 0.0) / HOUR


def by_job(outcome: Outcome, workload: Workload, window: range) -> Mapping[str, float]:
    """The JCT of each job in the window, h, by uid."""
    chosen = {one.job.uid for one in workload.submissions[window.start : window.stop]}
    return {job.uid: job.jct / HOUR for job in outcome.jobs if job.uid in chosen and job.jct is not None}


def ratio(above: Sequence[float], below: Sequence[float]) -> tuple[float, ...]:
    """Seed by seed."""
    return tuple(a / b for a, b in zip(above, below, strict=True))
