import re
import shutil
import socket
import stat
import threading
import time
from types import SimpleNamespace

import pytest

from metasched.configuration.file_names import DATABASE
from metasched.daemon.failover import SPARE_BYTES, CopyError, StoreCopier, UnusableCopyError, take_over, write_copy
from metasched.shared_dir.lock import LockLostError
from metasched.store import NotAStoreError, Store


@pytest.fixture
def local(tmp_path):
    (tmp_path / "state").mkdir()
    return tmp_path / "state" / "metasched.db"


@pytest.fixture
def shared(tmp_path):
    return tmp_path / "standby"


def note(path, text):
    with Store.open(path) as store:
        store.event("noted", text, at=1.0)


def notes(path):
    with Store.open(path) as store:
        return [event.text for event in store.recent_events(10)]


def term(path):
    with Store.open(path) as store:
        return store.term


def test_the_first_daemon_of_a_cluster_begins_the_first_term(local, shared):
    """There is neither a store nor a copy."""
    take_over(local, shared)
    assert term(local) == 1


def test_a_restarted_daemon_uses_its_local_store(local, shared):
    """The local store is newer than its copy."""
    take_over(local, shared)
    write_copy(local, shared)
    note(local, "after the copy")
    take_over(local, shared)
    assert notes(local) == ["after the copy"]
    assert term(local) == 2


def test_a_daemon_on_another_host_starts_from_the_copy(local, shared, tmp_path):
    """The copy's history is there, and the term is the next one."""
    take_over(local, shared)
    note(local, "before the copy")
    write_copy(local, shared)
    other = tmp_path / "other" / "metasched.db"
    take_over(other, shared)
    assert notes(other) == ["before the copy"]
    assert term(other) == 2


def test_a_copy_that_is_not_a_store_stops_only_a_daemon_without_a_store(local, shared, tmp_path):
    """A daemon with a local store starts; another one names the copy in its error."""
    take_over(local, shared)
    write_copy(local, shared)
    (shared / DATABASE).write_text("garbage")
    take_over(local, shared)
    assert term(local) == 2
    with pytest.raises(NotAStoreError, match=re.escape(f"{shared / DATABASE}: ")):
        take_over(tmp_path / "other" / "metasched.db", shared)


def test_a_later_copy_that_cannot_be_opened_is_an_error(local, shared, tmp_path):
    """The local store that it would replace remains."""
    take_over(local, shared)
    other = tmp_path / "other" / "metasched.db"
    write_copy(local, shared)
    take_over(other, shared)
    with Store.open(other) as store, store.transaction():
        sql = "INSERT INTO _sqlite_migrations (migration_set, name, applied_at) VALUES ('metasched', '9999_future', '')"
        store._write(sql)
    shutil.copyfile(other, shared / DATABASE)
    with pytest.raises(UnusableCopyError, match=re.escape(f"the store's copy {shared / DATABASE} ")):
        take_over(local, shared)
    assert term(local) == 1


def test_no_copy_is_made_where_the_disk_has_too_little_space(local, shared, monkeypatch):
    """The error says how much space is missing."""
    take_over(local, shared)
    monkeypatch.setattr("metasched.daemon.failover.SPARE_BYTES", 2**62)
    with Store.open(local), pytest.raises(CopyError, match="MiB are free in"):
        write_copy(local, shared)
    assert list(local.parent.iterdir()) == [local]


def test_snapshots_and_free_pages_do_not_count_as_space_of_a_copy(local, shared, monkeypatch):
    """A copy leaves both out."""
    take_over(local, shared)
    with Store.open(local) as store, store.transaction():
        store._write("INSERT INTO snapshots (round, data) VALUES (1, zeroblob(1000000)), (2, zeroblob(1000000))")
    with Store.open(local) as store, store.transaction():
        store._write("DELETE FROM snapshots WHERE round = 1")
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=SPARE_BYTES + 500_000))
    write_copy(local, shared)
    assert (shared / DATABASE).stat().st_size < 500_000 < local.stat().st_size - 1_000_000


