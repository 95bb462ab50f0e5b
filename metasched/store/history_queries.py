"""Queries of ``status``, ``explain``, ``db`` and ``replay``; nothing here writes."""

from __future__ import annotations

import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

from metasched.core.reasons import from_text
from metasched.store.connection import Connection
from metasched.store.records import (
    IMPORTED,
    ActionRecord,
    DecisionRecord,
    EventRecord,
    IterationRecord,
    JobEventRecord,
    JobRecord,
    RoundRecord,
    RunRecord,
    SpeedRecord,
    ThroughputRecord,
)
from metasched.store.row_conversion import JOBS_WITH_RUNS, RUN_COLUMNS, batch_plan_of, job_of, placement_of, run_of
from metasched.store.schema_version import TABLES

_ALL_RUNS = f"SELECT {', '.join(RUN_COLUMNS)} FROM runs"  # noqa: S608  constants
_OPEN_RUNS = f"{_ALL_RUNS} WHERE ended IS NULL AND started > 0 ORDER BY started DESC LIMIT ?"
_RUNS = f"{_ALL_RUNS} WHERE uid = ? ORDER BY run"
_ENDED_RUNS = f"{_ALL_RUNS} WHERE ended > 0 ORDER BY ended DESC LIMIT ?"
_THROUGHPUT = (
    "SELECT uid, run, generation, at, step, steps, samples, seconds, loss, world_size, global_batch, per_gpu_batch, "
    "accumulation, progress, grad_square, grad_variance, plan, data_seconds, sync_seconds, peak_bytes "
    "FROM throughput WHERE uid = ? ORDER BY id DESC LIMIT ?"
)


IS_IMPORTED = f"substr(jobs.uid, 1, {len(IMPORTED)}) = '{IMPORTED}'"


