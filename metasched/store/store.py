"""The store: all tables behind one class."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from metasched.store.forecast_rows import ForecastRows
from metasched.store.gpu_hours import GpuHourQueries
from metasched.store.gpu_use import GpuUseRows
from metasched.store.job_queries import JobQueries
from metasched.store.live_records import LiveRecords
from metasched.store.metric_rows import MetricRows
from metasched.store.records import IterationRecord, SpeedRecord
from metasched.store.report_rows import ReportRows
from metasched.store.round_rows import RoundRows
from metasched.store.row_conversion import as_json
from metasched.store.shadow_rows import ShadowRows
from metasched.store.usage import UsageQueries
from metasched.store.window_queries import WindowQueries

MAX_ITERATIONS = 256
"""Configurations of a subject whose iterations are stored."""


class Store(
    LiveRecords,
    RoundRows,
    ReportRows,
    ForecastRows,
    ShadowRows,
    WindowQueries,
    GpuHourQueries,
    JobQueries,
    UsageQueries,
    MetricRows,
    GpuUseRows,
):
    """The daemon's database: ``Store.open(path)`` in the daemon, ``read_only=True`` elsewhere.

    Each method is one transaction; ``with store.transaction():`` makes one of many. Every writing method raises a
    ``StoreError`` when the file cannot be written, and then writes nothing. A store is used in the thread that opened
    it.
    """

    def begin_action(self, uid: str, kind: str, detail: Mapping[str, Any], number: int, at: float) -> int:
        """Record an action of round ``number`` before its execution; returns its id.

        If the daemon dies before ``end_action``, the action remains in ``unfinished_actions``.
        """
        with self.transaction():
            cursor = self._write(
                "INSERT INTO actions (round, at, uid, kind, detail) VALUES (?, ?, ?, ?, ?)",
                [number, at, uid, kind, as_json(detail)],
            )
        return int(cursor.lastrowid or 0)

    def end_action(self, action: int, outcome: str, latency_seconds: float | None) -> None:
        """Record the outcome of an action: ``ok``, or the error."""
        with self.transaction():
            self._write(
                "UPDATE actions SET outcome = ?, latency_seconds = ? WHERE id = ?", [outcome, latency_seconds, action]
            )

    def event(self, kind: str, text: str, uid: str | None = None, *, at: float) -> None:
        """Record an event of a job, or of the cluster (``uid`` None), at an instant in unix seconds."""
        with self.transaction():
            self._write("INSERT INTO events (at, uid, kind, text) VALUES (?, ?, ?, ?)", [at, uid, kind, text])

    def job_events(self, kind: str, texts: Mapping[str, str], *, at: float) -> None:
        """Record an event of one kind of each of some jobs, its text by the job's uid, as ``event`` does."""
        with self.transaction():
            rows = [(at, uid, kind, text) for uid, text in texts.items()]
            self._write_many("INSERT INTO events (at, uid, kind, text) VALUES (?, ?, ?, ?)", rows)

    def event_once(self, kind: str, text: str, uid: str, *, at: float) -> bool:
        """Record an event of a job unless the job has one of that kind, so that a user cannot flood the store.

        Returns:
            Whether the event is new.
        """
        if self._row("SELECT 1 FROM events WHERE uid = ? AND kind = ?", [uid, kind]) is not None:
            return False
        self.event(kind, text, uid, at=at)
        return True

    def renew_event(self, kind: str, text: str, uid: str, *, at: float) -> None:
        """Record an event of a job, which has one event of that kind: the latest, in place of an earlier one."""
        with self.transaction():
            self.event(kind, text, uid, at=at)
            # In this order: the number of the newest event is never given again to one that its readers do not know.
            self._write(
                "DELETE FROM events WHERE uid = ? AND kind = ? AND id < (SELECT max(id) FROM events)", [uid, kind]
            )

    def set_speed(self, record: SpeedRecord) -> None:
        """Insert a speed, or replace the one of the same subject, batch, place and co-runner."""
        key = (record.subject, record.batch, record.gpu_type, as_json(record.spread), record.co_runner or "")
        with self.transaction():
            self._write(
                "INSERT OR REPLACE INTO speeds (subject, batch, gpu_type, spread, co_runner, steps_per_second, at) "
                "VALUES (?, ?, ?, ?, ?, ?, ?)",
                [*key, record.steps_per_second, record.at],
            )

    def delete_speeds(self, subject: str) -> None:
        """Delete the speeds of a subject, and of other subjects with it as co-runner."""
        with self.transaction():
            self._write("DELETE FROM speeds WHERE subject = ? OR co_runner = ?", [subject, subject])

    def set_iteration(self, record: IterationRecord) -> None:
        """Insert the duration of iterations, or replace that of the same subject and configuration.

        Of a subject the latest ``MAX_ITERATIONS`` configurations are stored.
        """
        values = [getattr(record, field.name) for field in fields(record)]
        with self.transaction():
            self._write("INSERT OR REPLACE INTO iterations VALUES (?, ?, ?, ?, ?, ?, ?, ?)", values)
            self._write(
                "DELETE FROM iterations WHERE subject = ? AND at < "
                "(SELECT at FROM iterations WHERE subject = ? ORDER BY at DESC LIMIT 1 OFFSET ?)",
                [record.subject, record.subject, MAX_ITERATIONS - 1],
            )

    def delete_iterations(self, subject: str) -> None:
        """Delete the durations of a subject's iterations."""
        with self.transaction():
            self._write("DELETE FROM iterations WHERE subject = ?", [subject])
