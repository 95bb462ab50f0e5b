import fcntl
import subprocess
import sys

import pytest

from metasched.shared_dir.lock import DaemonLock, LockFileError, LockHeldError, LockLostError, holder

HOLD = """
import sys
from pathlib import Path
from metasched.shared_dir.lock import DaemonLock

lock = DaemonLock(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "daemon.lock"


READ = """
import fcntl, sys
with open(sys.argv[1]) as file:
    fcntl.lockf(file, fcntl.LOCK_SH)
    print("held", flush=True)
    sys.stdin.read()
"""


def running(script, path):
    return subprocess.Popen([sys.executable, "-c", script, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)


@pytest.fixture
def other(path):
    """Another process that holds the lock."""
    with running(HOLD, path) as process:
        process.stdout.readline()
        yield process
        process.kill()


def test_a_second_daemon_is_refused_with_the_holders_name(path, other):
    """A process that only asks for the holder gets the same name, and the holder keeps the lock."""
    with pytest.raises(LockHeldError, match=f"pid {other.pid}"):
        DaemonLock(path)
    words = path.read_bytes()
    assert f"pid {other.pid} " in holder(path)
    assert path.read_bytes() == words
    with pytest.raises(LockHeldError):
        DaemonLock(path)


def test_a_killed_daemon_leaves_no_lock(path, other):
    """The kernel releases the lock."""
    other.kill()
    other.wait()
    assert holder(path) is None
    with DaemonLock(path) as lock:
        lock.check()


@pytest.mark.parametrize("before", ["nothing", "a file that all may read"])
def test_other_users_cannot_open_the_lock_file(path, before):
    """Another user's read lock would refuse every daemon."""
    if before != "nothing":
        path.touch(mode=0o644)
    with DaemonLock(path):
        assert path.stat().st_mode & 0o777 == 0o600


def test_a_read_lock_of_another_process_is_named(path):
    """A user who could open an older release's lock file may have a read lock; the message has the process."""
    path.write_text("host gone pid 1 since then\n")
    with running(READ, path) as reader:
        reader.stdout.readline()
        with pytest.raises(LockHeldError, match=f"process {reader.pid}, which is no daemon"):
            DaemonLock(path)
        assert holder(path) is None
        reader.kill()


def test_asking_for_the_holder_takes_no_lock(path, monkeypatch):
    """A daemon that starts meanwhile is not refused, and its file is not changed."""
    path.write_text("host gone pid 1 since then\n")
    monkeypatch.setattr(fcntl, "lockf", lambda *_: pytest.fail("it was taken"))
    assert holder(path) is None
    assert path.read_text() == "host gone pid 1 since then\n"
    assert holder(path.with_name("none")) is None


@pytest.mark.parametrize("change", ["removed", "replaced"])
def test_a_removed_or_replaced_lock_file_is_a_lost_lock(path, change):
    """A daemon without its lock file must not write any more."""
    with DaemonLock(path) as lock:
        lock.check()
        path.unlink()
        if change == "replaced":
            path.write_text("another daemon")
        with pytest.raises(LockLostError, match="has replaced or taken the lock"):
            lock.check()


def test_a_missing_directory_is_an_error_with_its_fix(tmp_path):
    """The message names the file and the key of the configuration."""
    with pytest.raises(LockFileError, match="shared"):
        DaemonLock(tmp_path / "none" / "daemon.lock")


def test_a_planted_link_is_not_followed(path, tmp_path):
    """Through a symbolic link in place of the lock file, the daemon would truncate another file."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    path.symlink_to(victim)
    with pytest.raises(LockFileError):
        DaemonLock(path)
    assert victim.read_text() == "precious"
    assert path.is_symlink()


def test_a_lock_that_another_host_got_is_a_lost_lock(path):
    """A network file system gives the lock away when its holder is cut off; the new holder writes its name."""
    with DaemonLock(path) as lock:
        path.write_text("host other pid 1 since then\n")
        with pytest.raises(LockLostError, match="has replaced or taken the lock"):
            lock.check()


def test_a_standby_gets_the_lock_when_its_holder_ends(path, other):
    """Each attempt calls the standby's function with the holder."""
    heard = []

    def waiting(words):
        heard.append(words)
        if len(heard) == 2:
            other.kill()
            other.wait()

    with DaemonLock.wait(path, 0.01, waiting) as lock:
        lock.check()
    assert len(heard) >= 2
    assert all(f"pid {other.pid} " in words for words in heard)
