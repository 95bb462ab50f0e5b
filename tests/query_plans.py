"""Which tables the queries of the web page's past read as a whole, by SQLite's EXPLAIN QUERY PLAN."""

import re

from contrib.benchmarks.large_site import SHOWCASE, USERS
from metasched.store.gpu_hours import JobsOf

BIG = (  # of shadows the store keeps at most 20,000 rows
    "jobs",
    "runs",
    "rounds",
    "decisions",
    "actions",
    "throughput",
    "checkpoints",
    "events",
    "losses",
    "report_files",
    "fairness",
    "forecasts",
    "snapshots",
    "policy_state",
)


def calls(store, now):
    """Each query of the web page's past, as a call without arguments, by name."""
    day = 86_400.0
    number = store.round_numbers()[1] // 2
    return {
        "runs_between": lambda: store.runs_between(now - 7 * day, now, now, 2000),
        "runs_between, long ago": lambda: store.runs_between(now - 12 * day, now - 11 * day, now, 2000),
        "job_labels": lambda: store.job_labels([SHOWCASE]),
        "gpu_hours_by_user": lambda: store.gpu_hours_by_user(now - 7 * day, now, now),
        "gpu_hours_by_job": lambda: store.gpu_hours_by_job(now - 7 * day, now, now, 100),
        "gpu_hours_by_job of users": lambda: store.gpu_hours_by_job(now - 7 * day, now, now, 100, JobsOf([USERS[0]])),
        "round_at": lambda: store.round_at(now - day),
        "round_before": lambda: store.round_before(number),
        "round_after": lambda: store.round_after(number),
        "round_numbers": store.round_numbers,
        "round_instants": lambda: store.round_instants(now - 7 * day, now, 100),
        "round_changes": lambda: store.round_changes(number, 100),
        "round_changes, latest": lambda: store.round_changes(2 * number, 100),
        "latest_runs": lambda: store.latest_runs(SHOWCASE, 200),
        "throughput_points": lambda: store.throughput_points(SHOWCASE, 300),
        "batch_changes": lambda: store.batch_changes(SHOWCASE, 100),
        "latest_checkpoints": lambda: store.latest_checkpoints(SHOWCASE, 20),
        "losses": lambda: store.losses([SHOWCASE]),
        "recent_decisions": lambda: store.recent_decisions(SHOWCASE, 50),
        "recent_actions": lambda: store.recent_actions(50, SHOWCASE),
        "recent_events": lambda: store.recent_events(50, SHOWCASE),
        "recent_job_events": lambda: store.recent_job_events(50, SHOWCASE),
        "recent_runs": lambda: store.recent_runs(200),
        "find_jobs": lambda: store.job(SHOWCASE),
        "apps_states": lambda: store.apps_states(20),
    }


def scans(store, call):
    """The steps of a call's queries that read a whole table with rows that grow with the history."""
    statements = []
    connection = store._db
    original = store._rows

    def noted(sql, parameters=()):
        statements.append((sql, parameters))
        return original(sql, parameters)

    store._rows = noted
    try:
        call()
    finally:
        del store._rows
    assert statements
    return scanned(connection, statements)


def scanned(connection, statements):
    """The steps of statements, with their parameters, that read a whole table with rows that grow with the history."""
    steps = [
        step
        for sql, parameters in statements
        for *_, step in connection.execute(f"EXPLAIN QUERY PLAN {sql}", parameters).fetchall()
    ]
    return [step for step in steps if re.match(rf"SCAN ({'|'.join((*BIG, 'now', 'before'))})\b", step)]
