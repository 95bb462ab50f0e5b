"""Apps as the baselines' by-app forms see them (Themis, NSDI 2020, section 6.1): their jobs, their service, their work.

In that comparison every baseline serves apps by its own metric, where its authors serve jobs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from metasched.core.apps import App, Bracket
from metasched.core.model import Job, Snapshot
from policies.baselines.remaining_time import RemainingTime


@dataclass(frozen=True)
class AppGroup:
    """An app's jobs in a round.

    Attributes:
        uid: the app's uid; of a job without an app the job's.
        jobs: its jobs that may run, by submission.
        app: the app; None for a job without one.
    """

    uid: str
    jobs: Sequence[Job]
    app: App | None

    @property
    def submitted(self) -> float:
        """First submission of a member, unix seconds."""
        return self.jobs[0].submitted if self.app is None else self.app.first_submitted

    @property
    def attained_service(self) -> float:
        """GPU-seconds that all members have received, those that are gone included."""
        return self.jobs[0].attained_service if self.app is None else self.app.attained_service

    def remaining_seconds(self, known: RemainingTime) -> float | None:
        """Seconds until the app's end, if each job has its requested GPUs; None where a speed or total is not known.

        A phase ends with its slowest job, and the median job stands for those of later phases (Themis, Eq. 2).
        """
        searches = self._searches(known)
        if searches is None:
            return None
        return max(sum(max((part.seconds for part in phase), default=0.0) for phase in phases) for phases in searches)

    def remaining_gpu_seconds(self, known: RemainingTime) -> float | None:
        """GPU-seconds that the app needs until its end; None where a speed or total is not known."""
        searches = self._searches(known)
        if searches is None:
            return None
        return sum(part.seconds * part.gpus for phases in searches for phase in phases for part in phase)

    def _searches(self, known: RemainingTime) -> list[list[list[_JobWork]]] | None:
        """The work left: for each bracket, or job without one, its phases, and in each of them the jobs."""
        seconds = {job.uid: known.seconds_per_step(job) for job in self.jobs}
        rates = sorted(one for one in seconds.values() if one is not None)
        if len(rates) < len(seconds) or any(job.remaining_steps is None for job in self.jobs):
            return None
        median = rates[len(rates) // 2]
        searches = []
        others = {job.uid: job for job in self.jobs}
        for bracket in () if self.app is None else self.app.brackets:
            live = [found for uid in bracket.trials if (found := others.pop(uid, None)) is not None]
            end, width = bracket.phases[bracket.phase].steps, max((job.gpus for job in live), default=1)
            phases = [
                [
                    _JobWork(max(end - (job.progress_steps or 0.0), 0.0) * (seconds[job.uid] or 0.0), job.gpus)
                    for job in live
                ]
            ]
            for trials, steps, most in _later_phases(bracket):
                phases.append([_JobWork(steps * median * width / most, most)] * trials)
            searches.append(phases)
        alone = [
            _JobWork((job.remaining_steps or 0.0) * (seconds[job.uid] or 0.0), job.gpus) for job in others.values()
        ]
        return [*searches, *([[work]] for work in alone)]


class _JobWork(NamedTuple):
    """What is left of one job in one phase: seconds on so many GPUs."""

    seconds: float
    gpus: int


def _later_phases(bracket: Bracket) -> Iterator[tuple[int, float, int]]:
    """Of each phase after the present one: its trials, the steps that each of them does in it, and its most GPUs."""
    for before, phase in zip(bracket.phases[bracket.phase :], bracket.phases[bracket.phase + 1 :], strict=False):
        yield phase.trials, phase.steps - before.steps, max(phase.max_gpus, 1)


def app_groups(snapshot: Snapshot) -> list[AppGroup]:
    """The apps of a round with jobs that may run, by first submission."""
    apps = {app.uid: app for app in snapshot.apps}
    jobs: dict[str, list[Job]] = {}
    for job in snapshot.jobs:
        jobs.setdefault(job.app or job.uid, []).append(job)
    groups = [AppGroup(uid, members, apps.get(uid)) for uid, members in jobs.items()]
    return sorted(groups, key=lambda group: (group.submitted, group.uid))


def by_app(snapshot: Snapshot, metric: Callable[[AppGroup], float | None]) -> list[Job]:
    """All jobs, those of the app with the least metric first; within an app, jobs that hold GPUs come first.

    Args:
        snapshot: the round.
        metric: the metric of an app; None where it is not known, which comes last.
    """
    found: list[tuple[float, AppGroup]] = []
    for group in app_groups(snapshot):
        value = metric(group)
        found.append((math.inf if value is None else value, group))
    found.sort(key=lambda one: one[0])
    return [job for _, group in found for job in sorted(group.jobs, key=lambda job: not job.active)]
