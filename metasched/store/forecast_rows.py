"""Rows of queue forecasts: the first range of each job's start and end, the range halfway, and what came."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from metasched.store.connection import Connection
from metasched.store.records import ForecastRecord

_COLUMNS = "uid, kind, round, at, low, median, high, halfway, truth, closed"
_INSERT = (
    "INSERT OR IGNORE INTO forecasts (uid, kind, halfway, round, at, low, median, high) "
    "SELECT ?1, ?2, {}, ?3, ?4, ?5, ?6, ?7 WHERE EXISTS (SELECT 1 FROM {} WHERE uid = ?1 AND {})"
)
_FIRST = _INSERT.format(0, "jobs", "(finished IS NULL OR finished > ?4)")
_HALFWAY = _INSERT.format(
    1, "forecasts", "kind = ?2 AND halfway = 0 AND (closed = 0 OR truth > ?4) AND ?4 >= (at + median) / 2"
)
_INSTANT = (
    "CASE kind WHEN 'start' THEN (SELECT min(started) FROM runs WHERE runs.uid = forecasts.uid AND started >= at) "
    "WHEN 'end' THEN CASE WHEN end_state = 'COMPLETED' AND end_reason IS NULL THEN finished END END"
)


class ForecastRows(Connection):
    """Reads and writes of forecasts. Of each job and kind there are at most two rows."""

    def commit_forecasts(self, records: Iterable[ForecastRecord]) -> None:
        """Insert the forecasts of one round that are the first of a job, or the one halfway to the first one's median.

        Both are chosen by what was known at the instant of the forecast, ``at``: what has come between that instant and
        this call, in which early truths come, changes no choice. Of a job's latest forecast before its end this is not
        true: the end follows soon, whatever the range was. Forecasts of jobs that the store no longer has, or that had
        ended by ``at``, are left out.

        Args:
            records: the forecasts; which of them are halfway is decided here, and ``halfway`` is not read.
        """
        with self.transaction():
            for one in records:
                values = [one.uid, one.kind, one.round, one.at, one.low, one.median, one.high]
                if not self._write(_FIRST, values).rowcount:
                    self._write(_HALFWAY, values)

    def resolve_forecasts(self) -> list[ForecastRecord]:
        """Record what came for the open forecasts; returns those whose truth is known now, in the order of truths.

        A job that was cancelled, failed, or was ended by the daemon has no true end: its forecasts are closed.
        """
        rows = self._rows(
            f"SELECT {_COLUMNS}, {_INSTANT}, finished FROM forecasts JOIN jobs USING (uid) WHERE closed = 0"  # noqa: S608  constants
        )
        found = []
        with self.transaction():
            for *columns, instant, finished in rows:
                if instant is None and finished is None:
                    continue
                record = replace(_record(tuple(columns)), truth=instant, closed=True)
                self._write(
                    "UPDATE forecasts SET truth = ?, closed = 1 WHERE uid = ? AND kind = ? AND halfway = ?",
                    [instant, record.uid, record.kind, int(record.halfway)],
                )
                if instant is not None:
                    found.append(record)
        return sorted(found, key=lambda one: (one.truth or 0.0, one.uid, one.kind, one.halfway))

    def forecasts(self, uid: str) -> list[ForecastRecord]:
        """The first forecasts of a job and those halfway, starts after ends."""
        sql = f"SELECT {_COLUMNS} FROM forecasts WHERE uid = ? ORDER BY kind, halfway"  # noqa: S608  constants
        return [_record(row) for row in self._rows(sql, [uid])]

    def forecast_outcomes(self, since: float) -> list[ForecastRecord]:
        """The forecasts whose truth has come since an instant, unix seconds, in the order of the truths."""
        sql = f"SELECT {_COLUMNS} FROM forecasts WHERE truth >= ? ORDER BY truth"  # noqa: S608  constants
        return [_record(row) for row in self._rows(sql, [since])]

    def forecast_calibration(self, kind: str) -> tuple[float, float, int, int] | None:
        """The factors on the lower and the upper ends of ranges, and their outcomes and steps; None before any."""
        row = self._row("SELECT below, above, outcomes, steps FROM forecast_calibration WHERE kind = ?", [kind])
        return None if row is None else (row[0], row[1], row[2], row[3])

    def set_forecast_calibration(self, kind: str, below: float, above: float, outcomes: int, steps: int) -> None:
        """Replace the factors of a kind."""
        with self.transaction():
            self._write(
                "INSERT OR REPLACE INTO forecast_calibration (kind, below, above, outcomes, steps) "
                "VALUES (?, ?, ?, ?, ?)",
                [kind, below, above, outcomes, steps],
            )


def _record(row: tuple[Any, ...]) -> ForecastRecord:
    uid, kind, number, at, low, median, high, halfway, truth, closed = row
    return ForecastRecord(uid, kind, number, at, low, median, high, bool(halfway), truth, bool(closed))
