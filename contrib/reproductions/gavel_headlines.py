"""The headlines of Gavel (OSDI 2020, section 7.3 to 7.6), in our simulator at the paper's settings.

    python -m contrib.reproductions.gavel_headlines --data DIR [--quick | --scale F] [--only NAME ...] [--plots DIR]
                                                 [--processes N] [--results FILE]

36 GPUs of each of three types, rounds of 360 s, Poisson arrivals, jobs 4000 to 5000 measured, three seeds. --scale has
that part of the GPUs, of the load, and of the jobs before and in the window (jobs of several GPUs need 8 of a type, a
scale of 0.25); --quick 12 GPUs of each type, the load in proportion, jobs 200 to 350 and two seeds. Where the paper
gives a ratio, ours is that of the same two policies, as mean and standard deviation over the seeds. "Public code" is
what the authors' own runs of their simulator gave, as the notebooks in their repository print it
(scheduler/notebooks/figures/evaluation), where they do.

--processes runs so many seeds and headlines at once. With --results, what is finished is kept in that file, a line of
JSON for each headline and seed, and another run with the same sizes goes on from there.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean

import numpy as np

from contrib.benchmarks import bench
from metasched.core.model import Job, Node, Placement, Snapshot, Speed
from metasched.core.policy import Policy
from metasched.simulator.generate.gavel import continuous_jobs, static_jobs
from metasched.simulator.metrics import Metrics, measure
from metasched.simulator.records import Outcome, Settings, Submission, Workload
from metasched.simulator.simulation import simulate
from metasched.throughput.estimator import EstimatedSpeed, Estimator
from metasched.throughput.throughput_table import Table, TableSpeed, TableTraining
from metasched.throughput.training import Pace, Training
from metasched.time_shares.allocation_inputs import allocation_inputs
from metasched.time_shares.policy_base import TimeSharePolicy
from policies.baselines.allox import AlloX
from policies.baselines.gandiva import Gandiva
from policies.baselines.gavel_fifo import GavelFifo, GavelFifoParameters
from policies.baselines.isolated import Isolated
from policies.gavel.job_classes import JobClasses
from policies.gavel.policies import (
    Entity,
    GavelCost,
    GavelCostParameters,
    GavelFinishTimeFairness,
    GavelFirstCome,
    GavelHierarchical,
    GavelHierarchicalParameters,
    GavelLas,
    GavelLasParameters,
    GavelMakespan,
    GavelParameters,
    GavelThroughput,
)

TYPES = ("v100", "p100", "k80")
PRICES = {"v100": 2.48, "p100": 1.46, "k80": 0.45}  # $ an hour, Google's on-demand prices then
HOUR = 3600.0
DAY = 24 * HOUR
GPUS = 36  # of each type, in the paper
FIFO_RATE = 5.2  # jobs/h: where the public code's runs have the paper's ratios
LATE = 5  # rounds: 30 minutes, the longest that section 7.4 finds bearable
NODE_GPUS = 6  # of a node, where placement counts: a job of 4 GPUs leaves 2 that no other such job can have together
MEASURED = 0.2  # of a new job's fingerprint, where speeds are estimated


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
        return continuous_jobs(
            self.table,
            jobs=2 * self.window.stop,
            jobs_per_hour=rate * self.gpus / GPUS,
            multiple=multiple,
            weights=weights,
            seed=seed,
        )


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


def las(scale: Scale) -> Iterator[Line]:
    """Figure 9, and with shares that come into force late (section 7.4)."""
    yield from _las(scale, 5.6, "3.5", ("28.96", "3.31", "2.17"), multiple=False)


def las_multiple(scale: Scale) -> Iterator[Line]:
    """Figure 10."""
    yield from _las(scale, 2.6, "2.2", ("36.44", "1.94", "1.98"), multiple=True)


def _las(scale: Scale, rate: float, paper: str, public: Sequence[str], *, multiple: bool) -> Iterator[Line]:
    """One regime of jobs."""
    found: dict[str, list[float]] = {}
    policies: list[tuple[str, Policy, bool]] = [
        ("aware", GavelLas(), False),
        ("agnostic", GavelLas(GavelLasParameters(aware=False)), False),
        ("shared", GavelLas(), True),
        ("gandiva", Gandiva(), True),
        *([] if multiple else [("allox", AlloX(), False)]),
        *([] if multiple else [("late", GavelLas(GavelLasParameters(recompute_rounds=LATE)), False)]),
    ]
    for seed in scale.seeds:
        workload = scale.arriving(rate, seed, multiple=multiple)
        for name, policy, sharing in policies:
            _, metrics = run(workload, scale.nodes(), policy, window=scale.window, sharing=sharing)
            found.setdefault(name, []).append(jct(metrics))
    what = f"LAS, {'multiple' if multiple else 'single'}, {rate:g} jobs/h:"
    yield Line(f"{what} average JCT, aware", "", tuple(found["aware"]), "h", public=public[0])
    yield Line(f"{what} agnostic / aware", paper, ratio(found["agnostic"], found["aware"]), public=public[1])
    yield Line(
        f"{what} Gandiva / aware with sharing", "2.2", ratio(found["gandiva"], found["shared"]), public=public[2]
    )
    if not multiple:
        yield Line(f"{what} aware / AlloX", "about 1", ratio(found["aware"], found["allox"]), public="1.14")
        minutes = f"shares {LATE * 360 // 60} minutes late"
        yield Line(f"{what} {minutes} / at once", "", ratio(found["late"], found["aware"]))
        yield Line(f"{what} agnostic / {minutes}", "more than 1", ratio(found["agnostic"], found["late"]))


def ftf(scale: Scale) -> Iterator[Line]:
    """Finish-time fairness with the load of Figure 9, where the public code's runs have the paper's ratios."""
    yield from _ftf(scale, 5.6, ("30.47", "2.81", "2.78"), multiple=False)


def ftf_multiple(scale: Scale) -> Iterator[Line]:
    """Figure 11."""
    yield from _ftf(scale, 2.6, ("33.90", "1.90", "1.77"), multiple=True)


def _ftf(scale: Scale, rate: float, public: Sequence[str], *, multiple: bool) -> Iterator[Line]:
    """One regime of jobs; rho is beside the same job under equal parts, as in the public code's runs."""
    times: dict[str, list[float]] = {}
    rhos: dict[str, list[float]] = {}
    policies: list[tuple[str, Policy]] = [
        ("isolated", Isolated()),
        ("aware", GavelFinishTimeFairness()),
        ("agnostic", GavelFinishTimeFairness(GavelParameters(aware=False))),
    ]
    for seed in scale.seeds:
        workload = scale.arriving(rate, seed, multiple=multiple)
        apart: Mapping[str, float] = {}
        for name, policy in policies:
            outcome, metrics = run(workload, scale.nodes(), policy, window=scale.window)
            found = by_job(outcome, workload, scale.window)
            apart = apart or found
            times.setdefault(name, []).append(jct(metrics))
            rhos.setdefault(name, []).append(fmean(time / apart[uid] for uid, time in found.items()))
    what = f"finish-time fairness, {'multiple' if multiple else 'single'}, {rate:g} jobs/h:"
    yield Line(f"{what} average JCT, aware", "", tuple(times["aware"]), "h", public=public[0])
    yield Line(f"{what} average JCT, agnostic / aware", "3", ratio(times["agnostic"], times["aware"]), public=public[1])
    yield Line(f"{what} average rho, agnostic / aware", "2.8", ratio(rhos["agnostic"], rhos["aware"]), public=public[2])


