"""The JSON documents that commands print with --json, as JSON Schemas.

Each document is an object whose ``schema`` names command and version, such as ``metasched/db/events/1``. A new property
leaves the version; a removed or changed one raises it (``echo_json`` and ``VERSIONS``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from metasched.cli.json_output import VERSIONS, schema_name

Properties = Mapping[str, Any]
"""Types by property. A type in a tuple of one is that of a property which may be missing."""


def schema(command: str) -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of what a command prints with --json.

    Args:
        command: the command's words, such as ``db events``; one of ``DOCUMENTS``.
    """
    properties = DOCUMENTS[command]()
    types = {name: kind[0] if isinstance(kind, tuple) else kind for name, kind in properties.items()}
    schemas, definitions = msgspec.json.schema_components(types.values(), ref_template="#/$defs/{name}")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"metasched {command} --json",
        "type": "object",
        "properties": {
            "schema": {"const": schema_name(command, VERSIONS.get(command, 1))},
            **dict(zip(types, schemas, strict=True)),
        },
        "required": ["schema", *(name for name, kind in properties.items() if not isinstance(kind, tuple))],
        "$defs": definitions,
    }


def _fields(record: type[Any]) -> Properties:
    """Return the types of a record's fields."""
    import typing  # noqa: PLC0415

    hints = typing.get_type_hints(record)
    return {field.name: hints[field.name] for field in dataclasses.fields(record)}


@dataclasses.dataclass
class _Reasoned:
    """Fields of a reason: words, and code and facts for programs."""

    reason: str
    reason_code: str | None
    reason_facts: dict[str, Any]
    reason_also: list[dict[str, Any]]


@dataclasses.dataclass
class _Place:
    nodes: list[str]
    gpus_per_node: int
    gpu_type: str | None


@dataclasses.dataclass
class _Decision(_Reasoned):
    uid: str
    first_round: int
    last_round: int | None
    granted: _Place | None


@dataclasses.dataclass
class _ActionTaken:
    id: int
    round: int
    at: float
    uid: str
    kind: str
    detail: dict[str, Any]
    outcome: str | None
    latency_seconds: float | None


@dataclasses.dataclass
class _Event:
    id: int
    at: float
    uid: str | None
    kind: str
    text: str


@dataclasses.dataclass
class _JobEvent(_Event):
    slurm_job_id: str | None
    name: str | None
    user: str | None
    account: str | None
    end_state: str | None


@dataclasses.dataclass
class _DryRunAction(_Reasoned):
    action: str
    uid: str
    slurm_job_id: str
    text: str
    placement: _Place | None


@dataclasses.dataclass
class _ForecastOutcome:
    uid: str
    kind: str
    round: int
    at: float
    low: float
    median: float
    high: float | None
    latest: bool
    truth: float | None
    closed: bool
    covered: bool | None


@dataclasses.dataclass
class _ForecastRow:
    uid: str
    slurm_job_id: str
    name: str
    user: str
    work_from: str
    ends: dict[str, float | None]
    ended_by_tuner: dict[str, float]
    preemptions: dict[str, int]
    planned: dict[str, float] | None
    gpu_use: dict[str, float] | None
    gpu_hours: dict[str, float]
    idle_gpu_hours: dict[str, float] | None


@dataclasses.dataclass
class _ReplayDifference(_Reasoned):
    uid: str
    stored: str
    replayed: str


@dataclasses.dataclass
class _ReplayedRound:
    round: int
    at: float
    policy: str
    jobs: int
    differences: list[_ReplayDifference]


@dataclasses.dataclass
class _Parameter:
    default: Any
    meaning: str


@dataclasses.dataclass
class _PolicyRow:
    name: str
    summary: str
    parameters: dict[str, _Parameter]


@dataclasses.dataclass
class _DemoJob:
    name: str
    slurm_job_id: str
    state: str
    exit_code: int | None
    waited_seconds: float
    ran_seconds: float
    world_sizes: list[int]
    ends: list[str]
    loss: float | None
    preemptions: int
    resizes: int


@dataclasses.dataclass
class _CheckFinding:
    level: str
    subject: str
    text: str
    fix: str


def _status() -> Properties:
    from metasched.shared_dir.published_status import Status  # noqa: PLC0415  each document's records on demand

    return {**_fields(Status), "age_seconds": float, "stale": bool}


def _explain() -> Properties:
    from metasched.shared_dir.published_status import JobStatus  # noqa: PLC0415
    from metasched.store import RunRecord  # noqa: PLC0415
    from metasched.store.fairness import FairnessRecord  # noqa: PLC0415

    tables = (("runs", RunRecord), ("decisions", _Decision), ("actions", _ActionTaken), ("events", _Event))
    found = {name: (list[kind],) for name, kind in tables}  # type: ignore[valid-type]
    return {"job": JobStatus, "words": list[str], "fairness": (FairnessRecord | None,), **found}


def _runs() -> Properties:
    from metasched.store import RunRecord  # noqa: PLC0415

    return {"rows": list[RunRecord]}


def _history() -> Properties:
    from metasched.store.usage import Usage  # noqa: PLC0415

    return {"by": str, "since": float, "until": float, "rows": list[Usage]}


def _shadow() -> Properties:
    from metasched.store.records import ShadowRecord  # noqa: PLC0415

    return {"rows": list[ShadowRecord]}


def _simulate() -> Properties:
    from metasched.simulator.results import Result  # noqa: PLC0415

    return _fields(Result)


def _compare() -> Properties:
    from metasched.simulator.results import Result  # noqa: PLC0415

    return {"rows": list[Result]}


DOCUMENTS: Mapping[str, Callable[[], Properties]] = {
    "status": _status,
    "explain": _explain,
    "submit": lambda: {"job": str, "comment": str},
    "history": _history,
    "health": lambda: {"level": str, "code": int, "findings": list[str], "numbers": dict[str, float]},
    "init": lambda: {"path": str, "next": list[str]},
    "check": lambda: {"rows": list[_CheckFinding]},
    "daemon": lambda: {"rows": list[_DryRunAction]},
    "policies": lambda: {"rows": list[_PolicyRow]},
    "replay": lambda: {"rows": list[_ReplayedRound]},
    "simulate": _simulate,
    "compare": _compare,
    "what-if": lambda: {"rows": list[_ForecastRow]},
    "forecast": lambda: {
        "days": float,
        "coverage": dict[str, Any],
        "calibration": dict[str, Any],
        "rows": list[_ForecastOutcome],
    },
    "shadow": _shadow,
    "demo": lambda: {"rounds": int, "seconds": float, "problems": list[str], "rows": list[_DemoJob]},
    "db path": lambda: {"path": str, "exists": bool},
    "db sizes": lambda: {"rows": dict[str, int], "bytes": int},
    "db check": lambda: {"path": str, "problems": list[str]},
    "db events": lambda: {"rows": list[_JobEvent]},
    "db runs": _runs,
    "db import": lambda: {"read": int, "imported": int, "skipped": dict[str, int], "unreadable": str | None},
    "db prune": lambda: {"rows": dict[str, int]},
    "devcluster up": lambda: {"base": str, "nodes": list[str], "environment": dict[str, str]},
    "devcluster status": lambda: {"daemons": dict[str, int | None], "nodes": dict[str, str]},
}
"""Properties of each document by the command's words; ``db export`` prints rows of tables, one a line, instead."""
