"""One connection to the database: opening, transactions, copies, and SQLite's errors as StoreError."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

from metasched.store import schema_version
from metasched.store.errors import (
    READ_ONLY,
    UNREACHABLE,
    MissingStoreError,
    NotAStoreError,
    UnusableStoreError,
    translated,
)
from metasched.store.permissions import create_private

BUSY_SECONDS = 5.0
"""Time for which a connection waits for another process's lock before the call fails with BusyStoreError."""
LOG_BYTES = 64 * 2**20
"""Size of the write-ahead log beyond which it is emptied as soon as no reader needs it."""
FULL_LOG_BYTES = 4 * LOG_BYTES
"""Size of the write-ahead log beyond which only what scheduling needs is written."""
_LOG_STEP_BYTES = LOG_BYTES // 4  # growth of the log after which emptying it is tried again
_CHECKPOINT_SECONDS = 0.5  # time that emptying the log waits for readers
_NEWEST = {
    "policy_state": "WHERE (policy, round) IN (SELECT policy, max(round) FROM other.policy_state GROUP BY policy)",
    "apps": "WHERE round = (SELECT max(round) FROM other.apps)",
}
Parameters = Sequence[Any] | Mapping[str, Any]


def exists(path: Path) -> bool:
    """Whether something is at a path.

    Raises:
        UnusableStoreError: this user has no access to the directory.
    """
    try:
        return path.exists()
    except OSError as error:
        raise UnusableStoreError(path, UNREACHABLE, error.strerror or str(error)) from error


def read_term(path: Path) -> int:
    """The term of a closed store, read from the header of SQLite's file format without opening the database.

    Raises:
        NotAStoreError: the file is not a store of metasched.
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        header = file.read(72)
    if not header.startswith(b"SQLite format 3\0") or int.from_bytes(header[68:]) != schema_version.APPLICATION_ID:
        raise NotAStoreError(path, "by its first bytes")
    return int.from_bytes(header[60:64])


@contextmanager
def _translating(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        ours = translated(path, error)
        if ours is None:
            raise
        raise ours from error


class Connection:
    """An open database.

    SQLite's connection belongs to the thread that opened it; every call from another thread raises
    ``sqlite3.ProgrammingError``. The file must be on a local disk: WAL does not work on network file systems.
    """

    def __init__(self, path: Path, db: sqlite3.Connection, *, read_only: bool = False) -> None:
        self.path = path
        self._db = db
        self._read_only = read_only
        self._log_tried_bytes = 0  # size of the log at the latest attempt to empty it

    @classmethod
    def open(cls, path: Path, *, read_only: bool = False) -> Self:
        """Open the database; unless ``read_only``, make it and its directory if missing, and migrate it.

        Raises:
            MissingStoreError: read-only, and there is no database.
            NotAStoreError, NewerStoreError, OlderStoreError: another application's database, or another version's.
            BusyStoreError: another process keeps the file locked.
            UnusableStoreError, DamagedStoreError: the file cannot be opened or written, or is damaged.
        """
        if read_only and not exists(path):
            raise MissingStoreError(path)
        if not read_only:
            try:
                path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                create_private(path)
            except OSError as error:
                raise UnusableStoreError(path, READ_ONLY, str(error)) from error
        with _translating(path):
            db = _connect_to_read(path) if read_only else _connect_to_write(path)
            try:
                db.execute("PRAGMA foreign_keys = ON")
                # before the first write: another application's file is left unchanged
                pending = not schema_version.is_current(db) and _needs_migration(db, path, read_only=read_only)
                if not read_only:
                    # NORMAL survives kill -9 whole; a power failure may lose the last transactions, never tear one.
                    # Transactions that others see the effects of are durable.
                    db.execute("PRAGMA synchronous = NORMAL")
                    db.execute("PRAGMA journal_mode = WAL")
                    db.execute(f"PRAGMA journal_size_limit = {LOG_BYTES}")
                if pending:
                    _migrate(db)
            except BaseException:
                db.close()
                raise
        return cls(path, db, read_only=read_only)

    def close(self) -> None:
        """Close the database; a second call does nothing."""
        self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def copy_to(self, path: Path) -> None:
        """Make a consistent copy at a new path, also while the daemon writes."""
        with _translating(path), closing(sqlite3.connect(path)) as copy:
            self._db.backup(copy)

    def fill_from(self, path: Path) -> None:
        """Copy the rows of another store, as of one instant, into this one, which must be empty.

        Rows that only replays need are left out: snapshots, and states of policies and apps before the newest. The
        daemon of the other store may write meanwhile and does not wait. Afterwards this store is a single file, which
        can be read on any file system.

        Raises:
            StoreError: SQLite cannot read the other file, or not write this one.
        """
        with _translating(path):
            self._db.execute("ATTACH ? AS other", (str(path),))
            try:
                with self._db:  # commits, or rolls back
                    self._db.execute("BEGIN")  # not IMMEDIATE, which would lock the other store, too
                    for table in (name for name in schema_version.TABLES if name != "snapshots"):
                        only = _NEWEST.get(table, "")
                        self._db.execute(f"INSERT INTO main.{table} SELECT * FROM other.{table} {only}")  # noqa: S608  our own names
                    term = self._db.execute("PRAGMA other.user_version").fetchone()[0]
                    self._db.execute(f"PRAGMA main.user_version = {term}")
            finally:
                self._db.execute("DETACH other")
            self._db.execute("PRAGMA journal_mode = DELETE")

    @property
    def term(self) -> int:
        """The number of daemon starts on this store and on those that it was copied from; 0 for a new store."""
        return int(self._rows("PRAGMA user_version")[0][0])

    def begin_term(self, term: int) -> None:
        """Store the number of a daemon's start on the disk, before its first write."""
        with self.transaction(durable=True):
            self._db.execute(f"PRAGMA user_version = {int(term)}")

    @contextmanager
    def transaction(self, *, durable: bool = False) -> Iterator[None]:
        """Commit all writes of the block together, or none; a nested transaction that fails is undone alone.

        A writer locks the database at the beginning. So a block that has begun never fails by another process's lock.

        Args:
            durable: whether this and all earlier transactions are on the disk at the end of the block. Otherwise a loss
                of power may undo the last transactions. A nested transaction is as durable as the outer one.

        Raises:
            BusyStoreError: another process keeps the file locked; the block was not entered.
            StoreError: SQLite cannot read or write the file.
        """
        connection = self._db
        with _translating(self.path):
            if connection.in_transaction:
                with _savepoint(connection):
                    yield
                return
            if durable:
                connection.execute("PRAGMA synchronous = FULL")
            try:
                connection.execute("BEGIN" if self._read_only else "BEGIN IMMEDIATE")
                yield
                connection.execute("COMMIT")
            except BaseException:
                connection.rollback()  # does nothing where the error has ended the transaction
                raise
            finally:
                if durable:
                    connection.execute("PRAGMA synchronous = NORMAL")

    def require_writable(self) -> None:
        """Check that no other process keeps the database locked; writes nothing.

        Raises:
            BusyStoreError: another process keeps the file locked.
            StoreError: the file cannot be written.
        """
        with self.transaction():
            pass

    def bound_log(self) -> int:
        """Empty the write-ahead log if it is large and no reader needs it; returns its bytes afterwards.

        A reader of an old state keeps the log from being emptied, so that it grows with every write.
        """
        log = self.path.with_name(f"{self.path.name}-wal")
        size = log.stat().st_size if log.exists() else 0
        if size <= LOG_BYTES:
            self._log_tried_bytes = 0
        elif size >= self._log_tried_bytes + _LOG_STEP_BYTES:
            self._log_tried_bytes = size
            self._rows(f"PRAGMA busy_timeout = {int(_CHECKPOINT_SECONDS * 1000)}")
            try:
                self._rows("PRAGMA wal_checkpoint(TRUNCATE)")
            finally:
                self._rows(f"PRAGMA busy_timeout = {int(BUSY_SECONDS * 1000)}")
            size = log.stat().st_size
        return size

    def _rows(self, sql: str, parameters: Parameters = ()) -> list[tuple[Any, ...]]:
        with _translating(self.path):
            return self._db.execute(sql, parameters).fetchall()

    def _row(self, sql: str, parameters: Parameters = ()) -> tuple[Any, ...] | None:
        rows = self._rows(sql, parameters)
        return rows[0] if rows else None

    def _write(self, sql: str, parameters: Parameters = ()) -> sqlite3.Cursor:
        """Run one statement inside the present transaction."""
        return self._db.execute(sql, parameters)

    def _write_many(self, sql: str, rows: Iterable[Parameters]) -> None:
        self._db.executemany(sql, rows)


