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
from metasched.core.model import Job
from policies.themis.finish_time import AppJob, AppWork, ClampedSlowdown, Phase, Slowdown
from policies.themis.offer import Level

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
    """Steps per second and GPU of a type, on the fewest GPUs for which that is known; None where it is not."""
    place = job.placement
    here = place if place is not None and place.gpu_type == gpu_type else None
    spreads = dict.fromkeys([(1,), (job.min_gpus,), (job.gpus,), *([here.spread] if here is not None else [])])
    for spread in spreads if job.speed is not None else ():
        rate = job.speed.steps_per_second(gpu_type, spread) if job.speed is not None else None
        if rate:
            return rate / sum(spread)
    if here is not None and job.steps_per_second and here.gpus:
        return job.steps_per_second / here.gpus
    return None


def app_work(app: App, jobs: Sequence[Job], rates: Rates, now: float, slowdown: Callable[[Job], Slowdown]) -> AppWork:
    """The work of some of an app's live members.

    Args:
        app: the app.
        jobs: the members; those that their tuner holds are missing.
        rates: how fast they are.
        now: unix seconds.
        slowdown: a job's slowdown by the distance of its GPUs.
    """
    whole = {job.uid: _whole_training(job, rates, slowdown(job)) for job in jobs}
    done = {job.uid: (job.progress_steps or 0.0) for job in jobs}
    phases = _phases(app, jobs, whole, done)
    left = math.fsum(job.work for phase in phases for job in phase)
    gone = max(app.attained_service - math.fsum(job.attained_service for job in jobs), 0.0)
    trained = math.fsum(_trained(job, rates) for job in jobs)
    return AppWork(
        phases=phases,
        elapsed=max(now - app.first_submitted, 0.0),
        budget=gone + trained + left,
        apps=app.mean_live_apps(now),
        most_gpus=max((sum(job.most_gpus for job in phase) for phase in phases), default=0),
    )


def _trained(job: Job, rates: Rates) -> float:
    """The work that a job has done: seconds on one GPU of the reference type."""
    seconds = rates.seconds_per_step(job)
    if seconds is None or not job.progress_steps:
        return job.attained_service
    return job.progress_steps * seconds


def _whole_training(job: Job, rates: Rates, slowdown: Slowdown) -> AppJob:
    """The job with its iterations until the end of its training."""
    seconds, left = rates.seconds_per_step(job), job.remaining_steps
    if left is None:
        attained = job.attained_service
        known = job.expected_service is not None and job.expected_service > attained
        work = (job.expected_service or 0.0) - attained if known else max(attained, UNKNOWN_WORK)
        left, seconds = (work, 1.0) if seconds is None else (work / seconds, seconds)
    elif seconds is None:
        seconds = (job.expected_service or UNKNOWN_WORK) / max(job.total_steps or 1.0, 1.0)
    left = max(left, LEAST_LEFT * (job.progress_steps or 0.0), 1.0)
    return AppJob(left, seconds, job.max_gpus, job.min_gpus, slowdown)


def _phases(app: App, jobs: Sequence[Job], whole: Mapping[str, AppJob], done: Mapping[str, float]) -> tuple[Phase, ...]:
    """The phases left: those of the tuner's brackets, side by side; jobs outside of them train to their end."""
    inside = {uid for bracket in app.brackets for uid in bracket.trials}
    rows = [_bracket_phases(bracket, whole, done) for bracket in app.brackets]
    first = tuple(whole[job.uid] for job in jobs if job.uid not in inside)
    merged = [tuple(job for phase in row for job in phase) for row in zip_longest((first,), *rows, fillvalue=())]
    return tuple(phase for phase in merged if phase)


def _bracket_phases(bracket: Bracket, whole: Mapping[str, AppJob], done: Mapping[str, float]) -> list[Phase]:
    """The present phase of a bracket, and the later ones, in which the median job stands for survivors (Eq. 2)."""
    present, *later = bracket.phases[bracket.phase :]
    live = [uid for uid in bracket.trials if uid in whole]
    if not live:
        return []
    jobs = tuple(
        whole[uid]._replace(iterations_left=max(present.steps - done[uid], LEAST_LEFT * done[uid], 1.0)) for uid in live
    )
    median = sorted(jobs, key=lambda job: job.seconds_per_iteration)[len(jobs) // 2]
    found: list[Phase] = [jobs]
    for before, phase in pairwise((present, *later)):
        most = max(phase.max_gpus, median.least_gpus)
        survivor = median._replace(iterations_left=phase.steps - before.steps, most_gpus=most)
        found.append((survivor,) * phase.trials)
    return found


def one_node_only(slowdown: ClampedSlowdown) -> ClampedSlowdown:
    """The slowdown of a job that runs on one node alone."""
    return ClampedSlowdown((*slowdown.factors[: Level.RACK], math.inf, math.inf))
