"""What other processes do to the store: locks that keep the daemon from writing, and readers that make its log grow.

A lock ends no daemon: nothing is scheduled until the lock is gone, the log and the published status say why, and jobs
run on.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import structlog

from metasched.daemon.systemd_notify import notify
from metasched.shared_dir.published_status import StatusError, note_store_problem
from metasched.store import BusyStoreError, Store
from metasched.store.connection import FULL_LOG_BYTES, LOG_BYTES
from metasched.store.lock_holders import readers

T = TypeVar("T")

log = structlog.get_logger()


class StoreLockWatch:
    """Tells people that another process keeps the store locked: once in the log, and in the published status.

    Args:
        shared: the shared directory, which has the published status.
    """

    def __init__(self, shared: Path) -> None:
        self._shared = shared
        self._since: float | None = None

    def note_locked(self, error: BusyStoreError) -> None:
        """Note that a write has failed because of a lock."""
        if self._since is None:
            self._since = time.monotonic()
            log.warning("store_locked", error=str(error), effect="nothing is scheduled until it is free; jobs run on")
        with contextlib.suppress(StatusError):  # no daemon has published one yet
            note_store_problem(self._shared, str(error))
        notify("READY=1", "STATUS=waits until another process frees the database")

    def note_free(self) -> None:
        """Note that the store could be written."""
        if self._since is not None:
            log.info("store_is_free", after_seconds=round(time.monotonic() - self._since, 1))
            self._since = None

    def until_free(self, action: Callable[[], T], pause: float) -> T:
        """Return the result of an action, which is repeated every ``pause`` seconds while the store is locked.

        Raises:
            StoreError: any other error of the store.
        """
        while True:
            try:
                result = action()
            except BusyStoreError as error:
                self.note_locked(error)
                time.sleep(pause)
            else:
                self.note_free()
                return result


class StoreLogWatch:
    """Bounds the store's write-ahead log, and tells why it is large.

    Attributes:
        problem: why the log is large, in words; "" where it is not.
        full: whether nothing but what scheduling needs should be written.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.problem = ""
        self.full = False

    def check(self) -> None:
        """Empty the log where it is large and no reader needs it; log a reader that keeps it large once."""
        size = self._store.bound_log()
        before, self.problem, self.full = self.problem, "", size > FULL_LOG_BYTES
        if size > LOG_BYTES:
            who = ", ".join(readers(self._store.path)) or "a process that reads it"
            effect = "; rounds are stored without snapshots" if self.full else ""
            self.problem = f"its log has {size >> 20} MiB, because {who} reads an old state; end that one{effect}"
            if not before:
                log.warning("store_log_grows", why=self.problem)
        elif before:
            log.info("store_log_emptied")
