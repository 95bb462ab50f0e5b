"""Reading of trainers' report files into the store, in budgets, because users can make such files endless."""

from __future__ import annotations

import pwd
from collections.abc import Callable
from functools import cache

from metasched.shared_dir.mailbox import Mailbox, MailboxError
from metasched.shared_dir.reports import ProfilingReport
from metasched.store import IngestResult, JobRecord, Store, ingest

LAST_READS = 128
"""Most budgets that are read of ended jobs: of all of them in one poll, and of each in all polls."""


class ReportReader:
    """Reads new report lines of jobs, at most one budget of each live job in a poll.

    Attributes:
        heartbeat: called before each budget, for the service manager: the reports of many jobs take long.
        reported: uids of jobs with new reports in this poll.
        profiling_reports: reports of profiling runs in this poll, by uid.
    """

    def __init__(self, store: Store, mailbox: Mailbox, heartbeat: Callable[[], None]) -> None:
        self.heartbeat = heartbeat
        self.reported: set[str] = set()
        self.profiling_reports: dict[str, tuple[ProfilingReport, ...]] = {}
        self._store = store
        self._mailbox = mailbox
        self._budgets_left = LAST_READS  # for ended jobs in this poll
        self._budgets_read: dict[str, int] = {}  # of ended jobs that are not read to the end yet, by uid

    def begin_poll(self) -> None:
        """Clear what was reported in the last poll, and renew the budgets."""
        self.reported.clear()
        self.profiling_reports.clear()
        self._budgets_left = LAST_READS

    def read(self, record: JobRecord, now: float) -> JobRecord:
        """Read one budget of a live job's new reports, and return the job's record after that."""
        return self._store.require_job(record.uid) if self._read(record, now).lines else record

    def read_to_end(self, record: JobRecord, now: float) -> bool:
        """Read the last reports of a job that has ended, as far as this poll's budgets go.

        Returns:
            Whether the reports are read to their end; otherwise the next poll has to read on.
        """
        while self._read(record, now).more:
            self._budgets_read[record.uid] = self._budgets_read.get(record.uid, 0) + 1
            if self._budgets_read[record.uid] >= LAST_READS:
                text = "it left more reports than are read of a job that has ended; the rest is not read"
                self._store.event("reports-unread", text, uid=record.uid, at=now)
                break
            if not self._budgets_left:
                return False
            self._budgets_left -= 1
        self._budgets_read.pop(record.uid, None)
        return True

    def _read(self, record: JobRecord, now: float) -> IngestResult:
        self.heartbeat()
        try:
            owner = user_id(record.user)
        except KeyError:
            self._store.event_once("unknown_user", f"no user {record.user} is known here", record.uid, at=now)
            return IngestResult()
        self._free_directory(record, owner, now)
        result = ingest(self._store, self._mailbox.reports, record.uid, owner, now)
        if result.profiling_reports:
            self.profiling_reports[record.uid] = result.profiling_reports
        if result.lines:
            self.reported.add(record.uid)
        return result

    def _free_directory(self, record: JobRecord, owner: int, now: float) -> None:
        """Move the job's report directory aside where another user than its owner has made it."""
        try:
            other = self._mailbox.free_reports(record.uid, owner)
        except MailboxError as error:
            self._store.event_once("reports-not-freed", str(error), record.uid, at=now)
            return
        if other is not None:
            text = f"user {other} had made reports/{record.uid}, which was moved aside"
            self._store.event_once("reports-taken", text, record.uid, at=now)


@cache
def user_id(user: str) -> int:
    """Return the user's numeric id; a KeyError for an unknown user is not cached, because the user may appear later."""
    return pwd.getpwnam(user).pw_uid
