"""Rules by which a script changes its batch by itself, window by window: Accordion, the noise scale, and a schedule.

A rule sees what is the same on all ranks, at every number of ranks and after every restart, and so is its choice.

Sources: Agarwal et al., "Accordion: adaptive gradient communication via critical learning regime identification",
MLSys 2021; McCandlish et al., "An empirical model of large-batch training", 2018.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, NamedTuple

from trainer_shim.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

NAMES = ("accordion", "gns", "schedule")  # of rules, in the job's tag (`adapts=`) and in reports
RATE_DROP = 0.5  # a learning rate that falls to this part or less begins a critical regime


class WindowEnd(NamedTuple):
    """What a rule may know at the end of a window of steps.

    Attributes:
        first_batch: M0, the global batch of the script, in samples.
        max_batch: the largest global batch.
        batch: the present global batch.
        epoch: epochs since the beginning of the job.
        grad_norm: the norm of the true gradient, averaged over the window; None where nothing was measured in it.
        last_grad_norm: the same of the window before, None where nothing was measured in it.
        noise_scale: the gradient noise scale in samples, None where it is not known, infinity where there is no signal.
        rate_factor: the learning rate relative to that at the end of the window before.
    """

    first_batch: int
    max_batch: int
    batch: int
    epoch: float
    grad_norm: float | None
    last_grad_norm: float | None
    noise_scale: float | None
    rate_factor: float


class BatchRule(ABC):
    """A rule for the batch of the next window.

    Args:
        every: the length of a window, in epochs.

    Attributes:
        name: the name by which metasched predicts the batches, one of `NAMES`; None where it cannot.
        every: the length of a window, in epochs.
        measures: whether the rule needs the gradient noise.

    Raises:
        UsageError: `every` is not a finite number above 0.
    """

    name: str | None = None
    measures = True

    def __init__(self, every: float = 1.0) -> None:
        if not (math.isfinite(every) and every > 0):
            raise UsageError(f"{type(self).__name__}(every={every}): it is a number of epochs above 0")
        self.every = every

    @abstractmethod
    def choose(self, window: WindowEnd) -> int:
        """Return the global batch of the next window; limits are applied later."""

    def most_regimes(self, first_batch: int, max_batch: int) -> int | None:
        """Return the largest number of spans with one batch that a training can have; None where it has no limit."""
        del first_batch, max_batch
        return None

    def declared_schedule(self, first_batch: int, epoch_steps: int) -> list[tuple[int, int]]:
        """Return each batch with the step at M0 from which on it holds; nothing where that is not known in advance."""
        del first_batch, epoch_steps
        return []


class Accordion(BatchRule):
    """The first batch in critical regimes, in which the gradient changes fast, and the largest batch elsewhere.

    A window is followed by a critical regime if the norm of the gradient has changed by `threshold` or more since the
    window before, or if the learning rate falls by half or more. The first two windows are critical.

    Args:
        threshold: the relative change of the norm (eta).
        every: the length of a window, in epochs.

    Raises:
        UsageError: an argument is not above 0.
    """

    name = "accordion"

    def __init__(self, threshold: float = 0.5, every: float = 1.0) -> None:
        super().__init__(every)
        if not threshold > 0:
            raise UsageError(f"Accordion(threshold={threshold}): it is a relative change above 0, such as 0.5")
        self.threshold = threshold

    def choose(self, window: WindowEnd) -> int:
        """Return the first batch or the largest one; the present one where the window has no measurement."""
        now, last = window.grad_norm, window.last_grad_norm
        if window.rate_factor <= RATE_DROP:
            return window.first_batch
        if now is None or last is None:
            return window.batch
        return window.first_batch if abs(last - now) >= self.threshold * last else window.max_batch


class NoiseScale(BatchRule):
    """Twice the batch, once a window, while the gradient noise scale is at least `factor` times the doubled batch.

    The batch never shrinks.

    Args:
        factor: the noise scale over the batch from which on larger batches are used.
        every: the length of a window, in epochs.

    Raises:
        UsageError: an argument is not above 0.
    """

    name = "gns"

    def __init__(self, factor: float = 1.0, every: float = 1.0) -> None:
        super().__init__(every)
        if not factor > 0:
            raise UsageError(f"NoiseScale(factor={factor}): it is a number above 0")
        self.factor = factor

    def choose(self, window: WindowEnd) -> int:
        """Return the doubled batch or the present one."""
        doubled = min(2 * window.batch, window.max_batch)
        noise = window.noise_scale
        return doubled if noise is not None and noise >= self.factor * doubled else window.batch

    def most_regimes(self, first_batch: int, max_batch: int) -> int:
        """Return one more than the doublings up to the largest batch."""
        return 1 + math.ceil(math.log2(max_batch / first_batch))


class BatchSchedule(BatchRule):
    """A batch from each of some epochs on, as declared.

    Args:
        batches: the global batch by the epoch from which on it holds, from 1; before that the first batch holds.

    Raises:
        UsageError: there is no batch, or an epoch or a batch is less than 1.
    """

    name = "schedule"
    measures = False

    def __init__(self, batches: Mapping[int, int]) -> None:
        super().__init__()
        if not batches or min(*batches, *batches.values()) < 1:
            raise UsageError(
                "BatchSchedule({EPOCH: BATCH, ...}): name the batch from each epoch on, both from 1, such as "
                "{30: 256, 60: 512}"
            )
        self.batches = dict(sorted(batches.items()))

    def choose(self, window: WindowEnd) -> int:
        """Return the batch of the present epoch."""
        begun = [batch for epoch, batch in self.batches.items() if epoch <= window.epoch]
        return begun[-1] if begun else window.first_batch

    def declared_schedule(self, first_batch: int, epoch_steps: int) -> list[tuple[int, int]]:
        """Return the declared batches, each with the step at M0 from which on it holds."""
        return [(first_batch, 0), *((batch, epoch * epoch_steps) for epoch, batch in self.batches.items())]


class RuleState(NamedTuple):
    """What a rule needs from step to step, as checkpoints hold it.

    Attributes:
        window_end: the progress at which the present window ends.
        square_sum: the sum of the measured |Pg|^2 in the present window.
        measurements: their number.
        last_grad_norm: the norm of the gradient in the window before, below 0 where nothing was measured in it.
        rate: the learning rate at the end of the window before.
    """

    window_end: float
    square_sum: float = 0.0
    measurements: float = 0.0
    last_grad_norm: float = -1.0
    rate: float = 0.0

    @property
    def grad_norm(self) -> float | None:
        """The norm of the gradient in the present window, None where nothing was measured in it."""
        return math.sqrt(max(self.square_sum / self.measurements, 0.0)) if self.measurements else None

    def measured(self, grad_square: float) -> RuleState:
        """Return the state after another measurement."""
        return self._replace(square_sum=self.square_sum + grad_square, measurements=self.measurements + 1)


def find_rule(rule: BatchRule | str) -> BatchRule | None:
    """Return a script's rule, by itself or by its name with its defaults; None for `static`.

    Raises:
        UsageError: there is no such rule.
    """
    if isinstance(rule, BatchRule) and rule.name in (*NAMES, None):
        return rule
    if isinstance(rule, BatchRule):
        raise UsageError(
            f"ctx.adapts({type(rule).__name__}(...)): its name is {rule.name!r}: use None, or that of a rule that "
            f"changes the batch alike, of {', '.join(NAMES)}"
        )
    if rule == "static":
        return None
    if rule == Accordion.name:
        return Accordion()
    if rule == NoiseScale.name:
        return NoiseScale()
    raise UsageError(
        f"ctx.adapts({rule!r}): give trainer_shim.Accordion(...), trainer_shim.NoiseScale(...) or "
        "trainer_shim.BatchSchedule({EPOCH: BATCH, ...}), or one of the names accordion, gns and static"
    )
