import sqlite3
import threading

import pytest

from metasched.store import Store, StoreError
from metasched.web.database import DatabaseReader


@pytest.fixture
def path(tmp_path):
    return tmp_path / "metasched.db"


def events(reader):
    with reader.reading() as store:
        return [event.text for event in store.recent_events()]


def write(path, text):
    with Store.open(path) as store:
        store.event("note", text, at=1.0)


def test_a_missing_database_is_read_as_soon_as_it_is_there(path):
    """Without a database each use raises a typed error; the page needs no restart when the daemon makes it."""
    reader = DatabaseReader(path)
    with pytest.raises(StoreError, match="no store"):
        events(reader)
    write(path, "first")
    assert events(reader) == ["first"]
    reader.close()


def test_another_database_at_the_path_is_opened(path, tmp_path):
    """After a takeover has put another file at the path, the next use reads that file."""
    write(path, "old")
    reader = DatabaseReader(path)
    assert events(reader) == ["old"]
    write(tmp_path / "new.db", "new")
    (tmp_path / "new.db").replace(path)
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    assert events(reader) == ["new"]
    reader.close()


@pytest.mark.parametrize("content", [b"no database at all" * 100, b"SQLite format 3\0" + b"\xff" * 4096])
def test_a_damaged_database_is_a_typed_error(path, content):
    """A file that is no database, or a damaged one, raises an error that names the file."""
    path.write_bytes(content)
    with pytest.raises(StoreError, match=str(path)):
        events(DatabaseReader(path))


@pytest.mark.parametrize("version", ["newer", "older"])
def test_another_versions_database_is_a_typed_error(path, version):
    """A database of a newer or older metasched raises an error that says so."""
    write(path, "x")
    with sqlite3.connect(path) as connection:
        if version == "newer":
            (name,) = connection.execute("SELECT migration_set FROM _sqlite_migrations").fetchone()
            connection.execute("INSERT INTO _sqlite_migrations VALUES (9999, ?, '9999_future', '')", [name])
        else:
            connection.execute(
                "DELETE FROM _sqlite_migrations WHERE rowid = (SELECT max(rowid) FROM _sqlite_migrations)"
            )
    connection.close()
    with pytest.raises(StoreError, match="version"):
        events(DatabaseReader(path))


def test_threads_have_connections_of_their_own(path):
    """Two threads read at once, each through a connection that belongs to it."""
    write(path, "x")
    reader, found = DatabaseReader(path), []
    threads = [threading.Thread(target=lambda: found.append(events(reader))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert found == [["x"], ["x"]]


def test_no_transaction_stays_open(path):
    """After each use the daemon can empty its write-ahead log: no reader holds an old state."""
    with Store.open(path) as store:
        store.event("note", "x", at=1.0)
        reader = DatabaseReader(path)
        assert events(reader) == ["x"]
        store.event("note", "y", at=2.0)
        busy, *_ = store._rows("PRAGMA wal_checkpoint(TRUNCATE)")[0]
        assert busy == 0
        with reader.reading() as other:
            other.recent_events()
            store.event("note", "z", at=3.0)
            busy, *_ = store._rows("PRAGMA busy_timeout = 1") and store._rows("PRAGMA wal_checkpoint(TRUNCATE)")[0]
            assert busy == 1
        reader.close()
