"""Throughput tables in Gavel's format: measured steps per second of models, isolated and co-located.

A row is a model on a number of GPUs, a sheet is a GPU type. Each type may have a second sheet for GPUs that are spread
over servers (``v100`` and ``v100_unconsolidated``), the two extremes of placement of Gavel (Narayanan et al., OSDI
2020, section 3.1).
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Self

from metasched.core.errors import MetaschedError
from metasched.core.model import Placement, Speed
from metasched.throughput.training import Pace, Training

UNCONSOLIDATED = "_unconsolidated"
ALONE = "null"
SERVER_GPUS = 8

JobType = tuple[str, int]
"""A model, with its batch size in the name, and its number of GPUs."""


class TableError(MetaschedError):
    """A file is not a throughput table.

    Attributes:
        file: the file.
        keys: the path of keys to the fault, from the outermost one.
        fault: the fault, in words.
        fix: how to mend it, in words.
    """

    def __init__(self, file: Path, keys: tuple[str, ...], fault: str, fix: str) -> None:
        where = f"{file}, {' > '.join(keys)}" if keys else f"{file}"
        super().__init__(f"{where}: {fault}; {fix}")
        self.file = file
        self.keys = keys
        self.fault = fault
        self.fix = fix


@dataclass(frozen=True, eq=False)
class ThroughputTable:
    """Measured steps per second; 0.0 where a job, or one of a pair, does not run (mostly for lack of memory).

    Attributes:
        alone: isolated speeds by sheet (a GPU type, or a type with ``_unconsolidated``) and job type.
        colocated: co-located speeds by sheet, by job type, by the co-runner's job type.
        server_gpus: the GPUs of a server. GPUs on more servers than necessary are unconsolidated.
    """

    alone: Mapping[str, Mapping[JobType, float]]
    colocated: Mapping[str, Mapping[JobType, Mapping[JobType, float]]]
    server_gpus: int = SERVER_GPUS

    @classmethod
    def read(cls, path: Path, *, server_gpus: int = SERVER_GPUS) -> Self:
        """Read a table from a file.

        The file is JSON: ``{type: {"('model', gpus)": {"null": steps/s alone, "('other', gpus)": [steps/s of this one,
        of the other]}}}``. A pair may be in the row of either job type or in both, with the same speeds.

        Raises:
            TableError: the file cannot be read, or is no such table.
        """
        alone: dict[str, dict[JobType, float]] = {}
        colocated: dict[str, dict[JobType, dict[JobType, float]]] = {}
        for sheet, rows in _mapping(path, (), _json(path)).items():
            alone[sheet] = {}
            pairs: dict[tuple[str, str, str], Any] = {}
            for row, cells in _mapping(path, (sheet,), rows).items():
                found = dict(_mapping(path, (sheet, row), cells))
                if ALONE not in found:
                    raise TableError(path, (sheet, row), f"{ALONE!r} is missing", "give its speed alone")
                job_type = _job_type(path, (sheet, row), row)
                alone[sheet][job_type] = _number(path, (sheet, row, ALONE), found.pop(ALONE))
                pairs |= {(sheet, row, key): cell for key, cell in found.items()}
            colocated[sheet] = _pair_speeds(path, alone[sheet], pairs)
        return cls(alone, colocated, server_gpus)

    @cached_property
    def types(self) -> tuple[str, ...]:
        """The GPU types, sorted."""
        return tuple(sorted(sheet for sheet in self.alone if not sheet.endswith(UNCONSOLIDATED)))

    @cached_property
    def job_types(self) -> frozenset[JobType]:
        """The job types that have a row in some sheet."""
        return frozenset(job_type for rows in self.alone.values() for job_type in rows)

    @cached_property
    def models(self) -> tuple[str, ...]:
        """The names of the models, sorted."""
        return tuple(sorted({model for model, _ in self.job_types}))

    def sheet(self, gpu_type: str, spread: tuple[int, ...]) -> str:
        """The sheet for a placement, by its GPUs on each node: the unconsolidated sheet only where the table has it."""
        consolidated = len(spread) <= math.ceil(sum(spread) / self.server_gpus)
        return gpu_type if consolidated or gpu_type + UNCONSOLIDATED not in self.alone else gpu_type + UNCONSOLIDATED

    def speed(self, model: str, gpu_type: str, spread: tuple[int, ...], other: str | None = None) -> float | None:
        """Steps per second of a model, co-located with ``other`` if given; None where that was not measured."""
        job_type, sheet = (model, sum(spread)), self.sheet(gpu_type, spread)
        if other is None:
            return self.alone.get(sheet, {}).get(job_type)
        return self.colocated.get(sheet, {}).get(job_type, {}).get((other, sum(spread)))


@dataclass(frozen=True, slots=True)
class TableSpeed:
    """A model's speed by a table: a ``Speed``.

    Attributes:
        table: the table.
        model: the model.
        step_ratio: the steps that count for one step of the table (see ``batch_size_regimes``).
    """

    table: ThroughputTable
    model: str
    step_ratio: float = 1.0

    def steps_per_second(self, gpu_type: str, spread: tuple[int, ...]) -> float | None:
        """The isolated speed in steps per second; None where it was not measured."""
        found = self.table.speed(self.model, gpu_type, spread)
        return None if found is None else found * self.step_ratio

    def steps_per_second_with(self, other: Speed, gpu_type: str, spread: tuple[int, ...]) -> float | None:
        """The co-located speed in steps per second; None where the table does not have it."""
        if not isinstance(other, TableSpeed) or other.table is not self.table:
            return None
        found = self.table.speed(self.model, gpu_type, spread, other.model)
        return None if found is None else found * self.step_ratio


@dataclass(frozen=True, slots=True)
class TableTraining:
    """A job whose true speed is constant, and a table's: a ``Training``.

    Attributes:
        table: the table.
        model: the job's model.
        total: optimizer steps in all.
    """

    table: ThroughputTable
    model: str
    total: float

    def pace(self, done: float, placement: Placement, co_runner: Training | None = None) -> Pace:
        """The table's speed; 0.0 where the table has none, or none with this co-runner."""
        del done
        if placement.gpu_type is None:
            return Pace(0.0, math.inf)
        if co_runner is not None and not isinstance(co_runner, TableTraining):
            return Pace(0.0, math.inf)
        other = None if co_runner is None else co_runner.model
        return Pace(self.table.speed(self.model, placement.gpu_type, placement.spread, other) or 0.0, math.inf)

    def known(self, done: float) -> Speed:
        """The model's speed by the table."""
        del done
        return table_speed(self.table, self.model)


