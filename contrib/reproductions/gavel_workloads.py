"""Cluster, workloads and table lines of the experiments of Gavel's headlines."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from contrib.benchmarks.common import say
from contrib.reproductions.measured_runs import HOUR, jct_hours, simulate_and_measure
from contrib.reproductions.stored_results import Results
from metasched.core.model import Node
from metasched.core.policy import Policy
from metasched.simulator.generate.gavel import GavelWorkloadParameters, gavel_jobs
from metasched.simulator.metrics import Metrics
from metasched.simulator.records import Outcome, Settings, Workload
from metasched.throughput.throughput_table import ThroughputTable

TYPES = ("v100", "p100", "k80")
PRICES = {"v100": 2.48, "p100": 1.46, "k80": 0.45}  # $ per GPU-hour: Google's on-demand prices in 2020
GPUS = 36  # of each type, in the paper
BELOW_LIMIT = 0.9  # the fraction of the fluid limit at which queues stay the same on average
ARRIVALS = 16  # jobs that are drawn, as a multiple of the window's end; above a fluid limit, single jobs last very long


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
        results: the simulations that are finished already.
    """

    table: ThroughputTable
    gpus: int
    window: range
    batch: int
    seeds: range
    plots: Path | None
    results: Results = field(default_factory=lambda: Results(None))

    @property
    def paper_gpus(self) -> Mapping[str, int]:
        """GPUs by type in the paper, to which rates of arrivals refer."""
        return dict.fromkeys(TYPES, GPUS)

    def nodes(self, gpus: int | None = None) -> tuple[Node, ...]:
        """One node for each type, with ``gpus`` (by default the scale's): the paper's simulator counts GPUs by type."""
        return tuple(Node(kind, kind, self.gpus if gpus is None else gpus, cpus=0, memory=0) for kind in TYPES)

    def arriving(self, rate: float, seed: int, *, multiple: bool = False, weights: bool = False) -> Arrivals:
        """Jobs that arrive at a ``rate`` in jobs per hour on the paper's number of GPUs."""
        parameters = GavelWorkloadParameters(
            jobs=1, jobs_per_hour=rate * self.gpus / GPUS, multiple=multiple, weights=weights
        )
        words = (
            f"{'multiple' if multiple else 'single'}, {rate:.4g} jobs/h{', weights' if weights else ''}, seed {seed}"
        )
        return Arrivals(self.table, parameters, seed, words)

    def jct(
        self, arrivals: Arrivals, policy: Policy, settings: Settings | None = None, nodes: Sequence[Node] | None = None
    ) -> float:
        """The average JCT in hours of the window's jobs, on the scale's nodes by default; see ``run_window``."""

        def simulated() -> dict[str, float]:
            return {"jct": jct_hours(run_window(arrivals, nodes or self.nodes(), policy, self.window, settings)[1])}

        words = arrivals.words if nodes is None else f"{arrivals.words}, {len(nodes)} nodes"
        return self.figures(words, policy, settings or fixed_rounds(), simulated)["jct"]

    def figures(
        self, words: str, policy: Policy, settings: Settings, simulate: Callable[[], dict[str, float]]
    ) -> Mapping[str, float]:
        """The figures of a simulation by name; those that are stored are not simulated again.

        Args:
            words: the workload, the measured jobs excepted, and what else identifies the figures.
            policy: the policy that decides each round.
            settings: how the cluster behaves; its rounds have a fixed length.
            simulate: runs the simulation.
        """
        rounds = f"rounds of {settings.round_seconds:g} s{', sharing' if settings.sharing else ''}"
        if settings.restart_seconds:
            rounds += f", restarts of {settings.restart_seconds:g} s"
        parameters = json.dumps(policy.parameters.model_dump(mode="json", exclude_defaults=True), sort_keys=True)
        sizes = f"{self.gpus} GPUs of a type", f"jobs {self.window.start} to {self.window.stop}"
        return self.results.figures((*sizes, words, f"{policy.name} {parameters}", rounds), simulate)


@dataclass(frozen=True)
class Arrivals:
    """Poisson arrivals of Gavel's distributions, as many as a simulation needs.

    Attributes:
        table: the speeds of the job types.
        parameters: the distributions; their number of jobs has no effect.
        seed: of the draws.
        words: the distributions, the seed, and the change, for the file of results.
        changed: makes the workload to simulate from the drawn one, anew for each simulation.
    """

    table: ThroughputTable
    parameters: GavelWorkloadParameters
    seed: int
    words: str
    changed: Callable[[Workload], Workload] = lambda workload: workload

    def first(self, jobs: int) -> Workload:
        """The first jobs; with more of them, the first ones are the same but for their uids."""
        parameters = self.parameters.model_copy(update={"jobs": jobs})
        return self.changed(gavel_jobs(self.table, parameters, self.seed))

    def lasting(self, window: range) -> Workload:
        """So many jobs that arrivals should go on until the last job of the window has ended."""
        return self.first(ARRIVALS * window.stop)


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


def run(workload: Workload, nodes: Sequence[Node], policy: Policy, *, sharing: bool = False) -> tuple[Outcome, Metrics]:
    """The outcome and the metrics of a simulation of a whole workload in rounds of 360 s, as in the paper."""
    return simulate_and_measure(workload, nodes, policy, fixed_rounds(sharing=sharing), prices=PRICES)


def run_window(
    arrivals: Arrivals, nodes: Sequence[Node], policy: Policy, window: range, settings: Settings | None = None
) -> tuple[Outcome, Metrics]:
    """The outcome and the metrics of a simulation in which jobs arrive until the last measured job has ended.

    Args:
        arrivals: the jobs; a message says where ``lasting`` drew too few.
        nodes: the cluster.
        policy: the policy that decides each round.
        window: positions of the measured jobs.
        settings: how the cluster behaves; None for ``fixed_rounds()``.
    """
    workload = arrivals.lasting(window)
    found = simulate_and_measure(workload, nodes, policy, settings or fixed_rounds(), window=window, prices=PRICES)
    if found[0].ended > workload.submissions[-1].job.submitted:
        say("the arrivals ended before the last measured job did: the average JCT is too small")
    return found


def fixed_rounds(*, seconds: float = 360.0, sharing: bool = False, restart: float = 0.0) -> Settings:
    """Rounds of fixed length, as in the paper; a restart costs ``restart`` seconds."""
    return Settings(round_seconds=seconds, early_rounds=False, sharing=sharing, restart_seconds=restart)


def jct_by_position(outcome: Outcome, window: range) -> Mapping[int, float]:
    """The JCT in hours of each completed job in the window, by its position in the order of arrival."""
    arrived = enumerate(outcome.jobs[: window.stop])
    return {i: job.jct / HOUR for i, job in arrived if i >= window.start and job.jct is not None}


def ratio(above: Sequence[float], below: Sequence[float]) -> tuple[float, ...]:
    """The quotients, seed by seed."""
    return tuple(a / b for a, b in zip(above, below, strict=True))
