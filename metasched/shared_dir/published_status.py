"""The published status: one JSON file in the shared directory that everybody may read, replaced at every poll.

Users on login nodes cannot open the database, which is on the daemon's host; they read this file instead.
A new field has a default and leaves ``FORMAT`` as it is; daemon/status_publisher.py fills it, for live and for ended
jobs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from metasched.core.errors import MetaschedError

FILE_NAME = "status.json"
FORMAT = 2


class StatusError(MetaschedError):
    """The published status cannot be read or written."""


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """One node: GPUs that metasched's jobs may use, and those that they hold now.

    ``reason`` is why Slurm or an administrator took it out of service, "" for no reason. ``gpus_leaked`` is the number
    of GPUs that Slurm counts as allocated although no job holds them; they are not among ``gpus``.
    """

    name: str
    gpu_type: str | None
    gpus: int
    gpus_used: int
    accepts: bool
    reason: str = ""
    gpus_leaked: int = 0


@dataclass(frozen=True, slots=True)
class AdviceStatus:
    """The advised number of nodes of a GPU type, for clusters whose size can change.

    ``nodes`` accept jobs now, at the ``utility`` that the policy defines (0 to 1); ``advised`` nodes would have
    ``predicted``.
    """

    gpu_type: str
    nodes: int
    advised: int
    utility: float
    predicted: float


@dataclass(frozen=True, slots=True)
class PlanStatus:
    """One batch plan: samples that a GPU processes at once, its micro-batches of a step, samples of a step in all."""

    per_gpu: int
    accumulation: int
    global_batch: int


@dataclass(frozen=True, slots=True)
class BatchStatus:
    """The batch size of a job that tag or script let change, or that the script changes by itself.

    ``adaptive`` says whether both do. ``first_batch`` is the batch that the user chose, ``present`` the latest that the
    trainer reported, ``efficiency`` the progress of a sample with it over that at ``first_batch`` (0 to 1), and
    ``noise_scale`` the gradient noise scale in samples. ``wanted`` is the batch that the trainer is to take up and has
    not; None for none. ``note`` says why it has not, or why the batch cannot change, in words; ``note_code`` says it to
    programs.
    """

    adaptive: bool
    first_batch: int | None = None
    present: PlanStatus | None = None
    efficiency: float | None = None
    noise_scale: float | None = None
    wanted: PlanStatus | None = None
    note: str = ""
    note_code: str = ""


@dataclass(frozen=True, slots=True)
class PlannedStatus:
    """The next span in which the policy plans to run a job: ``begins``, unix seconds, and its length in seconds."""

    begins: float
    seconds: float


@dataclass(frozen=True, slots=True)
class JobStatus:
    """One job. Instants are unix seconds, durations seconds; ``nodes`` is GPUs by node name.

    ``renewals`` is the number of rounds in which its allocation was renewed, ``co_runner`` the Slurm job id of the job
    on the same GPUs, ``time_slicing`` whether the two alternate there, ``slo_seconds`` the time from submission within
    which it should finish, ``blocked`` whether it must not start now, ``step_gain`` how many of the
    ``progress_steps`` a step counts for now, 1 unless its batch adapts. ``reason`` is why it runs or waits, in words;
    ``reason_code`` and ``reason_facts`` are the same for programs, and ``reason_also`` the further reasons among the
    words, each an object with ``code`` and ``facts``. The codes are those of ``metasched.core.reasons``. ``batch`` is
    None for a job whose batch size neither tag nor script let change. ``app`` is the uid of the job's app, None for an
    app of one and for an ended job. ``planned`` is when the job is to run next, None where the policy does not plan it.
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
    progress_steps: float | None
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
    step_gain: float = 1.0
    reason_code: str = "text"
    reason_facts: Mapping[str, Any] = field(default_factory=dict)
    reason_also: tuple[Mapping[str, Any], ...] = ()
    batch: BatchStatus | None = None
    app: str | None = None
    planned: PlannedStatus | None = None


@dataclass(frozen=True, slots=True)
class AppStatus:
    """One app with a live member, but no app of one.

    ``uid`` is that of its jobs' ``app``. ``tuner`` is the tuner as the tags write it, "" for none; ``phases`` says for
    each of its brackets which phase it is in, of how many. ``live`` members have not ended, ``ended`` trials were ended
    by the tuner, live or gone. ``problem`` says why the app runs without its tuner, or which orders of its driver are
    ignored, in words; ``problem_code`` says it to programs.
    """

    uid: str
    name: str
    user: str
    tuner: str
    phases: tuple[tuple[int, int], ...]
    live: int
    ended: int
    first_submitted: float
    attained_service: float
    problem: str = ""
    problem_code: str = ""


@dataclass(frozen=True, slots=True)
class DeferredStatus:
    """New jobs of one user that are not taken in yet, all for one reason; ``job_ids`` names an array by its id."""

    user: str
    jobs: int
    job_ids: tuple[str, ...]
    reason: str
    reason_code: str


@dataclass(frozen=True, slots=True)
class Status:
    """The content of the file.

    A new status is published every ``poll_seconds``. ``slurm`` is "ok", or Slurm's present error. ``jobs`` are the live
    jobs, ``finished`` the latest that ended. ``sharing`` says whether two jobs can share a GPU, and ``sharing_note``
    why they cannot. ``degraded`` says why the present round is degraded (``Decision.degraded``), "" if it is not, and
    ``degraded_rounds`` is the number of such rounds since the daemon's start. ``advice`` has an entry for each GPU
    type, where the policy advises on the number of nodes. ``apps`` are those of the latest round, ``deferred`` the jobs
    that are not taken in yet. ``store`` is "ok", or what other processes do to the daemon's database, in words.
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
    degraded: str = ""
    degraded_rounds: int = 0
    advice: tuple[AdviceStatus, ...] = ()
    apps: tuple[AppStatus, ...] = ()
    store: str = "ok"
    deferred: tuple[DeferredStatus, ...] = ()


_DECODER = msgspec.json.Decoder(Status)  # ignores unknown keys: a newer daemon may publish more


def publish(shared: Path, status: Status) -> None:
    """Replace the published status.

    Raises:
        StatusError: the shared directory cannot be written.
    """
    temporary = shared / f".{FILE_NAME}.{os.getpid()}"
    try:
        temporary.write_bytes(msgspec.json.encode(status))
        temporary.chmod(0o644)
        temporary.replace(shared / FILE_NAME)
    except OSError as error:
        msg = f"cannot publish {shared / FILE_NAME}: {error.strerror}"
        raise StatusError(msg) from None


def note_store_problem(shared: Path, problem: str) -> None:
    """Publish the last status again, without a next round, and with what keeps the daemon from its database.

    Raises:
        StatusError: there is no published status, or the shared directory cannot be written.
    """
    publish(shared, replace(read(shared), published=time.time(), next_round=None, store=problem))


def read(shared: Path) -> Status:
    """Read the status that was published last.

    Raises:
        StatusError: there is no published status, or another version's.
    """
    path = shared / FILE_NAME
    try:
        status = _DECODER.decode(path.read_bytes())
    except OSError as error:
        msg = f"{path}: {error.strerror}; is the daemon running, and is this its [paths] shared?"
        raise StatusError(msg) from None
    except msgspec.ValidationError:
        raise StatusError(_other_version(path)) from None
    except (msgspec.DecodeError, ValueError, RecursionError):
        msg = f"{path}: not a status file"
        raise StatusError(msg) from None
    if status.format != FORMAT:
        raise StatusError(_other_version(path))
    return status


def _other_version(path: Path) -> str:
    return f"{path}: written by another version of metasched; use the same version as the daemon"
