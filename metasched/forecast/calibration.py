"""Calibration: factors on the widths of ranges, learned from the ranges of jobs whose start or end is known by now.

The two ends of a range are tracked apart, each for its own share of misses, by the stochastic approximation of a
quantile (Robbins and Monro, 1951), as adaptive conformal inference applies it to forecasts (Gibbs and Candes, NeurIPS
2021, section 2): a miss widens the range by much, and a hit narrows it by little. Outcomes that become known together
mostly are those of one burst, or of one delay of the queue, and hold or miss together: they make one step. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from metasched.forecast.records import HIGH, LOW, InstantRange

FIRST_STEP, LEAST_STEP = 0.3, 0.04
"""The first step of a factor's logarithm, and the least one, which later steps approach."""
LEAST_FACTOR, MOST_FACTOR = 0.05, 50.0
LEAST_SECONDS = 5.0
"""The least distance of a range's ends from its median before calibration: polls and starts take some seconds."""
LEAST_PART = 0.05
"""The same, as a part of the time from the forecast to the median."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """Factors on the distances of a range's ends from its median.

    Attributes:
        below: the factor on the distance of the lower end.
        above: the factor on the distance of the upper end.
        outcomes: the number of outcomes that the factors were learned from.
        steps: the number of steps, of one or more outcomes each, that the factors were learned in.
    """

    below: float = 1.0
    above: float = 1.0
    outcomes: int = 0
    steps: int = 0

    def learned(self, outcomes: Sequence[tuple[InstantRange, float]]) -> Calibration:
        """Return the calibration after outcomes that became known together.

        Args:
            outcomes: calibrated ranges that were forecast, each with the instant that came; at least one.
        """
        step = max(LEAST_STEP, FIRST_STEP / math.sqrt(1 + self.steps))
        count = len(outcomes)
        early = sum(truth < found.low for found, truth in outcomes) / count
        late = sum(found.high is not None and truth > found.high for found, truth in outcomes) / count
        return replace(
            self,
            below=_bounded(self.below * math.exp(step * (early - LOW))),
            above=_bounded(self.above * math.exp(step * (late - (1.0 - HIGH)))),
            outcomes=self.outcomes + count,
            steps=self.steps + 1,
        )

    def applied(self, found: InstantRange, at: float) -> InstantRange:
        """Return a range with its ends at their calibrated distances from the median.

        Args:
            found: the range as simulated.
            at: the instant of the forecast, before which no range begins.
        """
        least = max(LEAST_SECONDS, LEAST_PART * (found.median - at))
        low = found.median - self.below * max(found.median - found.low, least)
        high = None if found.high is None else found.median + self.above * max(found.high - found.median, least)
        return InstantRange(max(low, min(at, found.median)), found.median, high)


def _bounded(factor: float) -> float:
    return min(max(factor, LEAST_FACTOR), MOST_FACTOR)
