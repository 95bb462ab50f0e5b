"""Goodput profiles as in Pollux's simulator (Qiao et al., OSDI 2021, section 5.3): measurements, interpolated.

System throughput: the time of one step, and its part that waits for other replicas, by placement and local batch size.
Statistical efficiency: progress, squared norm and variance of the gradients, by epoch and batch size.

Progress is counted in steps at the first batch size. A step at a larger batch size is worth AdaScale's gain in such
steps, so that all batch sizes need the same total. An epoch ends where the batch size that ended it first did.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.interpolate import LinearNDInterpolator

from metasched.core.model import Placement, Speed
from metasched.throughput.training import COLOCATED_FRACTION, Pace, Training

ROUNDING = 1e-8  # subtracted before ceil(), which would round up for the last bit of a quotient
TRIED_GPUS = (2, 4, 6, 8, 12, 16, 24, 32, 48)  # of tuned jobs
MAX_TUNED_SECONDS = 12 * 3600.0
EFFICIENCY = (0.5, 0.8)  # range of a tuned job's speed-up over the ideal one


class StepTime(NamedTuple):
    """Seconds of one optimizer step without accumulation, and the part of them that waits for other replicas."""

    step: float
    sync: float


class BatchSplit(NamedTuple):
    """Samples per GPU and pass, and the accumulation passes before the one with the optimizer step."""

    local: int
    accumulated: int


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Step times of one placement, by ascending local batch size.

    Attributes:
        local: local batch sizes, in samples per GPU and pass.
        times: the step time at each of them.
    """

    local: tuple[int, ...]
    times: tuple[StepTime, ...]

    def at(self, local: int) -> StepTime | None:
        """The step time at a local batch size, by linear interpolation; None outside of the measured sizes."""
        above = bisect_left(self.local, local)
        if above == len(self.local):
            return None
        if self.local[above] == local:
            return self.times[above]
        if above == 0:
            return None
        low, high = self.local[above - 1], self.local[above]
        (step0, sync0), (step1, sync1) = self.times[above - 1], self.times[above]
        part = (local - low) / (high - low)
        return StepTime(step0 + (step1 - step0) * part, sync0 + (sync1 - sync0) * part)


@dataclass(frozen=True, slots=True)
class EpochRecords:
    """One training at one batch size, epoch by epoch.

    Attributes:
        progress: progress at the end of each epoch.
        steps: optimizer steps until the end of each epoch.
        grad_square: the squared norm of the gradients in each epoch.
        grad_variance: the variance of the gradients in each epoch, at the first batch size.
    """

    progress: tuple[float, ...]
    steps: tuple[float, ...]
    grad_square: tuple[float, ...]
    grad_variance: tuple[float, ...]