def makespan(scale: Scale) -> Iterator[Line]:
    """The makespan paragraph of section 7.3."""
    found: dict[str, list[float]] = {}
    for seed in scale.seeds:
        workload = static_jobs(scale.table, jobs=scale.batch, multiple=True, seed=seed)
        for name, policy, sharing in (
            ("fifo", GavelFifo(GavelFifoParameters(aware=False)), False),
            ("gandiva", Gandiva(), True),
            ("aware", GavelMakespan(), False),
            ("shared", GavelMakespan(), True),
        ):
            outcome, _ = run(workload, scale.nodes(), policy, sharing=sharing)
            found.setdefault(name, []).append(outcome.ended)
    jobs = f"makespan of {scale.batch} jobs"
    yield Line(f"{jobs}: FIFO / aware", "2.5", ratio(found["fifo"], found["aware"]), public="2.52")
    yield Line(f"{jobs}: Gandiva / aware", "1.4", ratio(found["gandiva"], found["aware"]), public="1.56")
    yield Line(f"{jobs}: aware / aware with sharing", "1.08", ratio(found["aware"], found["shared"]), public="1.01")


def fifo(scale: Scale) -> Iterator[Line]:
    """The FIFO paragraph of section 7.3."""
    found: dict[str, list[float]] = {}
    for seed in scale.seeds:
        workload = scale.arriving(FIFO_RATE, seed)
        for name, policy, sharing in (
            ("agnostic", GavelFifo(GavelFifoParameters(aware=False)), False),
            ("aware", GavelFirstCome(), False),
            ("shared", GavelFirstCome(), True),
        ):
            _, metrics = run(workload, scale.nodes(), policy, window=scale.window, sharing=sharing)
            found.setdefault(name, []).append(jct(metrics))
    load = f"FIFO, single, {FIFO_RATE:g} jobs/h"
    yield Line(f"{load}: average JCT, aware", "", tuple(found["aware"]), "h", public="56.69")
    yield Line(f"{load}: agnostic / aware", "2.7", ratio(found["agnostic"], found["aware"]), public="2.68")
    yield Line(
        f"{load}: agnostic / aware with sharing", "3.8", ratio(found["agnostic"], found["shared"]), public="3.98"
    )