def test_the_first_host_takes_over_again_from_the_second(local, shared, tmp_path):
    """The second host's history replaces the first one's, which is kept as ``.superseded``."""
    take_over(local, shared)
    write_copy(local, shared)
    note(local, "never copied")
    other = tmp_path / "other" / "metasched.db"
    take_over(other, shared)
    note(other, "of the second")
    write_copy(other, shared)
    take_over(local, shared)
    assert notes(local) == ["of the second"]
    assert notes(local.with_name("metasched.db.superseded")) == ["never copied"]
    assert term(local) == 3


def test_only_the_daemons_user_can_read_copies(local, shared):
    """Copies hold the jobs of all users."""
    take_over(local, shared)
    write_copy(local, shared)
    assert stat.S_IMODE(shared.stat().st_mode) == 0o700
    assert stat.S_IMODE((shared / DATABASE).stat().st_mode) == 0o600


def test_a_copy_is_made_while_the_daemon_writes(local, shared):
    """The copy has the committed rows and no others, and neither side waits."""
    take_over(local, shared)
    with Store.open(local) as store:
        store.event("noted", "committed", at=1.0)
        with store.transaction():
            store.event("noted", "open", at=2.0)
            done = threading.Thread(target=write_copy, args=(local, shared))
            done.start()
            done.join(30)
            assert not done.is_alive()
    assert notes(shared / DATABASE) == ["committed"]


def test_a_copy_is_one_file(local, shared):
    """A separate journal would be lost or useless on a network file system."""
    take_over(local, shared)
    write_copy(local, shared)
    assert [path.name for path in shared.iterdir()] == [DATABASE]
    assert {path.name for path in local.parent.iterdir()} == {"metasched.db"}


def test_a_directory_that_cannot_be_written_leaves_the_last_copy(local, shared):
    """The error names the copy and the fix."""
    take_over(local, shared)
    write_copy(local, shared)
    before = (shared / DATABASE).read_bytes()
    (shared / f"{DATABASE}.{socket.gethostname()}.part").mkdir()
    with pytest.raises(CopyError, match=r"metasched\.db.*check that \[paths\]"):
        write_copy(local, shared)
    assert (shared / DATABASE).read_bytes() == before


def test_a_copy_is_made_when_the_daemon_stops(local, shared):
    """The copy of a daemon that stops in order has all its rows."""
    take_over(local, shared)
    with StoreCopier(local, shared, every=3600.0):
        note(local, "late")
    assert notes(shared / DATABASE) == ["late"]


def test_a_copy_is_made_when_the_daemon_starts(local, shared, tmp_path):
    """Even a daemon that dies soon publishes its term, so that its successor begins a later one."""
    take_over(local, shared)
    write_copy(local, shared)
    other = tmp_path / "other" / "metasched.db"
    take_over(other, shared)
    with StoreCopier(other, shared, every=3600.0):
        deadline = time.monotonic() + 30
        while term(shared / DATABASE) < 2:
            assert time.monotonic() < deadline
    take_over(local, shared)
    write_copy(local, shared)
    note(other, "of the one that died")
    take_over(other, shared)
    assert notes(other) == []


def test_a_daemon_that_lost_the_lock_does_not_replace_the_copy(local, shared):
    """A frozen daemon may wake up in the middle of a copy while its successor writes copies."""
    take_over(local, shared)
    write_copy(local, shared)
    note(local, "of one that was superseded")

    def lost():
        raise LockLostError(shared)

    with StoreCopier(local, shared, 3600.0, lost):
        pass
    assert notes(shared / DATABASE) == []


def test_no_copies_are_made_with_an_interval_of_0_seconds(local, shared):
    """The configuration's 0 switches copies off."""
    take_over(local, shared)
    with StoreCopier(local, shared, every=0.0):
        pass
    assert not shared.exists()
