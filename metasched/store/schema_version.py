"""The version of a database's tables, recognised without the library that migrates them (``store/schema.py``)."""

from __future__ import annotations

import sqlite3

APPLICATION_ID = 0x6D736368  # "msch", in the file's header
MIGRATIONS = 22
"""The number of migrations of this version."""
LATEST = "0026_halfway_forecasts"
"""The name of the latest of them."""

TABLES = (
    *("jobs", "runs", "rounds", "decisions", "policy_state", "targets", "actions"),
    *("throughput", "checkpoints", "report_files", "events", "snapshots", "speeds", "iterations", "apps", "losses"),
    *("load", "fairness"),
    *("metric_counters", "metric_accounts"),
    *("forecasts", "forecast_calibration", "shadows", "gpu_use"),
)


def is_current(db: sqlite3.Connection) -> bool:
    """Whether the database is a store with the migrations of this version; False where that takes a closer look."""
    (identity,) = db.execute("PRAGMA application_id").fetchone()
    if identity != APPLICATION_ID:
        return False
    names = [name for (name,) in db.execute("SELECT name FROM _sqlite_migrations WHERE migration_set = 'metasched'")]
    return len(names) == MIGRATIONS and max(names) == LATEST
