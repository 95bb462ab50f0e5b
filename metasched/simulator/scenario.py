"""A scenario file: a cluster, a workload, and how the cluster behaves. TOML, checked with every problem at once."""

from __future__ import annotations

import hashlib
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from metasched.core.errors import MetaschedError
from metasched.core.model import Node
from metasched.core.validation_messages import explain, nearest
from metasched.simulator.metrics import IsolatedDurations
from metasched.simulator.records import Failures, Locality, Settings, Submission, Workload
from metasched.simulator.workload_formats import AnyFormat

GIB = 1024**3
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]


class ScenarioError(MetaschedError):
    """A scenario file cannot be used; the message has every problem, with its key.

    Attributes:
        path: the file.
        problems: the problems, one sentence each.
    """

    def __init__(self, path: Path, problems: Sequence[str]) -> None:
        super().__init__("\n".join(f"{path}: {problem}" for problem in problems))
        self.path = path
        self.problems = tuple(problems)


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class NodesSection(_Section):
    """One table of ``[[nodes]]``: a number of equal nodes.

    Attributes:
        count: the number of nodes.
        gpus: GPUs per node.
        gpu_type: the type of the GPUs.
        cpus: CPUs per node; by default enough for any job.
        memory_gib: GiB of memory per node; by default enough for any job.
        racks: the number of racks that the nodes are spread over evenly, in order; 0 for no racks.
        features: Slurm features of the nodes.
    """

    count: Annotated[int, Field(ge=1, le=100_000)]
    gpus: Annotated[int, Field(ge=0, le=10_000)]
    gpu_type: str = "gpu"
    cpus: Annotated[int, Field(ge=1, le=10**9)] = 1_000_000
    memory_gib: Positive = 1_000_000.0
    racks: Annotated[int, Field(ge=0, le=100_000)] = 0
    features: tuple[str, ...] = Field(default=(), strict=False)


class FailuresSection(_Section):
    """``[failures]``: random node failures; see ``Failures``.

    Attributes:
        mean_hours: the mean uptime of a node between two of its failures.
        repair_hours: how long a failed node is down.
    """

    mean_hours: Positive
    repair_hours: Positive

    def failures(self) -> Failures:
        """The section as the simulation's record, times in seconds."""
        return Failures(self.mean_hours * 3600, self.repair_hours * 3600)


class SettingsSection(_Section):
    """``[settings]``: how the cluster behaves. Keys that are not listed here are those of ``Settings``.

    Attributes:
        checkpoint_every: as in ``Settings``; 0 if every step is saved.
        rack_factor: ``Locality.rack``.
        cluster_factor: ``Locality.cluster``.
        limit_factor: the time limit of a job that has none, over its isolated duration, as users overestimate; 0 for no
            limits. Bare Slurm's backfill plans by it; no job is ended by it.
    """

    round_seconds: Positive = 360.0
    min_round_seconds: NotNegative = 10.0
    early_rounds: bool = True
    start_seconds: NotNegative = 0.0
    restart_seconds: NotNegative = 0.0
    checkpoint_seconds: NotNegative = 0.0
    checkpoint_every: NotNegative = 0.0
    rack_factor: Annotated[float, Field(gt=0, le=1)] = 1.0
    cluster_factor: Annotated[float, Field(gt=0, le=1)] = 1.0
    interference_factor: Annotated[float, Field(gt=0, le=1)] = 1.0
    uneven: bool = False
    sharing: bool = False
    limit_factor: NotNegative = 0.0

    def settings(self, failures: FailuresSection | None) -> Settings:
        """The settings, with seed 0."""
        other = {"checkpoint_every", "rack_factor", "cluster_factor", "limit_factor"}
        return Settings(
            **self.model_dump(exclude=other),
            checkpoint_every=self.checkpoint_every or None,
            locality=Locality(rack=self.rack_factor, cluster=self.cluster_factor),
            failures=None if failures is None else failures.failures(),
        )


class WindowSection(_Section):
    """``[window]``: the steady state; only jobs in it, by their position in the order of arrival, are measured.

    Attributes:
        first: the first position, from 0.
        last: the position after the last; the simulation ends when all measured jobs are complete.
    """

    first: Annotated[int, Field(ge=0)] = 0
    last: Annotated[int, Field(ge=1)]


class _File(_Section):
    nodes: Annotated[tuple[NodesSection, ...], Field(min_length=1, strict=False)]
    workload: AnyFormat = Field(discriminator="format")
    settings: SettingsSection = SettingsSection()
    failures: FailuresSection | None = None
    window: WindowSection | None = None
    prices: Mapping[str, NotNegative] = Field(default_factory=dict)


