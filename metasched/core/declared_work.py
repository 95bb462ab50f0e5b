"""Whether a job's declared number of steps is contradicted by what the job has done, and by earlier jobs. Pure."""

from __future__ import annotations

import enum

from metasched.core.model import Job

TIME_RATIO = 3.0
"""A job that has run this many times as long as its declared steps need at its own speed contradicts them."""
TIME_SLACK = 600.0
"""Seconds of running that count as the trainer's start, its evaluations and its checkpoints."""
HISTORY_RATIO = 10.0
"""Declared steps that need this many times less service than earlier jobs did are contradicted."""


class WorkContradiction(enum.Enum):
    """How the declared number of steps is contradicted; the value is part of the kind of an event."""

    PASSED = "passed"
    """The job has done more steps, and goes on."""
    OVERDUE = "overdue"
    """At the speed that it reports, the job would have done all steps long ago."""
    HISTORY = "history"
    """Earlier jobs of the same user, name and script needed many times as much service."""


def work_contradiction(job: Job) -> WorkContradiction | None:
    """Return how the job's declared number of steps is contradicted; None where it is plausible, or not declared."""
    if job.total_steps is None:
        return None
    if (job.progress_steps or 0) > job.total_steps:
        return WorkContradiction.PASSED
    if not job.steps_per_second:
        return None
    seconds = job.total_steps / job.steps_per_second
    if job.ran_seconds > TIME_RATIO * seconds + TIME_SLACK:
        return WorkContradiction.OVERDUE
    service = seconds * max(1, job.placement.gpus if job.placement is not None else job.gpus)
    if job.expected_service is not None and job.expected_service > HISTORY_RATIO * service:
        return WorkContradiction.HISTORY
    return None
