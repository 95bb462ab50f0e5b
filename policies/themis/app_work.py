"""An app's work as its agent bids with it: phases from the app's tuner, iterations from reports and tags.

Speeds are measured ones, where there are any. What a user declares (``total_steps``) cannot make a job that has run
longer look shorter than what it has done: at least ``LEAST_LEFT`` of that is left.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise, zip_longest
from typing import NamedTuple

from metasched.core.apps import App, Bracket
from metasched.core.model import Job, Snapshot
from policies.themis.finish_time import AppJob, AppWork, LaterPhase, Phase, Slowdown, curve_phase, halving_phases

UNKNOWN_WORK = 3600.0
"""The work of a training of which nothing is known: seconds on one GPU. Later, as much is left as it has received."""
LEAST_LEFT = 0.01
"""The least part of the work done that is still to do, while a job lives."""


class Rates(NamedTuple):
    """How fast an app's jobs train on one GPU.

    Attributes:
        reference: the GPU type in whose seconds work is measured.
        speeds: the speed of other GPU types, over that of the reference type.
    """

    reference: str
    speeds: Mapping[str, float]

    @classmethod
    def of(cls, jobs: Sequence[Job], gpu_types: Iterable[str]) -> Rates:
        """The rates of jobs on GPU types: geometric means over the jobs that are known on both types."""
        types = sorted(gpu_types)
        known = {gpu_type: [steps_per_gpu_second(job, gpu_type) for job in jobs] for gpu_type in types}
        reference = max(types, key=lambda one: sum(rate is not None for rate in known[one]), default="")
        speeds = {}
        for gpu_type in types:
            ratios = [
                rate / base
                for rate, base in zip(known[gpu_type], known[reference], strict=True)
                if rate is not None and base is not None
            ]
            speeds[gpu_type] = statistics.geometric_mean(ratios) if ratios else 1.0
        return cls(reference, speeds)

    def seconds_per_step(self, job: Job) -> float | None:
        """Seconds of an optimizer step on one GPU of the reference type; None where that is not known."""
        if (rate := steps_per_gpu_second(job, self.reference)) is not None:
            return 1.0 / rate
        for gpu_type, speed in self.speeds.items():
            if (rate := steps_per_gpu_second(job, gpu_type)) is not None:
                return speed / rate
        done = job.progress_steps or 0.0
        return job.attained_service / done if done > 0.0 and job.attained_service > 0.0 else None


def steps_per_gpu_second(job: Job, gpu_type: str) -> float | None:
    """Steps per second and GPU of a type, on one node if that is known, or else where the job runs; None if neither."""
    if (near := one_node_rate(job, gpu_type)) is not None:
        return near
    place = job.placement
    if place is None or place.gpu_type != gpu_type or not place.gpus:
        return None
    rate = None if job.speed is None else job.speed.steps_per_second(gpu_type, place.spread)
    return (rate or job.steps_per_second or 0.0) / place.gpus or None


def one_node_rate(job: Job, gpu_type: str) -> float | None:
    """Known steps per second and GPU of a type, on the fewest GPUs of one node; None where none is known."""
    if job.speed is None:
        return None
    for gpus in dict.fromkeys((1, job.min_gpus, job.gpus)):
        if rate := job.speed.steps_per_second(gpu_type, (gpus,)):
            return rate / gpus
    return None


def all_sizes(job: Job) -> frozenset[int]:
    """The sizes of a job that runs on any number of GPUs: an empty set."""
    del job
    return frozenset()


def app_work(
    app: App,
    jobs: Sequence[Job],
    rates: Rates,
    snapshot: Snapshot,
    *,
    slowdown: Callable[[Job], Slowdown],
    sizes: Callable[[Job], frozenset[int]] = all_sizes,
) -> AppWork:
    """The work of some of an app's live members.

    Args:
        app: the app.
        jobs: the members; those that their tuner holds are missing.
        rates: how fast they are.
        snapshot: the round, whose apps count for an app that has just been submitted.
        slowdown: a job's slowdown by the distance of its GPUs.
        sizes: the numbers of GPUs on which a job runs; empty for all.
    """
    age = snapshot.now - app.first_submitted
    whole = {job.uid: _whole_training(job, rates, slowdown(job), sizes(job)) for job in jobs}
    done = {job.uid: (job.progress_steps or 0.0) for job in jobs}
    phases = _phases(app, jobs, whole, done)
    left = math.fsum(job.work for phase in phases for job in phase)
    gone = max(app.attained_service - math.fsum(job.attained_service for job in jobs), 0.0)
    trained = math.fsum(_trained(job, rates) for job in jobs)
    return AppWork(
        phases=phases,
        elapsed=max(age, 0.0),
        budget=gone + trained + left,
        apps=app.mean_live_apps(snapshot.now) if age > 0.0 else float(max(len(snapshot.apps), 1)),
        most_gpus=_most_gpus(app, jobs, phases),
    )


def _most_gpus(app: App, jobs: Sequence[Job], phases: Sequence[Phase]) -> int:
    """The GPUs that the app could use at most in its whole life: phases and members that are gone count, too."""
    inside = {uid for bracket in app.brackets for uid in bracket.trials}
    others = [job.max_gpus for job in jobs if job.uid not in inside]
    gone = max(len({*app.members} - inside) - len(others), 0) * round(statistics.median(others)) if others else 0
    ever = sum(max(phase.trials * phase.max_gpus for phase in bracket.phases) for bracket in app.brackets)
    left = max((sum(job.most_gpus for job in phase) for phase in phases), default=0)
    return max(ever + sum(others) + gone, left)


def _trained(job: Job, rates: Rates) -> float:
    """The work that a job has done: seconds on one GPU of the reference type."""
    seconds = rates.seconds_per_step(job)
    if seconds is None or not job.progress_steps:
        return job.attained_service
    return job.progress_steps * seconds


def _whole_training(job: Job, rates: Rates, slowdown: Slowdown, sizes: frozenset[int]) -> AppJob:
    """The job with its iterations until the end of its training."""
    seconds, left = rates.seconds_per_step(job), job.remaining_steps
    if left is None:
        predicted = job.predicted_service_left
        work = max(job.attained_service, UNKNOWN_WORK) if predicted is None else predicted
        left, seconds = (work, 1.0) if seconds is None else (work / seconds, seconds)
    elif seconds is None:
        seconds = (job.expected_service or UNKNOWN_WORK) / max(job.total_steps or 1.0, 1.0)
    left = max(left, LEAST_LEFT * (job.progress_steps or 0.0), 1.0)
    return AppJob(left, seconds, job.max_gpus, job.min_gpus, slowdown, sizes)


def _phases(app: App, jobs: Sequence[Job], whole: Mapping[str, AppJob], done: Mapping[str, float]) -> tuple[Phase, ...]:
    """The phases left: those of the tuner's brackets, side by side; jobs outside of them train to their end.

    A tuner that works without phases may say how many steps a training has: the end of its most optimistic curve.
    """
    inside = {uid for bracket in app.brackets for uid in bracket.trials}
    rows = [_bracket_phases(bracket, whole, done) for bracket in app.brackets]
    outside = [job for job in jobs if job.uid not in inside]
    ends = [(steps - done[job.uid],) if (steps := _curve_steps(app, job)) > done[job.uid] else () for job in outside]
    first = curve_phase([whole[job.uid] for job in outside], ends)
    merged = [tuple(job for phase in row for job in phase) for row in zip_longest((first,), *rows, fillvalue=())]
    return tuple(phase for phase in merged if phase)


def _curve_steps(app: App, job: Job) -> float:
    """The steps at which the tuner says that a trial's curve ends; 0 where it does not say."""
    return 0.0 if app.tuner is None or job.tuner is None else app.tuner.options.get("steps", 0.0)


def _bracket_phases(bracket: Bracket, whole: Mapping[str, AppJob], done: Mapping[str, float]) -> tuple[Phase, ...]:
    """The present phase of a bracket, and the later ones (Eq. 2)."""
    present, *later = bracket.phases[bracket.phase :]
    live = [uid for uid in bracket.trials if uid in whole]
    if not live:
        return ()
    jobs = [
        whole[uid]._replace(iterations_left=max(present.steps - done[uid], LEAST_LEFT * done[uid], 1.0)) for uid in live
    ]
    after = [
        LaterPhase(phase.steps - before.steps, phase.trials, phase.max_gpus)
        for before, phase in pairwise((present, *later))
    ]
    return halving_phases(jobs, after)
