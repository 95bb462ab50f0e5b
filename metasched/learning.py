"""From the trainers' reports to what is known of their jobs' speeds.

A report tells how long some steps took. It counts for a place, and for the company of another job on the same GPUs,
if both were the same all that time, as far as the polls have seen.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from metasched.model import Job, Placement, Status
from metasched.reports import TrialReport
from metasched.store import SpeedRecord, Store
from metasched.throughput.online import OnlineSpeed, Where
from metasched.trials import part

NEWS = 0.3
"""The weight of a new report in the mean."""


@dataclass(frozen=True, slots=True)
class _Circumstances:
    """What a speed depends on: the run, where, and who runs on the same GPUs."""

    run: int
    place: Placement
    beside: str | None


class Learning:
    """Knows every subject's speeds; the store has them, too.

    Args:
        store: of the daemon.

    Attributes:
        untried: see ``OnlineSpeed``.
    """

    def __init__(self, store: Store, untried: float | None) -> None:
        self._store = store
        self.untried = untried
        self._speeds: dict[str, OnlineSpeed] = {}
        self._since: dict[str, tuple[_Circumstances, float]] = {}
        for record in store.speeds():
            self._keep(record)

    def speed(self, subject: str) -> OnlineSpeed:
        """What is known; the same object as long as nothing new is."""
        return self._speeds.setdefault(subject, OnlineSpeed(subject, untried=self.untried))

    def forget(self, uid: str) -> None:
        """A job has ended: what was known of it alone is of no more use."""
        self._since.pop(uid, None)
        if self._speeds.pop(uid, None) is not None:
            self._store.forget_speeds(uid)

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
            company = subjects.get(job.shares_with or "") if job.shares_with in running else None
            if job.placement is None or job.placement.gpu_type is None:
                continue
            seen = _Circumstances(job.run, job.placement, company)
            before = self._since.get(uid)
            since[uid] = before if before is not None and before[0] == seen else (seen, now)
            if uid in reported:
                self._learn(uid, subjects[uid], *since[uid])
        self._since = since

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
        before = self.speed(subject).known(where, beside)
        mean = measured if before is None else before + NEWS * (measured - before)
        record = SpeedRecord(subject, *where, beside, mean, at)
        self._store.learn_speed(record)
        self._keep(record)

    def _keep(self, record: SpeedRecord) -> None:
        where = (record.gpu_type, record.spread)
        self._speeds[record.subject] = self.speed(record.subject).after(where, record.beside, record.steps_per_second)
