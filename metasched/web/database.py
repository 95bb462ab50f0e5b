"""Read-only access to the daemon's database: one connection for each thread, and short transactions."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import structlog

from metasched.store import Store, StoreError

log = structlog.get_logger()

_Identity = tuple[int, int, int]


class DatabaseReader:
    """Connections to the database, one for each thread that asks.

    A takeover by another daemon may put another file at the path. A database that no daemon has open is read alone;
    once a daemon opens it, new data are in its write-ahead log. Each use looks at both files, and opens the database
    again where one of them is another.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._threads = threading.local()
        self._problem = ""

    @contextmanager
    def reading(self) -> Iterator[Store]:
        """A store for the block, in which one short transaction sees one state of the database.

        Gather what a page needs in the block, and leave it before rendering: an open transaction keeps the daemon from
        emptying its write-ahead log.

        Raises:
            StoreError: the database is missing, damaged, locked, of another version, or cannot be read; the message
                can be shown to an admin. Others are told that the history is not available.
        """
        try:
            store = self._store()
            with store.transaction():
                yield store
        except StoreError as error:
            self.close()
            if str(error) != self._problem:
                self._problem = str(error)
                log.warning("database_unreadable", error=str(error))
            raise
        if self._problem:
            self._problem = ""
            log.info("database_readable")

    def close(self) -> None:
        """Close the present thread's connection."""
        opened: tuple[_Identity, Store] | None = getattr(self._threads, "opened", None)
        if opened is not None:
            self._threads.opened = None
            opened[1].close()

    def _store(self) -> Store:
        opened: tuple[_Identity, Store] | None = getattr(self._threads, "opened", None)
        present = _identity(self.path)
        if opened is not None and opened[0] == present:
            return opened[1]
        self.close()
        store = Store.open(self.path, read_only=True)
        if present is not None:
            self._threads.opened = (present, store)
        return store


def _identity(path: Path) -> _Identity | None:
    """Numbers of the database and of its write-ahead log, 0 for no log; None where there is no database."""
    try:
        found = os.stat(path)  # noqa: PTH116  two calls at every use
    except OSError:
        return None
    try:
        log_number = os.stat(f"{path}-wal").st_ino  # noqa: PTH116
    except OSError:
        log_number = 0
    return found.st_dev, found.st_ino, log_number
