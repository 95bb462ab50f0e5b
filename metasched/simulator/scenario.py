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
from metasched.core.validation_errors import explain, nearest
from metasched.simulator.metrics import Alone
from metasched.simulator.records import Failures, Locality, Settings, Submission, Workload
from metasched.simulator.workload_sources import AnySource

GIB = 1024**3
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]


class ScenarioError(MetaschedError):
    """A scenario file cannot be used; the message has every problem, with its key."""

    def __init__(self, path: Path, problems: Sequence[str]) -> None:
        super().__init__("\n".join(f"{path}: {problem}" for problem in problems))
        self.path = path
        self.problems = tuple(problems)


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class NodesSection(_Section):
    """Nodes that are alike: one table of ``[[nodes]]``.

    Attributes:
        count: how many.
        gpus: of each.
        gpu_type: their type.
        cpus: of each; by default enough for any job.
        memory_gib: of each; by default enough for any job.
        racks: over how many racks they are spread evenly, in order; 0 for no racks.
        features: Slurm's.
    """

    count: Annotated[int, Field(ge=1)]
    gpus: Annotated[int, Field(ge=0)]
    gpu_type: str = "gpu"
    cpus: Annotated[int, Field(ge=1)] = 1_000_000
    memory_gib: Positive = 1_000_000.0
    racks: Annotated[int, Field(ge=0)] = 0
    features: tuple[str, ...] = Field(default=(), strict=False)


class FailuresSection(_Section):
    """``[failures]``: nodes that fail by chance.

    Attributes:
        mean_hours: between two failures of one node.
        repair_hours: that a node is then away for.
    """

    mean_hours: Positive
    repair_hours: Positive


class SettingsSection(_Section):
    """``[settings]``: how the cluster behaves; see ``Settings``.

    Attributes:
        round_seconds: a round's length.
        min_round_seconds: between two rounds at least, however much happens.
        early_rounds: whether arrivals and completions begin a round early, as in the daemon.
        start_seconds: from getting its GPUs to a job's first step.
        restart_seconds: the same after a preemption.
        checkpoint_seconds: for which a stopped job still holds its GPUs.
        checkpoint_every: seconds between periodic checkpoints: what a failure costs at most; 0 for every step.
        rack_factor: on the speed of a job on several nodes of one rack.
        cluster_factor: on the speed of a job on several racks.
        uneven: whether jobs may have other numbers of GPUs on each of their nodes.
        sharing: whether two jobs may run on the same GPUs.
        limit_factor: the time limit of a job that has none is so many times what it takes alone, as users overestimate;
            0 for no limits. It is what bare Slurm's backfill goes by; nobody is ended by it.
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
    uneven: bool = False
    sharing: bool = False
    limit_factor: NotNegative = 0.0


class WindowSection(_Section):
    """``[window]``: the steady state: only these jobs, by the order of their arrival, are measured.

    Attributes:
        first: the first of them, from 0.
        last: the one after the last; the simulation ends when all of them are done.
    """

    first: Annotated[int, Field(ge=0)] = 0
    last: Annotated[int, Field(ge=1)]


class _File(_Section):
    nodes: Annotated[tuple[NodesSection, ...], Field(min_length=1, strict=False)]
    workload: AnySource = Field(discriminator="format")
    settings: SettingsSection = SettingsSection()
    failures: FailuresSection | None = None
    window: WindowSection | None = None
    prices: Mapping[str, NotNegative] = Field(default_factory=dict)


@dataclass(frozen=True)
class Scenario:
    """What a simulation needs besides a policy.

    Attributes:
        path: of the file.
        nodes: the cluster.
        settings: how it behaves, with seed 0.
        window: positions of the measured jobs; None for all.
        prices: by GPU type, what one GPU costs for an hour.
        limit_factor: on what a job takes alone, for a time limit where it has none; 0 for none.
        source: where the workload comes from.
        content: everything that decides the outcome, JSON-compatible: the file's, and a digest of each data file.
    """

    path: Path
    nodes: tuple[Node, ...]
    settings: Settings
    window: range | None
    prices: Mapping[str, float]
    limit_factor: float
    source: AnySource
    content: Mapping[str, Any]

    def workload(self, seed: int) -> Workload:
        """The jobs; the seed is for the generators.

        Raises:
            TraceError: a data file is not what it should be.
            ScenarioError: there are no jobs, or none of them is in the window.
        """
        found = self.source.workload(self.path.parent, self.nodes, seed)
        if not found.submissions:
            raise ScenarioError(self.path, [f"workload: {found.source} has no jobs"])
        self._check_window(found)
        return limited(found, self.nodes, self.settings.locality, self.limit_factor) if self.limit_factor else found

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


def limited(workload: Workload, nodes: Sequence[Node], locality: Locality, factor: float) -> Workload:
    """The jobs, those without a time limit with one: so many times what they take alone where they are slowest."""
    alone = Alone(nodes, locality)

    def limit(one: Submission) -> Submission:
        if one.job.time_limit_seconds is not None:
            return one
        seconds = max(alone.by_type(one).values(), default=None)
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
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ScenarioError(path, [f"is not TOML: {error}"]) from None
    except ValidationError as error:
        raise ScenarioError(path, explain(error, _File)) from None
    if problems := _unknown_types(read):
        raise ScenarioError(path, problems)
    section, locality = read.settings, Locality(rack=read.settings.rack_factor, cluster=read.settings.cluster_factor)
    settings = Settings(
        round_seconds=section.round_seconds,
        min_round_seconds=section.min_round_seconds,
        early_rounds=section.early_rounds,
        start_seconds=section.start_seconds,
        restart_seconds=section.restart_seconds,
        checkpoint_seconds=section.checkpoint_seconds,
        checkpoint_every=section.checkpoint_every or None,
        failures=_failures(read.failures),
        locality=locality,
        uneven=section.uneven,
        sharing=section.sharing,
    )
    return Scenario(
        path=path,
        nodes=tuple(_nodes(read.nodes)),
        settings=settings,
        window=None if read.window is None else range(read.window.first, read.window.last),
        prices=read.prices,
        limit_factor=section.limit_factor,
        source=read.workload,
        content=read.model_dump(mode="json") | {"files": _digests(path.parent, read.workload)},
    )


def _unknown_types(read: _File) -> list[str]:
    known = sorted({section.gpu_type for section in read.nodes})
    return [
        f"[prices] {kind}: no node has such GPUs{nearest(kind, known)}" for kind in read.prices if kind not in known
    ]


def _failures(section: FailuresSection | None) -> Failures | None:
    if section is None:
        return None
    return Failures(section.mean_hours * 3600, section.repair_hours * 3600)


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


def _digests(base: Path, source: AnySource) -> dict[str, str]:
    """Each data file's digest by its path from the base, so that other data make other results."""
    found = {}
    for path in source.files(base):
        name = os.path.relpath(path, base)
        try:
            with path.open("rb") as file:
                found[name] = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError:  # the reader says so, better
            found[name] = "unreadable"
    return found
