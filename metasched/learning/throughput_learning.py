"""Speeds of jobs, learnt from the trainers' reports.

A report says how long some steps took. It counts for a placement and a co-runner on the same GPUs where both were the
same all that time, as far as the polls have seen. A speed belongs to a subject: all jobs of a user that name the same
model, or one job that names none.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median

import structlog

from metasched.core.batching import BatchPlan
from metasched.core.model import Job, Placement, Status
from metasched.learning.iteration_learning import IterationLearning
from metasched.learning.profiling_sizes import gpus_by_node
from metasched.shared_dir.reports import ProfilingReport
from metasched.store import IterationRecord, SpeedRecord, Store, ThroughputRecord
from metasched.throughput.fingerprints import Fingerprints, table_fractions
from metasched.throughput.iteration_time import IterationParameters
from metasched.throughput.measured_speed import (
    MeasuredSpeed,
    PlacementShape,
    SpeedFractions,
    moving_mean,
    within_tolerance,
)
from metasched.throughput.throughput_table import ThroughputTable

MAX_BATCHES = 32
"""Global batches of a subject whose speeds are held in memory."""

COMPARED_REPORTS = 8
"""Latest reports of a run that are compared with the clock."""
LEAST_PART_OF_CLOCK = 0.9
"""Part of the time between two reports that steps take at least in most reports, or an event of the job says so."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Circumstances:
    """What a measured speed depends on: the run, its placement, and the co-runner's subject (None: no co-runner)."""

    run: int
    placement: Placement
    co_runner: str | None


def part_of_clock(rows: Sequence[ThroughputRecord]) -> float:
    """Return the part of the time between two reports that steps take, at most 1; 1 where reports are few.

    In most reports of an honest trainer, steps take nearly all the time since the report before, because waits for data
    and for other ranks are parts of them. The median counts: an evaluation or a checkpoint between two reports makes no
    trainer slower. One that evaluates between any two reports is as slow as the clock says.

    Args:
        rows: the latest reports of one run, the latest first.
    """
    gaps = [(row, row.at - before.at) for row, before in pairwise(rows) if row.at > before.at]
    return 1.0 if len(gaps) < COMPARED_REPORTS - 1 else min(1.0, median(row.seconds / gap for row, gap in gaps))


def speed_subject(uid: str, user: str, model: str | None) -> str:
    """Return the subject of a job's speed: its user with the model that its tag names, or the job alone."""
    return uid if model is None else f"{user}/{model}"


