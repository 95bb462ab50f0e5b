"""A scenario's ``[workload]`` table: one model per ``format``. Paths are relative to the scenario file.

A new trace format is a reader in simulator/traces/ and a model here in ``AnyFormat``; a trace of durations and GPU
counts alone is an entry of ``DURATION_READERS`` and of ``DurationTrace.format`` instead of a model.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from metasched.core.model import Node
from metasched.core.validation_messages import nearest
from metasched.simulator.generate.errors import GeneratorError
from metasched.simulator.generate.gavel import GavelWorkloadParameters, gavel_jobs
from metasched.simulator.generate.hpo import HpoWorkloadParameters, hpo_trials
from metasched.simulator.generate.pollux import PolluxWorkloadParameters, generate_pollux, synthetic_profiles
from metasched.simulator.generate.shockwave import ShockwaveWorkloadParameters, shockwave_jobs
from metasched.simulator.generate.themis import ThemisWorkloadParameters, themis_apps
from metasched.simulator.records import Workload
from metasched.simulator.traces.elasticflow import read_curves, read_elasticflow
from metasched.simulator.traces.gavel import read_gavel
from metasched.simulator.traces.helios import read_helios
from metasched.simulator.traces.history import read_history
from metasched.simulator.traces.microsoft import read_microsoft
from metasched.simulator.traces.philly import read_philly
from metasched.simulator.traces.pollux import read_pollux, read_profile, read_profiles
from metasched.simulator.traces.sacct import read_sacct
from metasched.simulator.traces.shockwave import read_shockwave
from metasched.throughput.throughput_table import ThroughputTable

PathText = Annotated[Path, Field(strict=False)]
Exponent = Annotated[float, Field(ge=0, le=1)]


class WorkloadFormat(BaseModel):
    """Base of all formats: one ``[workload]`` table.

    Attributes:
        at_once: see ``Workload.at_once``; None for no limit.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    at_once: Annotated[int, Field(ge=1)] | None = None

    @abstractmethod
    def workload(self, base: Path, nodes: Sequence[Node], seed: int) -> Workload:
        """The jobs; traces check their sizes against the nodes, generators draw them by the seed.

        Raises:
            MetaschedError: a data file is missing or malformed, or has not what the parameters ask for.
        """

    def files(self, base: Path) -> list[Path]:
        """The data files that ``workload`` reads."""
        del base
        return []


def most_gpus(nodes: Iterable[Node]) -> int:
    """The largest number of GPUs of one type, which is the most that one job can have."""
    total: dict[str | None, int] = {}
    for node in nodes:
        total[node.gpu_type] = total.get(node.gpu_type, 0) + node.gpus
    return max(total.values(), default=0)


def _has_content(path: Path) -> bool:
    try:
        return path.stat().st_size > 0
    except OSError:
        return False


def _files_of(path: Path) -> list[Path]:
    """The file itself, or all files below a folder, sorted."""
    return sorted(found for found in path.rglob("*") if found.is_file()) if path.is_dir() else [path]


class TableGenerator(WorkloadFormat):
    """Base of the generators that draw models from a throughput table.

    Attributes:
        throughputs: the table (JSON).
    """

    throughputs: PathText

    def files(self, base: Path) -> list[Path]:
        """The file of the throughput table."""
        return [base / self.throughputs]

    def table(self, base: Path) -> ThroughputTable:
        """The throughput table, read from its file."""
        return ThroughputTable.read(base / self.throughputs)


class TraceFormat(WorkloadFormat):
    """Base of the formats of traces.

    Attributes:
        path: the trace.
    """

    path: PathText

    def files(self, base: Path) -> list[Path]:
        """The trace, and the files of its throughputs."""
        more = getattr(self, "throughputs", None)
        return [base / self.path, *(_files_of(base / more) if more is not None else ())]


class TableTrace(TraceFormat):
    """``format = "gavel"``, or ``"shockwave"``: jobs that change their batch size.

    Attributes:
        throughputs: the throughput table (JSON).
    """

    format: Literal["gavel", "shockwave"]
    throughputs: PathText

    def workload(self, base: Path, nodes: Sequence[Node], seed: int) -> Workload:
        """The jobs of the trace, as a workload."""
        del seed
        read = read_gavel if self.format == "gavel" else read_shockwave
        return read(base / self.path, ThroughputTable.read(base / self.throughputs), most_gpus=most_gpus(nodes))


class PolluxTrace(TraceFormat):
    """``format = "pollux"``.

    Attributes:
        throughputs: the folder with one folder of measurements per application.
        gpu_type: the GPU type of the measurements.
        adaptive: whether policies may change the batch size of the jobs, which then begin at the first one.
    """

    format: Literal["pollux"]
    throughputs: PathText
    gpu_type: str = "t4"
    adaptive: bool = False

    def workload(self, base: Path, nodes: Sequence[Node], seed: int) -> Workload:
        """The jobs of the trace, as a workload."""
        del seed
        profiles = read_profiles(base / self.throughputs, gpu_type=self.gpu_type)
        return read_pollux(base / self.path, profiles, most_gpus=most_gpus(nodes), adaptive=self.adaptive)


class ElasticFlowTrace(TraceFormat):
    """``format = "elasticflow"``.

    Attributes:
        throughputs: the folder with one MODEL.csv per model.
        gpu_type: the GPU type of the measurements; empty for any type.
    """

    format: Literal["elasticflow"]
    throughputs: PathText
    gpu_type: str = ""

    def workload(self, base: Path, nodes: Sequence[Node], seed: int) -> Workload:
        """The jobs of the trace, as a workload."""
        del seed
        curves = read_curves(base / self.throughputs)
        return read_elasticflow(base / self.path, curves, gpu_type=self.gpu_type, most_gpus=most_gpus(nodes))


