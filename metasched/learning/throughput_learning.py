"""From the trainers' reports to what is known of their jobs' speeds.

A report tells how long some steps took. It counts for a place, and for the company of another job on the same GPUs,
if both were the same all that time, as far as the polls have seen.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from metasched.core.model import Job, Placement, Status
from metasched.learning.profiling_runs import part
from metasched.shared_dir.reports import TrialReport
from metasched.store import SpeedRecord, Store
from metasched.throughput.fingerprints import Fingerprints, prior_of
from metasched.throughput.online_speed import MeasuredSpeed, Parts, Where, near
from metasched.throughput.throughput_table import Table

NEWS = 0.3
"""The weight of a new report in the mean."""


@dataclass(frozen=True, slots=True)
class _Circumstances:
    """What a speed depends on: the run, where, and who runs on the same GPUs."""

    run: int
    place: Placement
    beside: str | None


class ThroughputLearning:
    """Knows every subject's speeds; the store has them, too.

    Fingerprints are made anew when a speed is asked for and a part that was measured since is new, or has changed by
    more than 5 %.

    Args:
        store: of the daemon.
        untried: see ``MeasuredSpeed``.
        table: of models that were measured beside each other in advance.
    """

    def __init__(self, store: Store, untried: float | None, table: Table | None = None) -> None:
        self._store = store
        self._untried = untried
        self._prior: Mapping[str, Parts] = {} if table is None else prior_of(table)
        self._speeds: dict[str, MeasuredSpeed] = {}
        self._since: dict[str, tuple[_Circumstances, float]] = {}
        self._kept: dict[str, Parts] = {}  # what the fingerprints are made from; the latest last
        self._company: dict[str, set[str]] = {}  # by subject, who was measured beside it
        self._fingerprints = Fingerprints()
        self._stale = bool(self._prior)
        for record in sorted(store.speeds(), key=lambda record: record.at):
            self._keep(record)

    def speed(self, subject: str) -> MeasuredSpeed:
        """What is known; the same object as long as nothing new is."""
        if self._stale:
            self._estimate()
        return self._measured(subject)

    def forget(self, uid: str) -> None:
        """A job has ended: what was known of it alone, and of others beside it, is of no more use."""
        self._since.pop(uid, None)
        self._kept.pop(uid, None)
        for subject in self._company.pop(uid, ()):
            self._speeds[subject] = self._speeds[subject].without(uid)
            self._kept[subject] = {c: part for c, part in self._kept.get(subject, {}).items() if c[2] != uid}
        if (speed := self._speeds.pop(uid, None)) is not None:
            for _, other in speed.beside_subject:
                self._company.get(other, set()).discard(uid)
            self._store.delete_speeds(uid)

    def look(self, jobs: Iterable[Job], subjects: Mapping[str, str], reported: Collection[str], now: float) -> None:
        """Note under which circumstances jobs run, and learn from the reports that have come.

        Args:
            jobs: the live ones.
            subjects: by uid, whose speed theirs is.
            reported: the uids of those from which reports have come since the last look.
            now: unix seconds.
        """
        running = {job.uid: job for job in jobs if job.status is Status.RUNNING and job.placement is not None}
        since: dict[str, tuple[_Circumstances, float]] = {}
        for uid, job in running.items():
            company = subjects.get(job.co_runner or "") if job.co_runner in running else None
            if job.placement is None or job.placement.gpu_type is None:
                continue
            seen = _Circumstances(job.run, job.placement, company)
            before = self._since.get(uid)
            # Since now at the latest: the clock may have been set back.
            since[uid] = (seen, now if before is None or before[0] != seen else min(before[1], now))
            if uid in reported:
                self._learn(uid, subjects[uid], *since[uid])
        self._since = since
        # Of subjects whose jobs are over, what was measured stays, and nothing else.
        wanted = set(subjects.values())
        self._speeds = {who: s for who, s in self._speeds.items() if who in wanted or s.alone or s.beside_subject}

    def take(self, subject: str, place: Placement, trials: Iterable[TrialReport]) -> None:
        """Learn from what trials before a run have measured, on part of its place."""
        for trial in trials:
            spread = part(place, trial.world_size)
            if spread is not None and place.gpu_type is not None:
                self._note(subject, (place.gpu_type, spread), None, trial.steps / trial.seconds, trial.at)

    def _learn(self, uid: str, subject: str, seen: _Circumstances, since: float) -> None:
        latest = next(iter(self._store.recent_throughput(uid, 1)), None)
        if latest is None or latest.run != seen.run or latest.at - latest.seconds < since or latest.seconds <= 0:
            return
        where = (seen.place.gpu_type or "", seen.place.spread)
        self._note(subject, where, seen.beside, latest.steps / latest.seconds, latest.at)

    def _note(self, subject: str, where: Where, beside: str | None, measured: float, at: float) -> None:
        before = self._measured(subject).known(where, beside)
        mean = measured if before is None else before + NEWS * (measured - before)
        record = SpeedRecord(subject, *where, beside, mean, at)
        self._store.set_speed(record)
        self._keep(record)

    def _keep(self, record: SpeedRecord) -> None:
        where = (record.gpu_type, record.spread)
        speed = self._measured(record.subject).after(where, record.co_runner, record.steps_per_second)
        self._speeds[record.subject] = speed
        if record.co_runner is not None:
            self._company.setdefault(record.co_runner, set()).add(record.subject)
        kept = speed.kept()
        if not near(kept, self._kept.get(record.subject, {})):
            self._kept.pop(record.subject, None)
            self._kept[record.subject] = kept
            self._stale = True

    def _measured(self, subject: str) -> MeasuredSpeed:
        """What is known, with the estimates that there are."""
        if subject not in self._speeds:
            new = MeasuredSpeed(subject, untried=self._untried)
            self._speeds[subject] = new.estimated(self._fingerprints.of(subject))
        return self._speeds[subject]

    def _estimate(self) -> None:
        """Make the fingerprints anew."""
        self._fingerprints = Fingerprints.made(self._kept, self._prior)
        self._speeds = {who: speed.estimated(self._fingerprints.of(who)) for who, speed in self._speeds.items()}
        self._stale = False
