"""Results on disk: one JSON file for each simulation, which says what it is of."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from metasched.core.errors import MetaschedError

FORMAT = 1
POINTS = 2000
"""So many points of an allocation's history are enough for a plot."""


class ResultError(MetaschedError):
    """A file of results cannot be read or written."""


@dataclass(frozen=True, slots=True)
class JobResult:
    """One job, as far as plots and tables want it.

    Attributes:
        uid: the job.
        gpus: that it had asked for.
        submitted: when.
        started: first; None if never.
        finished: when; None if not.
        gpu_seconds: held.
        preemptions: stops that it suffered.
        rho: its finish-time fairness as Pollux defines it; None where that is not defined.
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
    """One simulation.

    Attributes:
        fingerprint: of everything that went in; the same input has the same.
        policy: its name.
        label: the policy with what was changed of its parameters.
        load: factor on the rate of arrivals.
        seed: of all chance.
        metrics: by name; None where one is not defined.
        jobs: all of them.
        allocation: (seconds, GPUs held) at rounds, thinned out.
        capacity: GPUs of the cluster.
        seconds: real time that it took: the policy's, the engine's, all.
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
    """At most about POINTS of them, the last one included."""
    step = max(1, len(points) // POINTS)
    return (*points[:-1:step], *points[-1:])


def write(path: Path, result: Result) -> None:
    """Write one in one instant.

    Raises:
        ResultError: it cannot be written.
    """
    content = {name: getattr(result, name) for name in Result.__slots__ if name != "jobs"}
    content |= {"format": FORMAT, "jobs": [[getattr(job, name) for name in JobResult.__slots__] for job in result.jobs]}
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps(content, sort_keys=True) + "\n")
        partial.replace(path)
    except OSError as error:
        raise ResultError(f"{path}: cannot be written: {error.strerror}") from error


def read(path: Path) -> Result | None:
    """Read one; None where there is no such file.

    Raises:
        ResultError: it is something else, or another version's.
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
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ResultError(f"{path}: not a simulation's result ({error!r}); remove it to have it made again") from error


def write_table(path: Path, results: Iterable[Result]) -> None:
    """Write a CSV table with one row for each simulation and one column for each metric.

    Raises:
        ResultError: it cannot be written.
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
