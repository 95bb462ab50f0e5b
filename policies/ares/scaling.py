"""Scaling control: the numbers of GPUs that a job may have, by its speeds (Ares, section 3.3).

A job's GPUs are doubled from its requested GPUs as long as each GPU keeps a fraction ``alpha`` of its speed at the
requested size. A size without a known speed is given only where no other job can use the GPUs, to measure it there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from metasched.capacity.capacity_pool import GpuAmount
from metasched.capacity.shapes import ShapeCapacity
from metasched.core.model import Job

CLOSE = 1e-9  # tolerance of rounding: an efficiency of exactly alpha is enough


class Size(NamedTuple):
    """GPUs of one type, and a job's steps per second on them; None where the speed is not known."""

    gpu_type: str
    gpus: int
    speed: float | None

    @property
    def amount(self) -> GpuAmount:
        """GPUs and GPU type, without the speed."""
        return GpuAmount(self.gpus, self.gpu_type)


class ScalingControl:
    """Scaling control of one job.

    Args:
        job: a job with GPUs.
        shape: the nodes that suit the job.
        alpha: least fraction of the speed per GPU at the requested size that each GPU must keep.
    """

    def __init__(self, job: Job, shape: ShapeCapacity, alpha: float) -> None:
        self.job = job
        self.shape = shape
        self.alpha = alpha

    def speed(self, gpu_type: str, gpus: int) -> float | None:
        """Steps per second, consolidated; None where the speed is not known, or no nodes hold that many GPUs."""
        spread = self.shape.consolidated(gpu_type, gpus)
        return None if self.job.speed is None or spread is None else self.job.speed.steps_per_second(gpu_type, spread)

    def size(self, gpu_type: str, gpus: int) -> Size:
        """That many GPUs of a type, with the job's speed on them."""
        return Size(gpu_type, gpus, self.speed(gpu_type, gpus))

    def sizes(self, gpu_type: str) -> Iterator[Size]:
        """Sizes of one type that the job may have, most GPUs first, without sizes at which its speed is 0."""
        up_to_requested = list(self.up_to_requested(gpu_type))
        if up_to_requested and up_to_requested[0].gpus == self.job.gpus:
            yield from reversed(self._doubled(up_to_requested[0]))
        yield from up_to_requested

    def up_to_requested(self, gpu_type: str) -> Iterator[Size]:
        """Sizes up to the requested GPUs: these, then repeated halves, and at last ``min_gpus``."""
        gpus = self.job.gpus
        while gpus >= self.job.min_gpus:
            if self.shape.consolidated(gpu_type, gpus) is not None and (speed := self.speed(gpu_type, gpus)) != 0:
                yield Size(gpu_type, gpus, speed)
            gpus = max(gpus // 2, self.job.min_gpus) if gpus > self.job.min_gpus else 0

    def between(self, given: Size, most: int) -> Size | None:
        """The largest faster and efficient size up to ``most`` GPUs, below the next doubling; None for none."""
        job, shape = self.job, self.shape
        asked = self.speed(given.gpu_type, job.gpus)
        if not asked or not given.speed:
            return None
        for gpus in range(min(most, 2 * given.gpus - 1, job.max_gpus), given.gpus, -1):
            if shape.fills_nodes(given.gpu_type, gpus):
                more = self.size(given.gpu_type, gpus)
                if more.speed and more.speed > given.speed and self._efficient(more, asked):
                    return more
        return None

    def beyond(self, given: Size, most: int) -> Size | None:
        """The size doubled as long as the job becomes faster, up to ``most`` GPUs; None where no doubling is faster."""
        best = given
        while given.speed and 2 * best.gpus <= min(most, self.job.max_gpus):
            gpus = 2 * best.gpus
            more = self.size(given.gpu_type, gpus)
            if not more.speed or more.speed <= (best.speed or 0.0):
                break
            best = more
        return best if best is not given else None

    def unknown(self, gpu_type: str, most: int) -> Size | None:
        """A doubled size up to ``most`` GPUs without a known speed, to explore; None where there is none.

        The first such size, if scaling control allows all smaller ones. For a job with profiling runs, which measure
        smaller sizes first: the largest such size below any at which scaling control is known to stop.
        """
        job, found = self.job, None
        asked = slower = self.speed(gpu_type, job.gpus)
        if not asked and (asked == 0 or not job.profiled):
            return None
        gpus = 2 * job.gpus
        while gpus <= min(most, job.max_gpus) and self.shape.consolidated(gpu_type, gpus) is not None:
            amount = self.size(gpu_type, gpus)
            if amount.speed is None:
                found = amount
                if not job.profiled:
                    break
            elif amount.speed <= (slower or 0.0) or (asked and not self._efficient(amount, asked)):
                break
            else:
                slower = amount.speed
            gpus *= 2
        return found

    def _doubled(self, asked: Size) -> list[Size]:
        """Sizes beyond the requested GPUs that scaling control allows, ascending."""
        found = [asked]
        while asked.speed and 2 * found[-1].gpus <= self.job.max_gpus:
            gpus = 2 * found[-1].gpus
            more = self.size(asked.gpu_type, gpus)
            if not more.speed or more.speed <= (found[-1].speed or 0.0) or not self._efficient(more, asked.speed):
                break
            found.append(more)
        return found[1:]

    def _efficient(self, amount: Size, asked: float) -> bool:
        """Whether each GPU keeps ``alpha`` of its speed at the requested size, of ``asked`` steps/s in all."""
        return (amount.speed or 0.0) * self.job.gpus >= (self.alpha - CLOSE) * asked * amount.gpus