@dataclass(frozen=True)
class Scenario:
    """The inputs of a simulation besides a policy.

    Attributes:
        path: the scenario file.
        nodes: the cluster.
        settings: how the cluster behaves, with seed 0.
        window: positions of the measured jobs, in the order of arrival; None for all.
        prices: the price of one GPU for an hour, by GPU type.
        limit_factor: see ``SettingsSection``.
        format: the workload's format, with its parameters.
        content: all inputs as JSON-compatible data: the file's content, and a digest of each data file.
    """

    path: Path
    nodes: tuple[Node, ...]
    settings: Settings
    window: range | None
    prices: Mapping[str, float]
    limit_factor: float
    format: AnyFormat
    content: Mapping[str, Any]

    def workload(self, seed: int) -> Workload:
        """The jobs of the workload, drawn by ``seed`` where a generator makes them.

        Raises:
            TraceError: a data file is missing or malformed.
            ScenarioError: there are no jobs, or none of them is in the window.
        """
        found = replace(self.format.workload(self.path.parent, self.nodes, seed), at_once=self.format.at_once)
        if not found.submissions:
            raise ScenarioError(self.path, [f"workload: {found.source} has no jobs"])
        self._check_window(found)
        return (
            with_time_limits(found, self.nodes, self.settings.locality, self.limit_factor)
            if self.limit_factor
            else found
        )

    def _check_window(self, workload: Workload) -> None:
        window, arrivals = self.window, [one.job.submitted for one in workload.submissions]
        if window is None or window.start < min(window.stop, len(arrivals)):
            return
        there = "has no jobs"
        if arrivals:
            there = f"has jobs 0 to {len(arrivals) - 1}, which arrive from {min(arrivals):g} s to {max(arrivals):g} s"
        raise ScenarioError(
            self.path, [f"window: no job is from {window.start} up to {window.stop}: {workload.source} {there}"]
        )


def with_time_limits(workload: Workload, nodes: Sequence[Node], locality: Locality, factor: float) -> Workload:
    """The workload with a time limit for each job: ``factor`` times its isolated duration on its slowest GPU type."""
    isolated = IsolatedDurations(nodes, locality)

    def limit(one: Submission) -> Submission:
        if one.job.time_limit_seconds is not None:
            return one
        seconds = max(isolated.by_type(one).values(), default=None)
        return one if seconds is None else replace(one, job=one.job.evolve(time_limit_seconds=seconds * factor))

    return replace(workload, submissions=tuple(map(limit, workload.submissions)))


def load_scenario(path: Path) -> Scenario:
    """Read and check a scenario file.

    Raises:
        ScenarioError: with every problem found at once.
    """
    try:
        with path.open("rb") as file:
            data = tomllib.load(file)
        read = _File.model_validate(data)
    except OSError as error:
        raise ScenarioError(path, [f"cannot be read: {error.strerror}"]) from None
    except ValidationError as error:
        raise ScenarioError(path, explain(error, _File)) from None
    except (ValueError, RecursionError) as error:  # syntax, bytes that are not UTF-8, endless digits or nesting
        raise ScenarioError(path, [f"is not TOML: {error}"]) from None
    if problems := _unknown_types(read):
        raise ScenarioError(path, problems)
    return Scenario(
        path=path,
        nodes=tuple(_nodes(read.nodes)),
        settings=read.settings.settings(read.failures),
        window=None if read.window is None else range(read.window.first, read.window.last),
        prices=read.prices,
        limit_factor=read.settings.limit_factor,
        format=read.workload,
        content=read.model_dump(mode="json") | {"files": _digests(path.parent, read.workload)},
    )


def _unknown_types(read: _File) -> list[str]:
    known = sorted({section.gpu_type for section in read.nodes})
    return [
        f"[prices] {kind}: no node has such GPUs{nearest(kind, known)}" for kind in read.prices if kind not in known
    ]


def _nodes(sections: Sequence[NodesSection]) -> list[Node]:
    width = len(str(sum(section.count for section in sections)))
    nodes: list[Node] = []
    for section in sections:
        for position in range(section.count):
            rack = position * section.racks // section.count
            nodes.append(
                Node(
                    name=f"n{len(nodes) + 1:0{width}}",
                    gpu_type=section.gpu_type if section.gpus else None,
                    gpus=section.gpus,
                    cpus=section.cpus,
                    memory=int(section.memory_gib * GIB),
                    features=frozenset(section.features),
                    rack=f"{section.gpu_type}-{rack + 1}" if section.racks else None,
                )
            )
    return nodes


def _digests(base: Path, workload: AnyFormat) -> dict[str, str]:
    """The SHA-256 of each data file, by its path relative to ``base``."""
    found = {}
    for path in workload.files(base):
        name = os.path.relpath(path, base)
        try:
            with path.open("rb") as file:
                found[name] = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError:  # the reader raises an error with the reason
            found[name] = "unreadable"
    return found
