"""Conversions between the database's rows and records."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from functools import lru_cache
from typing import Any

import msgspec

from metasched.core.batching import Batching, BatchPlan, GradientNoise
from metasched.core.model import NO_SERVICE, Placement
from metasched.core.reasons import from_text
from metasched.core.reuse import shared_text
from metasched.store.records import EndCause, JobRecord, RunRecord

# columns are named after the records' fields, in their order; a job's open run is a row of its own
JOB_COLUMNS = tuple(field.name for field in fields(JobRecord) if field.name != "current")
RUN_COLUMNS = tuple(field.name for field in fields(RunRecord))
# a job with its open run, if it has one
JOBS_WITH_RUNS = (
    f"SELECT {', '.join(f'jobs.{c}' for c in JOB_COLUMNS)}, {', '.join(f'runs.{c}' for c in RUN_COLUMNS)} "  # noqa: S608  our own names
    "FROM jobs LEFT JOIN runs ON runs.uid = jobs.uid AND runs.run = jobs.run AND runs.ended IS NULL"
)

_RUN_PART = len(JOB_COLUMNS)
_REQUIREMENTS, _ATTAINED, _LAST_PLACEMENT, _BATCHING, _NOISE, _END_REASON, _FAILED_SIZES, _PUT_BACK = map(
    JOB_COLUMNS.index,
    ("requirements", "attained", "last_placement", "batching", "noise", "end_reason", "failed_sizes", "put_back"),
)
_SHARED = tuple(map(JOB_COLUMNS.index, ("name", "user", "account", "partition", "status")))
"""Columns whose text many jobs have; it is one object for all of them."""


def as_json(value: Any) -> str:
    """Compact JSON; the same value gives the same text."""
    return json.dumps(value, separators=(",", ":"), sort_keys=True, allow_nan=False, default=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, set | frozenset):
        return sorted(value)
    message = f"{type(value).__name__} is not JSON"
    raise TypeError(message)


def placement_json(placement: Placement | None) -> str | None:
    """A placement as JSON text, for a column."""
    if placement is None:
        return None
    uneven = {"uneven": placement.uneven} if placement.uneven else {}
    facts = {"nodes": placement.nodes, "gpus_per_node": placement.gpus_per_node, "gpu_type": placement.gpu_type}
    return as_json(facts | uneven)


@lru_cache(maxsize=4096)  # a job's placement comes again and again
def _placement(text: str) -> Placement:
    values = json.loads(text)
    uneven = tuple(values.get("uneven", ()))
    return Placement(tuple(values["nodes"]), values["gpus_per_node"], values["gpu_type"], uneven)


def placement_of(text: str | None) -> Placement | None:
    """The placement that ``placement_json`` wrote."""
    return None if text is None else _placement(text)


def record_json(record: Batching | GradientNoise | BatchPlan | None) -> str | None:
    """A record of ``core.batching`` as JSON text, for a column."""
    return None if record is None else msgspec.json.encode(record).decode()


@lru_cache(maxsize=4096)
def batching_of(text: str | None) -> Batching | None:
    """The batch size that ``record_json`` wrote."""
    return None if text is None else msgspec.json.decode(text, type=Batching)


def noise_of(text: str | None) -> GradientNoise | None:
    """The gradient noise that ``record_json`` wrote."""
    return None if text is None else msgspec.json.decode(text, type=GradientNoise)


def batch_plan_of(text: str | None) -> BatchPlan | None:
    """The batch plan that ``record_json`` wrote."""
    return None if text is None else msgspec.json.decode(text, type=BatchPlan)


def run_of(row: tuple[Any, ...]) -> RunRecord:
    """The run in a row with the columns ``RUN_COLUMNS``."""
    values = dict(zip(RUN_COLUMNS, row, strict=True))
    values["released"] = placement_of(values["released"])
    values["placement"] = placement_of(values["placement"])
    values["suspended_by_us"] = bool(values["suspended_by_us"])
    values["batch"] = batch_plan_of(values["batch"])
    values["stopped_for"] = tuple(json.loads(values["stopped_for"] or "[]"))
    if values["cause"] is not None:
        values["cause"] = EndCause(values["cause"])
    if values["checkpointed"] is not None:
        values["checkpointed"] = bool(values["checkpointed"])
    return RunRecord(**values)


@lru_cache(maxsize=4096)  # of thousands of waiting jobs, most ask for the same
def _requirements(text: str) -> Mapping[str, Any]:
    """Return a job's requirements, one object for all jobs with the same ones."""
    found: Mapping[str, Any] = json.loads(text)
    return found


def job_of(row: tuple[Any, ...]) -> JobRecord:
    """The job, with its open run, in a row of ``JOBS_WITH_RUNS``."""
    values = list(row[:_RUN_PART])
    for column in _SHARED:
        if isinstance(values[column], str):
            values[column] = shared_text(values[column])
    values[_REQUIREMENTS] = _requirements(values[_REQUIREMENTS])
    values[_ATTAINED] = NO_SERVICE if values[_ATTAINED] == "{}" else json.loads(values[_ATTAINED])
    values[_LAST_PLACEMENT] = placement_of(values[_LAST_PLACEMENT])
    values[_BATCHING] = batching_of(values[_BATCHING])
    values[_NOISE] = noise_of(values[_NOISE])
    values[_END_REASON] = None if values[_END_REASON] is None else from_text(values[_END_REASON])
    values[_FAILED_SIZES] = () if values[_FAILED_SIZES] == "[]" else tuple(json.loads(values[_FAILED_SIZES]))
    values[_PUT_BACK] = bool(values[_PUT_BACK])
    values.append(None if row[_RUN_PART] is None else run_of(row[_RUN_PART:]))
    return JobRecord(*values)
