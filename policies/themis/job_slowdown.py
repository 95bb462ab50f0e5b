"""How much slower a job is over distance (S of Themis, section 4.3.1): known, measured while it runs, or assumed.

What is known or assumed is limited to what was measured: the speeds that an app's jobs reported at a distance, against
those on one node. Measurements are sums, which the policy's state carries from round to round.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from metasched.core.distance import Level, SpeedByDistance, distance
from metasched.core.model import Job, Node
from policies.themis.app_work import one_node_rate
from policies.themis.finish_time import ClampedSlowdown, MeasuredRange, clamped_slowdown

MOST_SAMPLES = 64.0
"""Older measurements count less, so that all together count as no more than this many."""
LEAST_SAMPLES = 3.0
"""Measurements at a distance before they count."""
GANG_SIZES = (2, 4, 8, 16)
"""Gangs at which known speeds are compared, the first that is known."""


@dataclass(frozen=True)
class Samples:
    """Measured slowdowns of one app at one distance.

    Attributes:
        count: their number, older ones counted less.
        mean: their mean.
        squares: the sum of their squared distances from the mean.
    """

    count: float = 0.0
    mean: float = 0.0
    squares: float = 0.0

    def plus(self, slowdown: float) -> Samples:
        """These samples and another one."""
        fading = min(1.0, (MOST_SAMPLES - 1.0) / self.count) if self.count else 1.0
        count = self.count * fading + 1.0
        mean = self.mean + (slowdown - self.mean) / count
        return Samples(count, mean, self.squares * fading + (slowdown - self.mean) * (slowdown - mean))

    @property
    def credible(self) -> MeasuredRange | None:
        """Two standard errors to both sides of the mean; None for too few samples."""
        if self.count < LEAST_SAMPLES:
            return None
        error = 2.0 * math.sqrt(self.squares / (self.count - 1.0) / self.count)
        return MeasuredRange(self.mean - error, self.mean + error)


@dataclass(frozen=True)
class MeasuredSlowdowns:
    """The slowdowns that apps were measured to have.

    Attributes:
        samples: by the app's uid and the level's name.
    """

    samples: Mapping[str, Mapping[str, Samples]] = field(default_factory=dict)

    def after(self, jobs: Mapping[str, Iterable[Job]], nodes: Mapping[str, Node], slot_gpus: int) -> MeasuredSlowdowns:
        """These measurements with those of a round; those of other apps are dropped.

        Args:
            jobs: the live members of each app, by its uid.
            nodes: the nodes by name.
            slot_gpus: GPUs of one slot.
        """
        found = {}
        for app, members in jobs.items():
            known = dict(self.samples.get(app, {}))
            for job in members:
                if (one := _measured(job, nodes, slot_gpus)) is not None:
                    level, slowdown = one
                    known[level.name] = known.get(level.name, Samples()).plus(slowdown)
            if known:
                found[app] = known
        return MeasuredSlowdowns(found)

    def of(self, app: str, job: Job, gpu_type: str) -> ClampedSlowdown:
        """The slowdown that an app's agent counts with for a job, by its speeds on GPUs of a type."""
        found = self.samples.get(app, {})
        measured = {level: one.credible for level in Level if (one := found.get(level.name)) is not None}
        limits = {level: limit for level, limit in measured.items() if limit is not None}
        slowdown = clamped_slowdown(known_slowdown(job, gpu_type), limits)
        if 1 in (job.nodes, job.max_nodes):
            return ClampedSlowdown((*slowdown.factors[: Level.RACK], math.inf, math.inf))
        return slowdown

    def to_json(self) -> dict[str, Any]:
        """The measurements as JSON-compatible data."""
        return {app: msgspec.to_builtins(dict(levels)) for app, levels in self.samples.items()}

    @classmethod
    def from_json(cls, data: object) -> MeasuredSlowdowns:
        """The measurements that ``to_json`` wrote."""
        return cls(msgspec.convert(data, dict[str, dict[str, Samples]]))


def _measured(job: Job, nodes: Mapping[str, Node], slot_gpus: int) -> tuple[Level, float] | None:
    """The slowdown that the job's present run has, and at which distance; None where one of both is not known."""
    place, rate = job.placement, job.steps_per_second
    if place is None or place.gpu_type is None or not rate or place.gpus < 2 or job.co_runner is not None:  # noqa: PLR2004
        return None
    near = one_node_rate(job, place.gpu_type)
    if near is None or any(name not in nodes for name in place.nodes):
        return None
    level = distance(place.gpus, [nodes[name].rack for name in place.nodes], slot_gpus)
    slowdown = near * place.gpus / rate
    return (level, slowdown) if math.isfinite(slowdown) else None


def known_slowdown(job: Job, gpu_type: str) -> dict[Level, float]:
    """The slowdown by distance that the job's known speeds tell; levels of which nothing is known are missing."""
    near = one_node_rate(job, gpu_type)
    if near is None:
        return {}
    found = {}
    for level in (Level.NODE, Level.RACK, Level.CLUSTER):
        for gpus in GANG_SIZES:
            spread = (gpus,) if level is Level.NODE else (gpus // 2, gpus // 2)
            if job.min_gpus <= gpus <= job.max_gpus and (rate := _rate_at(job, gpu_type, spread, level)):
                found[level] = near * gpus / rate
                break
    return found


def _rate_at(job: Job, gpu_type: str, spread: tuple[int, ...], level: Level) -> float | None:
    """The known steps per second at a distance."""
    if isinstance(job.speed, SpeedByDistance):
        return job.speed.steps_per_second_at(gpu_type, spread, level)
    return None if job.speed is None else job.speed.steps_per_second(gpu_type, spread)
