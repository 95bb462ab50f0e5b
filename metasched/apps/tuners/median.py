"""Median stopping: a trial whose best loss is worse than the median of the others' running averages is ended.

Source: Golovin et al., "Google Vizier", KDD 2017, section 3.2.2 (median stopping rule).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import Annotated, Any, ClassVar

from pydantic import Field

from metasched.apps.tuners.tuner import Search, Tuner, TunerAnswer, TunerOptions, best_loss, loss_at, shown_loss
from metasched.core.apps import LossPoint, thinned
from metasched.core.reasons import Code, Reason

STORED_POINTS = 16
"""Points of each trial's running average that the state has."""
GRACE = 0.1
"""Fraction of a training, where its steps are known, before which no trial is ended by default."""


class MedianOptions(TunerOptions):
    """Options of median stopping.

    Attributes:
        grace: steps before which no trial is ended; by default a tenth of the steps that the trials declare.
        others: the fewest other trials whose median counts.
    """

    grace: Annotated[float, Field(ge=0)] | None = None
    others: Annotated[int, Field(ge=1)] = 3


class MedianStopping(Tuner):
    """Compares each live trial at its latest step with all others that have come as far.

    The others are live, completed, or ended by the tuner; trials that died by themselves do not count. Of the live
    trials, the one with the least loss so far is never ended.
    """

    name: ClassVar[str] = "median"
    Options: ClassVar[type[TunerOptions]] = MedianOptions
    options: MedianOptions

    def step(self, search: Search) -> TunerAnswer:
        """End the trials that are worse than the median."""
        grace, steps = self.options.grace, search.steps(None)
        begin = grace if grace is not None else GRACE * (steps or 0.0)
        averages = _stored(search) | {trial.uid: running_averages(trial.losses) for trial in search.trials}
        best = min(((best_loss(one.losses), one.submitted, one.uid) for one in search.trials), default=(0.0, 0.0, ""))
        ends: dict[str, Reason] = {}
        for trial in search.trials:
            if not trial.losses or trial.uid == best[-1] or (now := trial.losses[-1].progress_steps) < begin:
                continue
            others = [
                loss_at(curve, now)
                for uid, curve in averages.items()
                if uid != trial.uid and curve and curve[-1].progress_steps >= now
            ]
            if len(others) < self.options.others or (own := best_loss(trial.losses)) <= (middle := median(others)):
                continue
            if math.isinf(own):
                ends[trial.uid] = Reason.of(Code.TRIAL_DIVERGED, steps=now)
            else:
                facts = {"loss": shown_loss(own), "median": shown_loss(middle), "steps": now}
                ends[trial.uid] = Reason.of(Code.TRIAL_BELOW_MEDIAN, **facts)
        stored = {uid: _to_json(thinned(curve, STORED_POINTS)) for uid, curve in averages.items() if curve}
        return TunerAnswer({"averages": stored}, ends=ends)


def running_averages(losses: Sequence[LossPoint]) -> tuple[LossPoint, ...]:
    """The mean loss over all steps up to each point; infinite from the first loss that is not finite.

    A point's loss stands for the steps since the point before, so thinned points have nearly the same averages.
    """
    found = []
    total = 0.0
    for before, point in pairwise((LossPoint(0.0, 0.0), *losses)):
        width = max(point.progress_steps - before.progress_steps, 0.0)
        total += width * (point.loss if math.isfinite(point.loss) else math.inf) if width else 0.0
        done = point.progress_steps
        found.append(LossPoint(done, total / done if done > 0 else point.loss))
    return tuple(found)


def _stored(search: Search) -> dict[str, tuple[LossPoint, ...]]:
    """The running averages of trials that are gone and count: completed, or ended by the tuner."""
    stored: Mapping[str, Any] = search.state.get("averages", {})
    return {
        uid: tuple(LossPoint(steps, math.inf if loss is None else loss) for steps, loss in curve)
        for uid, curve in stored.items()
        if uid in search.completed or uid in search.ended
    }


def _to_json(curve: Sequence[LossPoint]) -> list[list[float | None]]:
    """Points as JSON-compatible lists, an infinite loss as None, with the digits that a comparison needs."""
    return [[steps, float(f"{loss:.6g}") if math.isfinite(loss) else None] for steps, loss in curve]
