"""The tables, as an ordered list of migrations; each is applied in one transaction together with its own record.

A migration that has been released is never edited: the next change is the next migration.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from metasched.core.hidden_module import hidden_module
from metasched.store.counting_triggers import COUNTING
from metasched.store.errors import NewerStoreError, NotAStoreError, OlderStoreError
from metasched.store.schema_version import APPLICATION_ID

with hidden_module("pandas"):  # where pandas is installed, sqlite-utils imports it, which takes 35 MiB for good
    from sqlite_utils import Database, Migrations

migrations = Migrations("metasched")

_JOBS = """
CREATE TABLE jobs (
  uid TEXT PRIMARY KEY,
  address TEXT NOT NULL,
  name TEXT NOT NULL,
  user TEXT NOT NULL,
  submitted REAL NOT NULL,
  account TEXT,
  partition TEXT NOT NULL,
  requirements TEXT NOT NULL,
  not_before REAL,
  status TEXT NOT NULL,
  error TEXT,
  total_steps INTEGER,
  progress_steps INTEGER,
  loss REAL,
  run INTEGER NOT NULL,
  preemptions INTEGER NOT NULL,
  attained TEXT NOT NULL,
  ran_seconds REAL NOT NULL,
  last_placement TEXT,
  last_ended REAL,
  finished REAL,
  end_state TEXT,
  exit_code INTEGER
)
"""
_RUNS = """
CREATE TABLE runs (
  uid TEXT NOT NULL REFERENCES jobs,
  run INTEGER NOT NULL,
  released TEXT,
  released_at REAL,
  placement TEXT,
  started REAL,
  stop_requested REAL,
  suspended_at REAL,
  suspended_seconds REAL NOT NULL DEFAULT 0,
  suspended_by_us INTEGER NOT NULL DEFAULT 0,
  ended REAL,
  cause TEXT,
  incarnation INTEGER,
  ready_at REAL,
  init_seconds REAL,
  stop_noticed REAL,
  checkpointed INTEGER,
  steps_per_second REAL,
  PRIMARY KEY (uid, run)
) WITHOUT ROWID
"""
_STATEMENTS = (
    _JOBS,
    "CREATE INDEX jobs_live ON jobs (submitted, uid) WHERE finished IS NULL",
    "CREATE INDEX jobs_address ON jobs (address)",
    "CREATE INDEX jobs_name ON jobs (name)",
    "CREATE INDEX jobs_finished ON jobs (finished) WHERE finished IS NOT NULL",
    _RUNS,
    """CREATE TABLE rounds (
         round INTEGER PRIMARY KEY, at REAL NOT NULL, policy TEXT NOT NULL, parameters TEXT NOT NULL,
         decide_seconds REAL NOT NULL, summary TEXT NOT NULL)""",
    """CREATE TABLE decisions (
         id INTEGER PRIMARY KEY, uid TEXT NOT NULL REFERENCES jobs, first_round INTEGER NOT NULL, last_round INTEGER,
         granted TEXT, reason TEXT NOT NULL)""",
    "CREATE INDEX decisions_uid ON decisions (uid, id)",
    "CREATE UNIQUE INDEX decisions_held ON decisions (uid) WHERE last_round IS NULL",
    """CREATE TABLE policy_state (
         policy TEXT NOT NULL, round INTEGER NOT NULL, version INTEGER NOT NULL, data TEXT NOT NULL,
         PRIMARY KEY (policy, round)) WITHOUT ROWID""",
    """CREATE TABLE targets (
         rank INTEGER PRIMARY KEY, uid TEXT NOT NULL UNIQUE REFERENCES jobs, placement TEXT NOT NULL)""",
    """CREATE TABLE actions (
         id INTEGER PRIMARY KEY, round INTEGER NOT NULL, at REAL NOT NULL, uid TEXT NOT NULL REFERENCES jobs,
         kind TEXT NOT NULL, detail TEXT NOT NULL, outcome TEXT, latency_seconds REAL)""",
    "CREATE INDEX actions_uid ON actions (uid, id)",
    "CREATE INDEX actions_open ON actions (id) WHERE outcome IS NULL",
    """CREATE TABLE throughput (
         id INTEGER PRIMARY KEY, uid TEXT NOT NULL REFERENCES jobs, run INTEGER, incarnation INTEGER NOT NULL,
         at REAL NOT NULL, step INTEGER NOT NULL, steps INTEGER NOT NULL, samples INTEGER NOT NULL,
         seconds REAL NOT NULL, loss REAL, world_size INTEGER NOT NULL, global_batch INTEGER NOT NULL,
         per_gpu_batch INTEGER NOT NULL, accumulation INTEGER NOT NULL)""",
    "CREATE INDEX throughput_uid ON throughput (uid, id)",
    """CREATE TABLE checkpoints (
         id INTEGER PRIMARY KEY, uid TEXT NOT NULL REFERENCES jobs, incarnation INTEGER NOT NULL, at REAL NOT NULL,
         step INTEGER NOT NULL, seconds REAL NOT NULL, size INTEGER NOT NULL, cause TEXT NOT NULL)""",
    "CREATE INDEX checkpoints_uid ON checkpoints (uid, id)",
    """CREATE TABLE report_files (
         uid TEXT NOT NULL REFERENCES jobs, incarnation INTEGER NOT NULL, offset INTEGER NOT NULL,
         skipping INTEGER NOT NULL, refused INTEGER NOT NULL, run INTEGER,
         PRIMARY KEY (uid, incarnation)) WITHOUT ROWID""",
    """CREATE TABLE events (
         id INTEGER PRIMARY KEY, at REAL NOT NULL, uid TEXT REFERENCES jobs, kind TEXT NOT NULL, text TEXT NOT NULL)""",
    "CREATE INDEX events_uid ON events (uid, id)",
)


@migrations(name="0001_tables")
def _tables(db: Database) -> None:
    for statement in _STATEMENTS:
        db.execute(statement)
    db.execute(f"PRAGMA application_id = {APPLICATION_ID}")


@migrations(name="0002_snapshots")
def _snapshots(db: Database) -> None:
    db.execute("CREATE TABLE snapshots (round INTEGER PRIMARY KEY, data BLOB NOT NULL)")


@migrations(name="0003_sharing")
def _sharing(db: Database) -> None:
    db.execute("ALTER TABLE targets ADD COLUMN shares_with TEXT")
    db.execute("ALTER TABLE targets ADD COLUMN in_turns INTEGER NOT NULL DEFAULT 0")
    db.execute("ALTER TABLE runs ADD COLUMN renewals INTEGER NOT NULL DEFAULT 0")
    db.execute(
        """CREATE TABLE speeds (
             subject TEXT NOT NULL, gpu_type TEXT NOT NULL, spread TEXT NOT NULL, beside TEXT NOT NULL,
             steps_per_second REAL NOT NULL, at REAL NOT NULL,
             PRIMARY KEY (subject, gpu_type, spread, beside)) WITHOUT ROWID"""
    )


@migrations(name="0004_script")
def _script(db: Database) -> None:
    db.execute("ALTER TABLE jobs ADD COLUMN script TEXT")


@migrations(name="0005_policy_states_go_with_snapshots")
def _policy_states(db: Database) -> None:
    db.execute("ALTER TABLE snapshots ADD COLUMN state_bytes INTEGER NOT NULL DEFAULT 0")
    db.execute("CREATE INDEX policy_state_round ON policy_state (round)")


@migrations(name="0006_retention")
def _retention(db: Database) -> None:
    db.execute("ALTER TABLE jobs ADD COLUMN forgotten INTEGER NOT NULL DEFAULT 0")  # whether its details were deleted
    db.execute("CREATE INDEX jobs_over ON jobs (finished, uid) WHERE finished IS NOT NULL AND forgotten = 0")
    db.execute("CREATE INDEX rounds_at ON rounds (at)")
    db.execute("CREATE INDEX decisions_last_round ON decisions (last_round)")
    db.execute("CREATE INDEX events_at ON events (uid, at)")
    db.execute("DELETE FROM snapshots WHERE round NOT IN (SELECT round FROM rounds)")


@migrations(name="0007_names")
def _names(db: Database) -> None:
    """Rename columns to the names that the records use."""
    for table, old, new in (
        ("jobs", "address", "slurm_job_id"),
        ("jobs", "forgotten", "pruned"),
        ("runs", "incarnation", "generation"),
        ("throughput", "incarnation", "generation"),
        ("checkpoints", "incarnation", "generation"),
        ("report_files", "incarnation", "generation"),
        ("targets", "shares_with", "co_runner"),
        ("targets", "in_turns", "time_slicing"),
        ("speeds", "beside", "co_runner"),
    ):
        db.execute(f"ALTER TABLE {table} RENAME COLUMN {old} TO {new}")
    db.execute("DROP INDEX jobs_address")
    db.execute("CREATE INDEX jobs_slurm_job_id ON jobs (slurm_job_id)")


@migrations(name="0008_restarts")
def _restarts(db: Database) -> None:
    db.execute("ALTER TABLE runs ADD COLUMN first_step_at REAL")
    db.execute("CREATE INDEX jobs_preempted ON jobs (user, submitted) WHERE preemptions > 0")


@migrations(name="0009_batches")
def _batches(db: Database) -> None:
    """Columns for batch sizes that change while a job trains, and for gradient noise."""
    for column in ("batching TEXT", "noise TEXT", "most_gpus INTEGER NOT NULL DEFAULT 0"):
        db.execute(f"ALTER TABLE jobs ADD COLUMN {column}")
    for column in ("progress REAL", "grad_square REAL", "grad_variance REAL", "plan INTEGER NOT NULL DEFAULT 0"):
        db.execute(f"ALTER TABLE throughput ADD COLUMN {column}")
    for column in ("batch TEXT", "batch_number INTEGER NOT NULL DEFAULT 0"):
        db.execute(f"ALTER TABLE runs ADD COLUMN {column}")
    db.execute("ALTER TABLE targets ADD COLUMN batch TEXT")
    # Speeds of other batches are other speeds; 0 stands for those of before, whose batches are not known.
    db.execute("ALTER TABLE speeds RENAME TO speeds_before")
    db.execute(
        """CREATE TABLE speeds (
             subject TEXT NOT NULL, batch INTEGER NOT NULL, gpu_type TEXT NOT NULL, spread TEXT NOT NULL,
             co_runner TEXT NOT NULL, steps_per_second REAL NOT NULL, at REAL NOT NULL,
             PRIMARY KEY (subject, batch, gpu_type, spread, co_runner)) WITHOUT ROWID"""
    )
    db.execute(
        "INSERT INTO speeds SELECT subject, 0, gpu_type, spread, co_runner, steps_per_second, at FROM speeds_before"
    )
    db.execute("DROP TABLE speeds_before")
    db.execute(
        """CREATE TABLE iterations (
             subject TEXT NOT NULL, gpu_type TEXT NOT NULL, gpus INTEGER NOT NULL, multi_node INTEGER NOT NULL,
             per_gpu INTEGER NOT NULL, accumulation INTEGER NOT NULL, seconds REAL NOT NULL, at REAL NOT NULL,
             PRIMARY KEY (subject, gpu_type, gpus, multi_node, per_gpu, accumulation)) WITHOUT ROWID"""
    )


@migrations(name="0010_batch_decisions")
def _batch_decisions(db: Database) -> None:
    db.execute("ALTER TABLE decisions ADD COLUMN batch TEXT")
    db.execute("ALTER TABLE report_files ADD COLUMN clamped INTEGER NOT NULL DEFAULT 0")


@migrations(name="0011_apps")
def _apps(db: Database) -> None:
    """The apps' state after each round that changed it, why jobs were ended for good, and the losses of jobs."""
    db.execute("CREATE TABLE apps (round INTEGER PRIMARY KEY, version INTEGER NOT NULL, data TEXT NOT NULL)")
    db.execute("ALTER TABLE jobs ADD COLUMN end_reason TEXT")
    db.execute(
        """CREATE TABLE losses (
             uid TEXT PRIMARY KEY REFERENCES jobs, points TEXT NOT NULL, of_metric INTEGER NOT NULL) WITHOUT ROWID"""
    )


