"""The batch size of a job as scheduling sees it: its plan, its limits, who changes it, and the noise of its gradients.

Sources: Qiao et al., "Pollux", OSDI 2021, section 3 (per-GPU batch, accumulation, first batch, noise scale); Johnson et
al., "AdaScale", ICML 2020 (the gain of a step). Pure.

A job's work is counted in steps at its *first batch*, for which its user chose the learning rate and the schedule. A
step at a larger batch is worth its ``gain`` in such steps, so the total stays the same while the batch changes.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

MAX_REGIMES = 1_000_000
"""Largest number of regimes that may be declared."""
OVERDUE = 0.05
"""A declared change that is late by more than this fraction of the training is not expected any more."""


class BatchControl(enum.Enum):
    """Who changes the job's batch size while it trains."""

    FIXED = "fixed"  # nobody: it is the same from the first step to the last
    SCRIPT = "script"  # the training script, by a rule of its own (Accordion, a schedule)
    SCHEDULER = "scheduler"  # metasched and the trainer shim: tag and script have consented


class AdaptationRule(enum.Enum):
    """The rule by which a training script changes its batch size."""

    STATIC = "static"  # never
    ACCORDION = "accordion"  # back and forth between the first and the largest batch (Agarwal et al., MLSys 2021)
    GNS = "gns"  # doubled as the gradient noise grows, up to the largest batch (McCandlish et al., 2018)
    SCHEDULE = "schedule"  # at declared steps


@dataclass(frozen=True, slots=True, order=True)
class BatchPlan:
    """How each GPU computes its part of an optimizer step.

    Attributes:
        per_gpu: samples that a GPU processes at once.
        accumulation: micro-batches that a GPU processes for one optimizer step, from 1.
    """

    per_gpu: int
    accumulation: int = 1

    def global_batch(self, gpus: int) -> int:
        """Samples of one optimizer step on that many GPUs."""
        return gpus * self.per_gpu * self.accumulation


@dataclass(frozen=True, slots=True)
class GradientNoise:
    """The (preconditioned) gradient noise of a training, as its trainer measured it last.

    Attributes:
        square: the squared norm of the true gradient.
        variance: the trace of the covariance of the gradient of one sample.
    """

    square: float
    variance: float

    @property
    def scale(self) -> float | None:
        """The noise scale in samples (Pollux, Eq. 5): infinity where there is only noise, None without either."""
        if self.square > 0:
            return self.variance / self.square
        return math.inf if self.variance > 0 else None

    def gain(self, first_batch: int, batch: float) -> float:
        """Steps at the first batch that one step at ``batch`` is worth; between 1 and ``batch / first_batch``.

        It is 1 where there is no noise, and ``batch / first_batch`` where there is nothing but noise.
        """
        per_step = self.variance / batch + self.square
        return (self.variance / first_batch + self.square) / per_step if per_step > 0 else 1.0

    def efficiency(self, first_batch: int, batch: float) -> float:
        """The progress of a sample at ``batch`` over that at the first batch, 0 to 1 (Pollux, Eq. 6)."""
        return self.gain(first_batch, batch) * first_batch / batch


@dataclass(frozen=True, slots=True)
class BatchRegime:
    """A span of the training with one global batch.

    Attributes:
        batch: samples of one optimizer step.
        began: progress at its begin, in steps at the first batch.
    """

    batch: int
    began: float


@dataclass(frozen=True, slots=True)
class Batching:
    """The batch size of a job: what its trainer declared and reported.

    Attributes:
        first_batch: the global batch of the job's user, in whose steps progress is counted.
        control: who changes the batch size.
        plan: the plan in force; None where no run has reported it.
        global_batch: samples of one optimizer step now; None where no run has reported it.
        max_batch: largest global batch; None for no limit.
        min_per_gpu: fewest samples that a GPU may process at once.
        max_per_gpu: most samples that a GPU can process at once; None where that is not known.
        regimes: the global batches so far, in their order; the last one is in force.
        taken_plan: number of the latest of the daemon's plans that a trainer has reported steps with; 0 for none.
        adapts: the rule by which the script changes the batch; None where neither tag nor script declares one.
        most_regimes: the declared largest number of regimes of the whole training, at least 1; None where it is not
            declared.
        schedule: the declared regimes in order, the first one from 0; empty unless ``adapts`` is ``SCHEDULE`` and the
            script has declared them.
        sizes: the numbers of GPUs on which the script says that it can run, ascending; empty where it says nothing.
    """

    first_batch: int
    control: BatchControl = BatchControl.FIXED
    plan: BatchPlan | None = None
    global_batch: int | None = None
    max_batch: int | None = None
    min_per_gpu: int = 1
    max_per_gpu: int | None = None
    regimes: tuple[BatchRegime, ...] = ()
    taken_plan: int = 0
    adapts: AdaptationRule | None = None
    most_regimes: int | None = None
    schedule: tuple[BatchRegime, ...] = ()
    sizes: tuple[int, ...] = ()

    @property
    def has_changed(self) -> bool:
        """Whether the global batch has changed since the first report."""
        return len(self.regimes) > 1


class Contradiction(enum.Enum):
    """What reports say of a batch size against what is declared of it."""

    MORE_REGIMES = "more-regimes"  # than declared
    BEYOND_LIMIT = "beyond-limit"  # a batch above the largest one
    OTHER_RULE = "other-rule"  # a batch that the declared rule does not choose
    OVERDUE = "overdue"  # a declared change that does not come


def contradiction(batching: Batching, done: float | None, total: float | None) -> Contradiction | None:
    """What the reports contradict of the rule, limits and regimes that are declared; None where they fit.

    Args:
        batching: the job's batch size, as declared and as reported.
        done: progress, in steps at the first batch; None where it is not known.
        total: steps of the whole training; None where they are not known.
    """
    batches = [one.batch for one in batching.regimes]
    if batching.adapts is None or not batches:
        return None
    if batching.max_batch is not None and max(batches) > batching.max_batch:
        return Contradiction.BEYOND_LIMIT
    if batching.most_regimes is not None and len(batches) > batching.most_regimes:
        return Contradiction.MORE_REGIMES
    if not _follows_rule(batching, batches):
        return Contradiction.OTHER_RULE
    to_come = batching.schedule[len(batches) :] if batching.adapts is AdaptationRule.SCHEDULE else ()
    if to_come and done is not None and total is not None and done - to_come[0].began > OVERDUE * total:
        return Contradiction.OVERDUE
    return None


def _follows_rule(batching: Batching, batches: list[int]) -> bool:
    """Whether the batches so far are among those that the declared rule chooses."""
    match batching.adapts:
        case AdaptationRule.STATIC:
            return len(batches) == 1
        case AdaptationRule.ACCORDION:
            return len({batching.first_batch, *batches} | ({batching.max_batch} - {None})) <= 2  # noqa: PLR2004  two
        case AdaptationRule.GNS:
            return batches == sorted(batches)
        case AdaptationRule.SCHEDULE:
            declared = [one.batch for one in batching.schedule]
            return not declared or batches == declared[: len(batches)]
        case _:
            return True
