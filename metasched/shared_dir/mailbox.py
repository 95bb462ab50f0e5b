"""The daemon's side of the shared directory: leases, stop requests, and the index of Slurm job ids.

The files are specified in ``docs/developer/PROTOCOL.md``.

Only the daemon writes the mailbox; a directory or link that somebody else made in its place is refused.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Literal

import msgspec

from metasched.core.errors import MetaschedError
from metasched.core.file_replacement import sync_directory
from metasched.shared_dir.owned_files import owned_directory

PROFILING_STEPS = 10
"""Optimizer steps that are timed in each profiling run (Liu et al., "Ares", 2025, section 4)."""
_FILE_MODE = 0o644
_DIRECTORY_MODE = 0o755
_INDEX_MODE = 0o711  # nobody lists the jobs; who knows a job's uid or Slurm job id finds its lease
_REPORTS_MODE = 0o3733  # sticky: everybody may make a directory, nobody may list, rename or remove another user's
_UID = re.compile(r"[0-9a-f]{16}(_[0-9]+)?")
_REPORT_FILE = re.compile(r"incarnation-[0-9]+\.jsonl|app\.jsonl|failed-run\.json(\.[0-9]+)?")
_REMOVED_AT_ONCE = 10_000
_SLURM_JOB_ID = re.compile(r"[0-9]+(_[0-9]+)?")
_FIXES = {
    errno.ENOSPC: "free some space there",
    errno.EDQUOT: "raise the quota of the daemon's user there",
    errno.EROFS: "mount it writable",
    errno.EACCES: "give the daemon's user write access there",
    errno.EPERM: "give the daemon's user write access there",
}


class MailboxError(MetaschedError):
    """The shared directory cannot be used; the message names the path and the fix."""


class NotOursError(MailboxError):
    """A path of the mailbox is not a directory that the daemon's user owns."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"{path}: must be a directory (no link) that only the daemon's user owns and may write to; "
            "move the present file or directory away, or correct its owner and mode"
        )


class BadLeaseError(MailboxError):
    """A lease file does not have the daemon's format."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{path}: not a lease ({why}); remove the file, the daemon writes it again")


class NoLeaseError(MailboxError):
    """The mailbox has no lease for the run that is to be stopped."""

    def __init__(self, path: Path, run: int) -> None:
        super().__init__(
            f"{path}: holds no lease for run {run}, so no request can be written there; write the lease first"
        )


class BadNameError(MailboxError):
    """A text that is no uid or Slurm job id, and must not become part of a path."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name!r} is neither a uid nor a Slurm job id")


class RunRequest(msgspec.Struct, frozen=True):
    """A request to the trainer of one run only; instants in unix seconds."""

    run: int
    requested: float
    deadline: float
    reason: str


class RequeueMethod(msgspec.Struct, frozen=True):
    """How the job is requeued after a checkpoint.

    Attributes:
        by: ``slurm`` (by RequeueExitHold) or ``wrapper`` (``metasched-run``).
        exit_code: the trainer's exit code that asks for it.
    """

    by: Literal["slurm", "wrapper"] = "slurm"
    exit_code: int = 85


class ProfilingRuns(msgspec.Struct, frozen=True):
    """World sizes on which the command is timed before the run, and the optimizer steps of each profiling run."""

    gpus: tuple[int, ...]
    steps: int = PROFILING_STEPS


class KnownGood(msgspec.Struct, frozen=True):
    """The number of GPUs to which the job is put back, where its script fails in the first steps of the run."""

    gpus: int
    first_steps: int


class LeasedBatch(msgspec.Struct, frozen=True):
    """The batch plan of a run whose tag asks for a batch that adapts; its script must consent, too.

    Attributes:
        plan: number of the plan, of which a trainer takes up each once; 0 where the daemon has none.
        per_gpu: samples that a GPU processes at once; None without a plan.
        accumulation: micro-batches that a GPU processes for one optimizer step; None without a plan.
        theta: the seven parameters of the time of an iteration on the run's GPU type, in the order of
            ``throughput.iteration_time``; None where they are not known: then the trainer keeps to the plan.
    """

    plan: int = 0
    per_gpu: int | None = None
    accumulation: int | None = None
    theta: tuple[float, float, float, float, float, float, float] | None = None


