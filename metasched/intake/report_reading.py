"""Reading of trainers' report files into the store, in budgets, because users can make such files endless.

A budget of bytes and lines limits each read, and budgets of time limit all reads of a poll: for each user, and for all.
Jobs that were read longest ago are first, those with more to read than a read takes are last.
"""

from __future__ import annotations

import pwd
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import cache
from itertools import count

from metasched.shared_dir.mailbox import Mailbox, MailboxError
from metasched.shared_dir.reports import ProfilingReport
from metasched.store import IngestResult, JobRecord, Store, ingest

LAST_READS = 128
"""Most budgets that are read of ended jobs: of all of them in one poll, and of each in all polls."""


POLL_SECONDS = 2.0
"""Time that all reads of one poll may take; the read during which it ends is finished."""
USER_SECONDS = 0.5
"""Time that the reads of one user's jobs may take in one poll."""


class ReportReader:
    """Reads new report lines of jobs, at most one budget of each live job in a poll.

    Args:
        store: of the daemon.
        mailbox: of the shared directory.
        heartbeat: as the attribute.
        timer: returns seconds of a clock that is never set back.

    Attributes:
        heartbeat: called before each budget, for the service manager: the reports of many jobs take long.
        reported: uids of jobs with new reports in this poll.
        profiling_reports: reports of profiling runs in this poll, by uid.
    """

    def __init__(
        self,
        store: Store,
        mailbox: Mailbox,
        heartbeat: Callable[[], None],
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        self.heartbeat = heartbeat
        self.reported: set[str] = set()
        self.profiling_reports: dict[str, tuple[ProfilingReport, ...]] = {}
        self._store = store
        self._mailbox = mailbox
        self._timer = timer
        self._seconds: defaultdict[str, float] = defaultdict(float)  # that this poll's reads have taken, by user
        self._reads = count(1)
        self._turns: dict[str, tuple[bool, int]] = {}  # by uid: whether there is more to read, number of the last read
        self._budgets_left = LAST_READS  # for ended jobs in this poll
        self._budgets_read: dict[str, int] = {}  # of ended jobs that are not read to the end yet, by uid

    def begin_poll(self) -> None:
        """Clear what was reported in the last poll, and renew the budgets."""
        self.reported.clear()
        self.profiling_reports.clear()
        self._seconds.clear()
        self._budgets_left = LAST_READS

    def in_turn(self, records: Iterable[JobRecord]) -> list[JobRecord]:
        """Return the jobs in the order in which to read their reports, and forget the turns of all others."""
        found = list(records)
        self._turns = {record.uid: self._turns[record.uid] for record in found if record.uid in self._turns}
        return sorted(found, key=lambda record: self._turns.get(record.uid, (False, 0)))

    def read(self, record: JobRecord, now: float) -> JobRecord:
        """Read one budget of a live job's new reports, if time is left, and return the job's record after that."""
        if not self._has_time(record.user):
            return record
        return self._store.require_job(record.uid) if self._read(record, now).lines else record

    def read_to_end(self, record: JobRecord, now: float) -> bool:
        """Read the last reports of a job that has ended, as far as this poll's budgets go.

        Returns:
            Whether the reports are read to their end; otherwise the next poll has to read on.
        """
        while self._has_time(record.user):
            if not self._read(record, now).more:
                break
            self._budgets_read[record.uid] = self._budgets_read.get(record.uid, 0) + 1
            if self._budgets_read[record.uid] >= LAST_READS:
                text = "it left more reports than are read of a job that has ended; the rest is not read"
                self._store.event("reports-unread", text, uid=record.uid, at=now)
                break
            if not self._budgets_left:
                return False
            self._budgets_left -= 1
        else:
            return False
        self._budgets_read.pop(record.uid, None)
        return True

    def _has_time(self, user: str) -> bool:
        return self._seconds[user] < USER_SECONDS and sum(self._seconds.values()) < POLL_SECONDS

    def _read(self, record: JobRecord, now: float) -> IngestResult:
        begun = self._timer()
        result = self._ingest(record, now)
        self._seconds[record.user] += self._timer() - begun
        self._turns[record.uid] = result.more, next(self._reads)
        return result

    def _ingest(self, record: JobRecord, now: float) -> IngestResult:
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
