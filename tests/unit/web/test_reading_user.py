"""The page's Unix user reads the daemon's database by its group alone, whatever the daemon does meanwhile."""

import multiprocessing
import os
import signal
import stat

import pytest

from metasched.store import Store
from metasched.web.database import DatabaseReader

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="becomes other users")
DAEMON, PAGE, GROUP = 1, 65_534, 60_000  # numbers of Unix users, and of the group that may read the database
FORK = multiprocessing.get_context("fork")  # another user cannot start the tests' Python: it lies in root's home


def write(path, connection):
    """The daemon: an event for each text, until it is told to end."""
    with Store.open(path) as store:
        while (text := connection.recv()) is not None:
            store.event("note", text, at=1.0)
            connection.send(None)


def read(path, connection):
    """The page: the texts of all events, each time that it is asked."""
    reader = DatabaseReader(path)
    while connection.recv() is not None:
        try:
            with reader.reading() as store:
                connection.send([event.text for event in store.recent_events()])
        except Exception as error:  # noqa: BLE001  the test compares it with the texts
            connection.send(repr(error))
    reader.close()


class Other:
    """A process of another Unix user."""

    def __init__(self, main, path, user, groups):
        self._connection, theirs = FORK.Pipe()
        self.process = FORK.Process(target=self._run, args=(main, path, user, groups, theirs))
        self.process.start()

    def ask(self, question):
        self._connection.send(question)
        assert self._connection.poll(60)
        return self._connection.recv()

    def end(self, number=None):
        if number is None:
            self._connection.send(None)
        else:
            os.kill(self.process.pid, number)
        self.process.join(60)

    @staticmethod
    def _run(main, path, user, groups, connection):
        os.setgroups(groups)
        os.setgid(user)
        os.setuid(user)
        os.umask(0o077)
        main(path, connection)


@pytest.fixture
def others(open_tmp):
    """Starts the daemon or the page on a database in a directory that the page's group may enter."""
    warm = open_tmp / "warm.db"
    Store.open(warm).close()
    with DatabaseReader(warm).reading() as store:  # what is imported late is imported now
        store.recent_events()
    state = open_tmp / "state"
    state.mkdir()
    os.chown(state, DAEMON, GROUP)
    state.chmod(0o2750)
    started = []

    def start(main):
        user, groups = (DAEMON, []) if main is write else (PAGE, [GROUP])
        started.append(Other(main, state / "metasched.db", user, groups))
        return started[-1]

    yield start
    for one in started:
        one.process.kill()
        one.process.join(60)


def test_the_page_reads_before_during_and_after_a_daemon(others, open_tmp):
    """A page that was started without a daemon sees what a later daemon writes, also one that is killed."""
    daemon = others(write)
    daemon.ask("one")
    daemon.end()
    page = others(read)
    assert page.ask("?") == ["one"]
    daemon = others(write)
    daemon.ask("two")
    assert page.ask("?") == ["two", "one"]
    modes = {path.name: stat.filemode(path.stat().st_mode) for path in (open_tmp / "state").iterdir()}
    assert modes == dict.fromkeys(("metasched.db", "metasched.db-wal", "metasched.db-shm"), "-rw-r-----")
    daemon.ask("three")
    daemon.end(signal.SIGKILL)
    assert page.ask("?") == ["three", "two", "one"]
    assert others(read).ask("?") == ["three", "two", "one"]
    daemon = others(write)
    daemon.ask("four")
    assert page.ask("?") == ["four", "three", "two", "one"]
    daemon.end()
    assert page.ask("?") == ["four", "three", "two", "one"]


def test_the_page_can_write_nothing_of_the_daemons(others, open_tmp):
    """The page makes no file beside the database, and keeps no lock that delays the daemon."""
    daemon = others(write)
    daemon.ask("one")
    page = others(read)
    page.ask("?")
    daemon.ask("two")
    daemon.end()
    before = sorted(path.name for path in (open_tmp / "state").iterdir())
    assert page.ask("?") == ["two", "one"]
    assert sorted(path.name for path in (open_tmp / "state").iterdir()) == before
    assert {path.stat().st_uid for path in (open_tmp / "state").iterdir()} == {DAEMON}
