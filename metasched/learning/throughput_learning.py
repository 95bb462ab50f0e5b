"""Speeds of jobs, learnt from the trainers' reports.

A report says how long some steps took. It counts for a placement and a co-runner on the same GPUs where both were the
same all that time, as far as the polls have seen. A speed belongs to a subject: all jobs of a user that name the same
model, or one job that names none.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from metasched.core.model import Job, Placement, Status
from metasched.learning.profiling_sizes import gpus_by_node
from metasched.shared_dir.reports import ProfilingReport
from metasched.store import SpeedRecord, Store
from metasched.throughput.fingerprints import Fingerprints, table_fractions
from metasched.throughput.measured_speed import MeasuredSpeed, PlacementShape, SpeedFractions, within_tolerance
from metasched.throughput.throughput_table import ThroughputTable

REPORT_WEIGHT = 0.3
"""Weight of a new report in the exponential moving average of a speed."""


@dataclass(frozen=True, slots=True)
class _Circumstances:
    """What a measured speed depends on: the run, its placement, and the co-runner's subject (None: no co-runner)."""

    run: int
    placement: Placement
    co_runner: str | None


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
        self._speeds: dict[str, MeasuredSpeed] = {}
        self._since: dict[str, tuple[_Circumstances, float]] = {}
        self._retained_parts: dict[str, SpeedFractions] = {}  # by subject, the latest last
        self._measured_with: dict[str, set[str]] = {}  # by co-runner, the subjects that were measured with it
        self._fingerprints = Fingerprints()
        self._stale = bool(self._prior)
        for record in sorted(store.speeds(), key=lambda record: record.at):
            self._add(record)

    def speed(self, subject: str) -> MeasuredSpeed:
        """Return the subject's speed; the same object as long as nothing new is learnt."""
        if self._stale:
            self._estimate()
        return self._measured(subject)

    def forget(self, uid: str) -> None:
        """Drop the speeds of an ended job and of others with it as co-runner; its model's speed remains."""
        self._since.pop(uid, None)
        self._retained_parts.pop(uid, None)
        for subject in self._measured_with.pop(uid, ()):
            self._speeds[subject] = self._speeds[subject].without(uid)
            parts = self._retained_parts.get(subject, {})
            self._retained_parts[subject] = {column: part for column, part in parts.items() if column[2] != uid}
        if (speed := self._speeds.pop(uid, None)) is not None:
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
            jobs: the live ones.
            subjects: the subject of each job's speed, by uid.
            reported: uids of the jobs with new reports since the last poll.
            profiling_reports: new reports of profiling runs, by uid.
            now: unix seconds.
        """
        live = {job.uid: job for job in jobs}
        for uid, reports in profiling_reports.items():
            if uid in live and (placement := live[uid].placement) is not None:
                self.learn_profiling_runs(subjects[uid], placement, reports)
        running = {uid: job for uid, job in live.items() if job.status is Status.RUNNING and job.placement is not None}
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
        # Subjects without live jobs are dropped, unless a speed of theirs was measured.
        wanted = set(subjects.values())
        self._speeds = {
            subject: speed
            for subject, speed in self._speeds.items()
            if subject in wanted or speed.alone or speed.colocated
        }

    def learn_profiling_runs(self, subject: str, placement: Placement, reports: Iterable[ProfilingReport]) -> None:
        """Learn from profiling runs that used part of a placement."""
        for report in reports:
            spread = gpus_by_node(placement, report.world_size)
            if spread is not None and placement.gpu_type is not None:
                self._note(subject, (placement.gpu_type, spread), None, report.steps / report.seconds, report.at)

    def _learn(self, uid: str, subject: str, circumstances: _Circumstances, since: float) -> None:
        """Learn from the job's latest report, unless it began before the present circumstances did."""
        latest = next(iter(self._store.recent_throughput(uid, 1)), None)
        if (
            latest is None
            or latest.run != circumstances.run
            or latest.seconds <= 0
            or latest.at - latest.seconds < since
        ):
            return
        where = (circumstances.placement.gpu_type or "", circumstances.placement.spread)
        self._note(subject, where, circumstances.co_runner, latest.steps / latest.seconds, latest.at)

    def _note(self, subject: str, where: PlacementShape, co_runner: str | None, measured: float, at: float) -> None:
        """Add a measurement, in steps per second, to the moving average in memory and in the store."""
        before = self._measured(subject).measured(where, co_runner)
        mean = measured if before is None else before + REPORT_WEIGHT * (measured - before)
        record = SpeedRecord(subject, *where, co_runner, mean, at)
        self._store.set_speed(record)
        self._add(record)

    def _add(self, record: SpeedRecord) -> None:
        where = (record.gpu_type, record.spread)
        speed = self._measured(record.subject).after(where, record.co_runner, record.steps_per_second)
        self._speeds[record.subject] = speed
        if record.co_runner is not None:
            self._measured_with.setdefault(record.co_runner, set()).add(record.subject)
        parts = speed.retained_fractions()
        if not within_tolerance(parts, self._retained_parts.get(record.subject, {})):
            self._retained_parts.pop(record.subject, None)
            self._retained_parts[record.subject] = parts
            self._stale = True

    def _measured(self, subject: str) -> MeasuredSpeed:
        """Return the subject's speed with the fingerprint computed last."""
        if subject not in self._speeds:
            new = MeasuredSpeed(subject, untried=self._untried)
            self._speeds[subject] = new.estimated(self._fingerprints.of(subject))
        return self._speeds[subject]

    def _estimate(self) -> None:
        """Compute the fingerprints of all subjects anew."""
        self._fingerprints = Fingerprints.from_measurements(self._retained_parts, self._prior)
        self._speeds = {
            subject: speed.estimated(self._fingerprints.of(subject)) for subject, speed in self._speeds.items()
        }
        self._stale = False
