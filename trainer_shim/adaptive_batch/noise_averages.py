"""Averages of the gradient noise over steps, and the noise scale that follows from them."""

from __future__ import annotations

import math
from typing import NamedTuple

WINDOW = 1000.0  # steps at M0 over which the averages extend
KNOWN_WEIGHT = 0.04  # the total weight of the measurements from which the noise scale counts as known: 40 steps at M0


class NoiseAverages(NamedTuple):
    """Exponential averages of the two parts of the gradient noise, which begin at 0.

    The signal and the variance are averaged apart, because the average of their ratio would be biased.

    Attributes:
        square_sum: the weighted sum of the measured |Pg|^2, the squared norm of the true gradient.
        variance_sum: the weighted sum of the measured tr(P Sigma P^T), the variance of one sample's gradient.
        weight: the sum of the weights, from 0 (no measurement) to 1.
    """

    square_sum: float = 0.0
    variance_sum: float = 0.0
    weight: float = 0.0

    def updated(self, square: float, variance: float, steps: float) -> NoiseAverages:
        """Return the averages after a measurement that stands for `steps` steps at M0.

        The arithmetic is exact to the bit on every host, which a power is not: ranks decide by the averages.
        """
        kept = 1 / (1 + steps / WINDOW)
        return NoiseAverages(
            self.square_sum * kept + square * (1 - kept),
            self.variance_sum * kept + variance * (1 - kept),
            self.weight * kept + 1 - kept,
        )

    @property
    def grad_square(self) -> float | None:
        """The average of |Pg|^2 without the bias of its beginning, None before a measurement."""
        return self.square_sum / self.weight if self.weight else None

    @property
    def grad_variance(self) -> float | None:
        """The average of tr(P Sigma P^T) of one sample without the bias of its beginning, None before a measurement."""
        return self.variance_sum / self.weight if self.weight else None

    @property
    def noise_scale(self) -> float | None:
        """The gradient noise scale phi in samples (Eq. 5), None while too few steps were measured.

        Estimates are unbiased, so an average may be negative by chance: a variance below 0 counts as 0, and a signal
        that is not above 0 makes the noise scale infinite.
        """
        if self.weight < KNOWN_WEIGHT or (self.square_sum <= 0 and self.variance_sum <= 0):
            return None
        return max(self.variance_sum, 0.0) / self.square_sum if self.square_sum > 0 else math.inf