DURATION_READERS = {
    "microsoft": read_microsoft,
    "philly": read_philly,
    "helios": read_helios,
    "sacct": read_sacct,
}


class DurationTrace(TraceFormat):
    """``format = "microsoft"``, ``"philly"``, ``"helios"`` or ``"sacct"``: durations and numbers of GPUs.

    Attributes:
        speed_up: the exponent of speed over the number of GPUs, with which jobs are elastic from one GPU to twice as
            many as they had; None for rigid jobs.
    """

    format: Literal["microsoft", "philly", "helios", "sacct"]
    speed_up: Exponent | None = None

    def workload(self, base: Path, nodes: Sequence[Node], seed: int) -> Workload:
        """The jobs of the trace, as a workload."""
        del seed
        return DURATION_READERS[self.format](base / self.path, most_gpus=most_gpus(nodes), speed_up=self.speed_up)


class HistoryTrace(TraceFormat):
    """``format = "history"``: the daemon's database, or a copy.

    Attributes:
        speed_up: the exponent of speed over the number of GPUs, beyond the measured sizes.
    """

    format: Literal["history"]
    speed_up: Exponent = 1.0

    def files(self, base: Path) -> list[Path]:
        """The database, and its write-ahead log, which has the latest transactions."""
        log = base / f"{self.path}-wal"
        return [*super().files(base), *([log] if _has_content(log) else [])]

    def workload(self, base: Path, nodes: Sequence[Node], seed: int) -> Workload:
        """The jobs of the trace, as a workload."""
        del seed
        return read_history(base / self.path, most_gpus=most_gpus(nodes), speed_up=self.speed_up)


class GavelGenerator(TableGenerator, GavelWorkloadParameters):
    """``format = "generate-gavel"``: drawn by the distributions of Gavel's section 7.1."""

    format: Literal["generate-gavel"]

    def workload(self, base: Path, nodes: Sequence[Node], seed: int) -> Workload:
        """Jobs drawn at random from the seed, as a workload."""
        del nodes
        return gavel_jobs(self.table(base), self, seed)


class PolluxGenerator(WorkloadFormat, PolluxWorkloadParameters):
    """``format = "generate-pollux"``: drawn by the categories of Pollux's section 5.1.

    Attributes:
        throughputs: the folder with one folder of measurements per application; None for synthetic applications.
        gpu_type: the GPU type of the measurements.
    """

    format: Literal["generate-pollux"]
    throughputs: PathText | None = None
    gpu_type: str = "t4"

    def files(self, base: Path) -> list[Path]:
        """The files of measurements."""
        return [] if self.throughputs is None else _files_of(base / self.throughputs)

    def workload(self, base: Path, nodes: Sequence[Node], seed: int) -> Workload:
        """Jobs drawn at random from the seed, as a workload."""
        del nodes
        folder = self.throughputs
        if folder is None:
            return generate_pollux(self, seed, synthetic_profiles(self.gpu_type))
        return generate_pollux(self, seed, read_profiles(base / folder, gpu_type=self.gpu_type))


class ShockwaveGenerator(TableGenerator, ShockwaveWorkloadParameters):
    """``format = "generate-shockwave"``: the paper's mix of static, Accordion and GNS jobs."""

    format: Literal["generate-shockwave"]

    def workload(self, base: Path, nodes: Sequence[Node], seed: int) -> Workload:
        """Jobs drawn at random from the seed, as a workload."""
        del nodes
        return shockwave_jobs(self.table(base), self, seed)


class ThemisGenerator(WorkloadFormat, ThemisWorkloadParameters):
    """``format = "generate-themis"``: hyper-parameter searches as job arrays, whose tuner ends the worse trials."""

    format: Literal["generate-themis"]

    def workload(self, base: Path, nodes: Sequence[Node], seed: int) -> Workload:
        """Jobs drawn at random from the seed, as a workload."""
        del base, nodes
        return themis_apps(self, seed)


class HpoGenerator(WorkloadFormat, HpoWorkloadParameters):
    """``format = "generate-hpo"``: the trials of a search for hyper-parameters.

    Attributes:
        at_once: trials at a time.
        application: the application that each trial trains.
        throughputs: the folder with one folder of measurements per application; None for synthetic applications.
        gpu_type: the GPU type of the measurements.
    """

    format: Literal["generate-hpo"]
    at_once: Annotated[int, Field(ge=1)] | None = 4
    application: str = "cifar10"
    throughputs: PathText | None = None
    gpu_type: str = "t4"

    def files(self, base: Path) -> list[Path]:
        """The files of measurements."""
        return [] if self.throughputs is None else _files_of(base / self.throughputs / self.application)

    def workload(self, base: Path, nodes: Sequence[Node], seed: int) -> Workload:
        """Trials drawn at random from the seed, as a workload."""
        del nodes
        if self.throughputs is not None:
            return hpo_trials(self, seed, read_profile(base / self.throughputs / self.application, self.gpu_type))
        known = synthetic_profiles(self.gpu_type)
        if self.application not in known:
            fault = f"workload: no application is named {self.application!r}{nearest(self.application, sorted(known))}"
            raise GeneratorError(fault)
        return hpo_trials(self, seed, known[self.application])


AnyFormat = (
    TableTrace
    | PolluxTrace
    | ElasticFlowTrace
    | DurationTrace
    | HistoryTrace
    | GavelGenerator
    | PolluxGenerator
    | ShockwaveGenerator
    | ThemisGenerator
    | HpoGenerator
)
