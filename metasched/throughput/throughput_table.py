"""Gavel-style tables: measured steps per second of a model on a number of GPUs of a type, alone and beside another.

Each type may have a second sheet for GPUs that are spread over servers (``v100`` and ``v100_unconsolidated``): the two
extremes of placement of Gavel (Narayanan et al., OSDI 2020, section 3.1).
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

SPREAD = "_unconsolidated"
ALONE = "null"
SERVER_GPUS = 8

Kind = tuple[str, int]
"""A model, its batch size in its name, on a number of GPUs."""


class TableError(MetaschedError):
    """A file is not such a table.

    Attributes:
        file: which file.
        keys: where in it, from the outermost key inwards.
        fault: what is wrong, in words.
        fix: what to do about it, in words.
    """

    def __init__(self, file: Path, keys: tuple[str, ...], fault: str, fix: str) -> None:
        where = f"{file}, {' > '.join(keys)}" if keys else f"{file}"
        super().__init__(f"{where}: {fault}; {fix}")
        self.file = file
        self.keys = keys
        self.fault = fault
        self.fix = fix


@dataclass(frozen=True, eq=False)
class Table:
    """Steps per second; 0.0 where a job, or one of a pair, does not run (memory, mostly).

    Attributes:
        alone: by sheet (a GPU type, or a type with ``_unconsolidated``), by model and GPUs.
        beside: by sheet, by model and GPUs, by those of the job on the same GPUs.
        server_gpus: GPUs count as consolidated on as few servers of this size as can hold them, and as spread on more.
    """

    alone: Mapping[str, Mapping[Kind, float]]
    beside: Mapping[str, Mapping[Kind, Mapping[Kind, float]]]
    server_gpus: int = SERVER_GPUS

    @classmethod
    def read(cls, path: Path, *, server_gpus: int = SERVER_GPUS) -> Self:
        """The table of a file.

        The file is JSON: ``{type: {"('model', gpus)": {"null": steps/s alone, "('other', gpus)": [steps/s of this one,
        of the other]}}}``. A pair may stand in the row of either or in both, with the same speeds.

        Raises:
            TableError: it is no such file.
        """
        alone: dict[str, dict[Kind, float]] = {}
        beside: dict[str, dict[Kind, dict[Kind, float]]] = {}
        for sheet, rows in _mapping(path, (), _json(path)).items():
            alone[sheet] = {}
            pairs: dict[tuple[str, str, str], Any] = {}
            for row, cells in _mapping(path, (sheet,), rows).items():
                found = dict(_mapping(path, (sheet, row), cells))
                if ALONE not in found:
                    raise TableError(path, (sheet, row), f"{ALONE!r} is missing", "give its speed alone")
                kind = _kind(path, (sheet, row), row)
                alone[sheet][kind] = _number(path, (sheet, row, ALONE), found.pop(ALONE))
                pairs |= {(sheet, row, key): cell for key, cell in found.items()}
            beside[sheet] = _beside(path, alone[sheet], pairs)
        return cls(alone, beside, server_gpus)

    @cached_property
    def types(self) -> tuple[str, ...]:
        """GPU types, sorted."""
        return tuple(sorted(sheet for sheet in self.alone if not sheet.endswith(SPREAD)))

    @cached_property
    def kinds(self) -> frozenset[Kind]:
        """Models and numbers of GPUs that it knows on some type."""
        return frozenset(kind for rows in self.alone.values() for kind in rows)

    @cached_property
    def models(self) -> tuple[str, ...]:
        """Models, sorted."""
        return tuple(sorted({model for model, _ in self.kinds}))

    def sheet(self, gpu_type: str, spread: tuple[int, ...]) -> str:
        """The sheet that holds for GPUs spread like that; where nobody has measured spread GPUs, the one sheet."""
        consolidated = len(spread) <= math.ceil(sum(spread) / self.server_gpus)
        return gpu_type if consolidated or gpu_type + SPREAD not in self.alone else gpu_type + SPREAD

    def speed(self, model: str, gpu_type: str, spread: tuple[int, ...], other: str | None = None) -> float | None:
        """Steps per second of a model, beside ``other`` if given; None where the table does not say."""
        kind, sheet = (model, sum(spread)), self.sheet(gpu_type, spread)
        if other is None:
            return self.alone.get(sheet, {}).get(kind)
        return self.beside.get(sheet, {}).get(kind, {}).get((other, sum(spread)))


@dataclass(frozen=True, slots=True)
class TableSpeed:
    """What a table tells of a model's speed: a ``Speed``."""

    table: Table
    model: str

    def steps_per_second(self, gpu_type: str, spread: tuple[int, ...]) -> float | None:
        """As in the table."""
        return self.table.speed(self.model, gpu_type, spread)

    def steps_per_second_with(self, other: Speed, gpu_type: str, spread: tuple[int, ...]) -> float | None:
        """As in the table, if the other is in the same one."""
        if not isinstance(other, TableSpeed) or other.table is not self.table:
            return None
        return self.table.speed(self.model, gpu_type, spread, other.model)


