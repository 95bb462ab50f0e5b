"""Rows of trainers' reports and reading positions of their files, committed in one transaction."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from metasched.core.apps import LossPoint
from metasched.shared_dir.reports import (
    CheckpointReport,
    DeclareReport,
    EndReport,
    Report,
    StartReport,
    StepsReport,
    StopReport,
)
from metasched.store.connection import Connection
from metasched.store.reported_batching import ReportedBatching
from metasched.store.reported_losses import ReportedLosses
from metasched.store.row_conversion import as_json, batching_of, noise_of, record_json

_Value = TypeVar("_Value")

# A trainer may write any number of lines and files; the store holds only the latest rows of a job.
MAX_THROUGHPUT_ROWS = 10_000
MAX_CHECKPOINT_ROWS = 1_000
MAX_FILES = 64  # reading positions of a job


@dataclass(frozen=True, slots=True)
class ReportFile:
    """The reading position of one report file.

    Attributes:
        uid: the job.
        generation: number of the trainer that wrote it.
        offset: bytes that were read and committed.
        skipping: whether ``offset`` lies inside a line that is not to be read.
        refused: lines that were refused so far.
        run: of the job, as its ``start`` line said.
        clamped: reports so far whose gradient noise was negative or huge.
    """

    uid: str
    generation: int
    offset: int = 0
    skipping: bool = False
    refused: int = 0
    run: int | None = None
    clamped: int = 0


class ReportRows(Connection):
    """Reading positions and reported rows."""

    def report_files(self, uid: str) -> dict[int, ReportFile]:
        """The reading positions of a job's report files, by generation."""
        rows = self._rows(
            "SELECT generation, offset, skipping, refused, run, clamped FROM report_files WHERE uid = ? "
            "ORDER BY generation",
            [uid],
        )
        return {
            generation: ReportFile(uid, generation, offset, bool(skipping), refused, run, clamped)
            for generation, offset, skipping, refused, run, clamped in rows
        }

    def commit_reports(self, file: ReportFile, reports: Sequence[Report], *, latest: bool) -> None:
        """Commit the reports of a file together with the new reading position.

        Args:
            file: the new position.
            reports: between the old position and the new one.
            latest: whether no later generation is known: only the latest one tells the job's progress.
        """
        with self.transaction():
            for report in reports:
                if isinstance(report, StartReport):
                    file = self._start(file, report)
                elif isinstance(report, StopReport):
                    noticed, checkpointed = report.noticed, int(report.checkpointed)
                    self._of_trainer(file, {"stop_noticed = ?": noticed, "checkpointed = ?": checkpointed})
            self._write(
                "INSERT INTO report_files (uid, generation, offset, skipping, refused, run, clamped) "
                "VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (uid, generation) DO UPDATE SET offset = excluded.offset, "
                "skipping = excluded.skipping, refused = excluded.refused, run = excluded.run, "
                "clamped = excluded.clamped",
                [file.uid, file.generation, file.offset, int(file.skipping), file.refused, file.run, file.clamped],
            )
            self._delete_old_rows("report_files", "generation", file.uid, MAX_FILES)
            self._throughput(file, [report for report in reports if isinstance(report, StepsReport)])
            self._checkpoints(file, [report for report in reports if isinstance(report, CheckpointReport)])
            if latest:
                self._losses(file.uid, self._batching(file.uid, reports))
                self._loss_and_total(file.uid, reports)

    def _start(self, file: ReportFile, report: StartReport) -> ReportFile:
        """Tie the trainer to the run that it names, if the job ever had that run."""
        if self._row("SELECT 1 FROM runs WHERE uid = ? AND run = ?", [file.uid, report.run]) is None:
            return file
        self._write(
            "UPDATE runs SET generation = ?, ready_at = ?, init_seconds = ?, stop_noticed = NULL, checkpointed = NULL, "
            "first_step_at = NULL WHERE uid = ? AND run = ? AND coalesce(generation, 0) <= ?",
            [file.generation, report.at, report.init_seconds, file.uid, report.run, file.generation],
        )
        return replace(file, run=report.run)

    def _batching(self, uid: str, reports: Sequence[Report]) -> list[tuple[Report, float | None]]:
        """Bring the job's batch size, noise and progress up to date; returns the reports, each with its progress."""
        row = self._row("SELECT batching, noise, progress_steps FROM jobs WHERE uid = ?", [uid])
        if row is None:
            return []
        before = after = ReportedBatching(batching_of(row[0]), noise_of(row[1]), row[2])
        with_progress = list[tuple[Report, float | None]]()
        for report in reports:
            after = after.after([report])
            with_progress.append((report, after.progress))
        if after != before:
            values = [record_json(after.batching), record_json(after.noise), after.progress, uid]
            self._write("UPDATE jobs SET batching = ?, noise = ?, progress_steps = ? WHERE uid = ?", values)
        return with_progress

    def _of_trainer(self, file: ReportFile, changes: Mapping[str, Any]) -> None:
        """Change the trainer's run: values by the assignments, in SQL, that take them."""
        if changes:
            self._write(
                f"UPDATE runs SET {', '.join(changes)} WHERE uid = ? AND run = ? AND generation = ?",  # noqa: S608  our own names
                [*changes.values(), file.uid, file.run, file.generation],
            )

    def _throughput(self, file: ReportFile, reports: Sequence[StepsReport]) -> None:
        if not reports:
            return
        self._write_many(
            "INSERT INTO throughput (uid, run, generation, at, step, steps, samples, seconds, loss, world_size, "
            "global_batch, per_gpu_batch, accumulation, progress, grad_square, grad_variance, plan, data_seconds, "
            "sync_seconds, peak_bytes) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [
                (
                    *(file.uid, file.run, file.generation, r.at, r.step, r.steps, r.samples, r.seconds, r.loss),
                    *(r.world_size, r.global_batch, r.per_gpu_batch, r.accumulation),
                    *(r.progress, r.grad_square, r.grad_variance, r.plan),
                    *(r.data_seconds, r.sync_seconds, r.peak_bytes),
                )
                for r in reports
            ],
        )
        first, last = reports[0], reports[-1]
        changes: dict[str, Any] = {
            "first_step_at = coalesce(first_step_at, ?)": first.at - first.seconds,
            "steps_per_second = ?": last.steps / last.seconds,
            "peak_bytes = max(coalesce(peak_bytes, 0), ?)": max(_known(r.peak_bytes for r in reports), default=None),
            **_addition("steps", [report.steps for report in reports]),
            **_addition("step_seconds", [report.seconds for report in reports]),
            **_addition("data_seconds", [report.data_seconds for report in reports]),
            **_addition("sync_seconds", [report.sync_seconds for report in reports]),
        }
        self._of_trainer(file, {change: value for change, value in changes.items() if value is not None})
        self._delete_old_rows("throughput", "id", file.uid, MAX_THROUGHPUT_ROWS)

    def _checkpoints(self, file: ReportFile, reports: Sequence[CheckpointReport]) -> None:
        if not reports:
            return
        self._write_many(
            "INSERT INTO checkpoints (uid, generation, at, step, seconds, size, cause, stall_seconds) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            [(file.uid, file.generation, r.at, r.step, r.seconds, r.size, r.cause, r.stall_seconds) for r in reports],
        )
        self._of_trainer(file, _addition("stall_seconds", [report.stall_seconds for report in reports]))
        self._delete_old_rows("checkpoints", "id", file.uid, MAX_CHECKPOINT_ROWS)

    def losses(self, uids: Collection[str]) -> dict[str, tuple[LossPoint, ...]]:
        """The reported losses of those jobs that have any, by uid; of diverged trainings not a number."""
        rows = self._rows(
            "SELECT uid, points, of_metric FROM losses WHERE uid IN (SELECT value FROM json_each(?))",
            [as_json(sorted(uids))],
        )
        return {uid: _losses_of(points, of_metric).points for uid, points, of_metric in rows}

    def _losses(self, uid: str, reports: Sequence[tuple[Report, float | None]]) -> None:
        """Bring the job's losses up to date, by reports with the progress after each."""
        row = self._row("SELECT points, of_metric FROM losses WHERE uid = ?", [uid])
        before = ReportedLosses() if row is None else _losses_of(*row)
        after = before.after(reports)
        if len(after.points) and (row is None or after != before):
            points = [[steps, loss if math.isfinite(loss) else None] for steps, loss in after.points]
            self._write(
                "INSERT INTO losses (uid, points, of_metric) VALUES (?, ?, ?) "
                "ON CONFLICT (uid) DO UPDATE SET points = excluded.points, of_metric = excluded.of_metric",
                [uid, as_json(points), int(after.of_metric)],
            )

    def _delete_old_rows(self, table: str, order: str, uid: str, rows: int) -> None:
        self._write(
            f"DELETE FROM {table} WHERE uid = ? AND {order} <= "  # noqa: S608  our own names
            f"(SELECT {order} FROM {table} WHERE uid = ? ORDER BY {order} DESC LIMIT 1 OFFSET ?)",
            [uid, uid, rows],
        )

    def _loss_and_total(self, uid: str, reports: Sequence[Report]) -> None:
        loss = _last(r.loss for r in reports if isinstance(r, StepsReport | EndReport))
        total = _last(_total_steps(r) for r in reports if isinstance(r, DeclareReport))
        if (loss, total) != (None, None):
            self._write(
                "UPDATE jobs SET loss = coalesce(?, loss), total_steps = coalesce(?, total_steps) WHERE uid = ?",
                [loss, total, uid],
            )


def _losses_of(points: str, of_metric: int) -> ReportedLosses:
    """The losses of a row."""
    found = (LossPoint(steps, math.nan if loss is None else loss) for steps, loss in json.loads(points))
    return ReportedLosses(tuple(found), bool(of_metric))


def _known(values: Iterable[_Value | None]) -> list[_Value]:
    """Return the values that are not None."""
    return [value for value in values if value is not None]


def _addition(column: str, amounts: Iterable[float | None]) -> dict[str, float]:
    """Return the change that adds the known amounts to a total of the run; no change where none is known."""
    known = _known(amounts)
    return {f"{column} = coalesce({column}, 0) + ?": sum(known)} if known else {}


def _total_steps(report: DeclareReport) -> int | None:
    if report.total_steps is not None:
        return report.total_steps
    if report.total_samples is None or report.global_batch is None:
        return None
    return -(-report.total_samples // report.global_batch)


def _last(values: Iterable[_Value | None]) -> _Value | None:
    last = None
    for value in values:
        last = value if value is not None else last
    return last
