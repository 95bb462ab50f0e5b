"""Remaining time of jobs, from their remaining steps and known speeds."""

from __future__ import annotations

from metasched.capacity.capacity_pool import CapacityPool
from metasched.capacity.shapes import ShapeCapacity
from metasched.core.model import Job


class RemainingTime:
    """Known consolidated speeds and remaining times of jobs, on the nodes that suit each job."""

    def __init__(self, pool: CapacityPool) -> None:
        self.pool = pool

    def speed(self, job: Job, gpu_type: str, gpus: int) -> float | None:
        """Steps per second on that many GPUs of a type; None where it is not known, or no nodes hold them."""
        if job.speed is None or gpus < 1:
            return None
        spread = self.pool.shape(job).consolidated(gpu_type, gpus)
        return None if spread is None else job.speed.steps_per_second(gpu_type, spread)

    def remaining_seconds(self, job: Job) -> float | None:
        """Remaining seconds at the requested GPUs on the job's fastest type; None where speed or steps are not known.

        Where no nodes hold the requested GPUs, the most that they hold count. Where no such speed is known, the speed
        that is measured in the present run counts.
        """
        steps, seconds = job.remaining_steps, self.seconds_per_step(job)
        return None if steps is None or seconds is None else steps * seconds

    def seconds_per_step(self, job: Job) -> float | None:
        """Seconds of a step, with the speed of ``remaining_seconds``; None where it is not known."""
        shape = self.pool.shape(job)
        most = {gpu_type: _most_gpus(job, shape, gpu_type) for gpu_type in shape.widest}
        speeds = [self.speed(job, gpu_type, gpus) for gpu_type, gpus in most.items()]
        speed = max((known or 0.0 for known in speeds), default=0.0) or job.steps_per_second
        return 1.0 / speed if speed else None


def _most_gpus(job: Job, shape: ShapeCapacity, gpu_type: str) -> int:
    """The most GPUs of a type up to the request that nodes hold; 0 where they do not hold the minimum."""
    amounts = range(job.gpus, job.min_gpus - 1, -1)
    return next((gpus for gpus in amounts if shape.consolidated(gpu_type, gpus) is not None), 0)
