"""How a job scales, and how far it may: scaling control (section 3.3).

A job's amount is doubled from what it asked for as long as each GPU keeps a part ``alpha`` of the speed that it has at
that amount. An amount of which no speed is known is not given, but where nobody else can use the GPUs: a run there
tells.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from metasched.capacity.capacity_pool import GpuAmount
from metasched.capacity.shapes import ShapeCapacity
from metasched.core.model import Job

CLOSE = 1e-9  # an efficiency of just alpha is enough, whatever the last bit of a float says


class Amount(NamedTuple):
    """GPUs of a type, and the steps per second that a job makes on them; None where that is not known."""

    kind: str
    gpus: int
    speed: float | None

    @property
    def share(self) -> GpuAmount:
        """The GPUs alone."""
        return GpuAmount(self.gpus, self.kind)


class Scaling:
    """One job's.

    Args:
        job: with GPUs.
        shape: the amounts that nodes could hold of it.
        alpha: the least part of its speed for each GPU, relative to that at the GPUs it asked for.
    """

    def __init__(self, job: Job, shape: ShapeCapacity, alpha: float) -> None:
        self.job = job
        self.shape = shape
        self.alpha = alpha

    def speed(self, kind: str, gpus: int) -> float | None:
        """Steps per second on as few nodes as can be; None where it is not known, or has no place."""
        spread = self.shape.consolidated(kind, gpus)
        return None if self.job.speed is None or spread is None else self.job.speed.steps_per_second(kind, spread)

    def amounts(self, kind: str) -> Iterator[Amount]:
        """What it may have of a type, most GPUs first; amounts on which it is known not to run are left out."""
        plain = list(self.plain(kind))
        if plain and plain[0].gpus == self.job.gpus:
            yield from reversed(self._doubled(plain[0]))
        yield from plain

    def plain(self, kind: str) -> Iterator[Amount]:
        """The same up to what it asked for: that, then halves of it, and at last its least."""
        gpus = self.job.gpus
        while gpus >= self.job.min_gpus:
            if self.shape.consolidated(kind, gpus) is not None and (speed := self.speed(kind, gpus)) != 0:
                yield Amount(kind, gpus, speed)
            gpus = max(gpus // 2, self.job.min_gpus) if gpus > self.job.min_gpus else 0

    def between(self, given: Amount, most: int) -> Amount | None:
        """The largest amount up to ``most``, and before the next doubling, that scaling control allows and that helps.

        None where there is none.
        """
        job, shape = self.job, self.shape
        asked = self.speed(given.kind, job.gpus)
        if not asked or not given.speed:
            return None
        for gpus in range(min(most, 2 * given.gpus - 1, job.max_gpus), given.gpus, -1):
            if shape.fills_nodes(given.kind, gpus):
                more = Amount(given.kind, gpus, self.speed(given.kind, gpus))
                if more.speed and more.speed > given.speed and self._efficient(more, asked):
                    return more
        return None

    def beyond(self, given: Amount, most: int) -> Amount | None:
        """Doubled up to ``most`` as long as the job becomes faster, at whatever cost; None if it never does."""
        best = given
        while given.speed and 2 * best.gpus <= min(most, self.job.max_gpus):
            gpus = 2 * best.gpus
            more = Amount(given.kind, gpus, self.speed(given.kind, gpus))
            if not more.speed or more.speed <= (best.speed or 0.0):
                break
            best = more
        return best if best is not given else None

    def unknown(self, kind: str, most: int) -> Amount | None:
        """A doubled amount up to ``most`` of which no speed is known; None where there is none, or it would not help.

        The first, if scaling control allows all before it. Or, for a job that is tried at smaller sizes before a run,
        the largest that is not beyond one at which it is known to stop.
        """
        job, found = self.job, None
        asked = slower = self.speed(kind, job.gpus)
        if not asked and (asked == 0 or not job.profiled):
            return None
        gpus = 2 * job.gpus
        while gpus <= min(most, job.max_gpus) and self.shape.consolidated(kind, gpus) is not None:
            amount = Amount(kind, gpus, self.speed(kind, gpus))
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

    def _doubled(self, asked: Amount) -> list[Amount]:
        """Amounts beyond what it asked for, ascending."""
        found = [asked]
        while asked.speed and 2 * found[-1].gpus <= self.job.max_gpus:
            gpus = 2 * found[-1].gpus
            more = Amount(asked.kind, gpus, self.speed(asked.kind, gpus))
            if not more.speed or more.speed <= (found[-1].speed or 0.0) or not self._efficient(more, asked.speed):
                break
            found.append(more)
        return found[1:]

    def _efficient(self, amount: Amount, asked: float) -> bool:
        """Whether each of its GPUs does enough, beside those that it asked for, on which it makes ``asked`` steps/s."""
        return (amount.speed or 0.0) * self.job.gpus >= (self.alpha - CLOSE) * asked * amount.gpus