def priorities(scale: Scale) -> Iterator[Line]:
    """A fifth of the jobs has five times the weight; policy and load as in the public code's runs."""
    high: dict[bool, list[float]] = {}
    low: dict[bool, list[float]] = {}
    for seed in scale.seeds:
        workload = scale.arriving(2.4, seed, multiple=True, weights=True)
        urgent = {one.job.uid for one in workload.submissions if one.job.weight == 1.0}
        for aware in (True, False):
            policy = GavelLas(GavelLasParameters(aware=aware, fill=True))
            outcome, _ = run(workload, scale.nodes(), policy, window=scale.window)
            times = by_job(outcome, workload, scale.window)
            high.setdefault(aware, []).append(fmean(time for uid, time in times.items() if uid in urgent))
            low.setdefault(aware, []).append(fmean(time for uid, time in times.items() if uid not in urgent))
    what = "LAS with priorities, multiple, 2.4 jobs/h:"
    yield Line(f"{what} high, agnostic / aware", "1.5", ratio(high[False], high[True]), public="1.53")
    yield Line(f"{what} low, agnostic / aware", "2.7", ratio(low[False], low[True]), public="2.69")


def cost(scale: Scale) -> Iterator[Line]:
    """Jobs of ResNet-50 and A3C with deadlines."""
    spent: dict[str, list[float]] = {}
    late: dict[str, list[float]] = {}
    for seed in scale.seeds:
        workload = _deadlines(scale, seed)
        for name, policy in (
            ("throughput", GavelThroughput()),
            ("literal", GavelCost(GavelCostParameters(prices=PRICES, slos=False, together=True))),
            ("cost", GavelCost(GavelCostParameters(prices=PRICES, slos=False, together=False))),
            ("slos", GavelCost(GavelCostParameters(prices=PRICES, together=False))),
            ("together", GavelCost(GavelCostParameters(prices=PRICES, together=True))),
        ):
            outcome, metrics = run(workload, scale.nodes(), policy)
            slo = {one.job.uid: one.job.slo_seconds or 0.0 for one in workload.submissions}
            over = [job.jct is None or job.jct > slo[job.uid] for job in outcome.jobs]
            spent.setdefault(name, []).append(metrics.cost or 0.0)
            late.setdefault(name, []).append(100 * fmean(over))
    for name, words, paper, violated in (
        ("literal", "least cost of all together, without SLOs", "1.4", "35"),
        ("cost", "least cost of each, without SLOs", "1.4", "35"),
        ("slos", "least cost of each", "1.2", "0"),
        ("together", "least cost of all together", "1.2", "0"),
    ):
        yield Line(f"cost: most throughput / {words}", paper, ratio(spent["throughput"], spent[name]))
        yield Line(f"cost: SLOs violated, {words}", violated, tuple(late[name]), "%")
    yield Line("cost: SLOs violated, most throughput", "", tuple(late["throughput"]), "%")


