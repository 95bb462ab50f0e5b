"""What the store knows of a job's speed and work, as a training to simulate."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean

from metasched.core.model import Speed
from metasched.store import JobRecord, Store
from metasched.throughput.online_speed import MeasuredSpeed
from metasched.throughput.scaling_curve import Curve, Scaling, ScalingTraining, ran
from metasched.throughput.training import Training

ALL = 1_000_000


@dataclass(frozen=True, slots=True)
class Extended:
    """A measured curve, and a rule for the sizes beyond it.

    Attributes:
        curve: measured.
        exponent: of the growth of speed with the number of GPUs, from the nearest measured size on.
    """

    curve: Curve
    exponent: float

    def at(self, gpus: int) -> float | None:
        """Measured, interpolated, or by the rule."""
        known = self.curve.at(gpus)
        if known is not None or gpus <= 0:
            return known  # what ran without GPUs has that one size
        size, speed = min(self.curve.points, key=lambda point: abs(math.log(point[0] / gpus)))
        return speed * math.pow(gpus / size, self.exponent)


def curves(store: Store, uid: str, exponent: float) -> Mapping[str, Extended]:
    """Steps per second by GPU type and number of GPUs, as the job's trainers reported; without GPUs, "" and 0."""
    places = {run.run: run.placement for run in store.runs(uid) if run.placement is not None}
    sums: dict[str, dict[int, tuple[int, float]]] = {}
    for row in store.recent_throughput(uid, ALL):
        if row.run in places and row.seconds > 0:
            place = places[row.run]
            size = row.world_size if place.gpus else 0
            sizes = sums.setdefault(place.gpu_type or "", {})
            steps, seconds = sizes.get(size, (0, 0.0))
            sizes[size] = (steps + row.steps, seconds + row.seconds)
    return {
        kind: Extended(Curve(tuple((n, steps / seconds) for n, (steps, seconds) in sorted(sizes.items()))), exponent)
        for kind, sizes in sums.items()
    }


def learned(speed: Speed | None, exponent: float) -> Mapping[str, Extended]:
    """The same, as the daemon has learned it of the job while it had its GPUs to itself."""
    sizes: dict[str, dict[int, list[float]]] = {}
    for (kind, spread), steps_per_second in (speed.alone if isinstance(speed, MeasuredSpeed) else {}).items():
        sizes.setdefault(kind, {}).setdefault(sum(spread), []).append(steps_per_second)
    return {
        kind: Extended(Curve(tuple((n, fmean(speeds)) for n, speeds in sorted(found.items()))), exponent)
        for kind, found in sizes.items()
    }


def everywhere(found: Mapping[str, Extended]) -> Mapping[str, Scaling]:
    """The curves, and for types on which it has not run the curve with the most points."""
    return {"": max(found.values(), key=lambda one: len(one.curve.points)), **found}


def training(store: Store, record: JobRecord, gpus: int, exponent: float) -> Training | None:
    """The whole work of a job that has ended; None where it never ran.

    Args:
        store: where it is recorded.
        record: the job.
        gpus: that it asked for.
        exponent: of the growth of speed beyond the measured sizes.
    """
    found = curves(store, record.uid, exponent)
    if found and record.progress_steps:
        return ScalingTraining(float(record.progress_steps), everywhere(found))
    service = sum(record.attained.values())
    return ran(service / max(gpus, 1), gpus, exponent) if service > 0 else None
