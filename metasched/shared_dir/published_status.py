"""The published status: two JSON files in the shared directory that everybody may read.

Users on login nodes cannot open the database, which is on the daemon's host; they read these files instead.
``status.json`` has everything but the live jobs, and is replaced at most once a second. ``status-jobs.json`` has the
live jobs, and is replaced only when a job has changed by more than the passing of time: what grows with the time is
computed by the reader. A new field has a default and leaves ``FORMAT`` as it is; daemon/status_publisher.py fills it,
for live and for ended jobs.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from metasched.core.errors import MetaschedError

FILE_NAME = "status.json"
JOBS_FILE_NAME = "status-jobs.json"
FORMAT = 3
READ_TRIES = 20
"""Most readings of the two files until they are of one version; the daemon replaces one right after the other."""
_RETRY_SECONDS = 0.01


_Content = TypeVar("_Content")
_NONE = object()  # equal to no value


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
    ``failed_sizes`` are the numbers of GPUs on which its script failed where it had trained on another, and which it no
    longer gets; ``put_back_to`` is that other number until the script has trained on it again, else None.

    ``attained_service``, ``ran_seconds`` and ``waited_seconds`` of a live job are those of the instant at which the
    status was published. In the file they are those of ``as_of``, since which the job has gained ``gpu_seconds_each``
    for each second; None where its run, if it has one, is suspended.
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
    as_of: float | None = None
    gpu_seconds_each: float | None = None
    failed_sizes: tuple[int, ...] = ()
    put_back_to: int | None = None


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
    jobs_version: int = 0


@dataclass(frozen=True, slots=True)
class _Jobs:
    """The content of the file of the live jobs."""

    version: int
    jobs: tuple[JobStatus, ...]


_JOBS_DECODER = msgspec.json.Decoder(_Jobs)
_DECODER = msgspec.json.Decoder(Status)  # ignores unknown keys: a newer daemon may publish more


_DEFAULTS = {
    one.name: one.default_factory() if one.default_factory is not MISSING else one.default
    for one in fields(JobStatus)
    if one.default is not MISSING or one.default_factory is not MISSING
}


def encode_job(job: JobStatus) -> bytes:
    """Return the JSON of a job in the file of the live jobs, without the fields that have their default."""
    values = {
        name: value for name in JobStatus.__slots__ if (value := getattr(job, name)) != _DEFAULTS.get(name, _NONE)
    }
    return msgspec.json.encode(values)


def publish(shared: Path, status: Status) -> None:
    """Replace both files.

    Raises:
        StatusError: the shared directory cannot be written.
    """
    publish_jobs(shared, status.jobs_version, map(encode_job, status.jobs))
    publish_summary(shared, status)


def publish_jobs(shared: Path, version: int, encoded: Iterable[bytes]) -> None:
    """Replace the file of the live jobs; the summary has to follow.

    Args:
        shared: the shared directory.
        version: another one than that of the file before.
        encoded: the live jobs by ``encode_job``.

    Raises:
        StatusError: the shared directory cannot be written.
    """
    _replace(shared / JOBS_FILE_NAME, b'{"version":%d,"jobs":[%b]}' % (version, b",".join(encoded)))


def publish_summary(shared: Path, status: Status) -> None:
    """Replace the file of everything but the live jobs.

    Raises:
        StatusError: the shared directory cannot be written.
    """
    _replace(shared / FILE_NAME, msgspec.json.encode(replace(status, jobs=())))


def _replace(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(content)
        temporary.chmod(0o644)
        temporary.replace(path)
    except OSError as error:
        msg = f"cannot publish {path}: {error.strerror}"
        raise StatusError(msg) from None


def note_store_problem(shared: Path, problem: str) -> None:
    """Publish the last status again, without a next round, and with what keeps the daemon from its database.

    Raises:
        StatusError: there is no published status, or the shared directory cannot be written.
    """
    publish_summary(shared, replace(_read_summary(shared), published=time.time(), next_round=None, store=problem))


def read(shared: Path) -> Status:
    """Read the status that was published last.

    Raises:
        StatusError: there is no published status, or another version's.
    """
    for last in range(READ_TRIES - 1, -1, -1):
        status = _read_summary(shared)
        found = _decoded(shared / JOBS_FILE_NAME, _JOBS_DECODER)
        if found.version == status.jobs_version or not last:  # the daemon may have ended between the two files
            break
        time.sleep(_RETRY_SECONDS)
    for job in found.jobs:
        _grow(job, status.published)
    return replace(status, jobs=found.jobs)


def _read_summary(shared: Path) -> Status:
    path = shared / FILE_NAME
    status = _decoded(path, _DECODER)
    if status.format != FORMAT:
        raise StatusError(_other_version(path))
    return status


def _decoded(path: Path, decoder: msgspec.json.Decoder[_Content]) -> _Content:
    was_enabled = gc.isenabled()
    try:
        content = path.read_bytes()
        gc.disable()  # thousands of records would start the collector many times, in vain
        return decoder.decode(content)
    except OSError as error:
        msg = f"{path}: {error.strerror}; is the daemon running, and is this its [paths] shared?"
        raise StatusError(msg) from None
    except msgspec.ValidationError:
        raise StatusError(_other_version(path)) from None
    except (msgspec.DecodeError, ValueError, RecursionError):
        msg = f"{path}: not a status file"
        raise StatusError(msg) from None
    finally:
        if was_enabled:
            gc.enable()


def _grow(job: JobStatus, published: float) -> None:
    """Bring the fields of a job that was just read from ``as_of`` to the instant of publication."""
    if job.as_of is None:
        return
    since = max(0.0, published - job.as_of)
    if job.gpu_seconds_each is None:
        object.__setattr__(job, "waited_seconds", job.waited_seconds + since)
    else:
        object.__setattr__(job, "attained_service", job.attained_service + job.gpu_seconds_each * since)
        object.__setattr__(job, "ran_seconds", job.ran_seconds + since)


def _other_version(path: Path) -> str:
    return f"{path}: written by another version of metasched; use the same version as the daemon"