@migrations(name="0012_planned_runs")
def _planned_runs(db: Database) -> None:
    db.execute("CREATE TABLE planned_runs (uid TEXT PRIMARY KEY, begins REAL NOT NULL, seconds REAL NOT NULL)")


@migrations(name="0013_failed_sizes")
def _failed_sizes(db: Database) -> None:
    """Columns for numbers of GPUs on which a job's script trained, and on which it failed."""
    for column in ("known_good_gpus INTEGER", "failed_sizes TEXT NOT NULL DEFAULT '[]'"):
        db.execute(f"ALTER TABLE jobs ADD COLUMN {column}")
    db.execute("ALTER TABLE jobs ADD COLUMN put_back INTEGER NOT NULL DEFAULT 0")
    for column in ("steps INTEGER", "size_exit_code INTEGER"):
        db.execute(f"ALTER TABLE runs ADD COLUMN {column}")


@migrations(name="0016_time_use")
def _time_use(db: Database) -> None:
    """Columns for what reports say of waits and memory, and indexes for windows of time."""
    for column in ("step_seconds REAL", "data_seconds REAL", "sync_seconds REAL", "stall_seconds REAL"):
        db.execute(f"ALTER TABLE runs ADD COLUMN {column}")
    db.execute("ALTER TABLE runs ADD COLUMN peak_bytes INTEGER")
    for column in ("data_seconds REAL", "sync_seconds REAL", "peak_bytes INTEGER"):
        db.execute(f"ALTER TABLE throughput ADD COLUMN {column}")
    db.execute("ALTER TABLE checkpoints ADD COLUMN stall_seconds REAL")
    db.execute("CREATE INDEX runs_ended ON runs (ended) WHERE ended IS NOT NULL")
    db.execute("CREATE INDEX decisions_first_round ON decisions (first_round)")


