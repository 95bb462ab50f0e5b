"""The published status: JSON files in the shared directory, some for everybody and some for few.

Users on login nodes cannot open the database, which is on the daemon's host; they read these files instead.
``status.json`` has everything but the live jobs, and is replaced at most once a second. ``status-jobs.json`` has the
live jobs, and is replaced only when a job has changed by more than the passing of time: what grows with the time is
computed by the reader. A new field has a default and leaves ``FORMAT`` as it is; daemon/status_publisher.py fills it,
for live and for ended jobs.

Everybody may read these two files, so that neither has a job's ``PRIVATE_FIELDS``; under Slurm's PrivateData=jobs
neither has any job. The directory ``private`` has the whole jobs: ``all.json`` for the daemon's user and the admins,
and a file for each user with that user's jobs (``shared_dir/private_files.py`` decides who may read them). ``read``
returns as much as its caller may read.
"""

from __future__ import annotations

import gc
import operator
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec.structs import force_setattr

from metasched.core.errors import MetaschedError
from metasched.core.file_replacement import replace_file
from metasched.shared_dir.job_reasons import public_reason

FILE_NAME = "status.json"
JOBS_FILE_NAME = "status-jobs.json"
FORMAT = 4
READ_TRIES = 20
"""Most readings of the two files until they are of one version; the daemon replaces one right after the other."""
_RETRY_SECONDS = 0.01
PRIVATE_DIRECTORY = "private"
ALL_FILE_NAME = "all.json"
"""In the private directory: the whole of all jobs. A user's file is named by the number of the Unix user."""
PRIVATE_FIELDS = frozenset(
    {"progress_steps", "total_steps", "steps_per_second", "loss", "step_gain", "batch"}
    | {"alone_seconds", "left_seconds", "rho"}
    | {"failed_sizes", "put_back_to"}
)
"""Fields of ``JobStatus`` that are for the job's owner and for admins: its progress, speed, loss and failures."""

NO_GAIN = 1.0
"""``JobStatus.step_gain`` of a job whose batch does not adapt: this object is left out of the file."""

_Content = TypeVar("_Content")


class StatusError(MetaschedError):
    """The published status cannot be read or written."""


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """One node and its GPUs.

    ``gpus`` are those that metasched's jobs may use, or use now, ``gpus_used`` those of them that they hold. Of all
    ``gpus_total``, jobs that metasched does not schedule hold ``gpus_others``, and ``gpus_leaked`` are counted by Slurm
    as allocated although no job holds them. The GPUs that nobody holds are ``gpus_free`` where the node accepts jobs,
    and ``gpus_down`` where it does not.

    ``reason`` is why Slurm or an administrator took it out of service, "" for no reason; ``drained_by`` the Unix user
    who did, and ``drained_at`` when, unix seconds. ``reservation`` is the reservation that rules the node now, "" for
    none, and ``reserved_until`` its end. ``jobs`` are the GPUs of metasched's jobs by uid, of those jobs that the
    reader of the status may see; the file does not have them.
    """

    name: str
    gpu_type: str | None
    gpus: int
    gpus_used: int
    accepts: bool
    reason: str = ""
    gpus_leaked: int = 0
    gpus_total: int = 0
    gpus_others: int = 0
    gpus_free: int = 0
    gpus_down: int = 0
    drained_by: str = ""
    drained_at: float | None = None
    reservation: str = ""
    reserved_until: float | None = None
    jobs: Mapping[str, int] = field(default_factory=dict)


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
class InstantStatus:
    """An 80 % range of an instant in unix seconds; ``high`` is None where it lies beyond the forecast's horizon."""

    low: float
    median: float
    high: float | None


@dataclass(frozen=True, slots=True)
class JobForecastStatus:
    """When a job's next run starts, and when the job completes, as a forecast made at ``at`` says.

    ``start`` is None for a job that holds its resources; either is None where no forecast reaches that far.
    ``work_from`` is the source of the estimate of the job's work, in words.
    """

    at: float
    start: InstantStatus | None = None
    end: InstantStatus | None = None
    work_from: str = ""