class HistoryQueries(Connection):
    """Read-only queries; lists named "recent" have the newest first."""

    def find_jobs(self, text: str, limit: int = 20) -> list[JobRecord]:
        """Jobs with a uid or Slurm job id (a whole array by its id), else those whose name begins with a text.

        Live ones first, then the latest submitted.
        """
        order = " ORDER BY jobs.finished IS NOT NULL, jobs.submitted DESC, jobs.uid LIMIT ?"
        for condition, parameters in (
            # "`" follows "_" in ASCII: the ids of all tasks of the array lie between them
            (
                "jobs.uid = ? OR jobs.slurm_job_id = ? OR (jobs.slurm_job_id >= ? AND jobs.slurm_job_id < ?)",
                [text, text, f"{text}_", f"{text}`"],
            ),
            ("substr(jobs.name, 1, ?) = ?", [len(text), text]),
        ):
            rows = self._rows(f"{JOBS_WITH_RUNS} WHERE {condition}{order}", [*parameters, limit])
            if rows:
                return [job_of(row) for row in rows]
        return []

    def recent_jobs(self, limit: int = 100, *, imported: bool = True) -> list[JobRecord]:
        """The jobs that finished last, with or without those imported from Slurm's accounting."""
        condition = "WHERE jobs.finished IS NOT NULL" + ("" if imported else f" AND NOT {IS_IMPORTED}")
        rows = self._rows(f"{JOBS_WITH_RUNS} {condition} ORDER BY jobs.finished DESC LIMIT ?", [limit])
        return [job_of(row) for row in rows]

    def completed_jobs(self, user: str, name: str, limit: int) -> list[JobRecord]:
        """The jobs of a user with a name that have completed by themselves, the latest first."""
        condition = "WHERE jobs.name = ? AND jobs.user = ? AND jobs.end_state = 'COMPLETED' AND jobs.end_reason IS NULL"
        rows = self._rows(f"{JOBS_WITH_RUNS} {condition} ORDER BY jobs.finished DESC LIMIT ?", [name, user, limit])
        return [job_of(row) for row in rows]

    def preempted_jobs(self, user: str, limit: int) -> list[JobRecord]:
        """The user's jobs that were preempted at least once, live ones included, the latest submitted first."""
        condition = "WHERE jobs.user = ? AND jobs.preemptions > 0 ORDER BY jobs.submitted DESC, jobs.uid LIMIT ?"
        return [job_of(row) for row in self._rows(f"{JOBS_WITH_RUNS} {condition}", [user, limit])]

    def runs(self, uid: str) -> list[RunRecord]:
        """All runs of a job, in the order of their numbers."""
        return [run_of(row) for row in self._rows(_RUNS, [uid])]

    def recent_runs(self, limit: int = 100) -> list[RunRecord]:
        """The runs of all jobs that have started and not ended, then those that ended last; ``limit`` at most."""
        rows = self._rows(_OPEN_RUNS, [limit])
        rows += self._rows(_ENDED_RUNS, [limit - len(rows)])
        return [run_of(row) for row in rows]

    def has_final_checkpoint(self, uid: str) -> bool:
        """Whether the job's latest checkpoint, as its trainers reported, is the one at the end of the training."""
        row = self._row("SELECT cause FROM checkpoints WHERE uid = ? ORDER BY id DESC LIMIT 1", [uid])
        return row is not None and row[0] == "final"

    def recent_events(self, limit: int = 100, uid: str | None = None) -> list[EventRecord]:
        """The latest events, of all jobs and the cluster or of one job."""
        condition, parameters = _latest(uid, limit)
        rows = self._rows(f"SELECT id, at, uid, kind, text FROM events {condition}", parameters)  # noqa: S608  constants
        return [EventRecord(*row) for row in rows]

    def recent_job_events(self, limit: int = 100, uid: str | None = None) -> list[JobEventRecord]:
        """The latest events, of all jobs and the cluster or of one job, each with its job."""
        return self._job_events(*_latest(uid, limit))

    def events_after(self, number: int, limit: int) -> list[JobEventRecord]:
        """The events with higher numbers than one, the lowest first, each with its job."""
        return self._job_events("WHERE id > ? ORDER BY id LIMIT ?", [number, limit])

    def latest_event(self, before: float | None = None) -> int:
        """The number of the latest event, or of the latest before an instant; 0 for none."""
        condition, parameters = ("", []) if before is None else ("WHERE at < ?", [before])
        row = self._row(f"SELECT coalesce(max(id), 0) FROM events {condition}", parameters)  # noqa: S608  constants
        return 0 if row is None else int(row[0])

    def recent_actions(self, limit: int = 100, uid: str | None = None) -> list[ActionRecord]:
        """The latest actions, of all jobs or of one."""
        return self._actions(*_latest(uid, limit))

    def unfinished_actions(self) -> list[ActionRecord]:
        """Actions without an outcome: they are in progress, or the daemon died before their end."""
        return self._actions("WHERE outcome IS NULL ORDER BY id", [])

    def recent_decisions(self, uid: str, limit: int = 100) -> list[DecisionRecord]:
        """The latest decisions about one job; equal ones of consecutive rounds are one record."""
        return self._decisions(*_latest(uid, limit))

    def decisions_of(self, number: int) -> list[DecisionRecord]:
        """The decisions of one round, one for each of its jobs."""
        condition = "WHERE first_round <= ? AND (last_round IS NULL OR last_round >= ?) ORDER BY id"
        return self._decisions(condition, [number, number])

    def recent_rounds(self, limit: int = 100) -> list[RoundRecord]:
        """The latest rounds, newest first."""
        rows = self._rows(
            "SELECT round, at, policy, parameters, decide_seconds, summary FROM rounds ORDER BY round DESC LIMIT ?",
            [limit],
        )
        return [
            RoundRecord(number, at, policy, json.loads(parameters), seconds, json.loads(summary))
            for number, at, policy, parameters, seconds, summary in rows
        ]

    def round_to_follow(self) -> RoundRecord | None:
        """The latest round whose snapshot is stored: that of a round follows its actions.

        Where both of the latest two rounds have none, the daemon stores none, and it is the latest round. It is None
        where there is no round, or only one, which has no snapshot yet.
        """
        latest = self.recent_rounds(2)
        since = [latest[-1].round] if latest else [0]
        stored = {number for (number,) in self._rows("SELECT round FROM snapshots WHERE round >= ?", since)}
        found = [record for record in latest if record.round in stored]
        if not found and len(latest) > 1:
            return latest[0]
        return next(iter(found), None)

    def recent_throughput(self, uid: str, limit: int = 100) -> list[ThroughputRecord]:
        """The latest ``steps`` reports of a job's trainers."""
        return [ThroughputRecord(*row) for row in self._rows(_THROUGHPUT, [uid, limit])]

    def speeds(self) -> list[SpeedRecord]:
        """All stored speeds, steps per second."""
        rows = self._rows("SELECT subject, gpu_type, spread, co_runner, steps_per_second, at, batch FROM speeds")
        return [
            SpeedRecord(subject, gpu_type, tuple(json.loads(spread)), co_runner or None, speed, at, batch)
            for subject, gpu_type, spread, co_runner, speed, at, batch in rows
        ]

    def iterations(self) -> list[IterationRecord]:
        """All stored durations of iterations."""
        columns = "subject, gpu_type, gpus, multi_node, per_gpu, accumulation, seconds, at"
        rows = self._rows(f"SELECT {columns} FROM iterations")  # noqa: S608  constants
        return [
            IterationRecord(subject, gpu_type, gpus, bool(multi_node), *measured)
            for subject, gpu_type, gpus, multi_node, *measured in rows
        ]

    def table_sizes(self) -> dict[str, int]:
        """The number of rows of each table."""
        return {table: self._rows(f"SELECT count(*) FROM {table}")[0][0] for table in TABLES}  # noqa: S608  constants

    def problems(self) -> list[str]:
        """SQLite's findings in a check of the whole file, one text each; empty for a sound file.

        Raises:
            DamagedStoreError: the file is too damaged to be checked.
        """
        found = [text for (text,) in self._rows("PRAGMA integrity_check") if text != "ok"]
        return found + [
            f"{table}, row {row}: refers to a missing row of {parent}"
            for table, row, parent, _ in self._rows("PRAGMA foreign_key_check")
        ]

    def every_row(self) -> Generator[tuple[str, dict[str, Any]], None, None]:
        """Every row of every table at one instant, as (table, values by column)."""
        with self.transaction():
            for table in TABLES:
                cursor = self._db.execute(f"SELECT * FROM {table}")  # noqa: S608  constants
                columns = [name for name, *_ in cursor.description]
                for row in cursor:
                    yield table, dict(zip(columns, row, strict=True))

    def file_bytes(self) -> int:
        """The file's bytes on disk, the write-ahead log included."""
        paths = (Path(f"{self.path}{suffix}") for suffix in ("", "-wal"))
        return sum(path.stat().st_size for path in paths if path.exists())

    def copy_bytes(self) -> int:
        """Most bytes of a copy for a standby daemon: the pages in use, without the snapshots' data."""
        (size,) = self._rows(
            "SELECT (page_count - freelist_count) * page_size - (SELECT coalesce(sum(length(data)), 0) FROM snapshots) "
            "FROM pragma_page_count, pragma_freelist_count, pragma_page_size"
        )[0]
        return int(size)

    def _actions(self, condition: str, parameters: list[Any]) -> list[ActionRecord]:
        sql = f"SELECT id, round, at, uid, kind, detail, outcome, latency_seconds FROM actions {condition}"  # noqa: S608  constants
        return [
            ActionRecord(row_id, number, at, uid, kind, json.loads(detail), outcome, latency)
            for row_id, number, at, uid, kind, detail, outcome, latency in self._rows(sql, parameters)
        ]

    def _job_events(self, condition: str, parameters: list[Any]) -> list[JobEventRecord]:
        rows = self._rows(
            "SELECT id, at, uid, kind, text, slurm_job_id, name, user, account, end_state "  # noqa: S608  constants
            f"FROM events LEFT JOIN jobs USING (uid) {condition}",
            parameters,
        )
        return [JobEventRecord(EventRecord(*row[:5]), *row[5:]) for row in rows]

    def _decisions(self, condition: str, parameters: list[Any]) -> list[DecisionRecord]:
        sql = f"SELECT uid, first_round, last_round, granted, reason, batch FROM decisions {condition}"  # noqa: S608  constants
        return [
            DecisionRecord(uid, first, last, placement_of(granted), from_text(reason), batch_plan_of(batch))
            for uid, first, last, granted, reason, batch in self._rows(sql, parameters)
        ]


def _latest(uid: str | None, limit: int) -> tuple[str, list[Any]]:
    """Return the end of a query for the latest rows, of one job or of all, and its parameters."""
    of_job, parameters = ("", []) if uid is None else ("WHERE uid = ? ", [uid])
    return f"{of_job}ORDER BY id DESC LIMIT ?", [*parameters, limit]
