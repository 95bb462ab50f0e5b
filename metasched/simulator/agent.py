"""What a trainer whose batch size changes knows and reports of itself, in simulations (Pollux, OSDI 2021, section 4.1).

The time of an iteration is fitted to the configurations in which the job has run, never to the training's true speed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from metasched.core.batching import BatchPlan, BatchRegime
from metasched.core.model import NO_PARAMETERS, Job, Placement
from metasched.throughput.iteration_fit import MeasuredIteration, fit_types
from metasched.throughput.training import AdaptiveTraining, Pace, Training


class Agent:
    """The trainer's side of one job.

    Args:
        training: the job's training.
        fits: whether the time of an iteration is fitted, which costs some milliseconds for each new configuration.
        known: by GPU type, the parameters of the time of an iteration where they are known from the begin; none are
            fitted then.

    Attributes:
        plan: the batch plan in force; None for the training's own batch.
    """

    def __init__(
        self, training: AdaptiveTraining, *, fits: bool, known: Mapping[str, tuple[float, ...]] = NO_PARAMETERS
    ) -> None:
        self.plan: BatchPlan | None = None
        self._training = training
        self._fits = fits and not known
        self._batching = training.batching
        self._ran = False
        self._measured: dict[str, dict[tuple[int, bool, BatchPlan], MeasuredIteration]] = {}  # by GPU type
        self._parameters = known
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
        batch = plan.global_batch(placement.gpus)
        known = self._batching
        regimes = known.regimes
        if not regimes or regimes[-1].batch != batch:
            regimes = (*regimes, BatchRegime(batch, done if regimes else 0.0))
        self._batching = replace(known, plan=plan, global_batch=batch, regimes=regimes)
        self._ran = True
        seconds = self._training.iteration_seconds(placement, plan)
        if not self._fits or seconds is None or placement.gpu_type is None:
            return
        several = len(placement.nodes) > 1
        where = placement.gpus, several, plan
        found = self._measured.setdefault(placement.gpu_type, {})
        if where not in found:
            found[where] = MeasuredIteration(placement.gpus, several, plan.per_gpu, plan.accumulation, seconds)
            self._refit = True

    def report(self, job: Job, done: float) -> Job:
        """The job with what its trainer reports after ``done`` steps; the same object where it has never run."""
        if not self._ran:
            return job
        if self._refit:
            measured = {gpu_type: list(found.values()) for gpu_type, found in self._measured.items()}
            self._parameters = fit_types(measured, {})
            self._refit = False
        return job.evolve(
            batching=self._batching,
            noise=self._training.noise(done),
            requested_batch=self.plan,
            iteration_parameters=self._parameters,
        )
