"""Removal of the report directories of jobs that ended long ago."""

from __future__ import annotations

from collections import deque

import structlog

from metasched.intake.report_reading import user_id
from metasched.shared_dir.mailbox import Mailbox, MailboxError
from metasched.shared_dir.owned_files import RefusedFileError
from metasched.store import Store

LIST_SECONDS = 3600.0
"""Time between two lists of the directory of all reports."""
AT_ONCE = 20
"""Most jobs whose directories one poll looks at."""

log = structlog.get_logger()


class ReportRemoval:
    """Removes the report files of ended jobs, a few at each poll.

    A job has ended in the store only when its last reports are read. Directories of jobs that the store does not know
    remain, and so do files that are no reports.
    """

    def __init__(self, store: Store, mailbox: Mailbox) -> None:
        self._store = store
        self._mailbox = mailbox
        self._waiting: deque[str] = deque()
        self._listed: float | None = None  # unix seconds of the last list
        self._failed = False

    def remove_some(self, before: float, now: float) -> None:
        """Remove a few directories of jobs that finished before an instant.

        Args:
            before: unix seconds.
            now: unix seconds.
        """
        try:
            if not self._waiting and (self._listed is None or not 0 <= now - self._listed < LIST_SECONDS):
                self._listed = now
                self._waiting.extend(self._mailbox.report_uids())
            for _ in range(min(AT_ONCE, len(self._waiting))):
                self._remove(self._waiting.popleft(), before)
        except (MailboxError, OSError, RefusedFileError) as error:
            if not self._failed:  # else it is logged already
                log.warning("reports_not_removed", error=str(error))
            self._failed = True

    def _remove(self, uid: str, before: float) -> None:
        """Remove the reports of one job, if it finished before an instant.

        Raises:
            RefusedFileError: the directory is not its owner's.
            OSError: the daemon may not remove the files.
        """
        record = self._store.job(uid)
        if record is None or record.finished is None or record.finished >= before:
            return
        try:
            owner = user_id(record.user)
        except KeyError:
            return  # the user is gone; an administrator decides what becomes of the files
        self._mailbox.remove_reports(uid, owner)
