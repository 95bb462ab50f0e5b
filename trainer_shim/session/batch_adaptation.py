"""The adaptive batch of one training: progress, gradient noise, learning rates, and changes of the plan."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from trainer_shim.adaptive_batch.adaptive_progress import AdaptiveProgress
from trainer_shim.adaptive_batch.batch_tuner import BatchTuner, NumberedPlan
from trainer_shim.adaptive_batch.goodput import PlanLimits, gain
from trainer_shim.adaptive_batch.gradient_noise import MEASURE_EVERY, GradientNoise, unmeasurable
from trainer_shim.adaptive_batch.lr_scaling import LrScaling, ScalingInputs
from trainer_shim.adaptive_batch.schedule_steps import ScheduleSteps
from trainer_shim.errors import BatchError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainer_shim.adaptive_batch.gradient_noise import NoiseMeasurement
    from trainer_shim.adaptive_batch.lr_scaling import RuleOrName
    from trainer_shim.batch import BatchPlan
    from trainer_shim.checkpointing.formats.script_checkpoints import Progress
    from trainer_shim.checkpointing.tracked_objects import TrackedObjects
    from trainer_shim.data.sample_order import MicroBatch
    from trainer_shim.data.train_loader import TrainLoader
    from trainer_shim.preemption.lease import LeaseBatch
    from trainer_shim.process_groups.rank_group import RankGroup

log = logging.getLogger("trainer_shim")


class BatchConsent(NamedTuple):
    """A script's consent to batches that adapt, from `ctx.loader(..., max_batch=, lr_scale=)`.

    Attributes:
        limits: the batches that the script allows.
        scaling: the rule for the learning rate.
    """

    limits: PlanLimits
    scaling: LrScaling


def read_consent(
    global_batch: int, max_batch: int | None, max_per_gpu: int | None, lr_scale: RuleOrName | None
) -> BatchConsent | None:
    """Return the consent that the arguments of `ctx.loader` give, None without one.

    Where `max_per_gpu` is not given, it is the global batch: no GPU has to hold more than a single one held.

    Raises:
        BatchError: `max_batch` is below the global batch.
        UsageError: one of `max_batch` and `lr_scale` is missing, or there is no such rule.
    """
    if max_batch is None and lr_scale is None:
        return None
    if max_batch is None or lr_scale is None:
        raise UsageError(
            "ctx.loader(max_batch=..., lr_scale=...): a batch that adapts needs both, the largest global batch and the "
            'rule for the learning rate, such as lr_scale="adascale" for SGD or "sqrt" for Adam'
        )
    if max_batch < global_batch:
        raise BatchError(f"max_batch is {max_batch}, less than global_batch, {global_batch}: raise it")
    return BatchConsent(PlanLimits(global_batch, max_batch, max_per_gpu or global_batch), LrScaling(lr_scale))


class BatchAdaptation:
    """The adaptive batch of a training that goes on; every rank has one, with the same state.

    Args:
        group: the processes of the training.
        loader: the training data, a data set.
        consent: the script's consent; None where the batch adapts no more, and stays at M0.
        tracked: the objects of the script.
        start: the position of the training.
        total: the number of epochs.

    Attributes:
        position: the position of the training, beyond that of a fixed batch.
        number: the number of the plan that holds now, 0 for a plan of the trainer.
    """

    def __init__(
        self,
        *,
        group: RankGroup,
        loader: TrainLoader,
        consent: BatchConsent | None,
        tracked: TrackedObjects,
        start: Progress,
        total: int,
    ) -> None:
        self._group = group
        self._loader = loader
        self._first_batch = loader.first_batch
        self._scaling = consent and consent.scaling
        self._epoch_steps = loader.steps_per_epoch or 1
        self.position = start.adaptive or self._first_position(start)
        self.number = 0
        self._before = self.position.progress  # the progress before the last step
        self._averages = self.position.averages
        self._tuner = BatchTuner(self._limits(consent), group.size)
        self._pending: NumberedPlan | None = None  # agreed, and not yet in use
        loader.start_with(self._tuner.first_plan(self.position.batch if consent else self._first_batch))
        left = total - 1 - start.epoch
        self._schedules = ScheduleSteps(tracked.objects.values(), self.position.epoch_end + left * self._epoch_steps)
        self._noise = self._start_noise(tracked) if consent else None

    @classmethod
    def of_lease(
        cls,
        lease: LeaseBatch | None,
        *,
        group: RankGroup,
        loader: TrainLoader,
        consent: BatchConsent | None,
        tracked: TrackedObjects,
        start: Progress,
        total: int,
    ) -> BatchAdaptation | None:
        """Return the adaptation of a training, None where its batch is fixed: script and tag have to agree to adapt.

        Args:
            lease: the lease's batch plan on rank 0, None without one; other ranks need none.
            group: the processes of the training.
            loader: the training data.
            consent: the script's consent, None without one.
            tracked: the objects of the script.
            start: the position of the training.
            total: the number of epochs.

        Raises:
            BatchError: the batch is fixed, and less than the number of ranks.
        """
        asked = group.on_rank_zero(lambda: lease is not None)
        if group.rank == 0 and asked and consent is None:
            log.warning(
                "the job's tag has batch=adaptive, and the batch stays fixed, because the script does not consent: "
                "give ctx.loader(..., max_batch=..., lr_scale=...)"
            )
        if group.rank == 0 and consent is not None and not asked:
            log.info("the batch stays fixed: it adapts under metasched where the job's tag has batch=adaptive")
        consent = consent if asked else None
        if consent is None and loader.plan.global_batch != loader.first_batch:
            raise BatchError(
                f"global_batch is {loader.first_batch}, fewer samples than the {group.size} ranks: raise it, run on "
                "fewer GPUs (max_gpus in the job's tag), or let the batch adapt (batch=adaptive in the tag)"
            )
        if consent is None and start.adaptive is None:
            return None
        return cls(group=group, loader=loader, consent=consent, tracked=tracked, start=start, total=total)

    # The position

    @property
    def epoch_over(self) -> bool:
        """Whether the steps at M0 of the present epoch are made."""
        return self.position.progress >= self.position.epoch_end

    def end_pass(self) -> None:
        """End a pass over the data within an epoch: another one begins."""
        self.position = self.position._replace(data_pass=self.position.data_pass + 1)

    def end_epoch(self) -> bool:
        """Begin the next epoch; where the script has left the last one early, with a pass of its own.

        Returns:
            Whether the present pass goes on.
        """
        over = self.epoch_over
        if over:
            end = self.position.epoch_end + self._epoch_steps
        else:
            self.end_pass()
            end = self.position.progress + self._epoch_steps
        self.position = self.position._replace(epoch_end=end)
        return over

    # The steps

    def begin_backward(self, step: int, micro: MicroBatch) -> None:
        """Note that a backward pass begins, in the step with the number `step`, from 0."""
        if self._noise is not None:
            self._noise.begin_pass(step, micro)

    def end_backward(self, scaler: torch.amp.GradScaler | None) -> None:
        """Note that a backward pass has ended."""
        if self._noise is None:
            return
        scale = None
        if scaler is not None and scaler.is_enabled() and self._noise.needs_gradients:
            # the scaler's answer for 1 is its scale as a tensor, for which the host need not wait
            scale = scaler.scale(torch.ones((), device=self._noise.device))
        self._noise.end_pass(scale)

    def finish_gradients(self, step: int, samples: int) -> float:
        """Note that the gradients of a step are whole, and return the factor on its learning rates.

        Collective in the steps that are measured.

        Args:
            step: the number of the step, from 0.
            samples: the samples of the step, over all ranks.
        """
        own = None if self._noise is None else self._noise.finish_step(step)
        if own is not None:
            measured = type(own)(*self._group.sum(own)).measurement(samples)
            if measured is not None:
                self._note_measurement(measured, samples)
        if self._scaling is None:
            return 1.0
        # the last batch of an epoch may be smaller than M0; its learning rate is that of any other
        batch = max(samples, self._first_batch)
        known = self._averages.noise_scale
        return self._scaling.factor(ScalingInputs(self._first_batch, batch, known, self.position.progress))

    def add_step(self, samples: int, cursor: int) -> None:
        """Count the progress of an optimizer step: 1 up to M0, and while no noise is known.

        Args:
            samples: the samples of the step, over all ranks.
            cursor: the position in the pass after it.
        """
        del cursor  # an epoch may take more than one pass
        known = self._averages.noise_scale
        gained = 1.0 if known is None or samples <= self._first_batch else gain(self._first_batch, samples, known)
        self._before = self.position.progress
        self.position = AdaptiveProgress(
            self.position.progress + gained,
            self.position.epoch_end,
            self.position.data_pass,
            self._loader.plan.global_batch,
            *self._averages,
        )

    def observe_schedules(self) -> None:
        """Note the positions of the script's schedules before it steps them."""
        self._schedules.observe()

    def follow_schedules(self) -> None:
        """Let the script's schedules by step follow the progress of the last step."""
        self._schedules.follow(self._before, self.position.progress)

    def _note_measurement(self, measured: NoiseMeasurement, samples: int) -> None:
        """Add a measurement in a step over `samples` samples to the averages."""
        steps = MEASURE_EVERY * max(1.0, samples / self._first_batch)
        self._averages = self._averages.updated(measured.grad_square, measured.grad_variance, steps)

    # The plan

    def wants_plan(self, lease: LeaseBatch | None) -> bool:
        """Return whether the ranks have to agree on a new plan; on rank 0."""
        if self._pending is None and self._scaling is not None:
            may_grow = self._noise is not None and not self._scaling.failed
            self._tuner.update(lease, self._averages.noise_scale, self._loader.plan, may_grow=may_grow)
        return self._pending is None and self._tuner.proposal is not None

    def agree_on_plan(self) -> None:
        """Use rank 0's proposal beyond the data that any rank has requested. Collective, on a vote for a plan."""
        proposal = self._group.on_rank_zero(lambda: self._tuner.proposal)
        self._tuner.proposal = None
        if proposal is None:
            return
        if proposal.plan == self._loader.plan:
            self.number = proposal.number
            return
        self._pending = proposal
        self._loader.switch(proposal.plan, lambda own: -int(self._group.earliest(-own) or 0))

    def use_plan(self, plan: BatchPlan) -> None:
        """Note that the global batches from now on have another plan, the agreed one."""
        self._loader.plan = plan
        if self._pending is not None:
            self.number = self._pending.number
        self._pending = None
        if self._group.rank == 0:
            log.info(
                "batch plan %d: %d samples, %d on a GPU at once, %d passes",
                *(self.number, plan.global_batch, plan.per_gpu_batch, plan.accumulation),
            )

    # Reports

    def step_values(self) -> dict[str, Any]:
        """Return further values of a `steps` line; those of the noise are None while it is not known."""
        known = self._averages.noise_scale is not None
        return {
            "progress": self.position.progress,
            "grad_square": max(self._averages.grad_square or 0.0, 0.0) if known else None,
            "grad_variance": max(self._averages.grad_variance or 0.0, 0.0) if known else None,
            "plan": self.number,
        }

    def _first_position(self, start: Progress) -> AdaptiveProgress:
        """Return the position of a training whose batch was fixed so far."""
        done = min(self._epoch_steps, -(-start.cursor // self._first_batch))
        return AdaptiveProgress(
            progress=float(start.step),
            epoch_end=float(start.step + self._epoch_steps - done),
            data_pass=start.epoch,
            batch=self._first_batch,
        )

    def _limits(self, consent: BatchConsent | None) -> PlanLimits:
        """Return the consent's limits; no batch is larger than the data set."""
        if consent is None:
            return PlanLimits(self._first_batch, self._first_batch, self._loader.plan.max_per_gpu or self._first_batch)
        largest = min(consent.limits.max_batch, self._loader.samples_per_epoch or self._first_batch)
        return consent.limits._replace(max_batch=max(largest, self._first_batch))

    def _start_noise(self, tracked: TrackedObjects) -> GradientNoise | None:
        optimizers = [item for item in tracked.objects.values() if isinstance(item, torch.optim.Optimizer)]
        problem = unmeasurable(
            optimizers,
            ranks=self._group.size,
            exchanged=bool(tracked.gradient_sync_modules()),
            sharded=tracked.sharded,
        )
        if problem is None:
            return self._make_noise(optimizers)
        if self._group.rank == 0:
            log.warning("the batch stays at M0, because the gradient noise cannot be measured: %s", problem)
        return None

    def _make_noise(self, optimizers: Sequence[torch.optim.Optimizer]) -> GradientNoise:
        return GradientNoise(optimizers, rank=self._group.rank, ranks=self._group.size)
