"""Triggers that advance the counters of the metrics in the transaction that writes what they count.

So the counters survive restarts, takeovers and the retention of the rows. The statements are part of a migration that
is never edited: a changed trigger is the next migration.
"""

# ruff: noqa: S608  the statements are made of this module's constants

from __future__ import annotations

# Upper bounds of the histograms' buckets, in seconds: a minute to thirty days.
BUCKETS = (60, 300, 900, 3600, 14400, 43200, 86400, 259200, 604800, 2592000)


def _count(name: str, label: str = "''", gpu_type: str = "''", value: str = "1", condition: str = "1") -> str:
    """A trigger's statement that adds to a counter; the arguments but the name are SQL."""
    return (
        f"INSERT INTO metric_counters SELECT '{name}', {label}, {gpu_type}, {value} WHERE {condition} "
        "ON CONFLICT (name, label, gpu_type) DO UPDATE SET value = value + excluded.value;"
    )


def _observe(name: str, seconds: str) -> str:
    """A trigger's statements that add seconds, a term of SQL, to a histogram."""
    bounds = " ".join(f"WHEN {seconds} <= {bound} THEN '{bound}'" for bound in BUCKETS)
    return _count(f"{name}_bucket", f"CASE {bounds} ELSE '+Inf' END") + _count(
        f"{name}_sum", value=f"max(0, {seconds})"
    )


_GPUS = "(coalesce(json_extract(NEW.placement, '$.gpus_per_node') * json_array_length(NEW.placement, '$.nodes'), 0))"
_RAN = "max(0, min(NEW.ended, coalesce(NEW.suspended_at, NEW.ended)) - NEW.started - NEW.suspended_seconds)"
_HELD = f"NEW.started IS NOT NULL AND {_GPUS} > 0"
COUNTING = {
    "count_run_ends": "UPDATE OF ended ON runs WHEN OLD.ended IS NULL AND NEW.ended IS NOT NULL BEGIN "
    + _count("runs_ended", "coalesce(NEW.cause, 'unknown')")
    + _count(
        "account_gpu_seconds",
        "coalesce((SELECT account FROM jobs WHERE uid = NEW.uid), '')",
        "coalesce(json_extract(NEW.placement, '$.gpu_type'), '')",
        f"{_GPUS} * {_RAN}",
        _HELD,
    )
    + "".join(
        _count(
            "overhead_gpu_seconds", f"'{part}'", value=f"{_GPUS} * max(0, {seconds})", condition=f"{_HELD} AND {known}"
        )
        for part, seconds, known in (
            ("start", "NEW.first_step_at - NEW.started", "NEW.first_step_at IS NOT NULL"),
            ("data", "NEW.data_seconds", "NEW.data_seconds IS NOT NULL"),
            ("sync", "NEW.sync_seconds", "NEW.sync_seconds IS NOT NULL"),
            ("checkpoint", "NEW.stall_seconds", "NEW.stall_seconds IS NOT NULL"),
        )
    ),
    "count_first_starts": "UPDATE OF started ON runs WHEN OLD.started IS NULL AND NEW.started IS NOT NULL "
    "AND NOT EXISTS (SELECT 1 FROM runs WHERE uid = NEW.uid AND run <> NEW.run AND started IS NOT NULL) BEGIN "
    + _observe("wait_seconds", "(NEW.started - (SELECT submitted FROM jobs WHERE uid = NEW.uid))"),
    "count_completions": "UPDATE OF finished ON jobs WHEN OLD.finished IS NULL AND NEW.finished IS NOT NULL "
    "AND NEW.end_state = 'COMPLETED' BEGIN " + _observe("completion_seconds", "(NEW.finished - NEW.submitted)"),
    "count_actions": "UPDATE OF outcome ON actions WHEN OLD.outcome IS NULL AND NEW.outcome IS NOT NULL BEGIN "
    + _count("actions", "NEW.kind || CASE NEW.outcome WHEN 'ok' THEN ' ok' ELSE ' error' END"),
}
"""The statements behind ``CREATE TRIGGER name AFTER``, without their ``END``, by the trigger's name."""