class Lease(msgspec.Struct, frozen=True, kw_only=True, rename={"slurm_job_id": "address"}):
    """The daemon's instructions to one run of a job: the content of ``lease.json``.

    Attributes:
        format: version of the file's format.
        uid: the job.
        slurm_job_id: Slurm's present id of the job.
        run: number of the run that the lease is for.
        round: number of the round that made the lease, or its latest batch plan.
        round_end: of that round, unix seconds; a lease remains valid after it.
        gpus: number of GPUs on all nodes.
        gpu_type: type of the GPUs; None without GPUs.
        nodes: number of GPUs by node name.
        requeue: how the job is requeued after a checkpoint.
        signal: name of the preemption signal.
        stop: the request to checkpoint and end, to be requeued; None while there is none.
        finish: the request to write a final checkpoint and exit with 0; None while there is none.
        trials: the profiling runs before the run; None for none.
        batch: the batch plan; None where the batch size is fixed.
        launch_retries: how many further runs the wrapper may ask for in which srun can start the trainer.
        known_good: the number of GPUs on which the job trained last; None where that is not another number than the
            run's.
    """

    format: Literal[1] = 1
    uid: str
    slurm_job_id: str
    run: int
    round: int
    round_end: float
    gpus: int
    gpu_type: str | None
    nodes: dict[str, int]
    requeue: RequeueMethod = RequeueMethod()
    signal: str = "SIGUSR2"
    stop: RunRequest | None = None
    finish: RunRequest | None = None
    trials: ProfilingRuns | None = None
    batch: LeasedBatch | None = None
    launch_retries: int = 0
    known_good: KnownGood | None = None


_DECODER = msgspec.json.Decoder(Lease)


class Mailbox:
    """The directories ``mailbox``, which the daemon writes, and ``reports``, which users write.

    Every method raises MailboxError when the file system refuses, and BadNameError for a text that
    is no uid or Slurm job id.
    """

    def __init__(self, shared: Path) -> None:
        """Make the directories where they are missing.

        Args:
            shared: [paths] shared; made if missing.

        Raises:
            NotOursError: the daemon's user does not own one of the directories.
            MailboxError: a directory cannot be made.
        """
        self.shared = shared
        self.reports = shared / "reports"
        self._leases = shared / "mailbox"
        self._job_index = self._leases / "address"
        with _naming(shared):
            shared.mkdir(parents=True, exist_ok=True)
        for path, mode in (
            (self._leases, _INDEX_MODE),
            (self._job_index, _INDEX_MODE),
            (self.reports, _REPORTS_MODE),
        ):
            _own_directory(path, mode)

    def index_job(self, slurm_job_id: str, uid: str) -> None:
        """Write the uid of the job that has a Slurm job id now, for ``metasched-run`` to find its lease."""
        _replace(self._index_path(slurm_job_id), _index_content(uid))

    def unindex_job(self, slurm_job_id: str, uid: str) -> None:
        """Remove a job's Slurm job id from the index, unless another job has that id now: Slurm reuses ids."""
        path, content = self._index_path(slurm_job_id), _index_content(uid)
        with _naming(path), suppress(FileNotFoundError):
            if path.read_bytes() == content:
                path.unlink()

    def write_lease(self, lease: Lease) -> None:
        """Replace a job's lease atomically; an equal lease is not written again.

        After a loss of power there is the old lease or the new one, whole; where this call has returned, the new one.
        """
        path = self._lease_path(lease.uid)
        with suppress(BadLeaseError):
            if self.read_lease(lease.uid) == lease:
                return
        _own_directory(path.parent, _DIRECTORY_MODE)
        _replace(path, msgspec.json.format(msgspec.json.encode(lease), indent=1) + b"\n")

    def read_lease(self, uid: str) -> Lease | None:
        """Return a job's lease; None if there is none.

        Raises:
            BadLeaseError: the file does not have the daemon's format.
        """
        path = self._lease_path(uid)
        with _naming(path):
            try:
                data = path.read_bytes()
            except FileNotFoundError:
                return None
        try:
            return _DECODER.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadLeaseError(path, str(error)) from None

    def request_stop(self, uid: str, run: int, requested: float, deadline: float, reason: str) -> None:
        """Add a request to stop to the lease of a run; a second request never changes the first.

        Args:
            uid: the job.
            run: number of its run.
            requested: unix seconds.
            deadline: when the daemon ends the run from outside, unix seconds.
            reason: why, in words.

        Raises:
            NoLeaseError: the job has no lease, or one for another run.
        """
        self._request(uid, "stop", RunRequest(run, requested, deadline, reason))

    def request_finish(self, uid: str, run: int, requested: float, deadline: float, reason: str) -> None:
        """Add a request to finish to the lease of a run; a second request never changes the first.

        Args:
            uid: the job.
            run: number of its run.
            requested: unix seconds.
            deadline: when the daemon cancels the job, unix seconds.
            reason: why, in words.

        Raises:
            NoLeaseError: the job has no lease, or one for another run.
        """
        self._request(uid, "finish", RunRequest(run, requested, deadline, reason))

    def _request(self, uid: str, key: Literal["stop", "finish"], request: RunRequest) -> None:
        lease = self.read_lease(uid)
        if lease is None or lease.run != request.run:
            raise NoLeaseError(self._lease_path(uid), request.run)
        earlier: RunRequest | None = getattr(lease, key)
        if earlier is None or earlier.run != request.run:
            self.write_lease(msgspec.structs.replace(lease, **{key: request}))

    def free_reports(self, uid: str, owner: int) -> int | None:
        """Rename a directory that another user made in the place of a job's reports, so that the owner can make it.

        The parent directory is sticky: apart from the daemon, only that user can rename it.

        Args:
            uid: the job.
            owner: numeric user id of the job's owner.

        Returns:
            The numeric id of the other user; None where there was nothing to rename.
        """
        path = self.reports / _checked(_UID, uid)
        aside = path.with_name(f"{uid}.{secrets.token_hex(8)}")
        with _naming(path), suppress(FileNotFoundError):
            other = path.lstat().st_uid
            if other != owner:
                path.rename(aside)
                if aside.lstat().st_uid != owner:
                    return other
                aside.rename(path)  # the other user removed it, and the owner made it, between lstat and rename
        return None

    def report_uids(self) -> list[str]:
        """Return the uids of all jobs that have a directory of reports."""
        with _naming(self.reports), os.scandir(self.reports) as entries:
            return [entry.name for entry in entries if _UID.fullmatch(entry.name)]

    def remove_reports(self, uid: str, owner: int) -> None:
        """Remove the report files of a job, and its directory of reports if nothing else is in it.

        No link is followed, and only files with the names of reports are removed.

        Args:
            uid: the job.
            owner: numeric user id of the job's owner.

        Raises:
            RefusedFileError: the directory is a link, or another user's.
            OSError: the daemon's user may not remove the files; root may.
        """
        path = self.reports / _checked(_UID, uid)
        with suppress(FileNotFoundError), owned_directory(self.reports, uid, owner) as directory:
            with os.scandir(directory) as entries:
                names = [entry.name for entry in islice(entries, _REMOVED_AT_ONCE)]
            for name in names:
                if _REPORT_FILE.fullmatch(name):
                    os.unlink(name, dir_fd=directory)
            try:
                path.rmdir()
            except OSError as error:
                if error.errno != errno.ENOTEMPTY:
                    raise

    def clear(self, uid: str) -> None:
        """Remove a job's lease; its reports, which its owner has written, remain."""
        path = self._lease_path(uid)
        with _naming(path.parent), suppress(FileNotFoundError):
            for file in path.parent.iterdir():
                file.unlink()
            path.parent.rmdir()

    def _lease_path(self, uid: str) -> Path:
        return self._leases / _checked(_UID, uid) / "lease.json"

    def _index_path(self, slurm_job_id: str) -> Path:
        return self._job_index / _checked(_SLURM_JOB_ID, slurm_job_id)


