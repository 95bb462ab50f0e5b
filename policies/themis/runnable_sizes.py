"""Numbers of GPUs on which jobs run, as far as their speeds are known."""

from __future__ import annotations

from metasched.capacity.shapes import ClusterShapes
from metasched.core.model import Job

MOST_SIZES = 256
"""Larger numbers are not looked up; a job is taken to run on them if it runs on any smaller one."""


class RunnableSizes:
    """The numbers of GPUs on which jobs are known to run; jobs with one speed and equal limits share an entry."""

    def __init__(self, shapes: ClusterShapes) -> None:
        self._shapes = shapes
        self._sizes: dict[object, frozenset[int]] = {}

    def of(self, job: Job) -> frozenset[int]:
        """The sizes between the job's least and most GPUs on which it runs; empty for all.

        Where nothing is known of any size, the job is taken to run on all of them.
        """
        if job.speed is None:
            return frozenset()
        key = id(job.speed), job.min_gpus, job.max_gpus, job.learns_speed, job.constraints
        if key not in self._sizes:
            shape = self._shapes.of(job)
            limits = {gpu_type: min(sum(units), job.max_gpus) for gpu_type, units in shape.units.items()}
            tried = range(job.min_gpus, min(max(limits.values(), default=0), MOST_SIZES) + 1)
            found = frozenset(
                gpus
                for gpus in tried
                if any(
                    (spread := shape.consolidated(gpu_type, gpus)) is not None and _runs(job, gpu_type, spread)
                    for gpu_type in limits
                )
            )
            self._sizes[key] = frozenset() if len(found) == len(tried) else found
        return self._sizes[key]

    def runs(self, job: Job, gpu_type: str, spread: tuple[int, ...]) -> bool:
        """Whether the job is taken to run on GPUs in a spread."""
        return not self.of(job) or sum(spread) > MOST_SIZES or _runs(job, gpu_type, spread)


def _runs(job: Job, gpu_type: str, spread: tuple[int, ...]) -> bool:
    """Whether the job runs, or might run where its speed can still be learned."""
    rate = None if job.speed is None else job.speed.steps_per_second(gpu_type, spread)
    return job.learns_speed if rate is None else rate > 0.0
