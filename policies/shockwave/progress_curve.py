"""How far a training gets in how many seconds: predicted regimes at known speeds."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Self

import numpy as np

from policies.shockwave.predictor import Trajectory


class ProgressCurve(NamedTuple):
    """Steps by seconds of training, as the corners of a polyline; both begin with 0 and ascend.

    Attributes:
        seconds: seconds of training, without restarts.
        steps: steps at the first batch size.
    """

    seconds: tuple[float, ...]
    steps: tuple[float, ...]

    @classmethod
    def of(cls, regimes: Trajectory, speeds: Mapping[int, float]) -> Self | None:
        """The curve of regimes that are trained one after the other.

        Args:
            regimes: the regimes to come.
            speeds: steps at the first batch size each second, by global batch. A batch that is not known counts as the
                known one at the smallest ratio to it.

        Returns:
            The curve; None where no speed is known.
        """
        known = {batch: speed for batch, speed in speeds.items() if speed > 0}
        if not known:
            return None
        seconds = [one.steps / known[_nearest(one.batch, known)] for one in regimes]
        return cls(
            tuple(itertools.accumulate(seconds, initial=0.0)),
            tuple(itertools.accumulate((one.steps for one in regimes), initial=0.0)),
        )

    @classmethod
    def mean(cls, curves: Sequence[Self]) -> Self:
        """The expected steps over curves of equal probability (Appendix F)."""
        corners = np.unique(np.concatenate([curve.seconds for curve in curves]))
        steps = np.mean([np.interp(corners, *curve) for curve in curves], axis=0)
        return cls(tuple(corners.tolist()), tuple(steps.tolist()))

    @property
    def end(self) -> float:
        """Seconds until all steps are done."""
        return self.seconds[-1]


def _nearest(batch: int, known: Mapping[int, float]) -> int:
    return min(known, key=lambda other: (abs(math.log(other / batch)), other))
