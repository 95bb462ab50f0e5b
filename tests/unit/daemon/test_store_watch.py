"""Locks of other processes on the store: the daemon waits, says so, and continues; its log stays bounded."""

import sqlite3
import subprocess
import sys
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

from metasched.daemon.controller import Controller
from metasched.daemon.failover import take_over
from metasched.daemon.process import Daemon
from metasched.daemon.store_watch import StoreLockWatch
from metasched.presentation.job_explanation import explanation
from metasched.shared_dir.mailbox import Mailbox
from metasched.shared_dir.published_status import read as read_status
from metasched.store import BusyStoreError, Store, connection
from policies.baselines.fifo import Fifo
from tests.unit.site import FakeSite


@contextmanager
def another_process(path, *statements):
    """Run statements in another process, which keeps its transaction open during the block; yields its pid."""
    script = (
        "import sqlite3, sys; db = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "for sql in sys.argv[2:]: db.execute(sql).fetchall()\n"
        "print(flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", script, str(path), *statements]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        process.stdout.readline()
        yield process.pid
        process.stdin.close()
        process.wait()


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    monkeypatch.setattr(connection, "BUSY_SECONDS", 0.02)


@pytest.fixture
def site(tmp_path):
    made = FakeSite(tmp_path)
    yield made
    made.close()


def daemon_of(site):
    """A daemon whose polls the test makes."""

    def controller(config, policy):
        mailbox = Mailbox(site.base / "shared")
        settings = site.slurm.settings()
        return Controller(config, site.slurm, settings, site.store, mailbox, policy, clock=lambda: site.slurm.now)

    return Daemon(site.base, site.config, None, controller, Fifo(), site.store, SimpleNamespace(every=0.0), None)


def polls(daemon, site, count):
    for _ in range(count):
        daemon._poll()
        site.slurm.tick(0.5)


def test_a_lock_of_another_process_stops_scheduling_and_ends_neither_daemon_nor_jobs(site):
    """The log says once, and the status always, who has the lock; afterwards jobs are scheduled again."""
    daemon = daemon_of(site)
    first = site.add("--gres=gpu:1", seconds=30)
    polls(daemon, site, 4)
    later = site.add("--gres=gpu:1", seconds=1)
    with another_process(site.store.path, "BEGIN EXCLUSIVE") as pid, capture_logs() as logs:
        polls(daemon, site, 3)
        status = read_status(site.base / "shared")
        assert f"process {pid} (python" in status.store
        assert "cannot write its database" in " ".join(explanation(status.jobs[0], status, status.published))
        assert [job.slurm_job_id for job in status.jobs if job.status == "running"] == [first]
        assert [entry["event"] for entry in logs] == ["store_locked"]
    with capture_logs() as logs:
        polls(daemon, site, 12)
    assert [entry["event"] for entry in logs].count("store_is_free") == 1
    assert read_status(site.base / "shared").store == "ok"
    ended = {record.slurm_job_id: record.end_state for record in site.store.recent_jobs(9)}
    assert ended == {later: "COMPLETED"}
    assert len(site.store.runs(site.record(first).uid)) == 1


def test_a_lock_at_any_write_of_a_poll_repeats_no_run(tmp_path, monkeypatch):
    """The poll is cut short like a crash: the next controller continues, and the job runs once."""
    count = 0
    begin = Store.transaction

    def transaction(self, **options):
        nonlocal count
        if not self._db.in_transaction:
            count += 1
            if count == failing:
                raise BusyStoreError(self.path, "database is locked")
        return begin(self, **options)

    for failing in range(2, 20, 3):
        (tmp_path / str(failing)).mkdir()
        site, count = FakeSite(tmp_path / str(failing)), 0
        monkeypatch.setattr(Store, "transaction", transaction)
        daemon = daemon_of(site)
        job = site.add("--gres=gpu:1", seconds=2)
        polls(daemon, site, 10)
        (record,) = site.store.recent_jobs(9)
        assert (record.slurm_job_id, record.end_state, len(site.store.runs(record.uid))) == (job, "COMPLETED", 1)
        site.close()
        monkeypatch.undo()
        monkeypatch.setattr(connection, "BUSY_SECONDS", 0.02)


def test_a_locked_store_delays_the_start(tmp_path):
    """The daemon waits at its start, before it begins its term and before it migrates the store."""
    path = tmp_path / "metasched.db"
    Store.open(path).close()
    attempts = []

    def start():
        attempts.append(1)
        if len(attempts) > 2:
            process.stdin.close()
            process.wait()
        take_over(path, tmp_path / "copies")

    command = "import sqlite3, sys; d = sqlite3.connect(sys.argv[1]); d.execute('BEGIN EXCLUSIVE'); print(flush=True)"
    arguments = [sys.executable, "-c", f"{command}; sys.stdin.read()", str(path)]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        StoreLockWatch(tmp_path).until_free(start, 0.01)
    assert len(attempts) == 3
    with Store.open(path, read_only=True) as store:
        assert store.term == 1


def test_a_reader_never_blocks_the_daemon_and_cannot_take_its_lock(site):
    """A process that has read an old state, and one that asks for exclusive use, leave every poll whole."""
    daemon = daemon_of(site)
    job = site.add("--gres=gpu:1", seconds=1)
    polls(daemon, site, 1)
    with another_process(site.store.path, "BEGIN", "SELECT * FROM jobs"):
        with sqlite3.connect(site.store.path, timeout=0) as other, pytest.raises(sqlite3.OperationalError):
            other.execute("PRAGMA journal_mode = DELETE")
        other.close()
        with capture_logs() as logs:
            polls(daemon, site, 12)
    assert not [entry for entry in logs if entry["event"].startswith("store")]
    assert [(one.slurm_job_id, one.end_state) for one in site.store.recent_jobs(9)] == [(job, "COMPLETED")]


def test_a_reader_that_stays_is_named_and_rounds_lose_their_snapshots(site, monkeypatch):
    """The write-ahead log grows while it reads, and is emptied when it ends."""
    for module in (connection, sys.modules["metasched.daemon.store_watch"]):
        monkeypatch.setattr(module, "LOG_BYTES", 30_000)
        monkeypatch.setattr(module, "FULL_LOG_BYTES", 60_000)
    monkeypatch.setattr(connection, "_LOG_STEP_BYTES", 10_000)
    monkeypatch.setattr(connection, "_CHECKPOINT_SECONDS", 0.01)
    daemon = daemon_of(site)
    log = site.store.path.with_name("metasched.db-wal")
    with another_process(site.store.path, "BEGIN", "SELECT * FROM jobs") as pid:
        for _ in range(15):
            site.add("--gres=gpu:1", seconds=1)
            polls(daemon, site, 2)
        assert f"process {pid} (python" in read_status(site.base / "shared").store
        number = site.store.last_round().round
        assert site.store.snapshot(number) is None
        assert log.stat().st_size > 60_000
    for _ in range(6):
        site.add("--gres=gpu:1", seconds=1)
        polls(daemon, site, 2)
    assert log.stat().st_size < 60_000
    assert read_status(site.base / "shared").store == "ok"
    assert site.store.snapshot(site.store.last_round().round) is not None
