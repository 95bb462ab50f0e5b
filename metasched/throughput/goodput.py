"""Goodput of a job: throughput times statistical efficiency, and the best batch for an allocation (Pollux, OSDI 2021).

Goodput is counted in samples at the first batch size (M0) each second, so goodput over M0 is steps at M0 each second.
Section 3 has the definitions (Eq. 4-7), section 4.1 the best batch (Eq. 13).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from metasched.core.batching import BatchPlan
from metasched.throughput.iteration_time import Bools, Floats, Ints, IterationModel

HYSTERESIS = 0.05
"""The part by which the best plan's goodput must exceed that of a plan in force, or the plan in force remains."""

CANDIDATES = 48
"""Global batch sizes that are tried for an allocation, in equal ratios between the limits."""


def efficiency(noise_scale: float, first_batch: float, batch: float) -> float:
    """The progress of a sample at a batch size over that at the first one, 0 to 1 (Eq. 6).

    Args:
        noise_scale: the pre-conditioned gradient noise scale in samples (phi, Eq. 5), 0 to infinity.
        first_batch: the batch size that the user chose, in samples (M0).
        batch: the batch size, in samples, at least ``first_batch``.
    """
    return 1.0 if math.isinf(noise_scale) else (noise_scale + first_batch) / (noise_scale + batch)


def gain(noise_scale: float, first_batch: float, batch: float) -> float:
    """The steps at the first batch size that a step at a batch size counts for, 1 to ``batch / first_batch``."""
    return efficiency(noise_scale, first_batch, batch) * batch / first_batch


class TunedBatch(NamedTuple):
    """The best batch of a job on an allocation.

    Attributes:
        plan: the division of the batch.
        batch: the global batch, in samples.
        goodput: samples at the first batch size each second.
        efficiency: the statistical efficiency at ``batch``, 0 to 1.
    """

    plan: BatchPlan
    batch: int
    goodput: float
    efficiency: float


class TunedBatches(NamedTuple):
    """The best batches of a job on many allocations: ``TunedBatch`` as arrays; 0 where no batch is possible."""

    per_gpu: Ints
    accumulation: Ints
    batch: Ints
    goodput: Floats


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """The batch sizes that a job may have, in samples.

    Attributes:
        first_batch: the global batch that the user chose (M0), the least one.
        max_batch: the largest global batch; ``first_batch`` for a job with a fixed batch.
        max_per_gpu: the most samples of a GPU in one pass, by its memory.
        min_per_gpu: the fewest samples of a GPU in one pass.
    """

    first_batch: int
    max_batch: int
    max_per_gpu: int
    min_per_gpu: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.first_batch <= self.max_batch:
            raise ValueError(
                f"max_batch is {self.max_batch}; give first_batch ({self.first_batch}, at least 1) or more"
            )
        if not 1 <= self.min_per_gpu <= self.max_per_gpu:
            raise ValueError(f"max_per_gpu is {self.max_per_gpu}; give min_per_gpu ({self.min_per_gpu}) or more")

    def batch(self, gpus: int, plan: BatchPlan) -> int | None:
        """The global batch of a plan; None where the plan is beyond the limits on this number of GPUs.

        Where the GPUs' shares add up to more than ``max_batch``, some GPUs get fewer samples.
        """
        batch = min(gpus * plan.per_gpu * plan.accumulation, self.max_batch)
        fits = self.min_per_gpu <= batch // (gpus * plan.accumulation) and plan.per_gpu <= self.max_per_gpu
        return batch if fits and batch >= self.first_batch else None

    def most_gpus(self) -> int:
        """The most GPUs among which a batch can be divided; 0 where there is no number of GPUs."""
        return self.max_batch // self.min_per_gpu


