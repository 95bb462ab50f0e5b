"""A job's goodput by GPU type, from what its trainers reported (Pollux, OSDI 2021, sections 3 and 4.1)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from metasched.core.batching import BatchControl, Batching
from metasched.core.model import Job
from metasched.throughput.goodput import BatchLimits, Goodput
from metasched.throughput.iteration_time import IterationParameters

UNKNOWN_ITERATION = IterationParameters(0.0, 1.0)
"""The time of an iteration of a job that has never reported: it scales perfectly until that is explored."""
UNKNOWN_BATCH = 1 << 20
"""The batch of a job that has never reported, which can be divided among any number of GPUs."""


def job_goodput(job: Job, gpu_types: Iterable[str]) -> Mapping[str, Goodput]:
    """The goodput of a job on each of some GPU types.

    A type of which nothing is known is as fast as the job's other ones. A job whose batch size metasched may not change
    has an efficiency of 1.
    """
    limits = batch_limits(job.batching)
    noise_scale = job.noise.scale if is_tuned(job.batching) and job.noise is not None else None
    known = {gpu_type: IterationParameters._make(found) for gpu_type, found in job.iteration_parameters.items()}
    unknown = next((known[gpu_type] for gpu_type in sorted(known)), UNKNOWN_ITERATION)
    return {gpu_type: Goodput(known.get(gpu_type, unknown), limits, noise_scale) for gpu_type in gpu_types}


def is_tuned(batching: Batching | None) -> bool:
    """Whether a job's batch size may be changed, within limits that do not contradict each other."""
    if batching is None or batching.control is not BatchControl.SCHEDULER:
        return False
    least, most = batching.min_per_gpu, batching.max_per_gpu
    most_batch = batching.max_batch or batching.first_batch
    return batching.first_batch <= most_batch and (most is None or least <= most)


def batch_limits(batching: Batching | None) -> BatchLimits:
    """The batch sizes that a job may have; without a trainer's report (``batching`` is None), one that is assumed.

    Without limits of its own, a GPU processes at once at most what it processes now. Limits that contradict each other
    leave the batch as it is.
    """
    if batching is None:
        return BatchLimits(UNKNOWN_BATCH, UNKNOWN_BATCH, UNKNOWN_BATCH)
    at_once = batching.max_per_gpu or (batching.plan.per_gpu if batching.plan is not None else batching.first_batch)
    if is_tuned(batching):
        most = batching.max_batch or batching.first_batch
        return BatchLimits(batching.first_batch, most, max(at_once, batching.min_per_gpu), batching.min_per_gpu)
    fixed = batching.global_batch or batching.first_batch
    return BatchLimits(fixed, fixed, at_once)
