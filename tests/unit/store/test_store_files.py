"""The store's file: versions, and errors of file and file system."""

import importlib.util
import os
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path

import pytest
from sqlite_utils import Database, Migrations

from metasched.core.model import Placement
from metasched.core.policy import PolicyState
from metasched.core.reasons import Reason
from metasched.store import (
    BusyStoreError,
    DamagedStoreError,
    JobRecord,
    MissingStoreError,
    NotAStoreError,
    OlderStoreError,
    SpeedRecord,
    Store,
    StoreError,
    schema,
    schema_version,
)
from metasched.store.errors import NewerStoreError, UnusableStoreError, translated
from metasched.store.report_rows import ReportFile

UID = "0123456789abcdef"
OTHER = "fedcba9876543210"
JOB = JobRecord(uid=UID, slurm_job_id="12", name="train", user="ann", submitted=100.0)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store.sqlite"


def test_a_store_uses_wal_and_foreign_keys(path):
    """A writer waits for a busy database."""
    with Store.open(path) as store:
        pragmas = [store._rows(f"PRAGMA {name}")[0][0] for name in ("journal_mode", "foreign_keys", "busy_timeout")]
    assert pragmas == ["wal", 1, 5_000]


def test_newer_database_is_refused_unchanged(path):
    """The error for an unknown migration names the file and both versions."""
    with Store.open(path) as store, store.transaction():
        sql = "INSERT INTO _sqlite_migrations (migration_set, name, applied_at) VALUES ('metasched', '9999_future', '')"
        store._write(sql)
    before = path.read_bytes()
    ours = len(schema.migrations._migrations)
    for read_only in (False, True):
        with pytest.raises(NewerStoreError, match=f"store.sqlite.*version {ours + 1}.*up to {ours}"):
            Store.open(path, read_only=read_only)
    assert path.read_bytes() == before


def test_the_version_of_the_tables_is_that_of_the_latest_migration():
    """A database with all migrations is recognised without the module that applies them."""
    names = [one.name for one in schema.migrations._migrations]
    assert (len(names), names[-1]) == (schema_version.MIGRATIONS, schema_version.LATEST)


@pytest.fixture
def former(path):
    """A store of version 6, with a job that runs, one that shares its GPUs, and their reports."""
    connection = sqlite3.connect(path)
    schema.migrations.apply(Database(connection), stop_before="0007_names")
    job = (
        "INSERT INTO jobs (uid, address, name, user, submitted, partition, requirements, status, run, preemptions, "
        "attained, ran_seconds) VALUES (?, ?, 'train', 'ann', 100, 'gpu', '{}', 'running', 1, 0, '{}', 0)"
    )
    placement = '{"gpu_type":"v100","gpus_per_node":1,"nodes":["n1"]}'
    connection.executemany(job, [(UID, "12"), (OTHER, "13_4")])
    connection.execute(
        "INSERT INTO runs (uid, run, placement, started, incarnation, ready_at) VALUES (?, 1, ?, 110, 3, 115)",
        [UID, placement],
    )
    connection.execute("INSERT INTO rounds VALUES (1, 105, 'las', '{}', 0.5, '{}')")
    connection.execute(
        "INSERT INTO decisions (uid, first_round, granted, reason) VALUES (?, 1, ?, 'has run least')", [UID, placement]
    )
    connection.executemany(
        "INSERT INTO targets (rank, uid, placement, shares_with, in_turns) VALUES (?, ?, ?, ?, 1)",
        [(0, UID, placement, OTHER), (1, OTHER, placement, UID)],
    )
    connection.execute(
        "INSERT INTO throughput (uid, run, incarnation, at, step, steps, samples, seconds, loss, world_size, "
        "global_batch, per_gpu_batch, accumulation) VALUES (?, 1, 3, 120, 10, 10, 80, 2.5, NULL, 1, 8, 8, 1)",
        [UID],
    )
    connection.execute(
        "INSERT INTO checkpoints (uid, incarnation, at, step, seconds, size, cause) "
        "VALUES (?, 3, 121, 10, 0.5, 99, 'periodic')",
        [UID],
    )
    connection.execute("INSERT INTO report_files VALUES (?, 3, 500, 0, 2, 1)", [UID])
    connection.execute("INSERT INTO speeds VALUES ('ann/gpt', 'v100', '[1]', 'bob/bert', 4.0, 120)")
    connection.commit()
    connection.close()
    return path


