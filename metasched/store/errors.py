"""What can go wrong with the store; every message names the file and the fix."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from metasched.core.errors import MetaschedError


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


class ReadOnlyStoreError(StoreError):
    """The file or its directory cannot be written."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{path}: cannot be written ({why}); give the daemon's user write access to {path.parent}")


class UnreachableStoreError(StoreError):
    """The file or its directory cannot be opened."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(
            f"{path}: cannot be opened ({why}); check that {path.parent} exists, who may use it, "
            "and that its disk is not full"
        )


class FullStoreError(StoreError):
    """No space is left for the database."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{path}: no space left ({why}); nothing was half written; free space in {path.parent}")


class BusyStoreError(StoreError):
    """Another process kept the database locked for too long."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{path}: {why}; another process is writing to it: only one daemon may")


class UnknownJobError(StoreError):
    """The store has no job of that uid."""

    def __init__(self, path: Path, uid: str) -> None:
        super().__init__(f"{path}: no job has the uid {uid}; it must be taken in first")


class RunOrderError(StoreError):
    """A run is released while an earlier one still goes on, or with a number that was used already."""

    def __init__(self, path: Path, uid: str, run: int, present: int) -> None:
        super().__init__(
            f"{path}: job {uid} cannot begin run {run} now: run {present} is its latest; end that one first"
        )


class RoundOrderError(StoreError):
    """A round is committed that is not newer than the last one."""

    def __init__(self, path: Path, number: int, last: int) -> None:
        super().__init__(f"{path}: round {number} cannot be committed after round {last}; go on from last_round()")


_BY_CODE: dict[int, type[ReadOnlyStoreError | UnreachableStoreError | FullStoreError | BusyStoreError]] = {
    sqlite3.SQLITE_READONLY: ReadOnlyStoreError,
    sqlite3.SQLITE_PERM: ReadOnlyStoreError,
    sqlite3.SQLITE_CANTOPEN: UnreachableStoreError,
    sqlite3.SQLITE_IOERR: UnreachableStoreError,
    sqlite3.SQLITE_FULL: FullStoreError,
    sqlite3.SQLITE_BUSY: BusyStoreError,
    sqlite3.SQLITE_LOCKED: BusyStoreError,
}
_PRIMARY_CODE = 0xFF  # SQLite's extended codes carry the primary one in their lowest byte


def translated(path: Path, error: sqlite3.Error) -> StoreError | None:
    """The typed error for one of SQLite's about the file; None for errors that are bugs of the caller."""
    code = getattr(error, "sqlite_errorcode", 0) & _PRIMARY_CODE
    if code == sqlite3.SQLITE_NOTADB:
        return NotAStoreError(path, str(error))
    if code == sqlite3.SQLITE_CORRUPT:
        return DamagedStoreError(path, str(error))
    kind = _BY_CODE.get(code)
    return None if kind is None else kind(path, str(error))