class GoodputProfile:
    """The measurements of one application on one GPU type.

    Args:
        name: the application's name.
        placed: step times by placement (GPUs on each node, up to rotation).
        scaled: step times by (nodes, GPUs, local batch size), for sizes beyond the measured placements.
        trained: records of trainings by batch size.
        epochs: the number of epochs to train.
        gpu_type: the GPU type of the measurements.
        most_local: samples that fit into one GPU; None for the largest measured local batch size.

    Attributes:
        first_batch: the smallest batch size, in whose steps progress is counted.
        most_batch: the largest batch size.
        least_local: the smallest measured local batch size.
        most_local: samples that fit into one GPU.
        ends: progress at the end of each epoch.
    """

    def __init__(
        self,
        name: str,
        placed: Mapping[tuple[int, ...], StepTimes],
        scaled: Mapping[tuple[int, int, int], StepTime],
        trained: Mapping[int, EpochRecords],
        *,
        epochs: int,
        gpu_type: str,
        most_local: int | None = None,
    ) -> None:
        self.name = name
        self.gpu_type = gpu_type
        self._placed = {rotated(spread): measured for spread, measured in placed.items()}
        self._scaled = dict(scaled)
        self._batches = sorted(trained)
        self._trained = dict(trained)
        self.first_batch, self.most_batch = self._batches[0], self._batches[-1]
        measured_local = [local for measured in placed.values() for local in measured.local]
        self.least_local = min(measured_local)
        self.most_local = max(measured_local) if most_local is None else most_local
        self.ends = tuple(min(one.progress[epoch] for one in trained.values()) for epoch in range(epochs))
        self._surface: LinearNDInterpolator | None = None
        self._most_nodes = max(itertools.chain((nodes for nodes, _, _ in scaled), map(len, placed)))
        self._times: dict[tuple[tuple[int, ...], int], StepTime | None] = {}
        self._rates: dict[tuple[tuple[int, ...], int, int], float | None] = {}
        self._speeds: dict[tuple[int, int], ProfileSpeed] = {}

    def __getstate__(self) -> dict[str, object]:
        """The state for another process, without cached results."""
        return self.__dict__ | {"_surface": None, "_times": {}, "_rates": {}, "_speeds": {}}

    def slowed(self, factor: float) -> GoodputProfile:
        """The profile of an application all of whose steps take ``factor`` times as long, such as a wider network."""

        def slow(time: StepTime) -> StepTime:
            return StepTime(time.step * factor, time.sync * factor)

        return GoodputProfile(
            self.name,
            {spread: StepTimes(one.local, tuple(map(slow, one.times))) for spread, one in self._placed.items()},
            {where: slow(time) for where, time in self._scaled.items()},
            self._trained,
            epochs=len(self.ends),
            gpu_type=self.gpu_type,
            most_local=self.most_local,
        )

    # -- system throughput ----------------------------------------------------------------------------------------

    def split(self, batch: int, gpus: int) -> BatchSplit:
        """The division of a batch among GPUs, with as few passes as memory allows.

        A single GPU with more than the first batch size makes at least two passes, because the variance of the
        gradients cannot be observed in one. The real batch size, ``gpus * local * (accumulated + 1)``, may be a little
        more than ``batch``.
        """
        share = math.ceil(batch / gpus - ROUNDING)
        accumulated = math.ceil(share / self.most_local - ROUNDING) - 1
        if gpus == 1 and batch > self.first_batch:
            accumulated = max(accumulated, 1)
        return self.passes(share, gpus, accumulated)

    def passes(self, share: int, gpus: int, accumulated: int) -> BatchSplit:
        """One GPU's ``share`` of a batch in ``accumulated`` + 1 passes, limited by the largest batch size."""
        local = math.ceil(share / (accumulated + 1) - ROUNDING)
        return BatchSplit(min(local, int(self.most_batch / (gpus * (accumulated + 1)))), accumulated)

    def step_time(self, spread: tuple[int, ...], local: int) -> StepTime | None:
        """The time of one pass with an optimizer step; None outside of the measured sizes."""
        key = spread, local
        if key not in self._times:
            measured = self._placed.get(rotated(spread))
            self._times[key] = measured.at(local) if measured is not None else self._interpolated(spread, local)
        return self._times[key]

    def _interpolated(self, spread: tuple[int, ...], local: int) -> StepTime | None:
        """The step time by linear interpolation over (nodes, GPUs, local batch size)."""
        if self._surface is None:
            self._surface = self._triangulate()
        step, sync = self._surface([min(len(spread), self._most_nodes), sum(spread), local])[0]
        return None if math.isnan(step) else StepTime(float(step), float(sync))

    def _triangulate(self) -> LinearNDInterpolator:
        same: dict[tuple[int, int, int], list[StepTime]] = {}
        for spread, measured in self._placed.items():
            for local, times in zip(measured.local, measured.times, strict=True):
                same.setdefault((len(spread), sum(spread), local), []).append(times)
        points = [(where, np.mean(same[where], axis=0)) for where in sorted(same)]
        points += [(where, np.array(times)) for where, times in self._scaled.items()]
        return LinearNDInterpolator(np.array([where for where, _ in points]), np.array([t for _, t in points]))

    # -- statistical efficiency -----------------------------------------------------------------------------------

    def epoch(self, done: float) -> int:
        """The present epoch after ``done`` progress, from 0."""
        return min(bisect_right(self.ends, done), len(self.ends) - 1)

    def steps_after(self, batch: int, epoch: int) -> float:
        """Optimizer steps that a batch size needs from the start of the training to the end of an epoch."""
        return self._interpolate(batch, [self._trained[b].steps[epoch] for b in self._around(batch)])

    def noise(self, batch: int, epoch: int) -> tuple[float, float]:
        """The squared norm and the variance of the gradients in an epoch."""
        around = self._around(batch)
        square = self._interpolate(batch, [self._trained[b].grad_square[epoch] for b in around])
        return square, self._interpolate(batch, [self._trained[b].grad_variance[epoch] for b in around])

    def gain(self, batch: int, epoch: int) -> float:
        """Progress per optimizer step: AdaScale's gain over the first batch size (Johnson et al., ICML 2020)."""
        square, variance = self.noise(batch, epoch)
        return (variance + square) / (variance / (batch / self.first_batch) + square)

    def _around(self, batch: int) -> tuple[int, int]:
        """The measured batch sizes below and above one; twice the same where it was measured, or outside of all."""
        at = bisect_left(self._batches, min(max(batch, self.first_batch), self.most_batch))
        return self._batches[at if self._batches[at] == batch else max(at - 1, 0)], self._batches[at]

    def _interpolate(self, batch: int, values: Sequence[float]) -> float:
        low, high = self._around(batch)
        if low == high or batch > high:
            return values[-1]
        return ((batch - low) * values[1] + (high - batch) * values[0]) / (high - low)

    # -- both -----------------------------------------------------------------------------------------------------

    def goodput(self, spread: tuple[int, ...], batch: int, epoch: int) -> float | None:
        """Progress per second on a placement at a batch size; None where the step time is not known."""
        key = spread, batch, epoch
        if key not in self._rates:
            self._rates[key] = self._goodput(spread, batch, epoch)
        return self._rates[key]

    def _goodput(self, spread: tuple[int, ...], batch: int, epoch: int) -> float | None:
        gpus = sum(spread)
        split = self.split(batch, gpus)
        times = self.step_time(spread, split.local)
        if times is None:
            return None
        real = gpus * split.local * (split.accumulated + 1)
        return self.gain(real, epoch) / (times.step + (times.step - times.sync) * split.accumulated)

    def speed(self, batch: int, epoch: int) -> ProfileSpeed:
        """The speed as policies know it in an epoch; the same object for equal arguments."""
        key = batch, epoch
        if key not in self._speeds:
            self._speeds[key] = ProfileSpeed(self, batch, epoch)
        return self._speeds[key]

    def tuned_sizes(self, *, node_gpus: int = 4) -> tuple[tuple[int, int], ...]:
        """The (GPUs, batch size) that users of the paper's tuned jobs request (section 5.1).

        These are the numbers of GPUs, with the fastest batch size of each, on which the application trains within half
        a day, at 0.5 to 0.8 of the ideal speed-up over one GPU; one GPU where there are none.
        """
        single_seconds, single_batch = self._fastest(1, node_gpus)
        found = []
        for gpus in (n for n in TRIED_GPUS if n * self.least_local <= self.most_batch):
            seconds, batch = self._fastest(gpus, node_gpus)
            if seconds < MAX_TUNED_SECONDS and EFFICIENCY[0] < single_seconds / seconds / gpus < EFFICIENCY[1]:
                found.append((gpus, batch))
        return tuple(found) or ((1, single_batch),)

    def _fastest(self, gpus: int, node_gpus: int) -> tuple[float, int]:
        """The duration in seconds of a whole training at its fastest batch size, and that batch size."""
        spread = packed(gpus, node_gpus)
        times = [(self._duration(spread, batch), batch) for batch in self._batches]
        return min(times, key=lambda found: found[0])

    def _duration(self, spread: tuple[int, ...], batch: int) -> float:
        share = math.ceil(batch / sum(spread) - ROUNDING)
        if share < self.least_local:
            return math.inf
        accumulated = math.ceil(share / self.most_local - ROUNDING) - 1
        times = self.step_time(spread, math.ceil(share / (accumulated + 1) - ROUNDING))
        if times is None:
            return math.inf
        return self._trained[batch].steps[len(self.ends) - 1] * (times.step + accumulated * (times.step - times.sync))


