"""The fluid limit of Gavel's workloads: the highest rate of arrivals that a cluster can serve, by a linear program.

Above the limit, queues grow as long as jobs arrive, under any policy; an average JCT then depends on the positions of
the measured jobs. The program divides the GPUs of each type among job types, or pairs of them with GPU sharing, in
arbitrarily small fractions, without the cost of restarts.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csr_matrix

from metasched.simulator.generate.gavel import GPUS, HOUR, LONG, LONG_EXPONENTS, SHORT_EXPONENTS
from metasched.throughput.throughput_table import ThroughputTable

REFERENCE = "v100"
"""The GPU type of the durations that the workloads' generator draws."""


class Stream(NamedTuple):
    """The arrivals of one job type.

    Attributes:
        model: the jobs' model.
        gpus: GPUs of a job.
        probability: the fraction of these jobs among all.
        steps: the mean number of steps of a job.
    """

    model: str
    gpus: int
    probability: float
    steps: float


def streams(table: ThroughputTable, *, multiple: bool) -> list[Stream]:
    """The job types of Gavel's workloads, with jobs of one GPU or of several."""
    below = (0.0, *(most for most, _ in GPUS))
    sizes = [(most - less, gpus) for less, (most, gpus) in zip(below, GPUS, strict=False)] if multiple else [(1.0, 1)]
    found = []
    for fraction, gpus in sizes:
        models = [model for model in table.models if (model, gpus) in table.job_types]
        for model in models:
            speed = table.speed(model, REFERENCE, (gpus,)) or 0.0
            found.append(Stream(model, gpus, fraction / len(models), mean_seconds() * speed))
    return found


def mean_seconds() -> float:
    """The mean duration of a job on the reference type, in seconds."""

    def mean_minutes(low: float, high: float) -> float:
        return (10**high - 10**low) / ((high - low) * math.log(10))

    return 60.0 * ((1 - LONG) * mean_minutes(*SHORT_EXPONENTS) + LONG * mean_minutes(*LONG_EXPONENTS))


def fluid_limit(table: ThroughputTable, gpus: Mapping[str, int], *, multiple: bool, sharing: bool) -> float:
    """The highest sustainable rate of arrivals, in jobs per hour.

    Args:
        table: the speeds of the job types.
        gpus: the cluster's GPUs, by type.
        multiple: whether some jobs have more than one GPU.
        sharing: whether two jobs may be co-located on the same GPUs.
    """
    arriving = streams(table, multiple=multiple)
    types = list(gpus)
    entries: list[tuple[int, int, float]] = []  # (row, column, coefficient): capacity of types, then work of streams
    columns = 1  # the first variable is the rate, in jobs per second
    for members, gpu_type, speeds in _assignments(table, arriving, types, sharing=sharing):
        entries.append((types.index(gpu_type), columns, 1.0))
        entries += [
            (len(types) + i, columns, -speed / arriving[i].gpus / arriving[i].steps)
            for i, speed in zip(members, speeds, strict=True)
        ]
        columns += 1
    entries += [(len(types) + i, 0, stream.probability) for i, stream in enumerate(arriving)]
    rows, places, values = zip(*entries, strict=True)
    matrix = csr_matrix((values, (rows, places)), shape=(len(types) + len(arriving), columns))
    bounds = np.array([*map(float, gpus.values()), *[0.0] * len(arriving)])
    found = linprog(np.eye(1, columns)[0] * -1.0, A_ub=matrix, b_ub=bounds, method="highs-ds")
    return float(-found.fun * HOUR)


def _assignments(
    table: ThroughputTable, arriving: list[Stream], types: list[str], *, sharing: bool
) -> Iterator[tuple[tuple[int, ...], str, tuple[float, ...]]]:
    """The positions of one or two streams that run on a GPU type, the type, and their steps per second there."""
    for gpu_type in types:
        for i, stream in enumerate(arriving):
            if speed := table.speed(stream.model, gpu_type, (stream.gpus,)):
                yield (i,), gpu_type, (speed,)
        if not sharing:
            continue
        for (i, one), (j, other) in itertools.combinations_with_replacement(enumerate(arriving), 2):
            if one.gpus == other.gpus:
                first = table.speed(one.model, gpu_type, (one.gpus,), other.model)
                second = table.speed(other.model, gpu_type, (one.gpus,), one.model)
                if first and second:
                    yield (i, j), gpu_type, (first, second)


def agnostic_limit(table: ThroughputTable, gpus: Mapping[str, int], *, multiple: bool) -> float:
    """The highest rate in jobs per hour if every job spends equal time on all GPUs on which it runs."""
    gpu_seconds = 0.0
    for stream in streams(table, multiple=multiple):
        speeds = {gpu_type: table.speed(stream.model, gpu_type, (stream.gpus,)) or 0.0 for gpu_type in gpus}
        runs = sum(gpus[gpu_type] for gpu_type, speed in speeds.items() if speed)
        mean = sum(gpus[gpu_type] * speed for gpu_type, speed in speeds.items()) / runs
        gpu_seconds += stream.probability * stream.gpus * stream.steps / mean
    return sum(gpus.values()) / gpu_seconds * HOUR
