"""The uncertain inputs of a simulated continuation of the queue, drawn at random: work, speeds, and later arrivals.

The work of a job that declares it is known but for the errors of measured speeds. The work of another job is drawn from
the durations of earlier jobs, given that they lasted longer than the job has run: of the same user and name, else of
the same user, else of all. Later arrivals repeat the submissions of the last days, from a random instant on, so that
bursts stay bursts (the block bootstrap: Kuensch, Annals of Statistics 17, 1989). Pure, but for the random numbers.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from metasched.core.model import Job
from metasched.simulator.records import Submission
from metasched.simulator.what_if import Estimate, live_submission
from metasched.throughput.scaling_curve import training_of_run

SPEED_ERROR = 0.1
"""The standard deviation of the logarithm of true over measured speed."""
COMMON_ERROR = 0.4
"""The standard deviation of the logarithm of a factor on the work of all jobs that do not declare theirs.

The jobs of the last days are no exact guide to those of the next, and an error that all jobs have in common does not
cancel out over a long queue.
"""
ASSUMED_ERROR = 1.0
"""The same of true over assumed work, where nothing is known of a job."""
LEAST_EARLIER_JOBS = 3
"""Fewer earlier jobs than this number do not tell the work of another job."""
TAIL_EXPONENT = 1.5
"""The exponent of the tail of durations, for jobs that have outlasted all earlier ones."""
ASSUMED_SECONDS = 4 * 3600.0
"""The running time of a job of which nothing is known, at the requested size, as in `metasched what-if`."""
LEAST_SPAN_SECONDS = 3600.0
"""Submissions of a shorter time do not tell how jobs arrive."""
LATER = "later:"
"""The prefix of the uids of jobs that are not submitted yet."""


@dataclass(frozen=True, slots=True)
class EarlierJob:
    """A job of the last days.

    Attributes:
        job: the job, as it would be submitted again; ``submitted`` is its submission in unix seconds.
        seconds: its service in seconds on the GPUs that it asked for, up to its end or up to now.
        ended: whether it has ended.
    """

    job: Job
    seconds: float
    ended: bool


class Durations:
    """The distribution of the durations of similar jobs, by the estimator of Kaplan and Meier (JASA 53, 1958).

    Live jobs count as jobs that last longer than they have run: without them long jobs would be missing at first.

    Args:
        jobs: the similar jobs.
    """

    def __init__(self, jobs: Iterable[EarlierJob]) -> None:
        ordered = sorted((one.seconds, not one.ended) for one in jobs if one.seconds > 0)
        self.ended = sum(not lives for _, lives in ordered)
        self._instants: list[float] = []
        self._survival: list[float] = []  # after each of these instants, negated: ascending
        survival = 1.0
        for position, (seconds, lives) in enumerate(ordered):
            if not lives:
                survival *= 1.0 - 1.0 / (len(ordered) - position)
                self._instants.append(seconds)
                self._survival.append(-survival)
        self._last = ordered[-1][0] if ordered else 0.0

    def drawn_beyond(self, seconds: float, rng: random.Random) -> float:
        """Return a drawn duration of a job that has run for ``seconds``; beyond all jobs the tail is a power law."""
        position = bisect_right(self._instants, seconds)
        before = -self._survival[position - 1] if position else 1.0
        target = before * (1.0 - rng.random())
        found = bisect_left(self._survival, -target, lo=position)
        if found < len(self._instants):
            return self._instants[found] * math.exp(rng.gauss(0.0, SPEED_ERROR))
        return max(self._last, seconds) * math.pow(1.0 - rng.random(), -1.0 / TAIL_EXPONENT)


@dataclass(frozen=True)
class EarlierJobs:
    """The jobs of the last days, from which work and arrivals are drawn.

    Attributes:
        jobs: the jobs.
        since: the instant from which on all submissions are known, unix seconds.
        until: the instant up to which they are known.
    """

    jobs: Sequence[EarlierJob]
    since: float
    until: float
    _groups: Mapping[tuple[str, ...], Durations] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        groups: dict[tuple[str, ...], list[EarlierJob]] = {}
        for one in self.jobs:
            for key in ((one.job.user, one.job.name), (one.job.user,), ()):
                groups.setdefault(key, []).append(one)
        object.__setattr__(self, "_groups", {key: Durations(found) for key, found in groups.items()})

    def durations(self, job: Job) -> Durations | None:
        """The durations of the jobs that are most like a job: of its user and name, of its user, or all.

        None where fewer than ``LEAST_EARLIER_JOBS`` of them have ended.
        """
        for key in ((job.user, job.name), (job.user,), ()):
            found = self._groups.get(key)
            if found is not None and found.ended >= LEAST_EARLIER_JOBS:
                return found
        return None


def common_factor(rng: random.Random) -> float:
    """Return a drawn factor on the work of all jobs of one simulation that do not declare theirs."""
    return math.exp(rng.gauss(0.0, COMMON_ERROR))


def drawn_submission(
    job: Job, estimate: Estimate, earlier: EarlierJobs, rng: random.Random, factor: float = 1.0
) -> Submission:
    """Return a live job with work and speed drawn at random.

    Args:
        job: the job.
        estimate: of its work.
        earlier: the jobs of the last days.
        rng: draws the random numbers.
        factor: the factor on the work that is to come, where the job does not declare its work.
    """
    if estimate.declared:
        left = max(estimate.training.total - estimate.done, 0.0)
        error = math.exp(rng.gauss(0.0, SPEED_ERROR))
        drawn = estimate.training.with_total(estimate.done + left * error)
        made = live_submission(job, replace(estimate, training=drawn))
        return replace(made, declared_ratio=estimate.training.total / drawn.total if drawn.total else 1.0)
    done = service_seconds(job)
    seconds = drawn_seconds(job, estimate, earlier, rng)
    drawn = estimate.training.with_total(done + (seconds - done) * factor)
    return live_submission(job, replace(estimate, training=drawn, done=done))


def service_seconds(job: Job) -> float:
    """Return the service of a job so far, in seconds on the GPUs that it asked for."""
    return job.attained_service / (job.gpus or job.nodes or 1)


def drawn_seconds(job: Job, estimate: Estimate, earlier: EarlierJobs, rng: random.Random) -> float:
    """Return a drawn duration of a job of unknown work, on the GPUs that it asked for; more than it has run."""
    done = service_seconds(job)
    known = earlier.durations(job)
    if known is not None:
        drawn = known.drawn_beyond(done, rng)
    else:
        left = max(estimate.training.total - estimate.done, 1.0)
        drawn = done + left * math.exp(rng.gauss(0.0, ASSUMED_ERROR))
    if job.time_limit_seconds is not None:
        drawn = min(drawn, max(job.time_limit_seconds, done + 1.0))
    return max(drawn, done + 1.0)


def later_arrivals(  # noqa: PLR0917  two instants, two limits
    earlier: EarlierJobs, at: float, until: float, most: int, exponent: float, rng: random.Random, factor: float = 1.0
) -> list[Submission]:
    """Return jobs that arrive between two instants as the jobs of the last days did.

    Args:
        earlier: the jobs of the last days.
        at: the beginning, unix seconds.
        until: the end, unix seconds.
        most: at most so many jobs are returned, the first to arrive.
        exponent: the exponent of speed over the number of GPUs, for elastic jobs.
        rng: draws the random numbers.
        factor: the factor on their work.
    """
    span = earlier.until - earlier.since
    recent = [one for one in earlier.jobs if one.job.submitted >= earlier.since]
    if span < LEAST_SPAN_SECONDS or not recent:
        return []
    offset = rng.uniform(0.0, span)
    turned = sorted((((one.job.submitted - earlier.since - offset) % span), n) for n, one in enumerate(recent))
    found: list[Submission] = []
    for lap in range(math.ceil((until - at) / span)):
        for after, number in turned:
            submitted = at + lap * span + after
            if submitted >= until or len(found) == most:
                return found
            found.append(_arrival(recent[number], earlier, submitted, factor, f"{LATER}{len(found):06}", exponent, rng))
    return found


def _arrival(  # noqa: PLR0917  the fields of a submission
    one: EarlierJob,
    earlier: EarlierJobs,
    submitted: float,
    factor: float,
    uid: str,
    exponent: float,
    rng: random.Random,
) -> Submission:
    seconds = one.seconds
    if not one.ended:
        known = earlier.durations(one.job)
        seconds = max(seconds, ASSUMED_SECONDS) if known is None else known.drawn_beyond(seconds, rng)
    job = one.job.evolve(uid=uid, slurm_job_id=uid, submitted=submitted)
    elastic = job.min_gpus != job.max_gpus
    return Submission(job, training_of_run(seconds * factor, job.gpus, exponent if elastic else None), declared=False)
