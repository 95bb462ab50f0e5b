import subprocess
import sys

import pytest

from metasched.lock import DaemonLock, LockFileError, LockHeldError, LockLostError

HOLD = """
import sys
from pathlib import Path
from metasched.lock import DaemonLock

lock = DaemonLock(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "daemon.lock"


@pytest.fixture
def holder(path):
    """Another process that holds the lock."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        other.stdout.readline()
        yield other
        other.kill()


def test_a_second_daemon_is_told_who_holds_the_lock(path, holder):
    """The error names the holder's pid."""
    with pytest.raises(LockHeldError, match=f"pid {holder.pid}"):
        DaemonLock(path)


def test_a_killed_daemon_leaves_no_lock(path, holder):
    """The kernel gives the lock back, however its holder ends."""
    holder.kill()
    holder.wait()
    with DaemonLock(path) as lock:
        lock.check()


@pytest.mark.parametrize("change", ["removed", "replaced"])
def test_a_lock_file_that_was_taken_away_is_noticed(path, change):
    """A daemon whose lock file is gone or another's must not write any more."""
    with DaemonLock(path) as lock:
        lock.check()
        path.unlink()
        if change == "replaced":
            path.write_text("another daemon")
        with pytest.raises(LockLostError, match="no longer ours"):
            lock.check()


def test_a_directory_that_is_missing_is_an_error_with_its_fix(tmp_path):
    """The message names the file and the key of the configuration."""
    with pytest.raises(LockFileError, match="shared"):
        DaemonLock(tmp_path / "none" / "daemon.lock")


def test_a_planted_link_is_not_followed(path, tmp_path):
    """A symbolic link in place of the lock could make us truncate another file."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    path.symlink_to(victim)
    with pytest.raises(LockFileError):
        DaemonLock(path)
    assert victim.read_text() == "precious"
    assert path.is_symlink()


def test_a_lock_that_another_host_was_given_is_noticed(path):
    """A network file system gives a lock away when its holder is cut off; the new holder writes its name."""
    with DaemonLock(path) as lock:
        path.write_text("host other pid 1 since then\n")
        with pytest.raises(LockLostError, match="no longer ours"):
            lock.check()


def test_a_standby_gets_the_lock_when_its_holder_ends(path, holder):
    """It hears whom it waits for at every look."""
    heard = []

    def waiting(words):
        heard.append(words)
        if len(heard) == 2:
            holder.kill()
            holder.wait()

    with DaemonLock.wait(path, 0.01, waiting) as lock:
        lock.check()
    assert len(heard) >= 2
    assert all(f"pid {holder.pid} " in words for words in heard)