def _deadlines(scale: Scale, seed: int) -> Workload:
    """ResNet-50 and A3C for 0.5 to 8 days on a V100, and 1.2 to 10 times that to do it; a third of the GPUs busy.

    There are as many of either, though the table has several batch sizes of ResNet-50.
    """
    chance = np.random.default_rng(seed)
    families = [[m for m in scale.table.models if m.startswith(name)] for name in ("ResNet-50", "A3C")]
    times = math.lcm(*map(len, families))
    models = [model for family in families for model in family * (times // len(family))]
    days = (0.5, 1.0, 2.0, 4.0, 8.0)
    rate = len(TYPES) * scale.gpus / 3 / (24 * fmean(days))
    made = continuous_jobs(scale.table, jobs=scale.batch, jobs_per_hour=rate, models=models, seed=seed)
    submissions = []
    for one in made.submissions:
        model, seconds = one.job.name, DAY * float(chance.choice(days))
        speed = scale.table.speed(model, "v100", (1,)) or 0.0
        job = one.job.evolve(slo_seconds=seconds * float(chance.choice((1.2, 2.0, 10.0))))
        submissions.append(Submission(job, TableTraining(scale.table, model, seconds * speed)))
    return replace(made, submissions=tuple(submissions))


def hierarchy(scale: Scale) -> Iterator[Line]:
    """Figures 12 and 13: 18 jobs of three entities come one after the other to 3 GPUs of each type, and stay."""
    totals: dict[str, float] = {}
    over_time: dict[str, list[float]] = {}
    for name, inside, aware in (
        ("fairness", "fairness", True),
        ("fifo", "fifo", True),
        ("agnostic", "fairness", False),
    ):
        entities = {f"{i}": Entity(weight=i + 1.0, inside=inside) for i in range(3)}
        policy = GavelHierarchical(GavelHierarchicalParameters(entities=entities, aware=aware))
        steps = [_shares_of_throughput(scale, policy, count) for count in range(1, 19)]
        totals[name] = sum(steps[-1].values())
        if name != "agnostic":
            entity = [sum(part for uid, part in steps[-1].items() if int(uid) // 6 == i) for i in range(3)]
            for i in range(3):
                share = 100 * entity[i] / sum(entity)
                weight = f"{100 * (i + 1) / 6:.0f}"
                yield Line(f"hierarchy ({name} inside): entity {i}'s part at the end", weight, (share,), "%")
            if scale.plots is not None:
                _draw(scale.plots / f"hierarchy-{name}.svg", steps)
        over_time[name] = [sum(step.values()) for step in steps]
    if scale.plots is not None:
        _draw_totals(scale.plots / "hierarchy-throughput.svg", over_time)
    yield Line("hierarchy: throughput, agnostic / aware", "0.83", (totals["agnostic"] / totals["fairness"],))


def _shares_of_throughput(scale: Scale, policy: GavelHierarchical, count: int) -> Mapping[str, float]:
    """By uid, throughput relative to that with an equal share of every type."""
    models = [model for model in scale.table.models if (model, 1) in scale.table.kinds]
    chosen = [models[(5 * number) % len(models)] for number in range(count)]
    jobs = [
        Job(
            uid=f"{number:02}",
            slurm_job_id=f"{number}",
            name=model,
            user="trace",
            submitted=float(number),
            gpus=1,
            min_gpus=1,
            max_gpus=1,
            account=str(number // 6),
            cpus_per_unit=0,
            speed=TableSpeed(scale.table, model),
        )
        for number, model in enumerate(chosen)
    ]
    inputs = allocation_inputs(Snapshot(float(count), 1, 360.0, scale.nodes(3), tuple(jobs)))
    times, _ = policy.time_shares(inputs, {})
    equal = JobClasses.of(inputs, aware=True, class_key=lambda job: job.uid).problem.equal
    return {
        job.uid: sum((inputs.speed(job, kind) or 0.0) * part for kind, part in times.get((job.uid,), {}).items())
        / all_of
        for job, all_of in zip(jobs, equal, strict=True)
    }


def _draw(file: Path, steps: Sequence[Mapping[str, float]]) -> None:
    """Bands of the fractions of total throughput; colours are entities."""
    from matplotlib.figure import Figure  # noqa: PLC0415  only this needs it

    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    axes = figure.add_subplot()
    uids = sorted(steps[-1])
    bands = np.array([[step.get(uid, 0.0) / sum(step.values()) for step in steps] for uid in uids])
    colours = [("#1f77b4", "#ff7f0e", "#2ca02c")[int(uid) // 6] for uid in uids]
    axes.stackplot(4 * np.arange(len(steps)), bands, colors=colours, edgecolor="white", linewidth=0.5)
    axes.set(xlabel="timestep", ylabel="fraction of total throughput", ylim=(0, 1))
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, metadata={"Date": None})
    bench.say(f"{file}")


def _draw_totals(file: Path, totals: Mapping[str, Sequence[float]]) -> None:
    """Figure 12b: throughput over time, relative to that with an equal share of every type, of all jobs together."""
    from matplotlib.figure import Figure  # noqa: PLC0415  only this needs it

    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    axes = figure.add_subplot()
    for name, values in totals.items():
        axes.plot(4 * np.arange(len(values)), values, label=name)
    axes.set(xlabel="timestep", ylabel="total throughput", ylim=(0, None))
    axes.legend()
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, metadata={"Date": None})
    bench.say(f"{file}")


def placement(scale: Scale) -> Iterator[Line]:
    """Section 3.1: consolidated and unconsolidated GPUs as two worker types, on nodes that make them differ."""
    found: dict[bool, list[float]] = {}
    nodes = tuple(
        Node(f"{kind}-{number}", kind, NODE_GPUS, cpus=0, memory=0)
        for kind in TYPES
        for number in range(max(round(scale.gpus / NODE_GPUS), 2))
    )
    for seed in scale.seeds:
        workload = scale.arriving(2.0, seed, multiple=True)
        for counts in (False, True):
            policy = GavelLas(GavelLasParameters(placement=counts))
            found.setdefault(counts, []).append(jct(run(workload, nodes, policy, window=scale.window)[1]))
    what = f"LAS, multiple, 2 jobs/h, nodes of {NODE_GPUS} GPUs"
    yield Line(f"{what}: placement not a type / a type", "", ratio(found[False], found[True]))


def rounds(scale: Scale) -> Iterator[Line]:
    """Figure 15."""
    found: dict[float, list[float]] = {}
    best = []
    lengths = (360.0, 720.0, 1440.0, 2880.0)
    for seed in scale.seeds:
        workload = scale.arriving(4.0, seed)
        for seconds in lengths:
            _, metrics = run(workload, scale.nodes(), GavelLas(), window=scale.window, seconds=seconds)
            found.setdefault(seconds, []).append(jct(metrics))
        best.append(ideal(workload, scale.nodes(), GavelLas(), scale.window))
    yield Line("LAS, single, 4 jobs/h: rounds of 360 s / ideal", "about 1", ratio(found[360.0], best))
    for seconds in lengths[1:]:
        yield Line(
            f"LAS, single, 4 jobs/h: rounds of {seconds:.0f} s / 360 s", "more", ratio(found[seconds], found[360.0])
        )


def ideal(workload: Workload, nodes: tuple[Node, ...], policy: TimeSharePolicy, window: range) -> float:
    """The average JCT, h, if everybody had exactly its shares at every instant, and new ones at every change."""
    arrivals = list(workload.submissions)
    wanted = {one.job.uid for one in arrivals[window.start : window.stop]}
    left: dict[str, float] = {}
    live: dict[str, Job] = {}
    times: list[float] = []
    now, arrived = 0.0, 0
    memory: Mapping[str, object] = {}
    while len(times) < len(wanted):
        inputs = allocation_inputs(Snapshot(now, 1, 1.0, nodes, tuple(live.values())))
        given, memory = policy.time_shares(inputs, memory)
        speed = {
            who[0]: sum((inputs.speed(live[who[0]], kind) or 0.0) * part for kind, part in share.items())
            for who, share in given.items()
        }
        ends = {uid: now + left[uid] / rate for uid, rate in speed.items() if rate > 0}
        coming = arrivals[arrived].job.submitted if arrived < len(arrivals) else np.inf
        then = min(coming, min(ends.values(), default=np.inf))
        for uid, rate in speed.items():
            left[uid] -= rate * (then - now)
        now = then
        for uid in [uid for uid, end in ends.items() if end <= now]:
            job = live.pop(uid)
            if uid in wanted:
                times.append((now - job.submitted) / HOUR)
        while arrived < len(arrivals) and arrivals[arrived].job.submitted <= now:
            one = arrivals[arrived]
            live[one.job.uid] = one.job.evolve(speed=one.training.known(0.0))
            left[one.job.uid] = one.training.total
            arrived += 1
    return fmean(times)


def estimator(scale: Scale) -> Iterator[Line]:
    """Figure 16, on 4 GPUs of each type."""
    found: dict[str, list[float]] = {}
    small = replace(scale, gpus=4)
    reference = Estimator(scale.table)
    for seed in scale.seeds:
        workload = small.arriving(6.0, seed)
        guessed = _estimated(workload, reference, seed)
        for name, jobs, sharing in (
            ("oracle", workload, True),
            ("estimated", guessed, True),
            ("alone", workload, False),
        ):
            _, metrics = run(jobs, small.nodes(), GavelLas(), window=scale.window, sharing=sharing)
            found.setdefault(name, []).append(jct(metrics))
    yield Line("estimator: mean error of what is left of a speed", "", (_error(reference),), "")
    yield Line("LAS with sharing: estimated / oracle", "about 1", ratio(found["estimated"], found["oracle"]))
    yield Line("LAS: without sharing / with it, oracle", "more", ratio(found["alone"], found["oracle"]))


Seen = set[tuple[str, int, str, str]]
"""GPU type, GPUs, and two models that have shared them."""


@dataclass(frozen=True, eq=False)
class ThroughputLearning:
    """What a job measures of itself: alone everything, beside another model what has been seen: a ``Speed``."""

    truth: TableSpeed
    seen: Seen

    def steps_per_second(self, gpu_type: str, spread: tuple[int, ...]) -> float | None:
        """Its own."""
        return self.truth.steps_per_second(gpu_type, spread)

    def steps_per_second_with(self, other: Speed, gpu_type: str, spread: tuple[int, ...]) -> float | None:
        """Where the two have shared GPUs before."""
        company = other.alone if isinstance(other, EstimatedSpeed) else other
        if not isinstance(company, ThroughputLearning):
            return None
        key = (gpu_type, sum(spread), self.truth.model, company.truth.model)
        return self.truth.steps_per_second_with(company.truth, gpu_type, spread) if key in self.seen else None


@dataclass(frozen=True)
class Guessed:
    """A training of whose speed beside others only an estimate is known, until it is measured: a ``Training``."""

    truth: TableTraining
    speed: Speed
    seen: Seen

    @property
    def total(self) -> float:
        """Its own."""
        return self.truth.total

    def pace(self, done: float, placement: Placement, beside: Training | None = None) -> Pace:
        """Its own."""
        if not isinstance(beside, Guessed):
            return self.truth.pace(done, placement, beside)
        self.seen.add((placement.gpu_type or "", placement.gpus, self.truth.model, beside.truth.model))
        return self.truth.pace(done, placement, beside.truth)

    def known(self, done: float) -> Speed:
        """The estimate."""
        del done
        return self.speed


def _estimated(workload: Workload, reference: Estimator, seed: int) -> Workload:
    """Jobs whose model was not measured in advance, but beside a few reference jobs: each is taken for new."""
    made: dict[str, Speed] = {}
    seen: Seen = set()
    submissions = []
    for one in workload.submissions:
        model, truth = one.job.name, one.training
        assert isinstance(truth, TableTraining)  # noqa: S101  the generator's
        if model not in made:
            rest, known = _profiled(reference, model, seed)
            like = TableSpeed(reference.table, rest.closest(known))
            made[model] = EstimatedSpeed(ThroughputLearning(TableSpeed(reference.table, model), seen), like)
        submissions.append(replace(one, training=Guessed(truth, made[model], seen)))
    return replace(workload, submissions=tuple(submissions))


def _profiled(
    reference: Estimator, model: str, seed: int
) -> tuple[Estimator, np.ndarray[tuple[int], np.dtype[np.float64]]]:
    """The reference jobs but one, and what was measured of the fingerprint of that."""
    table = reference.table

    def rest(cells: Mapping[tuple[str, int], object]) -> dict[tuple[str, int], object]:
        return {kind: cell for kind, cell in cells.items() if kind[0] != model}

    alone = {sheet: rest(cells) for sheet, cells in table.alone.items()}
    beside = {sheet: {k: rest(row) for k, row in rest(cells).items()} for sheet, cells in table.beside.items()}  # type: ignore[arg-type]
    others = Estimator(Table(alone, beside), reference.gpus)  # type: ignore[arg-type]
    number = reference.models.index(model)
    columns = [reference.column(kind, other) for kind in table.types for other in others.models]
    row = reference.fingerprints[number][columns]
    chance = np.random.default_rng([seed, number])
    known = chance.permutation(len(row)) < MEASURED * len(row)
    return others, np.where(known, row, np.nan)


def _error(reference: Estimator) -> float:
    """Mean absolute error of completed fingerprints, each model taken for new."""
    wrong = []
    for number, model in enumerate(reference.models):
        others, known = _profiled(reference, model, 0)
        columns = [reference.column(kind, other) for kind in reference.table.types for other in others.models]
        truth = reference.fingerprints[number][columns]
        hidden = np.isnan(known) & ~np.isnan(truth)
        wrong.append(float(np.abs(others.fingerprint(known) - truth)[hidden].mean()))
    return fmean(wrong)


def ratio(above: Sequence[float], below: Sequence[float]) -> tuple[float, ...]:
    """Seed by seed."""
    return tuple(a / b for a, b in zip(above, below, strict=True))


HEADLINES: Mapping[str, Callable[[Scale], Iterator[Line]]] = {
    "las": las,
    "las-multiple": las_multiple,
    "ftf": ftf,
    "ftf-multiple": ftf_multiple,
    "makespan": makespan,
    "fifo": fifo,
    "priorities": priorities,
    "cost": cost,
    "hierarchy": hierarchy,
    "placement": placement,
    "rounds": rounds,
    "estimator": estimator,
}


def main() -> int:
    """Run the headlines that were asked for, and print the table."""
    parser = bench.arguments(__doc__ or "")
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    data = os.environ.get("METASCHED_DATA")
    parser.add_argument("--data", type=Path, default=data, required=data is None, help="folder of the public data")
    sizes = parser.add_mutually_exclusive_group()
    sizes.add_argument("--quick", action="store_true", help="small clusters, few jobs, two seeds")
    sizes.add_argument("--scale", type=float, default=1.0, help="this part of the paper's GPUs, load and jobs")
    parser.add_argument("--only", nargs="+", choices=HEADLINES, default=list(HEADLINES), help="headlines")
    parser.add_argument("--gpus", type=bench.positive, help="of each type")
    parser.add_argument("--window", type=bench.positive, nargs=2, help="first and last job measured")
    parser.add_argument("--batch", type=bench.positive, help="jobs that are there at once, or have deadlines")
    parser.add_argument("--seeds", type=bench.positive, help="how many")
    parser.add_argument("--plots", type=Path, help="where pictures go")
    parser.add_argument("--processes", type=bench.positive, default=1, help="how many simulate at once")
    parser.add_argument("--results", type=Path, help="file that keeps what is finished, for another run to go on from")
    given = parser.parse_args()
    first, last = (max(round(number * given.scale), number // 1000) for number in (4000, 5000))
    table = Table.read(given.data / "gavel" / "simulation_throughputs.json")
    scale = Scale(
        table=table,
        gpus=given.gpus or (12 if given.quick else max(round(GPUS * given.scale), 1)),
        window=range(*(given.window or ((200, 350) if given.quick else (first, last)))),
        batch=given.batch or (100 if given.quick else max(round(500 * given.scale), 1)),
        seeds=range(given.seeds or (2 if given.quick else 3)),
        plots=given.plots,
    )
    wanted = [(name, seed) for seed in scale.seeds for name in given.only]
    done = _kept(given.results, scale)
    with ProcessPoolExecutor(given.processes, max_tasks_per_child=1) as pool:
        running = {pool.submit(_lines, scale, *task): task for task in wanted if task not in done}
        for future in as_completed(running):
            done[running[future]] = future.result()
            _keep(given.results, scale, *running[future], future.result())
    print("| figure | paper | public code | ours |\n|---|---|---|---|")
    found = []
    for name in given.only:
        for lines in zip(*(done[name, seed] for seed in scale.seeds), strict=True):
            line = replace(lines[0], ours=tuple(value for each in lines for value in each.ours))
            print(f"| {line.what} | {line.paper} | {line.public} | {line.cell} |")
            found.append(asdict(line))
    bench.finish({"headlines": found}, as_json=given.json)
    return 0


def _lines(scale: Scale, name: str, seed: int) -> list[Line]:
    """One headline with one seed."""
    gc.set_threshold(200_000, 50, 50)  # millions of small objects live as long as the simulation
    return list(HEADLINES[name](replace(scale, seeds=range(seed, seed + 1))))


def _kept(file: Path | None, scale: Scale) -> dict[tuple[str, int], list[Line]]:
    """What is finished of the same sizes, by headline and seed."""
    found: dict[tuple[str, int], list[Line]] = {}
    if file is not None and file.exists():
        for text in file.read_text().splitlines():
            kept = json.loads(text)
            if kept["sizes"] == _sizes(scale):
                lines = [Line(**line | {"ours": tuple(line["ours"])}) for line in kept["lines"]]
                found[kept["headline"], kept["seed"]] = lines
    return found


def _keep(file: Path | None, scale: Scale, name: str, seed: int, lines: Sequence[Line]) -> None:
    """Add what is finished."""
    if file is not None:
        kept = {"sizes": _sizes(scale), "headline": name, "seed": seed, "lines": [asdict(line) for line in lines]}
        with file.open("a") as out:
            out.write(json.dumps(kept) + "\n")


def _sizes(scale: Scale) -> list[int]:
    """What results must have in common."""
    return [scale.gpus, scale.window.start, scale.window.stop, scale.batch]


if __name__ == "__main__":
    sys.exit(main())
