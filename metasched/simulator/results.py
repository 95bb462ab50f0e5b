"""Results on disk: one JSON file per simulation, with a digest of its inputs, and one CSV table for all."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from metasched.core.errors import MetaschedError
from metasched.core.file_replacement import replace_file

FORMAT = 1
POINTS = 2000
"""The number of points of an allocation's history that a result keeps, for plots."""


class ResultError(MetaschedError):
    """A file of results cannot be read or written."""


@dataclass(frozen=True, slots=True)
class JobResult:
    """The part of a job's record that plots and tables need.

    Attributes:
        uid: the job's uid.
        gpus: the GPUs that it asked for.
        submitted: its arrival, in seconds.
        started: its first start, in seconds; None if it never ran.
        finished: its completion, in seconds; None if it is not complete.
        gpu_seconds: GPU-seconds held.
        preemptions: the number of its stops.
        rho: its finish-time fairness as Pollux defines it; None where it is not defined.
    """

    uid: str
    gpus: int
    submitted: float
    started: float | None
    finished: float | None
    gpu_seconds: float
    preemptions: int
    rho: float | None


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one simulation.

    Attributes:
        fingerprint: a digest of all inputs.
        policy: the policy's name.
        label: the policy with its changed parameters.
        load: the factor on the rate of arrivals.
        seed: of the workload's generator and of failures.
        metrics: values by name; None where a metric is not defined.
        jobs: the jobs, in the workload's order.
        allocation: (seconds, GPUs held) at some of the rounds.
        capacity: the cluster's GPUs.
        seconds: wall time of the policy, of the rest of the engine, and of the whole simulation.
    """

    fingerprint: str
    policy: str
    label: str
    load: float
    seed: int
    metrics: Mapping[str, float | None]
    jobs: tuple[JobResult, ...]
    allocation: tuple[tuple[float, int], ...]
    capacity: int
    seconds: tuple[float, float, float]


def thinned(points: Sequence[tuple[float, int]]) -> tuple[tuple[float, int], ...]:
    """At most some ``POINTS`` of the points, at equal distances, with the last one."""
    step = max(1, len(points) // POINTS)
    return (*points[:-1:step], *points[-1:])


def write(path: Path, result: Result) -> None:
    """Write a result atomically.

    Raises:
        ResultError: the file cannot be written.
    """
    content = {name: getattr(result, name) for name in Result.__slots__ if name != "jobs"}
    content |= {"format": FORMAT, "jobs": [[getattr(job, name) for name in JobResult.__slots__] for job in result.jobs]}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, f"{json.dumps(content, sort_keys=True)}\n".encode())
    except OSError as error:
        raise ResultError(f"{path}: cannot be written: {error.strerror}") from error


def read(path: Path) -> Result | None:
    """Read a result; None where there is no such file.

    Raises:
        ResultError: the file is no result, or another version's.
    """
    try:
        content = json.loads(path.read_bytes())
        if content.pop("format") != FORMAT:
            raise ResultError(f"{path}: written by another version; remove it to have it made again")
        content["jobs"] = tuple(JobResult(*row) for row in content["jobs"])
        content["allocation"] = tuple((at, gpus) for at, gpus in content["allocation"])
        content["seconds"] = tuple(content["seconds"])
        return Result(**content)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ResultError(f"{path}: not a simulation's result ({error!r}); remove it to have it made again") from error


def write_table(path: Path, results: Iterable[Result]) -> None:
    """Write a CSV table with one row per simulation and one column per metric.

    Raises:
        ResultError: the table cannot be written.
    """
    found = list(results)
    names = list(dict.fromkeys(name for result in found for name in result.metrics))
    rows: list[list[Any]] = [["policy", "load", "seed", *names]]
    rows += [[one.label, one.load, one.seed, *(one.metrics.get(name) for name in names)] for one in found]
    try:
        with path.open("w", newline="") as file:
            csv.writer(file).writerows(rows)
    except OSError as error:
        raise ResultError(f"{path}: cannot be written: {error.strerror}") from error