@lru_cache(maxsize=4096)
def table_speed(table: ThroughputTable, model: str, step_ratio: float = 1.0) -> TableSpeed:
    """The speed of a model; the same object for equal arguments, so that comparisons of jobs are fast."""
    return TableSpeed(table, model, step_ratio)


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise TableError(path, (), f"cannot be read ({error.strerror})", "give a file that can") from error
    except (ValueError, RecursionError) as error:
        raise TableError(path, (), f"is not JSON ({error})", "give a table of speeds in JSON") from None


def _mapping(path: Path, keys: tuple[str, ...], found: Any) -> Mapping[str, Any]:
    if not isinstance(found, dict):
        raise TableError(path, keys, "is not an object", "give {key: value, ...}")
    return found


def _job_type(path: Path, keys: tuple[str, ...], text: str) -> JobType:
    match = re.fullmatch(r"\('(.*)', ([1-9][0-9]{0,5})\)", text)
    if match is None:
        raise TableError(path, keys, "the key names no model and GPUs", "write it like ('model', 2)")
    return match[1], int(match[2])


def _number(path: Path, keys: tuple[str, ...], found: Any) -> float:
    if isinstance(found, bool) or not isinstance(found, int | float) or not 0 <= found <= sys.float_info.max:
        raise TableError(path, keys, f"{found!r} is no speed", "give steps per second, 0 or more")
    return float(found)


def _pair_speeds(
    path: Path, alone: Mapping[JobType, float], pairs: Mapping[tuple[str, str, str], Any]
) -> dict[JobType, dict[JobType, float]]:
    """The speeds of both jobs of each pair, by job type and the co-runner's job type; ``pairs`` is by keys."""
    colocated: dict[JobType, dict[JobType, float]] = {job_type: {} for job_type in alone}
    mirrored = []
    for keys, cell in pairs.items():
        job_type, other = (_job_type(path, keys, key) for key in keys[1:])
        mine, its = _pair(path, keys, cell)
        if job_type[1] != other[1]:
            raise TableError(path, keys, f"pairs {job_type[1]} GPUs with {other[1]}", "give pairs on the same GPUs")
        if other not in alone:
            raise TableError(path, keys, "the other has no row of its own", "add it, with its speed alone")
        colocated[job_type][other] = mine
        mirrored.append((keys, job_type, other, its))
    for keys, job_type, other, its in mirrored:
        if colocated[other].setdefault(job_type, its) != its:
            fault = f"gives {its} for the other, and the other's own row {colocated[other][job_type]}"
            raise TableError(path, keys, fault, "give the same speeds in both rows, each time that of the row first")
    return colocated


def _pair(path: Path, keys: tuple[str, ...], found: Any) -> tuple[float, float]:
    if not isinstance(found, list) or len(found) != 2:  # noqa: PLR2004  a pair
        raise TableError(path, keys, f"{found!r} is no pair", "give the steps per second of both jobs")
    return _number(path, keys, found[0]), _number(path, keys, found[1])
