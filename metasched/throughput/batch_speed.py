"""The speed of a job at any global batch, also at those with which it has not run yet.

Source: Zheng et al., "Shockwave", NSDI 2023, section 5: the batches to come are predicted, so their speeds are needed.
"""

from __future__ import annotations

import math

from metasched.core.model import Job
from metasched.throughput.iteration_time import IterationParameters


def batch_speed(job: Job, batch: int, gpu_type: str, spread: tuple[int, ...]) -> float | None:
    """The speed at a global batch, in steps at the first batch each second.

    The source is what was measured, of this job or of others of its user's model; else the model of the iteration time,
    fitted to other batches.

    Args:
        job: the job.
        batch: samples of an optimizer step, from 1.
        gpu_type: the GPU type.
        spread: GPUs on each node, descending.

    Returns:
        None where neither is known; 0.0 where the job is known not to run there.
    """
    known, first = job.batching, job.batching.first_batch if job.batching is not None else batch
    measured = job.batch_speeds.get(batch)
    found = None if measured is None else measured.steps_per_second(gpu_type, spread)
    if found is not None:
        return found * batch / first
    if job.speed is not None and (known is None or (batch == first == (known.global_batch or first))):
        found = job.speed.steps_per_second(gpu_type, spread)
        if found is not None:
            return found
    return _modelled(job, batch, gpu_type, spread)


def _modelled(job: Job, batch: int, gpu_type: str, spread: tuple[int, ...]) -> float | None:
    """The speed at a global batch by the fitted time of an iteration; None where nothing is fitted."""
    known, fitted, gpus = job.batching, job.iteration_parameters.get(gpu_type), sum(spread)
    if known is None or fitted is None or not gpus:
        return None
    share = math.ceil(batch / gpus)
    accumulation = math.ceil(share / known.max_per_gpu) if known.max_per_gpu else 1
    per_gpu = math.ceil(share / accumulation)
    seconds = IterationParameters._make(fitted).iteration_seconds(
        gpus, per_gpu, accumulation, multi_node=len(spread) > 1
    )
    return batch / known.first_batch / seconds if seconds > 0 and math.isfinite(seconds) else None
