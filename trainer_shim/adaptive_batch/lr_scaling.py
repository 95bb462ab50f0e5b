"""Learning-rate scaling: rules for the factor on the learning rate of a step at batch M, in comparison with M0.

Sources: Johnson et al., "AdaScale SGD", ICML 2020; Goyal et al., 2017 (linear); Krizhevsky, 2014 (square root); You et
al., "Large-batch training for LSTM and beyond", SC 2019 (LEGW); the plug-in is SCALE_LR of "Pollux", section 3.
"""

from __future__ import annotations

import contextlib
import logging
import math
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Union

from trainer_shim.adaptive_batch.goodput import gain
from trainer_shim.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import torch

log = logging.getLogger("trainer_shim")


class ScalingInputs(NamedTuple):
    """What a rule may know of a step; the values are the same on all ranks.

    Attributes:
        first_batch: M0, the global batch in samples for which the learning rate was chosen.
        batch: M, the global batch of the step in samples, at least M0.
        noise_scale: the gradient noise scale in samples, None where it is not known, infinity where there is no signal.
        progress: steps at M0 before this step.
    """

    first_batch: int
    batch: int
    noise_scale: float | None
    progress: float


Rule = Callable[[ScalingInputs], float]
RuleOrName = Union[str, Rule]


def adascale(step: ScalingInputs) -> float:
    """Return the gain of the step, from 1 to M/M0; 1 while the noise is not known. For SGD."""
    return 1.0 if step.noise_scale is None else gain(step.first_batch, step.batch, step.noise_scale)


def square_root(step: ScalingInputs) -> float:
    """Return the square root of M/M0. For Adam and its relatives."""
    return math.sqrt(step.batch / step.first_batch)


def linear(step: ScalingInputs) -> float:
    """Return M/M0. For SGD at moderate batches."""
    return step.batch / step.first_batch


def legw(warmup_steps: float) -> Rule:
    """Return the rule LEGW: the square root of M/M0, with a linear warm-up that is M/M0 times as many epochs long.

    Args:
        warmup_steps: the length of the warm-up at M0, in steps. The script's own schedule has no warm-up then.
    """

    def scale(step: ScalingInputs) -> float:
        ratio = step.batch / step.first_batch
        warm = warmup_steps * ratio
        # the first step has a factor above 0
        return math.sqrt(ratio) * (min(1.0, (step.progress + 1) / warm) if warm > 0 else 1.0)

    scale.__name__ = "legw"
    return scale


RULES: dict[str, Rule] = {"adascale": adascale, "linear": linear, "sqrt": square_root}


class LrScaling:
    """The rule of one training, and its answers, which are checked.

    Args:
        rule: a name of RULES, or a function of `ScalingInputs` that returns the same on all ranks.

    Attributes:
        name: the name of the rule, for reports.
        failed: whether the rule has raised, or returned a factor that is not a finite number above 0. From then on the
            last valid factor applies, and the batch must not grow.

    Raises:
        UsageError: there is no such rule.
    """

    def __init__(self, rule: RuleOrName) -> None:
        if isinstance(rule, str):
            if rule not in RULES:
                raise UsageError(
                    f"ctx.loader(lr_scale={rule!r}): there is no such rule: use one of {', '.join(sorted(RULES))}, "
                    "trainer_shim.legw(warmup_steps=...), or a function that returns the factor"
                )
            self.name, self._rule = rule, RULES[rule]
        elif callable(rule):
            self.name, self._rule = str(getattr(rule, "__name__", type(rule).__name__)), rule
        else:
            raise UsageError(f"ctx.loader(lr_scale={rule!r}): it must be the name of a rule, or a function")
        self.failed = False
        self._last = 1.0

    def factor(self, inputs: ScalingInputs) -> float:
        """Return the factor on the learning rates of a step."""
        if self.failed:
            return self._last
        try:
            found = float(self._rule(inputs))
            problem = None if math.isfinite(found) and found > 0 else f"returned {found}"
        except Exception as error:  # noqa: BLE001  a function of the script
            found, problem = self._last, f"raised {error!r}"
        if problem is not None:
            self.failed = True
            log.error(
                "the rule %s for the learning rate has %s at batch %d (M0 is %d): the factor stays %g and the batch "
                "returns to M0; a rule must return a finite number above 0",
                *(self.name, problem, inputs.batch, inputs.first_batch, self._last),
            )
            return self._last
        self._last = found
        return found


@contextlib.contextmanager
def scaled_learning_rates(optimizers: Iterable[torch.optim.Optimizer], factor: float) -> Iterator[None]:
    """Context manager: the learning rates are multiplied by `factor` in the block; the same objects return after it."""
    if factor == 1:
        yield
        return
    groups: list[dict[str, Any]] = [group for optimizer in optimizers for group in optimizer.param_groups]
    before = [group["lr"] for group in groups]
    for group in groups:
        group["lr"] = group["lr"] * factor  # a tensor is not changed in place
    try:
        yield
    finally:
        for group, rate in zip(groups, before):
            group["lr"] = rate
