"""Hidden learning curves of simulated trials: a power law with an offset, and noise on each reported loss."""

from __future__ import annotations

import random

from metasched.core.apps import LossPoint

REPORTS = 45
"""Reports of a training. Their steps grow by the fourth root of 2, from a 2048th of the training up to its end, so that
each halving phase of up to 2048 trials ends at a report."""
STEEP = 1000.0
"""How many times as long as the first part of a curve, where it is flat, the whole training is."""
FLOORS, DROPS, EXPONENTS = (0.2, 1.2), (1.0, 3.0), (0.1, 0.6)
"""Ranges of the offset, of the loss above it at the start, and of the power by which that falls."""
NOISE = 0.01
"""Standard deviation of a reported loss, over the loss."""


def learning_curve(rng: random.Random, steps: float) -> tuple[LossPoint, ...]:
    """The losses that one training reports, drawn at random: better starts need not be better ends.

    Args:
        rng: draws the curve.
        steps: steps of the whole training.
    """
    floor, drop, exponent = (rng.uniform(*limits) for limits in (FLOORS, DROPS, EXPONENTS))
    points = []
    for report in range(REPORTS):
        part: float = 2.0 ** ((report + 1 - REPORTS) / 4)
        loss = floor + drop * (1.0 + STEEP * part) ** -exponent
        points.append(LossPoint(part * steps, loss * (1.0 + rng.gauss(0.0, NOISE))))
    return tuple(points)
