"""Gavel's Figures 12 and 13: the hierarchical policy on 3 GPUs of each type, as a table and as plots."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np

from contrib.benchmarks import common
from contrib.reproductions.gavel_workloads import Line, Scale
from metasched.core.model import Snapshot
from metasched.simulator.records import trace_job
from metasched.throughput.throughput_table import TableSpeed
from metasched.time_shares.allocation_inputs import allocation_inputs
from policies.gavel.job_classes import JobClasses
from policies.gavel.policies import Entity, GavelHierarchical, GavelHierarchicalParameters


def hierarchy(scale: Scale) -> Iterator[Line]:
    """Figures 12 and 13: 18 jobs of three entities arrive one after the other at 3 GPUs of each type, and never end."""
    totals: dict[str, float] = {}
    over_time: dict[str, list[float]] = {}
    cases: tuple[tuple[str, Literal["fairness", "fifo"], bool], ...] = (
        ("fairness", "fairness", True),
        ("fifo", "fifo", True),
        ("agnostic", "fairness", False),
    )
    for name, inside, aware in cases:
        entities = {f"{i}": Entity(weight=i + 1.0, inside=inside) for i in range(3)}
        policy = GavelHierarchical(GavelHierarchicalParameters(entities=entities, aware=aware))
        steps = [_relative_throughputs(scale, policy, count) for count in range(1, 19)]
        totals[name] = sum(steps[-1].values())
        if name != "agnostic":
            by_entity = [sum(value for uid, value in steps[-1].items() if int(uid) // 6 == i) for i in range(3)]
            for i in range(3):
                share = 100 * by_entity[i] / sum(by_entity)
                weight = f"{100 * (i + 1) / 6:.0f}"
                yield Line(f"hierarchy ({name} inside): entity {i}'s share at the end", weight, (share,), "%")
            if scale.plots is not None:
                _draw(scale.plots / f"hierarchy-{name}.svg", steps)
        over_time[name] = [sum(step.values()) for step in steps]
    if scale.plots is not None:
        _draw_totals(scale.plots / "hierarchy-throughput.svg", over_time)
    yield Line("hierarchy: throughput, agnostic / aware", "0.83", (totals["agnostic"] / totals["fairness"],))


def _relative_throughputs(scale: Scale, policy: GavelHierarchical, count: int) -> Mapping[str, float]:
    """The throughput of each of the first ``count`` jobs over that with an equal share of every type, by uid."""
    models = [model for model in scale.table.models if (model, 1) in scale.table.job_types]
    chosen = [models[(5 * number) % len(models)] for number in range(count)]
    jobs = [
        trace_job(f"{number:02}", model, float(number), 1).evolve(
            account=str(number // 6), speed=TableSpeed(scale.table, model)
        )
        for number, model in enumerate(chosen)
    ]
    inputs = allocation_inputs(Snapshot(float(count), 1, 360.0, scale.nodes(3), tuple(jobs)))
    shares, _ = policy.time_shares(inputs, {})
    equal = JobClasses.of(inputs, aware=True, class_key=lambda job: job.uid).problem.equal
    return {
        job.uid: sum(
            (inputs.speed(job, gpu_type) or 0.0) * part for gpu_type, part in shares.get((job.uid,), {}).items()
        )
        / throughput
        for job, throughput in zip(jobs, equal, strict=True)
    }


def _draw(file: Path, steps: Sequence[Mapping[str, float]]) -> None:
    """Draw each job's fraction of the total throughput over time, in the colour of its entity."""
    uids = sorted(steps[-1])
    bands = np.array([[step.get(uid, 0.0) / sum(step.values()) for step in steps] for uid in uids])
    colours = [("#1f77b4", "#ff7f0e", "#2ca02c")[int(uid) // 6] for uid in uids]
    with _axes(file) as axes:
        axes.stackplot(4 * np.arange(len(steps)), bands, colors=colours, edgecolor="white", linewidth=0.5)
        axes.set(xlabel="timestep", ylabel="fraction of total throughput", ylim=(0, 1))


def _draw_totals(file: Path, totals: Mapping[str, Sequence[float]]) -> None:
    """Draw Figure 12b: the total throughput over time, relative to that with an equal share of every type."""
    with _axes(file) as axes:
        for name, values in totals.items():
            axes.plot(4 * np.arange(len(values)), values, label=name)
        axes.set(xlabel="timestep", ylabel="total throughput", ylim=(0, None))
        axes.legend()


@contextmanager
def _axes(file: Path) -> Iterator[Any]:
    """The axes of a plot, which is written to ``file`` at the end of the context."""
    from matplotlib.figure import Figure  # noqa: PLC0415  only plots need it

    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    yield figure.add_subplot()
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, metadata={"Date": None})
    common.say(f"{file}")