@migrations(name="0017_fairness")
def _fairness(db: Database) -> None:
    """For whom runs were stopped, the cluster's load over time, and the finish-time fairness of ended jobs."""
    db.execute("ALTER TABLE runs ADD COLUMN stopped_for TEXT")
    db.execute(
        """CREATE TABLE load (
             at REAL PRIMARY KEY, jobs INTEGER NOT NULL, apps INTEGER NOT NULL, requested INTEGER NOT NULL,
             capacity TEXT NOT NULL, job_seconds REAL NOT NULL, app_seconds REAL NOT NULL,
             contention_seconds REAL NOT NULL) WITHOUT ROWID"""
    )
    db.execute(
        """CREATE TABLE fairness (
             uid TEXT PRIMARY KEY REFERENCES jobs, user TEXT NOT NULL, account TEXT, finished REAL NOT NULL,
             gpu_seconds REAL NOT NULL, alone REAL, measured INTEGER NOT NULL, pollux REAL, shockwave_live REAL,
             gavel REAL, themis REAL) WITHOUT ROWID"""
    )
    db.execute("CREATE INDEX fairness_finished ON fairness (finished)")
    db.execute("CREATE INDEX fairness_user ON fairness (user, finished)")
    db.execute("CREATE INDEX fairness_account ON fairness (account, finished)")


