"""Errors of the store; every message names the file and the fix."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from metasched.core.errors import MetaschedError
from metasched.store.lock_holders import writers


class StoreError(MetaschedError):
    """Base of the store's errors."""


class MissingStoreError(StoreError):
    """There is no database to read."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path}: there is no store here; check [paths] state, or start the daemon once to make it")


class NotAStoreError(StoreError):
    """The file is no SQLite database, or not one of ours."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{path}: not a metasched store ({why}); move the file away or name another [paths] state")


class DamagedStoreError(StoreError):
    """SQLite finds the file damaged."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{path}: the store is damaged ({why}); stop the daemon and restore the file from a backup")


class NewerStoreError(StoreError):
    """The database was written by a newer metasched."""

    def __init__(self, path: Path, version: int, ours: int) -> None:
        super().__init__(
            f"{path}: the store has version {version}, this metasched knows up to {ours}; "
            "install the newer metasched again, or restore a backup made before the upgrade"
        )


class OlderStoreError(StoreError):
    """The database needs a migration, and this reader must not write."""

    def __init__(self, path: Path, version: int, ours: int) -> None:
        super().__init__(
            f"{path}: the store has version {version}, this metasched reads {ours}; restart the daemon to migrate it"
        )


class UnusableStoreError(StoreError):
    """The file or its directory cannot be opened, written or locked."""

    def __init__(self, path: Path, problem: str, why: str) -> None:
        """Complete the message.

        Args:
            path: the database's.
            problem: ``READ_ONLY``, ``UNREACHABLE``, ``FULL`` or ``BUSY``.
            why: the error of SQLite or of the file system, in words.
        """
        super().__init__(f"{path}: {problem.format(why=why, directory=path.parent)}")


READ_ONLY = "cannot be written ({why}); give the daemon's user write access to {directory}"
UNREACHABLE = "cannot be opened ({why}); check that {directory} exists, who may use it, and that its disk is not full"
FULL = "no space left ({why}); nothing was half written; free space in {directory}"
BUSY = "{why}; another process writes to it or keeps it locked: end that process, only one daemon may write"


class BusyStoreError(UnusableStoreError):
    """Another process keeps a lock on the database for longer than a writer waits; nothing was written.

    Attributes:
        holders: the processes that have locks, in words; "" where the kernel lists none.
    """

    def __init__(self, path: Path, why: str) -> None:
        self.holders = ", ".join(writers(path))
        super().__init__(path, BUSY, f"{why}, by {self.holders}" if self.holders else why)


class UnknownJobError(StoreError):
    """The store has no job of that uid."""

    def __init__(self, path: Path, uid: str) -> None:
        super().__init__(f"{path}: no job has the uid {uid}; it must be recorded first")


class RunOrderError(StoreError):
    """A run begins while an earlier one has not ended, or with a number that was used already."""

    def __init__(self, path: Path, uid: str, run: int, present: int) -> None:
        super().__init__(
            f"{path}: job {uid} cannot begin run {run} now: run {present} is its latest; end that one first"
        )


class RoundOrderError(StoreError):
    """A round is committed that is not newer than the last one."""

    def __init__(self, path: Path, number: int, last: int) -> None:
        super().__init__(f"{path}: round {number} cannot be committed after round {last}; continue after last_round()")


_PROBLEMS = {
    sqlite3.SQLITE_READONLY: READ_ONLY,
    sqlite3.SQLITE_PERM: READ_ONLY,
    sqlite3.SQLITE_CANTOPEN: UNREACHABLE,
    sqlite3.SQLITE_IOERR: UNREACHABLE,
    sqlite3.SQLITE_FULL: FULL,
}
_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_PRIMARY_CODE = 0xFF  # SQLite's extended codes carry the primary one in their lowest byte


def translated(path: Path, error: sqlite3.Error) -> StoreError | None:
    """The StoreError for an error of SQLite about the file; None for an error that is a bug of the caller."""
    code = getattr(error, "sqlite_errorcode", 0) & _PRIMARY_CODE
    if code == sqlite3.SQLITE_NOTADB:
        return NotAStoreError(path, str(error))
    if code == sqlite3.SQLITE_CORRUPT:
        return DamagedStoreError(path, str(error))
    if code in _BUSY:
        return BusyStoreError(path, str(error))
    problem = _PROBLEMS.get(code)
    return None if problem is None else UnusableStoreError(path, problem, str(error))