def test_store_of_version_6_is_migrated_with_its_rows(former):
    """Renamed columns have the values of the former ones; the migrated file is whole, and readers accept it."""
    with pytest.raises(OlderStoreError, match="version 6"):
        Store.open(former, read_only=True)
    Store.open(former).close()
    with Store.open(former, read_only=True) as store:
        assert store.problems() == []
        job = store.job(UID)
        assert (job.slurm_job_id, job.current.generation, job.current.ready_at) == ("12", 3, 115)
        assert job.current.first_step_at is None
        assert [found.uid for found in store.find_jobs("13")] == [OTHER]
        assert store.targets() == dict.fromkeys((UID, OTHER), Placement(("n1",), 1, "v100"))
        assert store.target_co_runners() == ({UID: OTHER, OTHER: UID}, {UID, OTHER})
        assert [row.uid for row in store.decisions_of(1)] == [UID]
        assert [(row.generation, row.step) for row in store.recent_throughput(UID)] == [(3, 10)]
        assert store.report_files(UID) == {3: ReportFile(UID, 3, offset=500, refused=2, run=1)}
        assert store.speeds() == [SpeedRecord("ann/gpt", "v100", (1,), "bob/bert", 4.0, 120)]
        assert store._rows("SELECT generation, size FROM checkpoints") == [(3, 99)]


def test_jobs_that_ended_before_fairness_was_recorded_have_gpu_hours(path):
    """A store of an earlier version is migrated with the GPU hours of its ended jobs; imported jobs have none."""
    with closing(sqlite3.connect(path)) as connection:
        schema.migrations.apply(Database(connection), stop_before="0025_gpu_hours")
        job = (
            "INSERT INTO jobs (uid, slurm_job_id, name, user, account, submitted, finished, partition, requirements, "
            "status, run, preemptions, attained, ran_seconds) "
            "VALUES (?, '12', 'train', 'ann', 'lab', 100, 9000, 'gpu', '{}', 'finished', 2, 0, '{}', 0)"
        )
        run = "INSERT INTO runs (uid, run, started, ended, suspended_seconds, gpus) VALUES (?, ?, ?, ?, ?, ?)"
        for uid in (UID, "sacct:12:100"):
            connection.execute(job, [uid])
            runs = [(1, 200, 3800, 1800, 4), (2, 4000, 7600, 0, 8), (3, None, 8000, 0, None)]
            connection.executemany(run, [(uid, *one) for one in runs])
        connection.commit()
    with Store.open(path) as store:
        (found,) = store.gpu_hours_by_user(0, 10_000, 10_000)
        assert (found.user, found.account, found.jobs, found.gpu_hours) == ("ann", "lab", 1, pytest.approx(10.0))
        assert store.fairness(UID).rho == {}


def test_latest_forecasts_of_an_earlier_version_do_not_count_as_halfway(path):
    """First forecasts are kept; latest ones, and what was learned from them, are not."""
    with closing(sqlite3.connect(path)) as connection:
        schema.migrations.apply(Database(connection), stop_before="0026_halfway_forecasts")
        connection.execute(
            "INSERT INTO jobs (uid, slurm_job_id, name, user, submitted, partition, requirements, status, run, "
            "preemptions, attained, ran_seconds) "
            "VALUES (?, '12', 'train', 'ann', 1, '', '{}', 'queued', 1, 0, '{}', 0)",
            [UID],
        )
        for latest in (0, 1):
            connection.execute(
                "INSERT INTO forecasts (uid, kind, latest, round, at, low, median, high) "
                "VALUES (?, 'end', ?, 1, 100, 200, 300, 400)",
                [UID, latest],
            )
        connection.execute("INSERT INTO forecast_calibration VALUES ('end', 2, 2, 9)")
        connection.commit()
    with Store.open(path) as store:
        assert [one.halfway for one in store.forecasts(UID)] == [False]
        assert store.forecast_calibration("end") is None


