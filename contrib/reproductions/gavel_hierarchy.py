"""Gavel's Figures 12 and 13: the hierarchical policy on 3 GPUs of each type, as a table and as plots."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from contrib.benchmarks import bench
from contrib.reproductions.gavel_workloads import Line, Scale
from metasched.core.model import Job, Snapshot
from metasched.throughput.throughput_table import TableSpeed
from metasched.time_shares.allocation_inputs import allocation_inputs
from policies.gavel.job_classes import JobClasses
from policies.gavel.policies import (
    Entity,
    GavelHierarchical,
    GavelHierarchicalParameters,
)


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
    models = [model for model in scale.table.models if (model, 1) in scale.table.job_types]
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
