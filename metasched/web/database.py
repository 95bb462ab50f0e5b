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


class DatabaseReader:
    """Connections to the database, one for each thread that asks.

    A takeover by another daemon may put another file at the path. Each use looks at the path, and opens the new file.
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
        opened: tuple[tuple[int, int], Store] | None = getattr(self._threads, "opened", None)
        if opened is not None:
            self._threads.opened = None
            opened[1].close()

    def _store(self) -> Store:
        opened: tuple[tuple[int, int], Store] | None = getattr(self._threads, "opened", None)
        present = _identity(self.path)
        if opened is not None and opened[0] == present:
            return opened[1]
        self.close()
        store = Store.open(self.path, read_only=True)
        if present is not None:
            self._threads.opened = (present, store)
        return store


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = os.stat(path)  # noqa: PTH116  one call at every use
    except OSError:
        return None
    return found.st_dev, found.st_ino
