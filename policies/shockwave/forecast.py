"""What is known of a job's work: done and to come, and how fast it is trained where.

The work of a job with known steps and speeds is its predicted trajectory. Where steps or speeds are not known, the work
is counted in seconds on the requested GPUs: as similar jobs needed, or else as if the job were half done.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from metasched.core.batching import AdaptationRule, Batching
from metasched.core.model import Job
from metasched.throughput.batch_speed import batch_speed
from policies.shockwave.predictor import (
    Adaptation,
    Estimator,
    PredictedRegime,
    Trajectory,
    predict,
    remaining,
    sample_trajectories,
)
from policies.shockwave.progress_curve import ProgressCurve

UNDECLARED_REGIMES = 2
"""The regimes of a script that adapts its batch by a rule and does not declare how often: it changes once."""

ONLY_BATCH = 1
"""The batch of a job of which no trainer has reported one."""

Where = tuple[str, tuple[int, ...]]
"""A GPU type, and the numbers of GPUs on each node, descending."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """How regimes are predicted.

    Attributes:
        estimator: how the lengths of regimes are estimated.
        samples: sampled trajectories whose expected progress counts (Appendix F); 0 for the mean trajectory.
        seed: of the samples.
    """

    estimator: Estimator = Estimator.RESTATEMENT
    samples: int = 0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Forecast:
    """The work of one job.

    Attributes:
        job: the job.
        done: the work done, in the unit of the curves.
        trajectories: trajectories of equal probability, of the whole work; the unit is steps at the first batch, and
            seconds where ``in_seconds``.
        planned: whether the work to come is known, so that it can be planned.
        in_seconds: whether the work is counted in seconds on the requested GPUs.
    """

    job: Job
    done: float
    trajectories: tuple[Trajectory, ...]
    planned: bool = True
    in_seconds: bool = False

    def curve(self, where: Where) -> ProgressCurve | None:
        """The progress to come on a placement; None where no speed there is known."""
        return self._curve((remaining(each, self.done) for each in self.trajectories), where)

    def total_seconds(self, where: Where) -> float | None:
        """The seconds of the whole work on a placement; None where no speed there is known."""
        found = self._curve(self.trajectories, where)
        return None if found is None else found.end

    def after(self, seconds: float, where: Where) -> Forecast:
        """The forecast after some more seconds of training on a placement, with some work left."""
        curve = self.curve(where)
        if curve is None or seconds <= 0:
            return self
        gained = float(np.interp(seconds, *curve))
        return replace(self, done=self.done + gained)

    def _curve(self, trajectories: Iterable[Trajectory], where: Where) -> ProgressCurve | None:
        if self.in_seconds:
            scale = self.job.gpus / sum(where[1])  # the same service on any number of GPUs
            curves = [ProgressCurve.of(each, {ONLY_BATCH: 1.0 / scale}) for each in trajectories]
        else:
            speeds = _speeds(self.job, {one.batch for each in self.trajectories for one in each}, where)
            curves = [ProgressCurve.of(each, speeds) for each in trajectories]
        known = [curve for curve in curves if curve is not None]
        if not known:
            return None
        return known[0] if len(known) == 1 else ProgressCurve.mean(known)


def forecast(job: Job, places: Iterable[Where], prediction: Prediction, least_seconds: float) -> Forecast:
    """What is known of a job's work.

    Args:
        job: a job with GPUs.
        places: where it could run.
        prediction: how regimes are predicted.
        least_seconds: the least work that is assumed to be left where it is not known, in seconds.
    """
    total = job.total_steps
    done = job.progress_steps or 0.0
    if total is not None and math.isfinite(total) and total > 0 and math.isfinite(done) and done >= 0:
        adaptation = _adaptation(job.batching, total)
        trajectories = _trajectories(job, adaptation, done, prediction)
        found = Forecast(job, min(done, total), trajectories)
        if done < total and any((curve := found.curve(where)) is not None and curve.end > 0 for where in places):
            return found
    units = max(job.gpus, 1)
    ran = job.attained_service / units
    expected = job.expected_service / units if job.expected_service is not None else math.nan
    known = math.isfinite(expected) and expected > ran
    left = expected - ran if known else max(ran, least_seconds)
    whole = (PredictedRegime(ONLY_BATCH, ran + left),)
    return Forecast(job, ran, (whole,), planned=known, in_seconds=True)


def _trajectories(job: Job, adaptation: Adaptation, done: float, prediction: Prediction) -> tuple[Trajectory, ...]:
    regimes = job.batching.regimes if job.batching is not None and _is_sound(job.batching) else ()
    if prediction.samples and prediction.estimator is Estimator.RESTATEMENT:
        epochs = float(adaptation.most_regimes) * UNDECLARED_REGIMES
        seed = prediction.seed + int.from_bytes(job.uid.encode()[-4:], "big")
        drawn = sample_trajectories(
            adaptation, regimes, done, epochs=max(epochs, 100.0), count=prediction.samples, seed=seed
        )
        return tuple(drawn)
    return (predict(adaptation, regimes, done, prediction.estimator),)


def _adaptation(batching: Batching | None, total: float) -> Adaptation:
    """What is declared of the batch size; nothing changes where the declaration is nonsense."""
    if batching is None or not _is_sound(batching):
        return Adaptation(AdaptationRule.STATIC, total, ONLY_BATCH)
    rule = batching.adapts or AdaptationRule.STATIC
    first, most = batching.first_batch, batching.max_batch
    regimes = batching.most_regimes
    if regimes is None:
        regimes = UNDECLARED_REGIMES
        if rule is AdaptationRule.GNS and most is not None and most > first:
            regimes = math.ceil(math.log2(most / first)) + 1
    return Adaptation(rule, total, first, most, max(regimes, 1), batching.schedule)


def _is_sound(batching: Batching) -> bool:
    """Whether the batches are numbers of samples, and the regimes begin one after the other."""
    spans = (batching.regimes, batching.schedule)
    batches = [batching.first_batch, *(one.batch for span in spans for one in span)]
    begins = [[one.began for one in span] for span in spans]
    ascending = all(former <= later for each in begins for former, later in itertools.pairwise(each))
    return min(batches) >= 1 and ascending and all(math.isfinite(begin) for each in begins for begin in each)


def _speeds(job: Job, batches: Iterable[int], where: Where) -> dict[int, float]:
    """The known speeds at some batches; else those at others that were measured, or in force."""
    gpu_type, spread = where

    def known(wanted: Iterable[int]) -> dict[int, float]:
        found = {batch: batch_speed(job, batch, gpu_type, spread) for batch in wanted}
        return {
            batch: speed for batch, speed in found.items() if speed is not None and speed > 0 and math.isfinite(speed)
        }

    if found := known(batches):
        return found
    if found := known(batch for batch in job.batch_speeds if batch >= 1):
        return found
    present = None if job.speed is None else job.speed.steps_per_second(gpu_type, spread)
    return {ONLY_BATCH: present} if present is not None and present > 0 and math.isfinite(present) else {}