def test_a_failed_migration_is_retried_at_the_next_opening(path, monkeypatch):
    """The failure leaves the version before it whole."""
    with Store.open(path) as store:
        store.add_job(JOB)
    failing = True
    longer = Migrations("metasched")
    longer._migrations = list(schema.migrations._migrations)

    @longer(name="9999_more")
    def _more(db):
        db.execute("CREATE TABLE more (id INTEGER)")
        db.execute("UPDATE jobs SET name = 'changed'")
        if failing:
            db.execute("INSERT INTO nowhere VALUES (1)")

    monkeypatch.setattr(schema, "migrations", longer)
    monkeypatch.setattr(schema_version, "MIGRATIONS", len(longer._migrations))
    with pytest.raises(OlderStoreError, match=f"version {len(schema.migrations._migrations) - 1}"):
        Store.open(path, read_only=True)
    with pytest.raises(sqlite3.OperationalError, match="nowhere"):
        Store.open(path)
    with sqlite3.connect(path) as raw:
        assert raw.execute("SELECT name FROM jobs").fetchall() == [("train",)]
        assert raw.execute("SELECT count(*) FROM sqlite_master WHERE name = 'more'").fetchone() == (0,)
    raw.close()
    failing = False
    with Store.open(path) as store:
        assert store.job(UID).name == "changed"


def test_a_file_that_is_not_a_database_is_refused_unchanged(path):
    """The error names the file."""
    path.write_text("my thesis, do not delete\n" * 100)
    with pytest.raises(NotAStoreError, match=r"store\.sqlite"):
        Store.open(path)
    assert path.read_text().startswith("my thesis")


def test_a_database_of_another_application_is_refused_unchanged(path):
    """Its file gets no table of metasched."""
    with sqlite3.connect(path) as raw:
        raw.execute("CREATE TABLE recipes (name TEXT)")
    raw.close()
    before = path.read_bytes()
    with pytest.raises(NotAStoreError, match="something else"):
        Store.open(path)
    assert path.read_bytes() == before


def test_a_reader_does_not_make_a_missing_store(path):
    """The error names the file."""
    with pytest.raises(MissingStoreError, match=r"store\.sqlite"):
        Store.open(path, read_only=True)
    assert not path.exists()


def test_a_read_only_store_refuses_writes(path):
    """It reads while another connection writes."""
    with Store.open(path) as writer, Store.open(path, read_only=True) as reader:
        with pytest.raises(UnusableStoreError, match=r"store\.sqlite: cannot be written"):
            reader.add_job(JOB)
        writer.add_job(JOB)
        assert reader.job(UID) == JOB


def test_a_state_directory_that_cannot_be_made_is_an_error(tmp_path):
    """The error names the path below a file."""
    (tmp_path / "file").write_text("")
    with pytest.raises(UnusableStoreError, match=r"file/state/store\.sqlite: cannot be written"):
        Store.open(tmp_path / "file" / "state" / "store.sqlite")


def test_a_path_that_cannot_be_opened_is_an_error(tmp_path):
    """A name that is too long stands for a directory that is closed to the reader."""
    with pytest.raises(UnusableStoreError, match=r"cannot be opened \(File name too long"):
        Store.open(tmp_path / ("x" * 300), read_only=True)


