"""What the daemon publishes for everybody to read: one JSON file in the shared directory, replaced at every poll.

Users on login nodes cannot open the database (SQLite stays on the daemon's host); they read this instead.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from metasched.core.errors import MetaschedError

FILE_NAME = "status.json"
FORMAT = 2


class StatusError(MetaschedError):
    """The published status cannot be read or written."""


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """One node: GPUs that our jobs may use, and those that they hold now."""

    name: str
    gpu_type: str | None
    gpus: int
    gpus_used: int
    accepts: bool


@dataclass(frozen=True, slots=True)
class JobStatus:
    """One job. Instants are unix seconds, durations seconds; ``nodes`` is GPUs by node name.

    ``renewals`` is for how many rounds it has kept what it holds, ``co_runner`` the slurm_job_id of the job on the same
    GPUs, ``time_slicing`` whether the two take turns there, ``slo_seconds`` how long it may take from submission on,
    ``blocked`` whether it must not start at all now. ``reason`` is why it runs or waits, in words; ``reason_code`` and
    ``reason_facts`` are the same for programs, and ``reason_also`` the further reasons that the words tell, each an
    object with ``code`` and ``facts``. The codes are those of ``metasched.core.reasons``.
    """

    uid: str
    slurm_job_id: str
    name: str
    user: str
    account: str | None
    status: str
    gpus: int
    min_gpus: int
    max_gpus: int
    preempt: str
    reason: str
    nodes: Mapping[str, int]
    gpu_type: str | None
    submitted: float
    run_started: float | None
    runs: int
    preemptions: int
    attained_service: float
    ran_seconds: float
    waited_seconds: float
    progress_steps: int | None
    total_steps: int | None
    steps_per_second: float | None
    loss: float | None
    world_sizes: tuple[int, ...]
    finished: float | None = None
    error: str | None = None
    renewals: int = 0
    co_runner: str | None = None
    time_slicing: bool = False
    slo_seconds: float | None = None
    blocked: bool = False
    reason_code: str = "text"
    reason_facts: Mapping[str, Any] = field(default_factory=dict)
    reason_also: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Status:
    """Everything that the daemon publishes.

    A new one is published every ``poll_seconds``. ``slurm`` is "ok", or what keeps the daemon from talking to Slurm.
    ``jobs`` are the live ones, ``finished`` the latest that ended. ``sharing`` says that two jobs can share a GPU, and
    ``sharing_note`` why they cannot.
    """

    published: float
    poll_seconds: float
    cluster: str
    host: str
    pid: int
    policy: str
    round: int
    round_at: float | None
    next_round: float | None
    slurm: str
    nodes: tuple[NodeStatus, ...]
    jobs: tuple[JobStatus, ...]
    finished: tuple[JobStatus, ...] = ()
    format: int = FORMAT
    sharing: bool = False
    sharing_note: str = ""


_TUPLES = ("world_sizes", "reason_also")  # of a job
_Record = TypeVar("_Record", NodeStatus, JobStatus, Status)


def publish(shared: Path, status: Status) -> None:
    """Replace the published status.

    Raises:
        StatusError: the shared directory cannot be written.
    """
    temporary = shared / f".{FILE_NAME}.{os.getpid()}"
    try:
        temporary.write_text(json.dumps(status, default=_fields), encoding="utf-8")
        temporary.chmod(0o644)
        temporary.replace(shared / FILE_NAME)
    except OSError as error:
        msg = f"cannot publish {shared / FILE_NAME}: {error.strerror}"
        raise StatusError(msg) from None


def _fields(record: Any) -> dict[str, Any]:
    """A record's fields, one level deep (``dataclasses.asdict`` copies every value, ten times slower)."""
    return {name: getattr(record, name) for name in record.__slots__}


def read(shared: Path) -> Status:
    """Read what was published last.

    Raises:
        StatusError: nothing was published there, or by a newer version.
    """
    path = shared / FILE_NAME
    try:
        data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        msg = f"{path}: {error.strerror}; is the daemon running, and is this its [paths] shared?"
        raise StatusError(msg) from None
    except (ValueError, RecursionError):
        msg = f"{path}: not a status file"
        raise StatusError(msg) from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise StatusError(_other_version(path))
    try:
        nodes = tuple(_known(NodeStatus, node) for node in data["nodes"])
        jobs, finished = (
            tuple(_known(JobStatus, {**job, **{name: tuple(job[name]) for name in _TUPLES}}) for job in data[key])
            for key in ("jobs", "finished")
        )
        return _known(Status, {**data, "nodes": nodes, "jobs": jobs, "finished": finished})
    except (KeyError, TypeError, AttributeError):
        raise StatusError(_other_version(path)) from None


def _known(kind: type[_Record], values: Mapping[str, Any]) -> _Record:
    """A record of the values that this version knows: a newer daemon may tell more.

    Raises:
        TypeError: one that it needs is missing.
    """
    names = {field.name for field in fields(kind)}
    return kind(**{name: value for name, value in values.items() if name in names})


def _other_version(path: Path) -> str:
    return f"{path}: written by another version of metasched; use the same version as the daemon"
