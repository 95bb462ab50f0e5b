"""What a trainer whose batch size changes knows and reports of itself, in simulations (Pollux, OSDI 2021, section 4.1).

The time of an iteration is fitted to the configurations in which the job has run, never to the training's true speed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from metasched.core.batching import BatchPlan, BatchRegime, GradientNoise
from metasched.core.model import Job, Placement
from metasched.throughput.goodput import Goodput
from metasched.throughput.iteration_fit import MeasuredIteration
from metasched.throughput.iteration_time import IterationParameters
from metasched.throughput.job_goodput import batch_limits
from metasched.throughput.training import AdaptiveTraining, Pace, Training
from metasched.throughput.typed_fits import TypedFits

NOTHING_KNOWN: Mapping[str, IterationParameters] = MappingProxyType({})


class Agent:
    """The trainer's side of one job.

    Args:
        training: the job's training.
        fits: whether the time of an iteration is fitted, which costs some milliseconds for each new configuration.
        times_passes: whether the trainer times a pass without synchronisation by itself, besides the iteration.
        parameters: by GPU type, what is known before the job's first run, as from earlier jobs.
        typed_fits: the fits of all jobs of the simulation; None where there are no others.

    Attributes:
        plan: the batch plan in force; None for the training's own batch.
    """

    def __init__(
        self,
        training: AdaptiveTraining,
        *,
        fits: bool,
        times_passes: bool = False,
        parameters: Mapping[str, IterationParameters] = NOTHING_KNOWN,
        typed_fits: TypedFits | None = None,
    ) -> None:
        self.plan: BatchPlan | None = None
        self._training = training
        self._fits = fits
        self._times_passes = times_passes
        self._batching = training.batching
        self._measured: dict[str, dict[tuple[int, bool, BatchPlan], MeasuredIteration]] = {}  # by GPU type
        self._parameters = parameters
        self._typed_fits = TypedFits() if typed_fits is None else typed_fits
        self._refit = False

    def pace(self, done: float, placement: Placement, co_runner: Training | None) -> Pace:
        """The training's pace with the plan in force."""
        if self.plan is None:
            return self._training.pace(done, placement, co_runner)
        return self._training.tuned_pace(done, placement, self.plan, co_runner)

    def measure(self, done: float, placement: Placement) -> None:
        """Measure an iteration on a placement, as the job's trainer does once it trains there without a co-runner.

        Args:
            done: progress so far, in steps at the first batch.
            placement: the placement.
        """
        plan = self.plan or self._training.own_plan(placement)
        known = self._batching
        batch = plan.global_batch(placement.gpus)
        batch = batch if known.max_batch is None else min(batch, known.max_batch)
        regimes = known.regimes
        if not regimes or regimes[-1].batch != batch:
            regimes = (*regimes, BatchRegime(batch, done if regimes else 0.0))
        self._batching = replace(known, plan=plan, global_batch=batch, regimes=regimes)
        seconds = self._training.iteration_seconds(placement, plan)
        if not self._fits or seconds is None or placement.gpu_type is None:
            return
        several = len(placement.nodes) > 1
        where = placement.gpus, several, plan
        found = self._measured.setdefault(placement.gpu_type, {})
        if where not in found:
            one_pass = self._pass_seconds(placement, plan) if self._times_passes else None
            found[where] = MeasuredIteration(*where[:2], plan.per_gpu, plan.accumulation, seconds, one_pass)
            self._refit = True

    def report(self, job: Job, done: float) -> Job:
        """The job with what its trainer reports after ``done`` steps; the same object where it has never run."""
        if self._batching.plan is None:
            return (
                job.evolve(batching=self._batching, iteration_parameters=self._parameters) if self._parameters else job
            )
        return job.evolve(
            batching=self._batching,
            noise=self._noise(done),
            requested_batch=self.plan,
            iteration_parameters=self._fit(),
        )

    def retune(self, done: float, placement: Placement) -> None:
        """Take up the batch plan with the highest goodput, by the noise and the fit after ``done`` steps."""
        found = self._fit().get(placement.gpu_type or "")
        if found is None:
            return
        goodput = Goodput(found, batch_limits(self._batching), self._noise(done).scale)
        best = goodput.best(placement.gpus, multi_node=len(placement.nodes) > 1)
        if best is not None:
            self.plan = best.plan

    def _pass_seconds(self, placement: Placement, plan: BatchPlan) -> float | None:
        once, twice = (
            self._training.iteration_seconds(placement, BatchPlan(plan.per_gpu, passes)) for passes in (1, 2)
        )
        return None if once is None or twice is None else twice - once

    def _noise(self, done: float) -> GradientNoise:
        return self._training.noise(done, self._batching.global_batch or self._batching.first_batch)

    def _fit(self) -> Mapping[str, IterationParameters]:
        if self._refit:
            measured = {gpu_type: list(found.values()) for gpu_type, found in self._measured.items()}
            self._parameters = self._typed_fits.fit(self, measured)
            self._refit = False
        return self._parameters