@migrations(name="0018_forecasts")
def _forecasts(db: Database) -> None:
    """Forecast ranges of jobs with what came, and what was learned from them for the width of later ranges."""
    db.execute(
        """CREATE TABLE forecasts (
             uid TEXT NOT NULL REFERENCES jobs, kind TEXT NOT NULL, latest INTEGER NOT NULL, round INTEGER NOT NULL,
             at REAL NOT NULL, low REAL NOT NULL, median REAL NOT NULL, high REAL, truth REAL,
             closed INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (uid, kind, latest)) WITHOUT ROWID"""
    )
    db.execute("CREATE INDEX forecasts_open ON forecasts (uid) WHERE closed = 0")
    db.execute("CREATE INDEX forecasts_truth ON forecasts (truth) WHERE truth IS NOT NULL")
    db.execute(
        "CREATE TABLE forecast_calibration "
        "(kind TEXT PRIMARY KEY, below REAL NOT NULL, above REAL NOT NULL, outcomes INTEGER NOT NULL)"
    )


@migrations(name="0019_shadows")
def _shadows(db: Database) -> None:
    """What shadow policies would have decided, by round; the live policy's estimates are in each row."""
    db.execute(
        """CREATE TABLE shadows (
             round INTEGER NOT NULL, at REAL NOT NULL, policy TEXT NOT NULL, live TEXT NOT NULL, gpus INTEGER,
             would_run TEXT, would_not_run TEXT, jct REAL, worst_rho REAL, live_jct REAL, live_worst_rho REAL,
             seconds REAL NOT NULL, error TEXT, PRIMARY KEY (round, policy)) WITHOUT ROWID"""
    )


@migrations(name="0022_window_indexes")
def _window_indexes(db: Database) -> None:
    """The GPUs of each run, and indexes from which windows of time are answered without reading the runs' rows."""
    db.execute("ALTER TABLE runs ADD COLUMN gpus INTEGER")  # NULL before the start, and of imported runs
    db.execute(
        "UPDATE runs SET gpus = json_array_length(placement, '$.nodes') * json_extract(placement, '$.gpus_per_node') "
        "WHERE placement IS NOT NULL"
    )
    db.execute("DROP INDEX runs_ended")  # the first column of the next one
    db.execute("CREATE INDEX runs_window ON runs (ended, started, gpus, suspended_seconds) WHERE ended IS NOT NULL")
    db.execute("CREATE INDEX runs_open ON runs (started) WHERE ended IS NULL")