def test_a_directory_in_place_of_the_store_is_an_error(tmp_path):
    """The error names the directory."""
    with pytest.raises(UnusableStoreError, match=f"{tmp_path.name}: cannot be opened"):
        Store.open(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody who may not write")
def test_a_store_of_another_user_can_be_read_only():
    """A writer gets a typed error, a reader the rows of a stopped daemon."""
    with tempfile.TemporaryDirectory() as directory:  # pytest's own directories are closed to others
        Path(directory).chmod(0o755)
        _check_without_write_access(Path(directory) / "store.sqlite")


def _check_without_write_access(path):
    with Store.open(path) as store:
        store.add_job(JOB)
    path.chmod(0o644)  # as an administrator may
    path.with_name(f"{path.name}-wal").touch()  # as a full disk leaves one that could not be begun
    script = (
        "import os, sys; from pathlib import Path; from metasched.store import Store;"
        "from metasched.store.errors import UnusableStoreError; os.setgroups([]); os.setuid(65534);"
        "path = Path(sys.argv[1])\n"
        f"with Store.open(path, read_only=True) as s: assert s.job('{UID}') and s.problems() == []\n"
        "try: Store.open(path)\n"
        "except UnusableStoreError as error: print(error)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script, str(path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert str(path) in result.stdout, result.stderr


def test_a_full_disk_loses_no_committed_row(path):
    """The round fails whole, with a typed error, and can be committed once there is space."""
    with Store.open(path) as store:
        store.add_job(JOB)
        pages = store._rows("PRAGMA page_count")[0][0]
        store._rows(f"PRAGMA max_page_count = {pages + 2}")
        round_ = {"at": 1.0, "policy": "fifo", "parameters": {}, "targets": {}, "decide_seconds": 0.1}
        big = PolicyState(1, {"plan": "x" * 100_000})
        with pytest.raises(UnusableStoreError, match=r"store\.sqlite: no space left.*free space"):
            store.commit_round(1, state=big, reasons={UID: Reason.text("waits")}, **round_)
        assert store.last_round() is None
        assert store.job(UID) == JOB
        store._rows("PRAGMA max_page_count = 1000000")
        store.commit_round(1, state=big, reasons={UID: Reason.text("waits")}, **round_)
        assert store.policy_state("fifo") == big


def test_a_damaged_file_is_an_error(path):
    """The error names the file."""
    with Store.open(path) as store, store.transaction():
        store.add_job(JOB)
    data = bytearray(path.read_bytes())
    data[4096:] = b"\xff" * (len(data) - 4096)
    path.write_bytes(data)
    with pytest.raises(DamagedStoreError, match=r"store\.sqlite"), Store.open(path) as store:
        store.live_jobs()


def test_a_second_writer_is_refused(path, monkeypatch):
    """The error says that only one daemon may write."""
    monkeypatch.setattr("metasched.store.connection.BUSY_SECONDS", 0.01)
    with Store.open(path) as first, Store.open(path) as second, first.transaction():
        first.add_job(JOB)
        with pytest.raises(UnusableStoreError, match="only one daemon"):
            second.event("k", "t", at=1.0)


def test_a_reader_does_not_read_past_the_exclusive_use_of_another_process(path, monkeypatch):
    """An error says that the file is locked; reading it without locks could return half a transaction."""
    monkeypatch.setattr("metasched.store.connection.BUSY_SECONDS", 0.01)
    Store.open(path).close()
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("PRAGMA locking_mode = EXCLUSIVE")
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(BusyStoreError, match="locked"):
        Store.open(path, read_only=True)
    other.close()


def test_an_sql_error_of_the_code_is_no_store_error():
    """Only errors about the file become a StoreError."""
    with sqlite3.connect(":memory:") as raw, pytest.raises(sqlite3.OperationalError) as caught:
        raw.execute("SELECT * FROM nowhere")
    assert translated(None, caught.value) is None


def _round(number):
    values = {"state": PolicyState(1, {"n": number}), "reasons": {UID: Reason.text(str(number))}, "targets": {}}
    return {"at": 1.0, "policy": "p", "parameters": {}, "decide_seconds": 0.0, **values}


def _commit_round_in_a_process_that_dies(path, statements):
    """Commit the next round in another process that is killed after some statements; returns its exit code."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    try:
        store = Store.open(path)
        left = iter(range(statements))
        store._db.set_trace_callback(lambda _: os._exit(9) if next(left, None) is None else None)
        number = store.last_round().round + 1
        store.commit_round(number, **_round(number))
        os._exit(0)
    finally:
        os._exit(1)


def test_commit_killed_at_any_write_is_whole_or_absent(path):
    """After a kill between any two statements of a round, the store has that round whole or the one before."""
    with Store.open(path) as store:
        store.add_job(JOB)
        store.commit_round(1, **_round(1))
    codes = set()
    for statements in range(24):
        codes.add(_commit_round_in_a_process_that_dies(path, statements))
        with Store.open(path) as store:
            number = store.last_round().round
            assert store.policy_state("p").data == {"n": number}
            assert [row.reason for row in store.decisions_of(number)] == [Reason.text(str(number))]
            assert store._rows("PRAGMA integrity_check") == [("ok",)]
    assert codes == {0, 9}


def test_every_error_is_a_store_error():
    """So ``except StoreError`` handles every error of the store."""
    for kind in (NewerStoreError, NotAStoreError, UnusableStoreError, MissingStoreError):
        assert issubclass(kind, StoreError)


@pytest.mark.skipif(importlib.util.find_spec("pandas") is None, reason="pandas is not installed")
def test_making_the_tables_imports_no_pandas(tmp_path):
    """sqlite-utils imports it where it is installed, and the daemon would keep its 35 MiB."""
    script = (
        "import pathlib, sys; from metasched.store import Store; "
        "Store.open(pathlib.Path(sys.argv[1])).close(); print(*sys.modules)"
    )
    argv = [sys.executable, "-c", script, str(tmp_path / "new.db")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
    assert "sqlite_utils" in done.stdout.split()
    assert "pandas" not in done.stdout.split()
