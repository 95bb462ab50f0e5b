"""Cluster, workloads and table lines of the experiments of Gavel's headlines."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from contrib.reproductions.measured_runs import HOUR, simulate_and_measure
from metasched.core.model import Node
from metasched.core.policy import Policy
from metasched.simulator.generate.gavel import GavelWorkloadParameters, gavel_jobs
from metasched.simulator.metrics import Metrics
from metasched.simulator.records import Outcome, Settings, Workload
from metasched.throughput.throughput_table import ThroughputTable

TYPES = ("v100", "p100", "k80")
PRICES = {"v100": 2.48, "p100": 1.46, "k80": 0.45}  # $ per GPU-hour: Google's on-demand prices in 2020
GPUS = 36  # of each type, in the paper


@dataclass(frozen=True)
class Scale:
    """The size of the simulations.

    Attributes:
        table: the speeds of the job types.
        gpus: GPUs of each type.
        window: positions of the measured jobs, by arrival.
        batch: the number of jobs of a workload that arrives at once, or that has deadlines.
        seeds: the seeds of the workloads.
        plots: the directory of the plots; None for no plots.
    """

    table: ThroughputTable
    gpus: int
    window: range
    batch: int
    seeds: range
    plots: Path | None

    def nodes(self, gpus: int | None = None) -> tuple[Node, ...]:
        """One node for each type, with ``gpus`` (by default the scale's): the paper's simulator counts GPUs by type."""
        return tuple(Node(kind, kind, self.gpus if gpus is None else gpus, cpus=0, memory=0) for kind in TYPES)

    def arriving(self, rate: float, seed: int, *, multiple: bool = False, weights: bool = False) -> Workload:
        """Jobs that arrive until long after the window; ``rate`` is jobs per hour on the paper's number of GPUs."""
        parameters = GavelWorkloadParameters(
            jobs=2 * self.window.stop, jobs_per_hour=rate * self.gpus / GPUS, multiple=multiple, weights=weights
        )
        return gavel_jobs(self.table, parameters, seed)


@dataclass(frozen=True)
class Line:
    """One line of the table: a published figure and ours.

    Attributes:
        what: the experiment and the metric.
        paper: the paper's figure; empty where it has none.
        ours: our figures, one for each seed.
        unit: the unit of ``ours``; "x" for a ratio.
        public: the figure of the authors' own runs, from their notebooks; empty where there is none.
    """

    what: str
    paper: str
    ours: tuple[float, ...]
    unit: str = "x"
    public: str = ""

    @property
    def cell(self) -> str:
        """The mean of ``ours`` and its standard deviation, for the table."""
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
    """The outcome and the metrics of a simulation in rounds of fixed length (``seconds``), as in the paper."""
    settings = Settings(round_seconds=seconds, early_rounds=False, sharing=sharing)
    return simulate_and_measure(workload, nodes, policy, settings, window=window, prices=PRICES)


def jct_by_job(outcome: Outcome, workload: Workload, window: range) -> Mapping[str, float]:
    """The JCT in hours of each completed job in the window, by uid."""
    chosen = {one.job.uid for one in workload.submissions[window.start : window.stop]}
    return {job.uid: job.jct / HOUR for job in outcome.jobs if job.uid in chosen and job.jct is not None}


def ratio(above: Sequence[float], below: Sequence[float]) -> tuple[float, ...]:
    """The quotients, seed by seed."""
    return tuple(a / b for a, b in zip(above, below, strict=True))