@dataclass(frozen=True, slots=True)
class ForecastStatus:
    """The latest forecast: its round, and what it assumes, in sentences; ``problem`` says why there is no newer one."""

    round: int | None = None
    at: float | None = None
    samples: int = 0
    left_out: int = 0
    seconds: float = 0.0
    assumptions: tuple[str, ...] = ()
    problem: str = ""


class JobStatus(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One job. Instants are unix seconds, durations seconds; ``nodes`` is GPUs by node name.

    ``renewals`` is the number of rounds in which its allocation was renewed, ``co_runner`` the Slurm job id of the job
    on the same GPUs, ``time_slicing`` whether the two alternate there, ``slo_seconds`` the time from submission within
    which it should finish, ``blocked`` whether it must not start now, ``step_gain`` how many of the
    ``progress_steps`` a step counts for now, 1 unless its batch adapts. ``reason`` is why it runs or waits, in words;
    ``reason_code`` and ``reason_facts`` are the same for programs, and ``reason_also`` the further reasons among the
    words, each an object with ``code`` and ``facts``. The codes are those of ``metasched.core.reasons``. ``batch`` is
    None for a job whose batch size neither tag nor script let change. ``app`` is the uid of the job's app, None for an
    app of one and for an ended job. ``planned`` is when the job is to run next, None where the policy does not plan it.
    ``forecast`` is None where the latest forecast does not have the job.
    ``failed_sizes`` are the numbers of GPUs on which its script failed where it had trained on another, and which it no
    longer gets; ``put_back_to`` is that other number until the script has trained on it again, else None.

    ``attained_service``, ``ran_seconds`` and ``waited_seconds`` of a live job are those of the instant at which the
    status was published. In the file they are those of ``as_of``, since which the job has gained ``gpu_seconds_each``
    for each second; None where its run, if it has one, is suspended.

    ``place`` of a waiting job is its place among the jobs that wait, 1 for the next to start, as the latest round
    ranked them; None for other jobs, for those that must not start now, and before the first round. Under a policy of
    time shares it is the order of that one round: the next round may rank the jobs anew.

    ``stopped_for`` are the uids of the jobs that got GPUs of the job's latest preempted run, and
    ``stopped_for_others`` is the number of further such jobs, which the reader may not see.

    ``rho`` is the finish-time fairness by Pollux's definition (docs/researcher/METRICS.md): of a job that has completed
    the final one, of a live job an estimate, None where it is not known. The estimate is made by the reader, from
    ``alone_seconds``, the estimated duration of the training alone on the GPUs that it requests, from ``left_seconds``,
    the estimated rest of it, and from ``contention_before``, ``Status.contention_seconds`` at its submission.
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
    step_gain: float = NO_GAIN
    reason_code: str = "text"
    reason_facts: Mapping[str, Any] = msgspec.field(default_factory=dict)
    reason_also: tuple[Mapping[str, Any], ...] = ()
    batch: BatchStatus | None = None
    app: str | None = None
    planned: PlannedStatus | None = None
    as_of: float | None = None
    gpu_seconds_each: float | None = None
    place: int | None = None
    stopped_for: tuple[str, ...] = ()
    stopped_for_others: int = 0
    alone_seconds: float | None = None
    left_seconds: float | None = None
    contention_before: float | None = None
    rho: float | None = None
    forecast: JobForecastStatus | None = None
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

    ``contention_seconds`` is the integral over time of the GPUs that live jobs request over all GPUs, None where it is
    not known. ``jobs_are_private`` says whether Slurm's PrivateData hides jobs. ``seen`` says what the reader of the
    files may see: ``all`` jobs whole, the ``own`` jobs whole, or what is ``public``; the file does not have it.
    ``jobs_version`` is the version of the file of the live jobs, ``whole_version`` that of the file of the whole jobs.
    ``forecast`` is None where none has been made. ``shadow_problem`` says why the shadow policies do not decide, "" if
    they do or if there are none.
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
    contention_seconds: float | None = None
    jobs_are_private: bool = False
    seen: str = "public"
    whole_version: int = 0
    forecast: ForecastStatus | None = None
    shadow_problem: str = ""


@dataclass(frozen=True, slots=True)
class JobsFile:
    """The content of a file of jobs, whole ones or not.

    ``order`` are the uids of the waiting jobs in the order of their places, and ``places`` the places of jobs in a file
    without that order. ``finished``, ``apps`` and ``deferred`` are those that the summary does not have.
    """

    version: int = 0
    jobs: tuple[JobStatus, ...] = ()
    order: tuple[str, ...] = ()
    places: Mapping[str, int] = field(default_factory=dict)
    finished: tuple[JobStatus, ...] = ()
    apps: tuple[AppStatus, ...] = ()
    deferred: tuple[DeferredStatus, ...] = ()


_JOBS_DECODER = msgspec.json.Decoder(JobsFile)
_DECODER = msgspec.json.Decoder(Status)  # ignores unknown keys: a newer daemon may publish more


_PRIVATE_DEFAULTS: Mapping[str, Any] = {
    one.name: None if one.default is msgspec.NODEFAULT else one.default
    for one in msgspec.structs.fields(JobStatus)
    if one.name in PRIVATE_FIELDS
}
_AGES = frozenset({"as_of", "attained_service", "ran_seconds", "waited_seconds"})
public_facts: Callable[[JobStatus], tuple[object, ...]] = operator.attrgetter(
    *(name for name in JobStatus.__struct_fields__ if name not in PRIVATE_FIELDS | _AGES)
)
"""The fields of a job that everybody may see, but for what grows with the time."""


def encode_job(job: JobStatus, *, whole: bool = True) -> bytes:
    """Return the JSON of a job in a file of jobs, without the fields that have their default.

    Args:
        job: the job.
        whole: whether the JSON has the job's private fields.
    """
    return msgspec.json.encode(job if whole else public_job(job))


def public_job(job: JobStatus) -> JobStatus:
    """Return the job as everybody may see it."""
    return msgspec.structs.replace(job, **_PRIVATE_DEFAULTS, **public_reason(job))


def job_fields(job: JobStatus) -> dict[str, Any]:
    """Return all fields of a job by name, JSON-compatible, also those that have their default."""
    found: dict[str, Any] = msgspec.to_builtins(msgspec.structs.asdict(job))
    return found


def publish(shared: Path, status: Status) -> None:
    """Replace all files; only the caller's user may read what is private.

    Raises:
        StatusError: the shared directory cannot be written.
    """
    waiting = sorted((job for job in status.jobs if job.place is not None), key=lambda job: job.place or 0)
    order = [job.uid for job in waiting]
    if status.jobs_are_private:
        publish_jobs(shared, status.jobs_version, (), ())
    else:
        publish_jobs(shared, status.jobs_version, (encode_job(job, whole=False) for job in status.jobs), order)
    directory = shared / PRIVATE_DIRECTORY
    try:
        directory.mkdir(exist_ok=True, mode=0o711)
        path = directory / ALL_FILE_NAME
        path.touch(mode=0o600)
        path.write_bytes(
            encode_jobs_file(
                status.whole_version,
                map(encode_job, status.jobs),
                order=order,
                finished=map(encode_job, status.finished),
                apps=status.apps if status.jobs_are_private else (),
                deferred=status.deferred if status.jobs_are_private else (),
            )
        )
    except OSError as error:
        msg = f"cannot publish {directory}: {error.strerror}"
        raise StatusError(msg) from None
    publish_summary(shared, status)


def encode_jobs_file(
    version: int,
    jobs: Iterable[bytes],
    *,
    order: Sequence[str] = (),
    places: Mapping[str, int] | None = None,
    finished: Iterable[bytes] = (),
    apps: Iterable[AppStatus] = (),
    deferred: Iterable[DeferredStatus] = (),
) -> bytes:
    """Return the JSON of a ``JobsFile``; jobs and finished jobs are encoded already."""
    head = b'{"version":%d,"jobs":[' % version
    rest = b'],"order":%b,"places":%b,"finished":[%b],"apps":%b,"deferred":%b}' % (
        msgspec.json.encode(order),
        msgspec.json.encode(places or {}),
        b",".join(finished),
        msgspec.json.encode(tuple(apps)),
        msgspec.json.encode(tuple(deferred)),
    )
    parts = list(jobs) or [b""]
    parts[0] = head + parts[0]
    parts[-1] += rest
    return b",".join(parts)  # the only copy of some megabytes


def publish_jobs(shared: Path, version: int, encoded: Iterable[bytes], order: Sequence[str]) -> None:
    """Replace the file of the live jobs that everybody may read; the summary has to follow.

    Args:
        shared: the shared directory.
        version: another one than that of the file before.
        encoded: the live jobs by ``encode_job``, not whole.
        order: the uids of the waiting jobs in their order.

    Raises:
        StatusError: the shared directory cannot be written.
    """
    _replace(shared / JOBS_FILE_NAME, encode_jobs_file(version, encoded, order=order))


def publish_summary(shared: Path, status: Status) -> None:
    """Replace the file of everything but the live jobs, without what is private.

    Raises:
        StatusError: the shared directory cannot be written.
    """
    if status.jobs_are_private:
        shown = replace(status, jobs=(), finished=(), apps=(), deferred=())
    else:
        shown = replace(status, jobs=(), finished=tuple(map(public_job, status.finished)))
    _replace(shared / FILE_NAME, msgspec.json.encode(shown))


def _replace(path: Path, content: bytes) -> None:
    try:
        replace_file(path, content, mode=0o644)
    except OSError as error:
        msg = f"cannot publish {path}: {error.strerror}"
        raise StatusError(msg) from None


def active_host(shared: Path) -> str | None:
    """The host whose daemon published last; None where no status can be read."""
    try:
        return _read_summary(shared).host
    except StatusError:
        return None


def note_store_problem(shared: Path, problem: str) -> None:
    """Publish the last status again, without a next round, and with what keeps the daemon from its database.

    Raises:
        StatusError: there is no published status, or the shared directory cannot be written.
    """
    publish_summary(shared, replace(_read_summary(shared), published=time.time(), next_round=None, store=problem))


def read(shared: Path) -> Status:
    """Read the status that was published last, as far as the caller may see it.

    Raises:
        StatusError: there is no published status, or another version's.
    """
    was_enabled = gc.isenabled()
    try:
        gc.disable()  # thousands of new records would start the collector many times, in vain
        return _read(shared)
    finally:
        if was_enabled:
            gc.enable()


def _read(shared: Path) -> Status:
    directory = shared / PRIVATE_DIRECTORY
    for last in range(READ_TRIES - 1, -1, -1):
        status = _read_summary(shared)
        whole = _decoded_if_allowed(directory / ALL_FILE_NAME)
        found = whole or _decoded(shared / JOBS_FILE_NAME, _JOBS_DECODER)
        wanted = status.jobs_version if whole is None else status.whole_version
        if found.version == wanted or not last:  # the daemon may have ended between the two files
            break
        time.sleep(_RETRY_SECONDS)
    seen = "public" if whole is None else "all"
    if whole is None and (own := _decoded_if_allowed(directory / user_file_name(os.geteuid()))) is not None:
        found, seen = _merged(status, found, own), "own"
    elif whole is None:
        found = replace(found, finished=status.finished)
    places = {uid: place for place, uid in enumerate(found.order, start=1)} | dict(found.places)
    for job in found.jobs:
        _grow(job, status.published)
        if job.alone_seconds is not None:
            _estimate_rho(job, status)
        if (place := places.get(job.uid)) is not None:
            force_setattr(job, "place", place)
    if status.jobs_are_private:
        status = replace(status, apps=found.apps, deferred=found.deferred)
    nodes = _with_holders(status.nodes, found.jobs)
    return replace(status, nodes=nodes, jobs=found.jobs, finished=found.finished, seen=seen)


def user_file_name(number: int) -> str:
    """Return the name of the file in the private directory for a Unix user, by the user's number."""
    return f"{number}.json"


def _merged(status: Status, public: JobsFile, own: JobsFile) -> JobsFile:
    """Return what everybody may read with a user's own jobs in place of what everybody may see of them."""
    if status.jobs_are_private:
        return own
    jobs, finished = ({job.uid: job for job in part} for part in (own.jobs, own.finished))
    return replace(
        public,
        jobs=tuple([jobs.get(job.uid, job) for job in public.jobs]),
        finished=tuple([finished.get(job.uid, job) for job in status.finished]),
    )


def _with_holders(nodes: tuple[NodeStatus, ...], jobs: Iterable[JobStatus]) -> tuple[NodeStatus, ...]:
    """Return the nodes with the GPUs of each job, by uid."""
    holders: dict[str, dict[str, int]] = {}
    for job in jobs:
        for name, gpus in job.nodes.items():
            holders.setdefault(name, {})[job.uid] = gpus
    return tuple([replace(node, jobs=holders[node.name]) if node.name in holders else node for node in nodes])


def _decoded_if_allowed(path: Path) -> JobsFile | None:
    """Return the content of a file of jobs; None where there is none, or the caller may not read it."""
    try:
        content = path.read_bytes()
    except (FileNotFoundError, PermissionError, NotADirectoryError):
        return None
    except OSError as error:
        msg = f"{path}: {error.strerror}"
        raise StatusError(msg) from None
    return _decode(path, content, _JOBS_DECODER)


def _read_summary(shared: Path) -> Status:
    path = shared / FILE_NAME
    status = _decoded(path, _DECODER)
    if status.format != FORMAT:
        raise StatusError(_other_version(path))
    return status


def _decoded(path: Path, decoder: msgspec.json.Decoder[_Content]) -> _Content:
    try:
        content = path.read_bytes()
    except OSError as error:
        msg = f"{path}: {error.strerror}; is the daemon running, and is this its [paths] shared?"
        raise StatusError(msg) from None
    return _decode(path, content, decoder)


def _decode(path: Path, content: bytes, decoder: msgspec.json.Decoder[_Content]) -> _Content:
    try:
        return decoder.decode(content)
    except msgspec.ValidationError:
        raise StatusError(_other_version(path)) from None
    except (msgspec.DecodeError, ValueError, RecursionError):
        msg = f"{path}: not a status file"
        raise StatusError(msg) from None


def _grow(job: JobStatus, published: float) -> None:
    """Bring the fields of a job that was just read from ``as_of`` to the instant of publication."""
    if job.as_of is None:
        return
    since = max(0.0, published - job.as_of)
    if job.gpu_seconds_each is None:
        force_setattr(job, "waited_seconds", job.waited_seconds + since)
    else:
        force_setattr(job, "attained_service", job.attained_service + job.gpu_seconds_each * since)
        force_setattr(job, "ran_seconds", job.ran_seconds + since)


def _estimate_rho(job: JobStatus, status: Status) -> None:
    """Estimate the rho of a live job that was just read, where enough is known.

    The load counts until the instant of publication; the rest of the training is as long as it takes now.
    """
    alone, left, before, total = job.alone_seconds, job.left_seconds, job.contention_before, status.contention_seconds
    elapsed = status.published - job.submitted
    if alone is None or left is None or before is None or total is None or elapsed <= 0:
        return
    fair = alone * max((total - before) / elapsed, 1.0)
    if fair > 0:
        force_setattr(job, "rho", (elapsed + left) / fair)


def _other_version(path: Path) -> str:
    return f"{path}: written by another version of metasched; use the same version as the daemon"
