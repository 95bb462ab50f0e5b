"""Where a scenario's workload comes from: one model for each ``[workload] format``. Paths are relative to the file."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from metasched.core.model import Node
from metasched.simulator.generate.gavel import continuous_jobs, static_jobs
from metasched.simulator.generate.pollux import generate_pollux, synthetic_profiles
from metasched.simulator.generate.shockwave import shockwave_jobs
from metasched.simulator.generate.themis import themis_apps
from metasched.simulator.records import Workload
from metasched.simulator.traces.elasticflow import read_curves, read_elasticflow
from metasched.simulator.traces.gavel import read_gavel
from metasched.simulator.traces.helios import read_helios
from metasched.simulator.traces.history import read_history
from metasched.simulator.traces.microsoft import read_microsoft
from metasched.simulator.traces.philly import read_philly
from metasched.simulator.traces.pollux import read_pollux, read_profiles
from metasched.simulator.traces.sacct import read_sacct
from metasched.simulator.traces.shockwave import read_shockwave
from metasched.throughput.throughput_table import Table

FromText = Annotated[Path, Field(strict=False)]
SpeedUp = Annotated[float, Field(ge=0, le=1)] | None


class Source(BaseModel):
    """Base of all: one ``[workload]`` table."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    @abstractmethod
    def workload(self, base: Path, nodes: Sequence[Node], seed: int) -> Workload:
        """The jobs, for a cluster of these nodes.

        Raises:
            MetaschedError: a file is not what it should be.
        """

    def files(self, base: Path) -> list[Path]:
        """The data files that it reads."""
        del base
        return []


def most_gpus(nodes: Iterable[Node]) -> int:
    """The most GPUs that one job can have: all of one type."""
    total: dict[str | None, int] = {}
    for node in nodes:
        total[node.gpu_type] = total.get(node.gpu_type, 0) + node.gpus
    return max(total.values(), default=0)


def _has_content(path: Path) -> bool:
    try:
        return path.stat().st_size > 0
    except OSError:
        return False


def _inside(path: Path) -> list[Path]:
    """A file, or all files of a folder."""
    return sorted(found for found in path.rglob("*") if found.is_file()) if path.is_dir() else [path]


class TraceSource(Source):
    """A source with one file.

    Attributes:
        path: the trace.
    """

    path: FromText

    def files(self, base: Path) -> list[Path]:
        """The trace, and what else it names."""
        more = getattr(self, "throughputs", None)
        return [base / self.path, *(_inside(base / more) if more is not None else ())]


class TableTrace(TraceSource):
    """``format = "gavel"``, or ``"shockwave"``: jobs that change their batch size.

    Attributes:
        throughputs: the table of speeds (JSON).
    """

    format: Literal["gavel", "shockwave"]
    throughputs: FromText

    def workload(self, base: Path, nodes: Sequence[Node], seed: int) -> Workload:
        """Read it."""
        del seed
        read = read_gavel if self.format == "gavel" else read_shockwave
        return read(base / self.path, Table.read(base / self.throughputs), most_gpus=most_gpus(nodes))


class PolluxTrace(TraceSource):
    """``format = "pollux"``.

    Attributes:
        throughputs: the folder with one folder of measurements for each application.
        gpu_type: what they were measured on.
    """

    format: Literal["pollux"]
    throughputs: FromText
    gpu_type: str = "t4"

    def workload(self, base: Path, nodes: Sequence[Node], seed: int) -> Workload:
        """Read it."""
        del seed
        profiles = read_profiles(base / self.throughputs, gpu_type=self.gpu_type)
        return read_pollux(base / self.path, profiles, most_gpus=most_gpus(nodes))


class ElasticFlowTrace(TraceSource):
    """``format = "elasticflow"``.

    Attributes:
        throughputs: the folder with one MODEL.csv for each model.
        gpu_type: what they were measured on; empty for any type.
    """

    format: Literal["elasticflow"]
    throughputs: FromText
    gpu_type: str = ""

    def workload(self, base: Path, nodes: Sequence[Node], seed: int) -> Workload:
        """Read it."""
        del seed
        curves = read_curves(base / self.throughputs)
        return read_elasticflow(base / self.path, curves, gpu_type=self.gpu_type, most_gpus=most_gpus(nodes))


class DurationTrace(TraceSource):
    """``format = "microsoft"``, ``"philly"``, ``"helios"`` or ``"sacct"``: how long jobs ran, and on how many GPUs.

    Attributes:
        speed_up: exponent of the growth of speed with the number of GPUs, with which jobs are elastic from one GPU to
            twice as many as they had; without it they are rigid.
    """

    format: Literal["microsoft", "philly", "helios", "sacct"]
    speed_up: SpeedUp = None

    def workload(self, base: Path, nodes: Sequence[Node], seed: int) -> Workload:
        """Read it."""
        del seed
        path, most = base / self.path, most_gpus(nodes)
        match self.format:
            case "microsoft":
                return read_microsoft(path, most_gpus=most, speed_up=self.speed_up)
            case "philly":
                return read_philly(path, most_gpus=most, speed_up=self.speed_up)
            case "helios":
                return read_helios(path, most_gpus=most, speed_up=self.speed_up)
            case "sacct":
                return read_sacct(path, most_gpus=most, speed_up=self.speed_up)