@dataclass(frozen=True, slots=True)
class TableTraining:
    """A job whose true speed is a table's, from its first step to its last: a ``Training``.

    Attributes:
        table: of speeds.
        model: its model.
        total: optimizer steps in all.
    """

    table: Table
    model: str
    total: float

    def pace(self, done: float, placement: Placement, beside: Training | None = None) -> Pace:
        """Its speed; it does not run where the table says nothing, or beside what the table does not know."""
        del done
        if placement.gpu_type is None:
            return Pace(0.0, math.inf)
        if beside is not None and not isinstance(beside, TableTraining):
            return Pace(0.0, math.inf)
        other = None if beside is None else beside.model
        return Pace(self.table.speed(self.model, placement.gpu_type, placement.spread, other) or 0.0, math.inf)

    def known(self, done: float) -> Speed:
        """All of the table."""
        del done
        return _speed(self.table, self.model)


@lru_cache(maxsize=1024)
def _speed(table: Table, model: str) -> TableSpeed:
    """One object for each model, so that what is known of a job's speed stays the same object."""
    return TableSpeed(table, model)


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


def _kind(path: Path, keys: tuple[str, ...], text: str) -> Kind:
    match = re.fullmatch(r"\('(.*)', ([1-9][0-9]{0,5})\)", text)
    if match is None:
        raise TableError(path, keys, "the key names no model and GPUs", "write it like ('model', 2)")
    return match[1], int(match[2])


def _number(path: Path, keys: tuple[str, ...], found: Any) -> float:
    if isinstance(found, bool) or not isinstance(found, int | float) or not 0 <= found <= sys.float_info.max:
        raise TableError(path, keys, f"{found!r} is no speed", "give steps per second, 0 or more")
    return float(found)


def _beside(
    path: Path, alone: Mapping[Kind, float], pairs: Mapping[tuple[str, str, str], Any]
) -> dict[Kind, dict[Kind, float]]:
    """The speeds of both jobs of each pair, by the keys of its cell."""
    beside: dict[Kind, dict[Kind, float]] = {kind: {} for kind in alone}
    mirrored = []
    for keys, cell in pairs.items():
        kind, other = (_kind(path, keys, key) for key in keys[1:])
        mine, its = _pair(path, keys, cell)
        if kind[1] != other[1]:
            raise TableError(path, keys, f"pairs {kind[1]} GPUs with {other[1]}", "give pairs on the same GPUs")
        if other not in alone:
            raise TableError(path, keys, "the other has no row of its own", "add it, with its speed alone")
        beside[kind][other] = mine
        mirrored.append((keys, kind, other, its))
    for keys, kind, other, its in mirrored:
        if beside[other].setdefault(kind, its) != its:
            fault = f"gives {its} for the other, and the other's own row {beside[other][kind]}"
            raise TableError(path, keys, fault, "give the same speeds in both rows, each time that of the row first")
    return beside


def _pair(path: Path, keys: tuple[str, ...], found: Any) -> tuple[float, float]:
    if not isinstance(found, list) or len(found) != 2:  # noqa: PLR2004  a pair
        raise TableError(path, keys, f"{found!r} is no pair", "give the steps per second of both jobs")
    return _number(path, keys, found[0]), _number(path, keys, found[1])
