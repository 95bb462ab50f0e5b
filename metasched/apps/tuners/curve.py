"""Performance curve stopping: a trial is ended that even at best cannot become as good as another one is already.

Source: Themis, section 4.3.2, after HyperDrive (Rasley et al., Middleware 2017), whose probabilistic curves are here a
power law with an offset, loss(s) = c + a s^-b with a >= 0, and a confidence bound of its last value.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, ClassVar

import numpy as np
import numpy.typing as npt
from pydantic import Field

from metasched.apps.tuners.tuner import Search, Tuner, TunerAnswer, TunerOptions, shown_loss
from metasched.core.apps import LossPoint
from metasched.core.reasons import Code, Reason

Numbers = npt.NDArray[np.float64]
EXPONENTS = np.geomspace(0.05, 4.0, 32)
"""The values of b that are tried; for each of them a and c are a linear regression."""
LIKELIHOOD = 3.84
"""The 95 % quantile of the chi-squared distribution: how much less likely an accepted b may be than the best one."""
DEVIATIONS = 1.96
"""Standard errors below the expected last value, within which the optimistic one lies."""
GRACE = 0.1
"""Fraction of a training before which no trial is ended by default."""


class CurveOptions(TunerOptions):
    """Options of performance curve stopping.

    Attributes:
        steps: steps of a whole training; else those that the trials declare.
        grace: steps before which no trial is ended; by default a tenth of a training.
        points: the fewest reported losses from which a curve is fitted.
    """

    steps: Annotated[float, Field(ge=1)] | None = None
    grace: Annotated[float, Field(ge=0)] | None = None
    points: Annotated[int, Field(ge=4, le=64)] = 8


@dataclass(frozen=True, slots=True)
class Forecast:
    """A fitted learning curve.

    Attributes:
        level: the fitted loss at the latest point.
        optimistic: the least loss that the curve may plausibly reach at the end of the training.
    """

    level: float
    optimistic: float


class CurveStopping(Tuner):
    """Ends a trial whose optimistic last loss is worse than what another live or completed trial has reached.

    The live trial with the least fitted loss is never ended. Trials with too few losses are left alone. A trial whose
    latest loss is not finite has diverged, and is ended if another live one has not.
    """

    name: ClassVar[str] = "curve"
    Options: ClassVar[type[TunerOptions]] = CurveOptions
    options: CurveOptions

    def step(self, search: Search) -> TunerAnswer:
        """Fit each live trial's curve, and end the trials that cannot win."""
        steps = search.required_steps(self.options.steps)
        grace = self.options.grace if self.options.grace is not None else GRACE * steps
        heard = [trial for trial in search.trials if trial.losses]
        sound = {trial.uid for trial in heard if math.isfinite(trial.losses[-1].loss)}
        old = [trial for trial in heard if trial.losses[-1].progress_steps >= grace]
        known = [trial for trial in old if trial.uid in sound and len(trial.losses) >= self.options.points]
        forecasts = {trial.uid: forecast(trial.losses, steps) for trial in known}
        fitted = {uid: found for uid, found in forecasts.items() if found is not None}
        stored: Mapping[str, float] = search.state.get("levels", {})
        levels = {uid: level for uid, level in stored.items() if uid in search.completed}
        levels |= {uid: found.level for uid, found in fitted.items()}
        leader = min(fitted, key=lambda uid: (fitted[uid].level, uid), default=None)
        ends = {}
        for trial in old:
            if sound and trial.uid not in sound:
                ends[trial.uid] = Reason.of(Code.TRIAL_DIVERGED, steps=trial.losses[-1].progress_steps)
        for uid, found in fitted.items():
            other = min((level for rival, level in levels.items() if rival != uid), default=math.inf)
            if uid != leader and found.optimistic > other:
                facts = {"optimistic": shown_loss(found.optimistic), "steps": steps, "reached": shown_loss(other)}
                ends[uid] = Reason.of(Code.TRIAL_CANNOT_WIN, **facts)
        return TunerAnswer({"levels": levels}, ends=ends)


@lru_cache(maxsize=8192)  # a trial's losses are the same in most rounds
def forecast(losses: tuple[LossPoint, ...], steps: float) -> Forecast | None:
    """Fit a learning curve and bound its value at ``steps``; None where the points do not suffice.

    The bound is the least over all plausible exponents (by their profile likelihood) of the regression's value, less
    ``DEVIATIONS`` standard errors. It is no higher than the fitted level, because a training can be stopped early.
    """
    usable = [point for point in losses if 0 < point.progress_steps < math.inf and math.isfinite(point.loss)]
    if len(usable) < 3:  # noqa: PLR2004  a, b and c
        return None
    done, loss = np.array(usable).T
    with np.errstate(all="ignore"):  # losses as large as floats can be
        found = _fit(done, loss, steps)
    return found if math.isfinite(found.level) and math.isfinite(found.optimistic) else None


def _fit(done: Numbers, loss: Numbers, steps: float) -> Forecast:
    """The forecast for finite losses at ascending steps; not finite where floats do not suffice."""
    count = len(loss)
    x = (done / done[-1]) ** -EXPONENTS[:, None]
    end = (max(steps, done[-1]) / done[-1]) ** -EXPONENTS
    mean_x, mean = x.mean(axis=1), float(loss.mean())
    centred = x - mean_x[:, None]
    spread = (centred**2).sum(axis=1)
    slope = np.maximum(centred @ (loss - mean) / spread, 0.0)
    offset = mean - slope * mean_x
    errors = ((loss - offset[:, None] - slope[:, None] * x) ** 2).sum(axis=1)
    rounding = 1e-12 * (float((loss**2).sum()) + 1e-300)
    best = int(errors.argmin())
    plausible = count * np.log((errors + rounding) / (errors[best] + rounding)) <= LIKELIHOOD
    deviation = np.sqrt(errors / (count - 2) * (1 / count + (end - mean_x) ** 2 / spread))
    lowest = float((offset + slope * end - DEVIATIONS * deviation)[plausible].min(initial=math.inf))
    level = float(offset[best] + slope[best])
    return Forecast(level, min(level, lowest) if lowest < math.inf else lowest)
