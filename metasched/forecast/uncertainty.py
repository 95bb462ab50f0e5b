"""The uncertain inputs of a simulated continuation of the queue, drawn at random: work, speeds, and later arrivals.

The work of a job that declares it is known but for the errors of measured speeds. The work of another job is drawn from
the durations of earlier jobs, given that they lasted longer than the job has run (metasched/forecast/durations.py).
Later arrivals repeat the submissions of the last days, from a random instant on, so that
bursts stay bursts (the block bootstrap: Kuensch, Annals of Statistics 17, 1989). Pure, but for the random numbers.
"""

from __future__ import annotations

import math
import random
from dataclasses import replace

from metasched.core.model import Job
from metasched.forecast.durations import DrawnDurations, EarlierJob, EarlierJobs
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
ASSUMED_SECONDS = 4 * 3600.0
"""The running time of a job of which nothing is known, at the requested size, as in `metasched what-if`."""
LEAST_SPAN_SECONDS = 3600.0
"""Submissions of a shorter time do not tell how jobs arrive."""
LATER = "later:"
"""The prefix of the uids of jobs that are not submitted yet."""


def common_factor(rng: random.Random) -> float:
    """Return a drawn factor on the work of all jobs of one simulation that do not declare theirs."""
    return math.exp(rng.gauss(0.0, COMMON_ERROR))


def drawn_submission(
    job: Job, estimate: Estimate, drawn: DrawnDurations, rng: random.Random, factor: float = 1.0
) -> Submission:
    """Return a live job with work and speed drawn at random.

    Args:
        job: the job.
        estimate: of its work.
        drawn: the durations of the simulation.
        rng: draws the random numbers.
        factor: the factor on the work that is to come, where the job does not declare its work.
    """
    if estimate.declared:
        left = max(estimate.training.total - estimate.done, 0.0)
        error = math.exp(rng.gauss(0.0, SPEED_ERROR))
        training = estimate.training.with_total(estimate.done + left * error)
        made = live_submission(job, replace(estimate, training=training))
        return replace(made, declared_ratio=estimate.training.total / training.total if training.total else 1.0)
    done = service_seconds(job)
    seconds = drawn_seconds(job, estimate, drawn)
    training = estimate.training.with_total(done + (seconds - done) * factor)
    return live_submission(job, replace(estimate, training=training, done=done))


def service_seconds(job: Job) -> float:
    """Return the service of a job so far, in seconds on the GPUs that it asked for."""
    return job.attained_service / (job.gpus or job.nodes or 1)


def drawn_seconds(job: Job, estimate: Estimate, drawn: DrawnDurations) -> float:
    """Return a drawn duration of a job of unknown work, on the GPUs that it asked for; more than it has run."""
    done = service_seconds(job)
    seconds = drawn.seconds(job, done, max(estimate.training.total - estimate.done, 1.0))
    if job.time_limit_seconds is not None:
        seconds = min(seconds, max(job.time_limit_seconds, done + 1.0))
    return seconds


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
    drawn = DrawnDurations(earlier, rng)
    offset = rng.uniform(0.0, span)
    turned = sorted((((one.job.submitted - earlier.since - offset) % span), n) for n, one in enumerate(recent))
    found: list[Submission] = []
    for lap in range(math.ceil((until - at) / span)):
        for after, number in turned:
            submitted = at + lap * span + after
            if submitted >= until or len(found) == most:
                return found
            uid = f"{LATER}{len(found):06}"
            found.append(_arrival(recent[number], drawn, submitted, uid, exponent, factor))
    return found


def _arrival(  # noqa: PLR0917  the fields of a submission
    one: EarlierJob, drawn: DrawnDurations, submitted: float, uid: str, exponent: float, factor: float
) -> Submission:
    seconds = one.seconds if one.ended else drawn.seconds(one.job, one.seconds, ASSUMED_SECONDS)
    job = one.job.evolve(uid=uid, slurm_job_id=uid, submitted=submitted)
    elastic = job.min_gpus != job.max_gpus
    return Submission(job, training_of_run(seconds * factor, job.gpus, exponent if elastic else None), declared=False)