def _index_content(uid: str) -> bytes:
    return f"{_checked(_UID, uid)}\n".encode()


def _checked(pattern: re.Pattern[str], name: str) -> str:
    if pattern.fullmatch(name) is None:
        raise BadNameError(name)
    return name


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Turn errors of the file system into a MailboxError that names the path and the fix."""
    try:
        yield
    except OSError as error:
        fix = _FIXES.get(error.errno or 0, "check the file system")
        raise MailboxError(f"{path}: {os.strerror(error.errno or 0)}; {fix}") from error


def _own_directory(path: Path, mode: int) -> None:
    """Make a directory, or check that the daemon's user owns the existing one."""
    with _naming(path):
        with suppress(FileExistsError):
            path.mkdir(0o700)  # nobody else has access before the mode is set
        facts = path.lstat()
        if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.geteuid():
            raise NotOursError(path)
        if stat.S_IMODE(facts.st_mode) != mode:
            path.chmod(mode)


def _replace(path: Path, data: bytes) -> None:
    """Replace a file atomically: a reader sees the old content or the new one.

    After a loss of power there is the old content or the new one, whole; where this call has returned, the new one.
    """
    temporary = path.with_name(f".{path.name}.new")
    with _naming(path):
        descriptor = os.open(
            temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, _FILE_MODE
        )
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, _FILE_MODE)  # under any umask
            file.write(data)
            file.flush()
            os.fsync(descriptor)  # otherwise the new name could get an empty file
        temporary.replace(path)
        sync_directory(path.parent)
