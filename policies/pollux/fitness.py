"""The cluster's fitness: a weighted power mean of the jobs' speed-ups (Pollux, OSDI 2021, section 4.2, Eq. 14)."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

LEAST_SPEEDUP = 1e-3
"""The speed-up at which smaller ones count, those of jobs without GPUs too: for p <= 0 one 0 would make the mean 0."""


SMALLEST_EXPONENT = 1e-9
"""The exponent below which the power mean is the geometric mean, up to rounding."""


LEAST_EXPONENT, GREATEST_EXPONENT = -64.0, 64.0
"""The exponents that searches use at most: powers of speed-ups beyond them leave the range of floating-point numbers.

At -64 hardly anything but the smallest speed-ups counts, so that it stands for minus infinity.
"""


def fitness(speedups: Floats, p: float, weights: Floats | None = None) -> Floats:
    """The weighted power mean of speed-ups.

    Args:
        speedups: speed-ups over the fair share, 0 or more; the last axis is that of the jobs.
        p: the exponent: 1 is the arithmetic mean, 0 the geometric, -1 the harmonic, -infinity the minimum.
        weights: the weights of the jobs, above 0; None for equal weights.

    Returns:
        The mean along the last axis. Speed-ups below ``LEAST_SPEEDUP`` count as that much.
    """
    values = np.maximum(np.asarray(speedups, dtype=float), LEAST_SPEEDUP)
    if math.isinf(p):
        return np.asarray(values.max(axis=-1) if p > 0 else values.min(axis=-1))
    parts = np.ones(values.shape[-1]) if weights is None else np.asarray(weights, dtype=float)
    parts = parts / parts.sum()
    logs = np.log(values)
    if abs(p) < SMALLEST_EXPONENT:
        return np.asarray(np.exp(logs @ parts))
    # Relative to the largest power, so that a large |p| neither overflows nor underflows.
    largest = (p * logs).max(axis=-1)
    return np.asarray(np.exp((largest + np.log(np.exp(p * logs - largest[..., None]) @ parts)) / p))


def contributions(speedups: Floats, p: float) -> Floats:
    """What each speed-up adds to a sum that grows with the fitness: the fitness is separable in the jobs.

    Args:
        speedups: speed-ups over the fair share, 0 or more, in any shape.
        p: the exponent, finite.
    """
    values = np.maximum(speedups, LEAST_SPEEDUP)
    if abs(p) < SMALLEST_EXPONENT:
        return np.asarray(np.log(values))
    return np.asarray(math.copysign(1.0, p) * values**p)


def reallocation_factor(age: Floats, reallocations: Floats, delay: Floats) -> Floats:
    """REALLOC_FACTOR: what a job's speed-up is multiplied with where its allocation changes, 0 to 1 (section 4.2).

    Args:
        age: seconds since each job's submission.
        reallocations: how often each job was re-allocated so far.
        delay: seconds that a re-allocation costs each job.
    """
    total = age + delay
    left = np.maximum(age - reallocations * delay, 0.0)
    return np.divide(left, total, out=np.ones_like(total), where=total > 0)