class HistoryTrace(TraceSource):
    """``format = "history"``: the daemon's own database, or a copy.

    Attributes:
        speed_up: exponent of the growth of speed with the number of GPUs, beyond the sizes that were measured.
    """

    format: Literal["history"]
    speed_up: Annotated[float, Field(ge=0, le=1)] = 1.0

    def files(self, base: Path) -> list[Path]:
        """The database, and its write-ahead log, which has what was written last."""
        log = base / f"{self.path}-wal"
        return [*super().files(base), *([log] if _has_content(log) else [])]

    def workload(self, base: Path, nodes: Sequence[Node], seed: int) -> Workload:
        """Read it."""
        del seed
        return read_history(base / self.path, most_gpus=most_gpus(nodes), speed_up=self.speed_up)


class TableGenerator(Source):
    """A generator that draws models from a table of speeds.

    Attributes:
        throughputs: the table (JSON).
        reference: the GPU type that durations hold for.
    """

    throughputs: FromText
    reference: str = "v100"

    def files(self, base: Path) -> list[Path]:
        """The table."""
        return [base / self.throughputs]


class GavelGenerator(TableGenerator):
    """``format = "generate-gavel"``: drawn by the distributions of Gavel's section 7.1.

    Attributes:
        jobs: how many.
        jobs_per_hour: of a Poisson process; without it all jobs are there at 0.
        multiple: whether some jobs take several GPUs.
        weights: whether some jobs have a higher weight.
        slos: whether jobs have deadlines.
        models: job types to draw from; empty for all of the table.
    """

    format: Literal["generate-gavel"]
    jobs: Annotated[int, Field(ge=1)]
    jobs_per_hour: Annotated[float, Field(gt=0)] | None = None
    multiple: bool = False
    weights: bool = False
    slos: bool = False
    models: tuple[str, ...] = Field(default=(), strict=False)

    def workload(self, base: Path, nodes: Sequence[Node], seed: int) -> Workload:
        """Draw it."""
        del nodes
        table = Table.read(base / self.throughputs)
        models = self.models or None
        if self.jobs_per_hour is None:
            return static_jobs(
                table,
                jobs=self.jobs,
                multiple=self.multiple,
                weights=self.weights,
                slos=self.slos,
                seed=seed,
                models=models,
                reference=self.reference,
            )
        return continuous_jobs(
            table,
            jobs=self.jobs,
            jobs_per_hour=self.jobs_per_hour,
            multiple=self.multiple,
            weights=self.weights,
            slos=self.slos,
            seed=seed,
            models=models,
            reference=self.reference,
        )


class PolluxGenerator(Source):
    """``format = "generate-pollux"``: drawn by the categories of Pollux's section 5.1.

    Attributes:
        throughputs: the folder with one folder of measurements for each application; without it made-up ones.
        jobs: how many.
        hours: in which they arrive.
        tuned: whether users ask for sizes at which their jobs scale well.
        gpu_type: what the applications were measured on.
    """

    format: Literal["generate-pollux"]
    throughputs: FromText | None = None
    jobs: Annotated[int, Field(ge=1)] = 160
    hours: Annotated[float, Field(gt=0)] = 8.0
    tuned: bool = True
    gpu_type: str = "t4"

    def files(self, base: Path) -> list[Path]:
        """The measurements."""
        return [] if self.throughputs is None else _inside(base / self.throughputs)

    def workload(self, base: Path, nodes: Sequence[Node], seed: int) -> Workload:
        """Draw it."""
        del nodes
        found = self.throughputs
        profiles = (
            synthetic_profiles(self.gpu_type) if found is None else read_profiles(base / found, gpu_type=self.gpu_type)
        )
        return generate_pollux(seed, jobs=self.jobs, seconds=self.hours * 3600, tuned=self.tuned, profiles=profiles)


class ShockwaveGenerator(TableGenerator):
    """``format = "generate-shockwave"``: the paper's mix of static, Accordion and GNS jobs.

    Attributes:
        jobs: how many.
        gap_seconds: the mean between arrivals.
    """

    format: Literal["generate-shockwave"]
    jobs: Annotated[int, Field(ge=1)] = 120
    gap_seconds: Annotated[float, Field(gt=0)] = 40.0

    def workload(self, base: Path, nodes: Sequence[Node], seed: int) -> Workload:
        """Draw it."""
        del nodes
        table = Table.read(base / self.throughputs)
        return shockwave_jobs(
            table, jobs=self.jobs, mean_gap_seconds=self.gap_seconds, seed=seed, reference=self.reference
        )


class ThemisGenerator(TableGenerator):
    """``format = "generate-themis"``: hyper-parameter searches with successive halving, as job arrays.

    Attributes:
        apps: how many.
        gap_seconds: the mean between arrivals of apps.
    """

    format: Literal["generate-themis"]
    apps: Annotated[int, Field(ge=1)] = 20
    gap_seconds: Annotated[float, Field(gt=0)] = 1200.0

    def workload(self, base: Path, nodes: Sequence[Node], seed: int) -> Workload:
        """Draw it."""
        del nodes
        table = Table.read(base / self.throughputs)
        return themis_apps(
            table, apps=self.apps, mean_gap_seconds=self.gap_seconds, seed=seed, reference=self.reference
        )


AnySource = (
    TableTrace
    | PolluxTrace
    | ElasticFlowTrace
    | DurationTrace
    | HistoryTrace
    | GavelGenerator
    | PolluxGenerator
    | ShockwaveGenerator
    | ThemisGenerator
)
