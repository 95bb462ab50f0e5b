"""The adaptive batch of a training whose script changes it by a rule of its own, without metasched."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import torch

from trainer_shim.adaptive_batch.adapt import RuleState, WindowEnd
from trainer_shim.adaptive_batch.gradient_noise import MEASURE_EVERY, GradientNoise
from trainer_shim.errors import BatchError, UsageError
from trainer_shim.session.batch_adaptation import BatchAdaptation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainer_shim.adaptive_batch.adapt import BatchRule
    from trainer_shim.adaptive_batch.gradient_noise import NoiseMeasurement
    from trainer_shim.batch import BatchPlan
    from trainer_shim.checkpointing.formats.script_checkpoints import Progress
    from trainer_shim.checkpointing.tracked_objects import TrackedObjects
    from trainer_shim.data.train_loader import TrainLoader
    from trainer_shim.preemption.lease import LeaseBatch
    from trainer_shim.process_groups.rank_group import RankGroup
    from trainer_shim.session.batch_adaptation import BatchConsent

log = logging.getLogger("trainer_shim")

WITHOUT_NOISE = {"legw", "linear", "sqrt"}  # names of rules for the learning rate that do not need the noise
MAX_SCHEDULE = 64  # regimes of a schedule that are declared
_DIGITS = 9  # of the progress, so that parts of steps add up to whole ones


class RuleAdaptation(BatchAdaptation):
    """The adaptive batch under a rule of the script.

    The batch changes at the end of a window of steps alone, where the data are read anew from the same position. So
    each step has the same batch at every number of ranks and after every restart. An epoch is one pass over the data,
    and progress counts samples: a step at M is M/M0 steps at M0.

    Args:
        rule: the rule of the script.
        group: the processes of the training.
        loader: the training data, a data set.
        consent: the limits of the batch and the rule for the learning rate, None where `ctx.loader` has none.
        tracked: the objects of the script.
        start: the position of the training.
        total: the number of epochs.
        lease: the lease's batch plan on rank 0, None without one; other ranks need none.

    Raises:
        BatchError: M0 is less than the number of ranks.
        UsageError: `ctx.loader` names no limits.
    """

    def __init__(
        self,
        rule: BatchRule,
        *,
        group: RankGroup,
        loader: TrainLoader,
        consent: BatchConsent | None,
        tracked: TrackedObjects,
        start: Progress,
        total: int,
        lease: LeaseBatch | None = None,
    ) -> None:
        if consent is None:
            raise UsageError(
                f"ctx.adapts({type(rule).__name__}(...)) needs the largest batch and the rule for the learning rate: "
                'ctx.loader(..., max_batch=..., lr_scale=...), such as lr_scale="linear" for SGD or "sqrt" for Adam'
            )
        if loader.first_batch < group.size:
            raise BatchError(
                f"global_batch is {loader.first_batch}, fewer samples than the {group.size} ranks: raise it, or run on "
                "fewer GPUs (max_gpus in the job's tag)"
            )
        self.rule = rule
        self._optimizers = _optimizers(tracked)
        super().__init__(group=group, loader=loader, consent=consent, tracked=tracked, start=start, total=total)
        self._largest = self._limits(consent).max_batch
        self.position = self.position._replace(batch=loader.plan.global_batch)  # the limits may be others than before
        if self.position.rule_state is None:
            window_end = self._next_window_end(self.position.progress)
            self.position = self.position._replace(rule_state=RuleState(window_end, rate=self._rate()))
        if group.rank == 0 and lease is not None:
            log.warning(
                "the job's tag has batch=adaptive, and the script changes the batch by a rule of its own (%s), which "
                "holds: write batch=own in the tag, or leave ctx.adapts(...) out",
                type(rule).__name__,
            )

    def declared_values(self, regimes: int | None) -> dict[str, Any]:
        """Return the keys of a `declare` line that tell the rule.

        Args:
            regimes: the most regimes by the script's own word, None for those that follow from the rule.
        """
        if self.rule.name is None:
            return {}
        schedule: list[tuple[int, int]] = []
        for batch, began in self.rule.declared_schedule(self._first_batch, self._epoch_steps):
            allowed = self._within_limits(batch)
            if not schedule or schedule[-1][0] != allowed:
                schedule.append((allowed, began))
        most = regimes or len(schedule) or self.rule.most_regimes(self._first_batch, self._largest)
        known = {"regimes": most, "schedule": schedule[:MAX_SCHEDULE]}
        return {"adapts": self.rule.name, **{key: value for key, value in known.items() if value}}

    # The position

    def end_pass(self) -> None:
        """End the epoch with its pass over the data."""
        self.position = self.position._replace(progress=self.position.epoch_end)

    def end_epoch(self) -> bool:
        """Begin the next epoch with another pass, and return that the present one does not go on."""
        done = self.position.epoch_end if self.epoch_over else self.position.progress
        following = self.position.data_pass + 1
        self.position = self.position._replace(epoch_end=done + self._epoch_steps, data_pass=following)
        if self._noise is not None:
            self._noise.forget_earlier()  # a checkpoint between two epochs would lose it, too
        return False

    # The steps

    def add_step(self, samples: int, cursor: int) -> None:
        """Count the progress of an optimizer step: its samples over M0, and what is left where the pass is over."""
        self._before = self.position.progress
        progress = min(round(self._before + samples / self._first_batch, _DIGITS), self.position.epoch_end)
        if self._loader.is_pass_over(cursor):
            progress = self.position.epoch_end
        square_sum, variance_sum, weight = self._averages
        self.position = self.position._replace(
            progress=progress, square_sum=square_sum, variance_sum=variance_sum, weight=weight
        )

    def splits_measurement(self, step: int) -> bool:
        """Return whether a checkpoint after `step` steps would lose the measurement that compares it with the next."""
        within_epoch = not self.epoch_over
        return within_epoch and self._noise is not None and step % MEASURE_EVERY == MEASURE_EVERY - 1

    def _note_measurement(self, measured: NoiseMeasurement, samples: int) -> None:
        super()._note_measurement(measured, samples)
        self.position = self.position._replace(rule_state=self._state().measured(measured.grad_square))

    # The batch

    def end_window(self) -> BatchPlan | None:
        """Choose the batch of the next window where the present one is over, and return its plan; None for no change.

        The data have to be read anew from the present position, with the plan.
        """
        state, position = self._state(), self.position
        if position.progress < state.window_end:
            return None
        rate = self._rate()
        norm = state.grad_norm
        end = WindowEnd(
            first_batch=self._first_batch,
            max_batch=self._largest,
            batch=position.batch,
            epoch=position.progress / self._epoch_steps,
            grad_norm=norm,
            last_grad_norm=state.last_grad_norm if state.last_grad_norm >= 0 else None,
            noise_scale=self._averages.noise_scale,
            rate_factor=rate / state.rate if state.rate > 0 else 1.0,
        )
        failed = self._scaling is not None and self._scaling.failed
        batch = self._first_batch if failed else self._within_limits(int(self.rule.choose(end)))
        last = state.last_grad_norm if norm is None else norm
        window_end = self._next_window_end(position.progress)
        self.position = position._replace(batch=batch, rule_state=RuleState(window_end, last_grad_norm=last, rate=rate))
        if batch == position.batch:
            return None
        plan = self._tuner.first_plan(batch)
        if self._group.rank == 0:
            log.info(
                "%s: %d samples a step after epoch %.4g, %d on a GPU at once, %d passes",
                *(type(self.rule).__name__, batch, end.epoch, plan.per_gpu_batch, plan.accumulation),
            )
        return plan

    def wants_plan(self, lease: LeaseBatch | None) -> bool:
        """Return False: the ranks agree on the batch without a vote, because their positions are the same."""
        del lease
        return False

    def _within_limits(self, batch: int) -> int:
        return max(min(batch, self._largest), self._first_batch)

    def _state(self) -> RuleState:
        assert self.position.rule_state is not None  # noqa: S101  set by the constructor
        return self.position.rule_state

    def _next_window_end(self, progress: float) -> float:
        length = self.rule.every * self._epoch_steps
        number = int(progress / length) + 1
        return (number if number * length > progress else number + 1) * length

    def _rate(self) -> float:
        """The highest learning rate of the script, without the factor for the batch."""
        return max((float(group["lr"]) for each in self._optimizers for group in each.param_groups), default=0.0)

    def _start_noise(self, tracked: TrackedObjects) -> GradientNoise | None:
        if not self.rule.measures and self._scaling is not None and self._scaling.name in WITHOUT_NOISE:
            return None
        return super()._start_noise(tracked)

    def _make_noise(self, optimizers: Sequence[torch.optim.Optimizer]) -> GradientNoise:
        return GradientNoise(optimizers, rank=self._group.rank, ranks=self._group.size, by_steps=True)


def _optimizers(tracked: TrackedObjects) -> list[torch.optim.Optimizer]:
    return [item for item in tracked.objects.values() if isinstance(item, torch.optim.Optimizer)]
