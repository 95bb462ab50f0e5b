"""The daemon's side of the shared tree: addresses, leases and stop requests (``docs/PROTOCOL.md``).

The mailbox is written by the daemon alone; a directory or a link that somebody else planted in its place is refused.
"""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from metasched.core.errors import MetaschedError

FORMAT = 1
TRIAL_STEPS = 10
"""Timed in each trial (Liu et al., "Ares", 2025, section 4)."""
_FILE_MODE = 0o644
_DIRECTORY_MODE = 0o755
_REPORTS_MODE = 0o3777  # everybody may make a directory there, nobody may rename or remove another's
_UID = re.compile(r"[0-9a-f]{16}(_[0-9]+)?")
_ADDRESS = re.compile(r"[0-9]+(_[0-9]+)?")
_FIXES = {
    errno.ENOSPC: "free some space there",
    errno.EDQUOT: "raise the quota of the daemon's user there",
    errno.EROFS: "mount it writable",
    errno.EACCES: "give the daemon's user write access there",
    errno.EPERM: "give the daemon's user write access there",
}


class MailboxError(MetaschedError):
    """The shared tree cannot be used; the message names the path and the fix."""


class NotOursError(MailboxError):
    """Something in the mailbox's place is not the daemon's own directory."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"{path}: must be a directory of the daemon's user (no link) that only it may write to; "
            "move away what is there, or correct its owner and mode"
        )


class BadLeaseError(MailboxError):
    """A lease file is not what the daemon writes."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{path}: not a lease ({why}); remove the file, the daemon writes it again")


class NoLeaseError(MailboxError):
    """There is no lease for the run that is to be stopped."""

    def __init__(self, path: Path, run: int) -> None:
        super().__init__(
            f"{path}: holds no lease for run {run}, so its stop cannot be written there; write the lease first"
        )


class BadNameError(MailboxError):
    """A uid or an slurm_job_id that cannot be one, and must not become a path."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name!r} is neither a uid nor an slurm_job_id of a job")


@dataclass(frozen=True, slots=True)
class StopRequest:
    """A request to checkpoint and end, for one run only; instants in unix seconds."""

    run: int
    requested: float
    deadline: float
    reason: str


@dataclass(frozen=True, slots=True)
class Lease:
    """What a job is told.

    Attributes:
        uid: the job.
        slurm_job_id: its slurm_job_id now.
        run: the run that this is meant for.
        round: the round that renewed it.
        round_end: unix seconds; passing it means nothing.
        gpus: GPUs in all.
        gpu_type: their type; None without GPUs.
        nodes: GPUs on each node.
        requeue_by: who requeues the job after a checkpoint.
        exit_code: the exit code that says "checkpointed, run me again".
        signal: name of the preemption signal.
        stop: the request to stop, if there is one.
        trials: the numbers of GPUs on which the command is to be tried before the run.
    """

    uid: str
    slurm_job_id: str
    run: int
    round: int
    round_end: float
    gpus: int
    gpu_type: str | None
    nodes: Mapping[str, int]
    requeue_by: Literal["slurm", "wrapper"] = "slurm"
    exit_code: int = 85
    signal: str = "SIGUSR2"
    stop: StopRequest | None = None
    trials: tuple[int, ...] = ()


class Mailbox:
    """Two trees under ``shared``: ``mailbox``, which the daemon writes, and ``reports``, which users write.

    Every method raises MailboxError when the file system refuses, and BadNameError for what is no uid or slurm_job_id.
    """

    def __init__(self, shared: Path) -> None:
        """Make the trees where they are missing.

        Args:
            shared: the shared root; made if missing.

        Raises:
            NotOursError: the mailbox, or the reports directory, is not the daemon's own.
            MailboxError: a directory cannot be made.
        """
        self.shared = shared
        self.reports = shared / "reports"
        self._leases = shared / "mailbox"
        self._addresses = self._leases / "address"
        with _naming(shared):
            shared.mkdir(parents=True, exist_ok=True)
        for path, mode in (
            (self._leases, _DIRECTORY_MODE),
            (self._addresses, _DIRECTORY_MODE),
            (self.reports, _REPORTS_MODE),
        ):
            _own_directory(path, mode)

    def index_job(self, slurm_job_id: str, uid: str) -> None:
        """Say which job has an slurm_job_id now."""
        _replace(self._address_path(slurm_job_id), _address_content(uid))

    def unindex_job(self, slurm_job_id: str, uid: str) -> None:
        """Forget that a job has an slurm_job_id, unless another job has it by now: Slurm reuses ids."""
        path, content = self._address_path(slurm_job_id), _address_content(uid)
        with _naming(path), suppress(FileNotFoundError):
            if path.read_bytes() == content:
                path.unlink()

    def write_lease(self, lease: Lease) -> bool:
        """Replace a job's lease atomically; whether it differed from what was there."""
        path = self._lease_path(lease.uid)
        with suppress(BadLeaseError):
            if self.read_lease(lease.uid) == lease:
                return False
        _own_directory(path.parent, _DIRECTORY_MODE)
        _replace(path, _encode(lease))
        return True

    def read_lease(self, uid: str) -> Lease | None:
        """The lease that a job has now.

        Raises:
            BadLeaseError: the file is not what the daemon writes.
        """
        path = self._lease_path(uid)
        with _naming(path):
            try:
                data = path.read_bytes()
            except FileNotFoundError:
                return None
        try:
            return _decode(json.loads(data))
        except (ValueError, KeyError, TypeError) as error:
            raise BadLeaseError(path, f"{type(error).__name__}: {error}") from None

    def request_stop(self, uid: str, run: int, requested: float, deadline: float, reason: str) -> bool:
        """Ask a run to stop; whether it was not asked before. A first request is never changed by a second.

        Raises:
            NoLeaseError: the job's lease is missing, or meant for another run.
        """
        lease = self.read_lease(uid)
        if lease is None or lease.run != run:
            raise NoLeaseError(self._lease_path(uid), run)
        if lease.stop is not None and lease.stop.run == run:
            return False
        return self.write_lease(replace(lease, stop=StopRequest(run, requested, deadline, reason)))

    def free_reports(self, uid: str, owner: int) -> int | None:
        """Move aside what another user has put in the place of a job's reports; which user, None if there is none.

        The directory above is sticky and ours, so that nobody else could do it but who has put it there.

        Args:
            uid: the job.
            owner: numeric user id of the job's owner.
        """
        path = self.reports / _checked(_UID, uid)
        aside = path.with_name(f"{uid}.{secrets.token_hex(8)}")
        with _naming(path), suppress(FileNotFoundError):
            other = path.lstat().st_uid
            if other != owner:
                path.rename(aside)
                if aside.lstat().st_uid != owner:
                    return other
                aside.rename(path)  # that other had taken it away again, and the owner was quicker than we
        return None

    def clear(self, uid: str) -> None:
        """Remove what the mailbox holds for a job; its reports are its owner's and stay."""
        path = self._lease_path(uid)
        with _naming(path.parent), suppress(FileNotFoundError):
            for file in path.parent.iterdir():
                file.unlink()
            path.parent.rmdir()

    def _lease_path(self, uid: str) -> Path:
        return self._leases / _checked(_UID, uid) / "lease.json"

    def _address_path(self, slurm_job_id: str) -> Path:
        return self._addresses / _checked(_ADDRESS, slurm_job_id)