def rotated(spread: Iterable[int]) -> tuple[int, ...]:
    """The least of a placement's rotations, which are all equivalent for ring all-reduce."""
    whole = tuple(spread)
    return min(whole[i:] + whole[:i] for i in range(len(whole)))


def packed(gpus: int, node_gpus: int) -> tuple[int, ...]:
    """GPUs on each node, over as few nodes of ``node_gpus`` GPUs as possible."""
    full, rest = divmod(gpus, node_gpus)
    return (node_gpus,) * full + ((rest,) if rest else ())


@dataclass(frozen=True, slots=True, eq=False)
class ProfileSpeed:
    """The goodput of an application at a batch size in one epoch: a ``Speed``."""

    profile: GoodputProfile
    batch: int
    epoch: int

    def steps_per_second(self, gpu_type: str, spread: tuple[int, ...]) -> float | None:
        """Progress per second; None on another GPU type, or outside of the measured sizes."""
        if gpu_type != self.profile.gpu_type:
            return None
        return self.profile.goodput(spread, self.batch, self.epoch)

    def steps_per_second_with(self, other: Speed, gpu_type: str, spread: tuple[int, ...]) -> float | None:
        """None: co-location was not measured."""
        del other, gpu_type, spread
        return None


@dataclass(frozen=True, slots=True)
class ProfileTraining:
    """A training of an application at the batch size that its user chose: a ``Training``.

    A step is one at the first batch size.
    """

    profile: GoodputProfile
    batch: int

    @property
    def total(self) -> float:
        """The progress of the whole training, in steps at the first batch size."""
        return self.profile.ends[-1]

    def pace(self, done: float, placement: Placement, co_runner: Training | None = None) -> Pace:
        """The goodput, until the epoch ends; 0.0 outside of the measured sizes."""
        profile = self.profile
        epoch = profile.epoch(done)
        rate = None
        if placement.gpu_type == profile.gpu_type:
            rate = profile.goodput(placement.spread, self.batch, epoch)
        return Pace((rate or 0.0) * (1.0 if co_runner is None else COLOCATED_FRACTION), profile.ends[epoch])

    def known(self, done: float) -> Speed:
        """The true speed in the present epoch."""
        return self.profile.speed(self.batch, self.profile.epoch(done))
