"""How long a job would still run, as far as is known."""

from __future__ import annotations

from metasched.capacity.capacity_pool import CapacityPool
from metasched.core.model import Job


class Outlook:
    """What is known of speeds, on GPUs as close together as the nodes that suit a job allow."""

    def __init__(self, room: CapacityPool) -> None:
        self.room = room

    def speed(self, job: Job, gpu_type: str, gpus: int) -> float | None:
        """Steps per second on so many GPUs of a type; None where it is not known, or no nodes hold them."""
        if job.speed is None or gpus < 1:
            return None
        spread = self.room.shape(job).consolidated(gpu_type, gpus)
        return None if spread is None else job.speed.steps_per_second(gpu_type, spread)

    def remaining_seconds(self, job: Job) -> float | None:
        """At what it asked for, on the type on which it is fastest; None where its speed or work is not known.

        Where no nodes hold so many GPUs, on the most that they hold. Where nothing is known of the speed there, it
        counts as what was measured where the job runs now.
        """
        steps = job.remaining_steps
        if steps is None:
            return None
        shape = self.room.shape(job)
        speeds = [self.speed(job, kind, gpus) for kind in shape.widest if (gpus := self._most(job, kind)) is not None]
        speed = max((known or 0.0 for known in speeds), default=0.0) or job.steps_per_second
        return steps / speed if speed else None

    def _most(self, job: Job, gpu_type: str) -> int | None:
        """The GPUs that it asked for, or as many fewer as nodes hold."""
        shape = self.room.shape(job)
        amounts = range(job.gpus, job.min_gpus - 1, -1)
        return next((gpus for gpus in amounts if shape.consolidated(gpu_type, gpus) is not None), None)
