"""Read-only queries of one job's history, with a bounded number of rows however long the job lived."""

from __future__ import annotations

import json
from dataclasses import dataclass

from metasched.core.apps import AppsState
from metasched.store.connection import Connection
from metasched.store.records import RunRecord
from metasched.store.row_conversion import RUN_COLUMNS, run_of

_RUNS = f"SELECT {', '.join(RUN_COLUMNS)} FROM runs WHERE uid = ? ORDER BY run DESC LIMIT ?"  # noqa: S608  constants
# Of each group of consecutive reports: totals and means, and the other columns of its last report (`max(id)`).
_POINTS = """
  SELECT max(id), at, step, sum(steps), sum(seconds), avg(loss), world_size, global_batch, progress FROM (
    SELECT *, (row_number() OVER (ORDER BY id) - 1) / :each AS part FROM throughput WHERE uid = :uid)
  GROUP BY part ORDER BY part
"""
_BATCHES = """
  SELECT at, step, global_batch, per_gpu_batch, accumulation, world_size FROM (
    SELECT *, lag(global_batch) OVER (ORDER BY id) AS earlier FROM throughput WHERE uid = :uid)
  WHERE global_batch IS NOT earlier ORDER BY id LIMIT :most
"""


@dataclass(frozen=True, slots=True)
class ThroughputPoint:
    """Some consecutive ``steps`` reports of a job in one point.

    Attributes:
        at: instant of the last report, by the trainer's clock, unix seconds.
        step: the last optimizer step.
        progress: progress after the last report, in steps at the first batch; ``step`` where the batch is fixed.
        steps_per_second: mean speed.
        loss: mean of the known losses; None where none is known.
        world_size: number of ranks at the last report.
        global_batch: samples of an optimizer step at the last report.
    """

    at: float
    step: int
    progress: float
    steps_per_second: float
    loss: float | None
    world_size: int
    global_batch: int


@dataclass(frozen=True, slots=True)
class BatchChange:
    """The first report at another global batch than the report before; samples."""

    at: float
    step: int
    global_batch: int
    per_gpu_batch: int
    accumulation: int
    world_size: int


@dataclass(frozen=True, slots=True)
class CheckpointRecord:
    """One checkpoint as the trainer reported it.

    Attributes:
        at: unix seconds.
        generation: of the trainer.
        step: the optimizer step.
        seconds: time until the checkpoint was durable.
        size: bytes.
        cause: why it was written.
        stall_seconds: time for which training stood still; None where not measured.
    """

    at: float
    generation: int
    step: int
    seconds: float
    size: int
    cause: str
    stall_seconds: float | None


class JobQueries(Connection):
    """Queries of one job's history."""

    def latest_runs(self, uid: str, most: int) -> list[RunRecord]:
        """The latest runs of a job, in the order of their numbers."""
        return [run_of(row) for row in reversed(self._rows(_RUNS, [uid, most]))]

    def throughput_points(self, uid: str, most: int) -> list[ThroughputPoint]:
        """All reported steps of a job as at most ``most`` points, in the order of the reports."""
        (count,) = self._rows("SELECT count(*) FROM throughput WHERE uid = ?", [uid])[0]
        rows = self._rows(_POINTS, {"uid": uid, "each": -(-count // most) or 1})
        return [
            ThroughputPoint(at, step, step if progress is None else progress, steps / seconds, loss, ranks, batch)
            for _, at, step, steps, seconds, loss, ranks, batch, progress in rows
            if seconds > 0
        ]

    def batch_changes(self, uid: str, most: int) -> list[BatchChange]:
        """The first batch of a job and its changes, the oldest first."""
        return [BatchChange(*row) for row in self._rows(_BATCHES, {"uid": uid, "most": most})]

    def latest_checkpoints(self, uid: str, most: int) -> list[CheckpointRecord]:
        """The latest checkpoints of a job, newest first."""
        rows = self._rows(
            "SELECT at, generation, step, seconds, size, cause, stall_seconds FROM checkpoints "
            "WHERE uid = ? ORDER BY id DESC LIMIT ?",
            [uid, most],
        )
        return [CheckpointRecord(*row) for row in rows]

    def apps_states(self, most: int) -> list[AppsState]:
        """The latest states of the apps, newest first; an app is in them until a round after its last member's end."""
        rows = self._rows("SELECT version, data FROM apps ORDER BY round DESC LIMIT ?", [most])
        return [AppsState(version, json.loads(data)) for version, data in rows]
