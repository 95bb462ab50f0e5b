"""Who may read the store."""

import os
import stat

import pytest

from metasched.store import Store
from metasched.store.permissions import make_private


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(autouse=True)
def usual_umask():
    before = os.umask(0o022)
    yield
    os.umask(before)


def test_a_new_store_is_its_owners(tmp_path):
    database = tmp_path / "state" / "metasched.db"
    with Store.open(database):
        modes = {path.name: mode(path) for path in database.parent.iterdir()}
    assert modes == dict.fromkeys(("metasched.db", "metasched.db-wal", "metasched.db-shm"), 0o600)
    assert mode(database.parent) == 0o700


def test_access_of_others_is_taken_at_the_start(tmp_path):
    database = tmp_path / "state" / "metasched.db"
    database.parent.mkdir()
    database.touch()
    database.parent.chmod(0o777)
    database.chmod(0o666)
    make_private(database.parent, database)
    assert (mode(database.parent), mode(database)) == (0o750, 0o640)


def test_read_access_that_the_group_was_given_remains(tmp_path):
    database = tmp_path / "metasched.db"
    database.touch()
    database.chmod(0o640)
    tmp_path.chmod(0o750)
    make_private(tmp_path, database)
    assert (mode(tmp_path), mode(database)) == (0o750, 0o640)


def test_a_missing_directory_is_made_for_its_owner(tmp_path):
    make_private(tmp_path / "state", tmp_path / "state" / "metasched.db")
    assert mode(tmp_path / "state") == 0o700
    assert list((tmp_path / "state").iterdir()) == []


def test_a_group_that_may_enter_a_marked_directory_reads_the_database(tmp_path):
    """A directory of mode 2750 gives its group read access to a new database, and to an old one at the next start."""
    tmp_path.chmod(0o2750)
    database = tmp_path / "metasched.db"
    with Store.open(database):
        assert {mode(path) for path in tmp_path.iterdir()} == {0o640}
        for path in tmp_path.iterdir():
            path.chmod(0o600)
        make_private(tmp_path, database)
        assert {mode(path) for path in tmp_path.iterdir()} == {0o640}
    assert mode(tmp_path) == 0o2750