class ThroughputLearning:
    """The measured speeds of every subject, in memory and in the store.

    Speeds with co-runners that were never measured are estimated from fingerprints. These are computed anew when a
    speed is asked for after a new measurement with a co-runner, or one that differs from the last by more than 5 %.

    Args:
        store: of the daemon.
        untried: see ``MeasuredSpeed``.
        table: speeds of models with each other as co-runners, measured in advance.
    """

    def __init__(self, store: Store, untried: float | None, table: ThroughputTable | None = None) -> None:
        self._store = store
        self._untried = untried
        self._prior: Mapping[str, SpeedFractions] = {} if table is None else table_fractions(table)
        self._speeds: dict[str, dict[int, MeasuredSpeed]] = {}  # by subject and batch
        self._latest_batch: dict[str, int] = {}  # by subject
        self._iterations = IterationLearning(store)
        self._since: dict[str, tuple[_Circumstances, float]] = {}
        self._retained_parts: dict[str, SpeedFractions] = {}  # by subject, the latest last
        self._measured_with: dict[str, set[str]] = {}  # by co-runner, the subjects that were measured with it
        self._fingerprints = Fingerprints()
        self._stale = bool(self._prior)
        self._wanted_by: Mapping[str, str] | None = None  # the subjects at the latest removal of unwanted ones
        self._changed: set[str] | None = None  # subjects with other speeds than at the last take_changes; None: all
        for record in sorted(store.speeds(), key=lambda record: record.at):
            self._add(record)

    def take_changes(self) -> Collection[str] | None:
        """Return the subjects whose speeds or iterations have changed since the last call; None where all may have."""
        if self._stale:
            self._estimate()
        changed, self._changed = self._changed, set()
        return changed

    def speed(self, subject: str, batch: int | None = None) -> MeasuredSpeed:
        """Return the subject's speed at a global batch; the same object as long as nothing new is learnt.

        Args:
            subject: of the speed.
            batch: samples of an optimizer step; None for the subject's latest batch.
        """
        if self._stale:
            self._estimate()
        return self._measured(subject, self._latest_batch.get(subject, 0) if batch is None else batch)

    def batch_speeds(self, subject: str) -> Mapping[int, MeasuredSpeed]:
        """Return the subject's measured speeds by global batch, without those whose batch was not recorded."""
        speeds = self._speeds.get(subject, {})
        return {batch: speed for batch, speed in speeds.items() if batch and speed.alone}

    def iteration_parameters(self, subject: str) -> Mapping[str, IterationParameters]:
        """Return the parameters of the time of an iteration, by GPU type; empty where nothing was measured."""
        return self._iterations.parameters(subject)

    def forget(self, uid: str) -> None:
        """Drop the speeds of an ended job and of others with it as co-runner; its model's speed remains."""
        self._since.pop(uid, None)
        self._retained_parts.pop(uid, None)
        self._latest_batch.pop(uid, None)
        self._iterations.forget(uid)
        for subject in self._measured_with.pop(uid, ()):
            batches = self._speeds.get(subject, {})
            batches.update({batch: speed.without(uid) for batch, speed in batches.items()})
            self._note_change(subject)
            parts = self._retained_parts.get(subject, {})
            self._retained_parts[subject] = {column: part for column, part in parts.items() if column[2] != uid}
        self._note_change(uid)
        if (speeds := self._speeds.pop(uid, None)) is not None:
            for speed in speeds.values():
                for _, other in speed.colocated:
                    self._measured_with.get(other, set()).discard(uid)
            self._store.delete_speeds(uid)

    def learn(
        self,
        jobs: Iterable[Job],
        subjects: Mapping[str, str],
        reported: Collection[str],
        profiling_reports: Mapping[str, Sequence[ProfilingReport]],
        now: float,
    ) -> None:
        """Learn from the reports of this poll, and note under which circumstances each job runs from now on.

        Args:
            jobs: the live ones; those without an allocation do not count.
            subjects: the subject of each job's speed, by uid; the same object while the jobs are the same.
            reported: uids of the jobs with new reports since the last poll.
            profiling_reports: new reports of profiling runs, by uid.
            now: unix seconds.
        """
        holding = {job.uid: job for job in jobs if job.placement is not None}
        for uid, reports in profiling_reports.items():
            if uid in holding and (placement := holding[uid].placement) is not None:
                self.learn_profiling_runs(subjects[uid], placement, reports)
        running = {uid: job for uid, job in holding.items() if job.status is Status.RUNNING}
        since: dict[str, tuple[_Circumstances, float]] = {}
        for uid, job in running.items():
            co_runner = subjects.get(job.co_runner or "") if job.co_runner in running else None
            if job.placement is None or job.placement.gpu_type is None:
                continue
            present = _Circumstances(job.run, job.placement, co_runner)
            before = self._since.get(uid)
            # Since now at the latest: the clock may have been set back.
            since[uid] = (present, now if before is None or before[0] != present else min(before[1], now))
            if uid in reported:
                self._learn(uid, subjects[uid], *since[uid])
        self._since = since
        if subjects is self._wanted_by:
            return
        # Subjects without live jobs are dropped, unless a speed of theirs was measured.
        self._wanted_by = subjects
        wanted = set(subjects.values())
        self._speeds = {
            subject: speeds
            for subject, speeds in self._speeds.items()
            if subject in wanted or any(speed.alone or speed.colocated for speed in speeds.values())
        }

    def learn_profiling_runs(self, subject: str, placement: Placement, reports: Iterable[ProfilingReport]) -> None:
        """Learn from profiling runs that used part of a placement."""
        for report in reports:
            spread = gpus_by_node(placement, report.world_size)
            if spread is None or placement.gpu_type is None:
                continue
            where = (placement.gpu_type, spread)
            batch = report.global_batch or self._latest_batch.get(subject, 0)
            self._note(subject, batch, where, None, report.steps / report.seconds, report.at)
            if report.per_gpu_batch is not None and report.accumulation is not None:
                plan = BatchPlan(report.per_gpu_batch, report.accumulation)
                self._note_iteration(subject, where, plan, report.seconds / report.steps, report.at)

    def _learn(self, uid: str, subject: str, circumstances: _Circumstances, since: float) -> None:
        """Learn from the job's latest report, unless it began before the present circumstances did."""
        rows = self._store.recent_throughput(uid, COMPARED_REPORTS)
        latest = next(iter(rows), None)
        if (
            latest is None
            or latest.run != circumstances.run
            or latest.seconds <= 0
            or latest.at - latest.seconds < since
        ):
            return
        where = (circumstances.placement.gpu_type or "", circumstances.placement.spread)
        part = part_of_clock([row for row in rows if row.run == latest.run])
        measured = latest.steps / latest.seconds * part  # the speed by the clock, whatever is said of the steps
        if part < LEAST_PART_OF_CLOCK:
            text = "its steps are slower by the clock than its reports say: the speed by the clock counts"
            if self._store.event_once("speed-implausible", text, uid, at=latest.at):
                log.info("reported_speed_implausible", uid=uid)
        self._note(subject, latest.global_batch, where, circumstances.co_runner, measured, latest.at)
        if circumstances.co_runner is None:
            plan = BatchPlan(latest.per_gpu_batch, latest.accumulation)
            self._note_iteration(subject, where, plan, 1.0 / measured, latest.at)

    def _note(  # noqa: PLR0917  one fact of a measurement each
        self, subject: str, batch: int, where: PlacementShape, co_runner: str | None, measured: float, at: float
    ) -> None:
        """Add a measurement, in steps per second, to the moving average in memory and in the store."""
        mean = moving_mean(self._measured(subject, batch).measured(where, co_runner), measured)
        record = SpeedRecord(subject, *where, co_runner, mean, at, batch)
        self._store.set_speed(record)
        self._add(record)

    def _note_iteration(self, subject: str, where: PlacementShape, plan: BatchPlan, seconds: float, at: float) -> None:
        """Add the seconds of an optimizer step, measured without a co-runner."""
        self._note_change(subject)
        gpu_type, spread = where
        several = len(spread) > 1
        self._iterations.note(
            IterationRecord(subject, gpu_type, sum(spread), several, plan.per_gpu, plan.accumulation, seconds, at)
        )

    def _note_change(self, subject: str) -> None:
        if self._changed is not None:
            self._changed.add(subject)

    def _add(self, record: SpeedRecord) -> None:
        self._note_change(record.subject)
        where = (record.gpu_type, record.spread)
        before = self._measured(record.subject, record.batch)
        batches = self._speeds[record.subject]
        batches[record.batch] = before.after(where, record.co_runner, record.steps_per_second)
        self._latest_batch[record.subject] = record.batch
        while len(batches) > MAX_BATCHES:
            del batches[next(batch for batch in batches if batch != record.batch)]
        if record.co_runner is not None:
            self._measured_with.setdefault(record.co_runner, set()).add(record.subject)
        parts = {key: part for speed in batches.values() for key, part in speed.retained_fractions().items()}
        if not within_tolerance(parts, self._retained_parts.get(record.subject, {})):
            self._retained_parts.pop(record.subject, None)
            self._retained_parts[record.subject] = parts
            self._stale = True

    def _measured(self, subject: str, batch: int) -> MeasuredSpeed:
        """Return the subject's speed at a batch with the fingerprint computed last.

        A batch that was not measured has the measurements whose batch was not recorded.
        """
        batches = self._speeds.setdefault(subject, {})
        if batch not in batches:
            new = batches.get(0) or MeasuredSpeed(subject, untried=self._untried)
            batches[batch] = replace(new, batch=batch).estimated(self._fingerprints.of(subject))
        return batches[batch]

    def _estimate(self) -> None:
        """Compute the fingerprints of all subjects anew."""
        self._fingerprints = Fingerprints.from_measurements(self._retained_parts, self._prior)
        for subject, batches in self._speeds.items():
            fingerprint = self._fingerprints.of(subject)
            batches.update({batch: speed.estimated(fingerprint) for batch, speed in batches.items()})
        self._stale = False
        self._changed = None
