"""The published status, parsed once per publication for all requests."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from metasched.shared_dir import published_status
from metasched.shared_dir.published_status import FILE_NAME, JOBS_FILE_NAME, JobStatus, Status, StatusError

log = structlog.get_logger()

_Key = tuple[tuple[int, int, int] | None, ...]


@dataclass(frozen=True, slots=True)
class Publication:
    """One published status, as read.

    Attributes:
        status: the status; None where none could be read since the page's start.
        problem: why the newest files could not be read, in words; "" for none. ``status`` is then an older one.
        jobs: live and ended jobs of the status by uid.
        uids: uids of those jobs by Slurm job id. A live job goes before an ended one.
        number: another one than that of every earlier publication.
    """

    status: Status | None
    problem: str
    jobs: Mapping[str, JobStatus] = field(default_factory=dict)
    uids: Mapping[str, str] = field(default_factory=dict)
    number: int = 0


class PublishedStatus:
    """Reader of the published status. Safe for threads."""

    def __init__(self, shared: Path) -> None:
        self._shared = shared
        self._lock = threading.Lock()
        self._key: _Key | None = None
        self._publication = Publication(None, "the published status has not been read yet")

    def current(self) -> Publication:
        """The newest publication; where its files cannot be read, the last one that could, with the problem."""
        key = self._present_key()
        with self._lock:
            if key != self._key:
                self._publication = self._read()
                self._key = key
            return self._publication

    def _present_key(self) -> _Key:
        return tuple(_identity(self._shared / name) for name in (FILE_NAME, JOBS_FILE_NAME))

    def _read(self) -> Publication:
        last = self._publication
        try:
            status = published_status.read(self._shared)
        except StatusError as error:
            if str(error) != last.problem:
                log.warning("status_unreadable", error=str(error))
            return Publication(last.status, str(error), last.jobs, last.uids, last.number + 1)
        if last.problem and last.status is not None:
            log.info("status_readable")
        jobs = {job.uid: job for job in (*status.finished, *status.jobs)}
        return Publication(status, "", jobs, {job.slurm_job_id: job.uid for job in jobs.values()}, last.number + 1)


def _identity(path: Path) -> tuple[int, int, int] | None:
    """The file's inode, modification time and size; None where there is no file."""
    try:
        found = os.stat(path)  # noqa: PTH116  one call for both files and at every request
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