@dataclass(frozen=True, slots=True)
class Goodput:
    """The goodput of a job on one GPU type, in its present state of training.

    Attributes:
        iteration: the model of the seconds of an iteration.
        limits: the batch sizes that the job may have. Equal first and largest batches make the efficiency 1, so that
            goodput is throughput (section 4.2, non-adaptive jobs).
        noise_scale: the gradient noise scale in samples (phi); None where it is not known, and the batch stays at
            ``limits.first_batch``.
    """

    iteration: IterationModel
    limits: BatchLimits
    noise_scale: float | None

    def __post_init__(self) -> None:
        if self.noise_scale is not None and not self.noise_scale >= 0:
            raise ValueError(f"noise_scale is {self.noise_scale}; give 0 or more, or None where it is not known")

    def at(self, gpus: int, plan: BatchPlan, *, multi_node: bool) -> TunedBatch | None:
        """The goodput of a plan on an allocation; None where the plan is beyond the limits."""
        batch = self._limits().batch(gpus, plan)
        if batch is None:
            return None
        seconds = self.iteration.iteration_seconds(gpus, plan.per_gpu, plan.accumulation, multi_node=multi_node)
        found = 1.0 if self.noise_scale is None else efficiency(self.noise_scale, self.limits.first_batch, batch)
        return TunedBatch(plan, batch, batch / seconds * found, found)

    def best(self, gpus: int, *, multi_node: bool) -> TunedBatch | None:
        """The plan with the highest goodput on an allocation (Eq. 13); None where the limits allow none."""
        found = self.best_of(np.array([gpus]), np.array([multi_node]))
        if not found.goodput[0]:
            return None
        return self.at(gpus, BatchPlan(int(found.per_gpu[0]), int(found.accumulation[0])), multi_node=multi_node)

    def best_of(self, gpus: Ints, multi_node: Bools) -> TunedBatches:
        """The plans with the highest goodput on many allocations (Eq. 13).

        As in section 4.3, global batches between the limits are tried, each in as few passes as memory allows.

        Args:
            gpus: numbers of GPUs, 1 or more.
            multi_node: whether the GPUs are on several nodes, for each of ``gpus``.
        """
        limits = self._limits()
        least = np.maximum(-(-limits.first_batch // gpus), limits.min_per_gpu)
        most = np.maximum(-(-limits.max_batch // gpus), least)
        steps = np.linspace(0.0, 1.0, CANDIDATES)[:, None]
        shares = _full_passes(np.rint(least * (most / least) ** steps).astype(np.int64), limits, least)
        tried = self._tried(limits, gpus, multi_node, shares)
        best = np.argmax(tried.goodput, axis=0)
        return TunedBatches(*(each[best, np.arange(len(gpus))] for each in tried))

    def _limits(self) -> BatchLimits:
        """The limits, without larger batches where the noise scale is not known."""
        limits = self.limits
        if self.noise_scale is not None:
            return limits
        return BatchLimits(limits.first_batch, limits.first_batch, limits.max_per_gpu, limits.min_per_gpu)

    def _tried(self, limits: BatchLimits, gpus: Ints, multi_node: Bools, shares: Ints) -> TunedBatches:
        """Plans for a GPU's shares of the batch, in samples; a plan beyond the limits has the goodput 0."""
        accumulation = -(-shares // limits.max_per_gpu)
        per_gpu = -(-shares // accumulation)
        batch = np.minimum(gpus * per_gpu * accumulation, limits.max_batch)
        fits = (batch // (gpus * accumulation) >= limits.min_per_gpu) & (batch >= limits.first_batch)
        seconds = self.iteration.iteration_seconds_of(gpus, per_gpu, accumulation, multi_node)
        goodput = batch / seconds
        if limits.max_batch > limits.first_batch and self.noise_scale is not None and math.isfinite(self.noise_scale):
            goodput = goodput * ((self.noise_scale + limits.first_batch) / (self.noise_scale + batch))
        return TunedBatches(per_gpu * fits, accumulation * fits, batch * fits, goodput * fits)


def _full_passes(shares: Ints, limits: BatchLimits, least: Ints) -> Ints:
    """The shares, and below them those with full passes, where goodput has its local maxima."""
    full = shares // limits.max_per_gpu * limits.max_per_gpu
    return np.vstack([shares, np.maximum(full, least)])