def _address_content(uid: str) -> bytes:
    return f"{_checked(_UID, uid)}\n".encode()


def _checked(pattern: re.Pattern[str], name: str) -> str:
    if pattern.fullmatch(name) is None:
        raise BadNameError(name)
    return name


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Make the file system's refusals ours."""
    try:
        yield
    except OSError as error:
        fix = _FIXES.get(error.errno or 0, "check the file system")
        raise MailboxError(f"{path}: {os.strerror(error.errno or 0)}; {fix}") from error


def _own_directory(path: Path, mode: int) -> None:
    """Make a directory of ours, or check that what is there is one."""
    with _naming(path):
        with suppress(FileExistsError):
            path.mkdir(0o700)  # nobody may come in before its mode is right
        facts = path.lstat()
        if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.geteuid():
            raise NotOursError(path)
        if stat.S_IMODE(facts.st_mode) != mode:
            path.chmod(mode)


def _replace(path: Path, data: bytes) -> None:
    """Put a whole file in place of another; a reader sees the old one or the new one."""
    temporary = path.with_name(f".{path.name}.new")
    with _naming(path):
        descriptor = os.open(
            temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, _FILE_MODE
        )
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, _FILE_MODE)  # whatever the umask
            file.write(data)
        temporary.replace(path)


def _encode(lease: Lease) -> bytes:
    stop = lease.stop
    values: dict[str, Any] = {
        "format": FORMAT,
        "uid": lease.uid,
        "address": lease.slurm_job_id,
        "run": lease.run,
        "round": lease.round,
        "round_end": lease.round_end,
        "gpus": lease.gpus,
        "gpu_type": lease.gpu_type,
        "nodes": dict(lease.nodes),
        "requeue": {"by": lease.requeue_by, "exit_code": lease.exit_code},
        "signal": lease.signal,
        "trials": {"gpus": list(lease.trials), "steps": TRIAL_STEPS} if lease.trials else None,
        "stop": None
        if stop is None
        else {"run": stop.run, "requested": stop.requested, "deadline": stop.deadline, "reason": stop.reason},
    }
    return (json.dumps(values, indent=1) + "\n").encode()


def _decode(values: Any) -> Lease:
    if values["format"] != FORMAT:
        raise ValueError(f"format {values['format']!r} instead of {FORMAT}")
    stop, trials = values["stop"], values.get("trials")
    return Lease(
        uid=values["uid"],
        slurm_job_id=values["address"],
        run=values["run"],
        round=values["round"],
        round_end=values["round_end"],
        gpus=values["gpus"],
        gpu_type=values["gpu_type"],
        nodes=values["nodes"],
        requeue_by=values["requeue"]["by"],
        exit_code=values["requeue"]["exit_code"],
        signal=values["signal"],
        stop=None if stop is None else StopRequest(stop["run"], stop["requested"], stop["deadline"], stop["reason"]),
        trials=tuple(trials["gpus"]) if trials else (),
    )
