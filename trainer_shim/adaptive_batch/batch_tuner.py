"""The choice of the batch plan on which the ranks then agree: the lease's plan, or a better one of the trainer."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Callable, NamedTuple

from trainer_shim.adaptive_batch.goodput import GoodputModel, IterationTime, PlanLimits
from trainer_shim.batch import BatchPlan, plan_batch

if TYPE_CHECKING:
    from trainer_shim.preemption.lease import LeaseBatch

RETUNE_SECONDS = 30.0  # seconds between two choices of the trainer
HYSTERESIS = 0.05  # the part by which a plan must be better than the present one; the scheduler has the same

log = logging.getLogger("trainer_shim")


class NumberedPlan(NamedTuple):
    """A batch plan, and its number in the lease; 0 for a plan of the trainer."""

    number: int
    plan: BatchPlan


class BatchTuner:
    """Proposes batch plans; one rank alone asks it, and the ranks agree on its answers.

    A new plan in the lease comes first. Between such plans, the tuner maximizes the goodput at the present allocation
    by the lease's iteration time and the trainer's own noise, also when the daemon is dead.

    Args:
        limits: the batches that the training may use.
        gpus: the number of ranks.
        clock: returns the time in seconds.

    Attributes:
        proposal: the plan on which the ranks have to agree, None without one.
    """

    def __init__(self, limits: PlanLimits, gpus: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._gpus = gpus
        self._clock = clock
        self._tuned_at = clock()
        self._lease_number = 0  # the lease's last plan, used or refused
        self.proposal: NumberedPlan | None = None

    def first_plan(self, batch: int) -> BatchPlan:
        """Return the plan of a global batch of `batch` samples, or of the nearest one that the limits allow."""
        least = max(self._limits.first_batch, self._gpus)
        return plan_batch(max(least, min(batch, self._limits.max_batch)), self._gpus, self._limits.max_per_gpu)

    def update(
        self, lease: LeaseBatch | None, noise_scale: float | None, present: BatchPlan, *, may_grow: bool
    ) -> None:
        """Renew the proposal.

        Args:
            lease: the lease's batch plan, None without one.
            noise_scale: the gradient noise scale in samples, None while it is not known.
            present: the plan that holds now.
            may_grow: whether batches above M0 are allowed.
        """
        if not may_grow:
            smallest = self.first_plan(self._limits.first_batch)
            self.proposal = NumberedPlan(0, smallest) if present != smallest else None
            return
        if lease is not None and lease.plan != self._lease_number:
            self._lease_number = lease.plan
            self._tuned_at = self._clock()
            plan = self._lease_plan(lease)
            if plan is not None:
                self.proposal = NumberedPlan(lease.plan, plan)
        now = self._clock()
        if self.proposal is not None or now - self._tuned_at < RETUNE_SECONDS:
            return
        self._tuned_at = now
        if lease is not None and lease.theta is not None and noise_scale is not None:
            time_model = IterationTime(*lease.theta)
            model = GoodputModel(time_model, self._limits, noise_scale, self._gpus, lease.several_nodes)
            self.proposal = self._better_plan(model, present)

    def _lease_plan(self, lease: LeaseBatch) -> BatchPlan | None:
        """Return the lease's plan, None where it has none, or one beyond the limits, which a warning names."""
        if lease.per_gpu is None or lease.accumulation is None:
            return None
        least, most, largest = self._limits
        passes = self._gpus * lease.accumulation
        batch = passes * lease.per_gpu
        # An even split may exceed the limit by less than one sample for each micro-batch.
        if lease.per_gpu > largest or batch < least or batch - most >= passes:
            log.warning(
                "the lease's batch plan %d is not used: %d GPUs x %d samples x %d passes are %d samples, and the "
                "script allows batches from %d to %d and %d samples on a GPU: raise its max_batch or max_per_gpu",
                *(lease.plan, self._gpus, lease.per_gpu, lease.accumulation, batch, least, most, largest),
            )
            return None
        return plan_batch(min(batch, most), self._gpus, lease.per_gpu)

    def _better_plan(self, model: GoodputModel, present: BatchPlan) -> NumberedPlan | None:
        best = model.best_plan()
        now = model.goodput(present.global_batch, present.per_gpu_batch, present.accumulation)
        if best is None or best.goodput <= now * (1 + HYSTERESIS):
            return None
        return NumberedPlan(0, plan_batch(self._gpus * best.per_gpu * best.accumulation, self._gpus, best.per_gpu))