@migrations(name="0023_metric_counters")
def _metric_counters(db: Database) -> None:
    """Counters of the metrics, which triggers advance with the rows that they count, and which no retention deletes."""
    db.execute(
        """CREATE TABLE metric_counters (
             name TEXT NOT NULL, label TEXT NOT NULL, gpu_type TEXT NOT NULL, value REAL NOT NULL,
             PRIMARY KEY (name, label, gpu_type)) WITHOUT ROWID"""
    )
    db.execute("CREATE TABLE metric_accounts (account TEXT PRIMARY KEY) WITHOUT ROWID")
    for name, body in COUNTING.items():
        db.execute(f"CREATE TRIGGER {name} AFTER {body} END")


@migrations(name="0024_gpu_use")
def _gpu_use(db: Database) -> None:
    """How much jobs used their GPUs, as another monitor saw it, in windows of time."""
    db.execute(
        """CREATE TABLE gpu_use (
             uid TEXT NOT NULL REFERENCES jobs, at REAL NOT NULL, gpu_seconds REAL NOT NULL,
             busy_gpu_seconds REAL NOT NULL, idle_gpu_seconds REAL NOT NULL, PRIMARY KEY (uid, at)) WITHOUT ROWID"""
    )
    db.execute("CREATE INDEX gpu_use_at ON gpu_use (at)")


@migrations(name="0025_gpu_hours")
def _gpu_hours(db: Database) -> None:
    """Indexes from which GPU hours are summed, and the sums of jobs that ended before fairness was recorded."""
    for name, columns in {
        "fairness_user": "fairness (user, finished, account, gpu_seconds, pollux)",
        "jobs_finished": "jobs (finished, submitted) WHERE finished IS NOT NULL",
    }.items():
        db.execute(f"DROP INDEX {name}")
        db.execute(f"CREATE INDEX {name} ON {columns}")
    db.execute(
        "INSERT INTO fairness (uid, user, account, finished, gpu_seconds, measured) "
        "SELECT uid, user, account, finished, (SELECT total(max(ended - started - suspended_seconds, 0) * gpus) "
        "FROM runs WHERE runs.uid = jobs.uid AND started IS NOT NULL AND ended IS NOT NULL), 0 FROM jobs "
        "WHERE finished IS NOT NULL AND NOT EXISTS (SELECT 1 FROM fairness WHERE fairness.uid = jobs.uid) "
        "AND substr(uid, 1, 6) <> 'sacct:'"
    )


@migrations(name="0026_halfway_forecasts")
def _halfway_forecasts(db: Database) -> None:
    """A forecast halfway in place of the latest one; what was learned from latest ones is deleted with them.

    The steps of a calibration are counted, beside its outcomes.
    """
    db.execute("DELETE FROM forecasts WHERE latest")
    db.execute("DELETE FROM forecast_calibration")
    db.execute("ALTER TABLE forecast_calibration ADD COLUMN steps INTEGER NOT NULL DEFAULT 0")
    db.execute("ALTER TABLE forecasts RENAME COLUMN latest TO halfway")


def needs_migration(connection: sqlite3.Connection, path: Path, *, read_only: bool) -> bool:
    """Whether the database lacks migrations of this version; writes nothing.

    Raises:
        NotAStoreError: another application's database.
        NewerStoreError: a newer version of metasched has migrated it.
        OlderStoreError: it lacks migrations and is only to be read.
    """
    db = Database(connection, execute_plugins=False)
    (identity,) = db.execute("PRAGMA application_id").fetchone()
    if identity != APPLICATION_ID and set(db.table_names()) - {Migrations.migrations_table}:
        raise NotAStoreError(path, "a database of something else")
    applied, pending = len(migrations.applied(db)), len(migrations.pending(db))
    ours = len(migrations._migrations)  # noqa: SLF001  the library offers no public count
    if applied + pending > ours:
        raise NewerStoreError(path, applied, ours)
    if read_only and pending:
        raise OlderStoreError(path, applied, ours)
    return pending > 0


def migrate(connection: sqlite3.Connection) -> None:
    """Apply the migrations that the database lacks."""
    migrations.apply(Database(connection, execute_plugins=False))