def _needs_migration(db: sqlite3.Connection, path: Path, *, read_only: bool) -> bool:
    from metasched.store.schema import needs_migration  # noqa: PLC0415  sqlite-utils takes 0.1 s

    return needs_migration(db, path, read_only=read_only)


def _migrate(db: sqlite3.Connection) -> None:
    from metasched.store.schema import migrate  # noqa: PLC0415  as above

    migrate(db)


@contextmanager
def _savepoint(connection: sqlite3.Connection) -> Iterator[None]:
    """Undo the block's writes, and no others of the open transaction, where the block fails."""
    connection.execute("SAVEPOINT nested")
    try:
        yield
    except BaseException:
        if connection.in_transaction:  # some errors have ended it
            connection.execute("ROLLBACK TO nested")
            connection.execute("RELEASE nested")
        raise
    connection.execute("RELEASE nested")


def _connect_to_write(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=BUSY_SECONDS)


def _connect_to_read(path: Path) -> sqlite3.Connection:
    """Open without writing.

    A database in WAL mode has two more files while a process has it open. Otherwise a reader must make them. A reader
    that cannot (no write access, disk full) opens the database file alone, which then holds all data.
    """
    uri = f"file:{quote(str(path.resolve()))}"
    connection = sqlite3.connect(f"{uri}?mode=ro", uri=True, timeout=BUSY_SECONDS)
    try:
        with closing(connection.execute("SELECT 1 FROM sqlite_master")) as rows:
            rows.fetchone()
    except sqlite3.OperationalError as error:
        connection.close()
        if error.sqlite_errorcode == sqlite3.SQLITE_BUSY:  # a process that may be writing
            raise
        wal = path.with_name(f"{path.name}-wal")
        if wal.exists() and wal.stat().st_size:  # an empty one holds no data
            raise
        return sqlite3.connect(f"{uri}?mode=ro&immutable=1", uri=True, timeout=BUSY_SECONDS)
    except sqlite3.DatabaseError:
        connection.close()
        raise
    return connection
