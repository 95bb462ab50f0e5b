"""Trainings to simulate, from the speeds and the work of real jobs in the store."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TypeVar

from metasched.core.model import Job, Placement, Speed
from metasched.store import JobRecord, Store, ThroughputRecord
from metasched.throughput.fitted_training import FittedTraining, has_fitted_goodput
from metasched.throughput.iteration_fit import MeasuredIteration, fit_types
from metasched.throughput.measured_speed import MeasuredSpeed
from metasched.throughput.scaling_curve import Curve, Scaling, ScalingTraining, training_of_run
from metasched.throughput.training import Training

Key = TypeVar("Key", int, tuple[int, bool, int, int])

ALL = 1_000_000
"""A limit for queries of the store that is above any number of rows."""


@dataclass(frozen=True, slots=True)
class ExtendedCurve:
    """A measured scaling curve, extrapolated beyond its sizes by a power law.

    Attributes:
        curve: the measured curve.
        exponent: the exponent of speed over the number of GPUs, from the nearest measured size on.
    """

    curve: Curve
    exponent: float

    def at(self, gpus: int) -> float | None:
        """Steps per second: measured, interpolated or extrapolated; None for GPUs where only a run without is known."""
        known = self.curve.at(gpus)
        if known is not None or gpus <= 0:
            return known
        size, speed = min(self.curve.points, key=lambda point: abs(math.log(point[0] / gpus)))
        return speed * math.pow(gpus / size, self.exponent)


def reported_curves(store: Store, uid: str, exponent: float) -> Mapping[str, ExtendedCurve]:
    """The scaling curves by GPU type, from the reports of a job's trainers.

    A job without GPUs has one curve, of the type "", with the one size 0.
    """
    found = _sums(store, uid, lambda row, placement: row.world_size if placement.gpus else 0)
    return {
        gpu_type: ExtendedCurve(Curve(tuple((n, one.steps / one.seconds) for n, one in sizes.items())), exponent)
        for gpu_type, sizes in found.items()
    }


def learned_curves(speed: Speed | None, exponent: float) -> Mapping[str, ExtendedCurve]:
    """The scaling curves by GPU type, from the speeds that the daemon has learned of the job without a co-runner."""
    sizes: dict[str, dict[int, list[float]]] = {}
    for (gpu_type, spread), steps_per_second in (speed.alone if isinstance(speed, MeasuredSpeed) else {}).items():
        sizes.setdefault(gpu_type, {}).setdefault(sum(spread), []).append(steps_per_second)
    return {
        gpu_type: ExtendedCurve(Curve(tuple((n, fmean(speeds)) for n, speeds in sorted(found.items()))), exponent)
        for gpu_type, found in sizes.items()
    }


def with_default(found: Mapping[str, ExtendedCurve]) -> Mapping[str, Scaling]:
    """The curves, with the one with the most points for all other GPU types (key "")."""
    return {"": max(found.values(), key=lambda one: len(one.curve.points)), **found}


def measured_iterations(store: Store, uid: str) -> Mapping[str, Sequence[MeasuredIteration]]:
    """The mean durations of iterations by GPU type, from the reports of a job's trainers."""
    found = _sums(store, uid, _configuration)
    return {
        gpu_type: [MeasuredIteration(*key, one.seconds / one.steps) for key, one in configurations.items()]
        for gpu_type, configurations in found.items()
    }


def recorded_training(store: Store, record: JobRecord, job: Job, exponent: float) -> Training | None:
    """The work and the speed of a job that has ended; None where it never ran.

    Args:
        store: the daemon's store.
        record: the job.
        job: the same, as it is submitted.
        exponent: the exponent of speed over the number of GPUs, beyond the measured sizes.
    """
    gpus = job.gpus
    if record.progress_steps and has_fitted_goodput(recorded := _with_recorded_goodput(store, record, job)):
        return FittedTraining(recorded, float(record.progress_steps))
    found = reported_curves(store, record.uid, exponent)
    if found and record.progress_steps:
        return ScalingTraining(float(record.progress_steps), with_default(found))
    service = sum(record.attained.values())
    return training_of_run(service / max(gpus, 1), gpus, exponent) if service > 0 else None


def _with_recorded_goodput(store: Store, record: JobRecord, job: Job) -> Job:
    """The job at its first batch, with its noise and its fitted iterations, where its batch size may change."""
    if record.batching is None or not job.adaptive_batch:
        return job
    batching = replace(record.batching, plan=None, global_batch=None, regimes=())
    fitted = fit_types(measured_iterations(store, record.uid), {})
    return job.evolve(batching=batching, noise=record.noise, iteration_parameters=fitted)


def _configuration(row: ThroughputRecord, placement: Placement) -> tuple[int, bool, int, int] | None:
    """The first fields of ``MeasuredIteration``; None for a report without steps, or from a job without GPUs."""
    if placement.gpu_type is None or row.steps <= 0:
        return None
    return placement.gpus, len(placement.nodes) > 1, row.per_gpu_batch, row.accumulation


@dataclass(slots=True)
class _Sum:
    """Steps of a job with one key, and the seconds that they took."""

    steps: int = 0
    seconds: float = 0.0


def _sums(
    store: Store, uid: str, key: Callable[[ThroughputRecord, Placement], Key | None]
) -> Mapping[str, Mapping[Key, _Sum]]:
    """The sums of the reports of a job's trainers, by GPU type ("" without GPUs) and key.

    Args:
        store: the daemon's store.
        uid: the job.
        key: returns the key of a report from the run on a placement; None for a report to leave out.
    """
    placements = {run.run: run.placement for run in store.runs(uid) if run.placement is not None}
    found: dict[str, dict[Key, _Sum]] = {}
    for row in store.recent_throughput(uid, ALL):
        placement = None if row.run is None else placements.get(row.run)
        if placement is None or row.seconds <= 0 or (where := key(row, placement)) is None:
            continue
        total = found.setdefault(placement.gpu_type or "", {}).setdefault(where, _Sum())
        total.steps += row.steps
        total.seconds += row.seconds
    return {gpu_type: dict(sorted(sums.items())) for gpu_type, sums in found.items()}
