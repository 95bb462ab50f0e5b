"""The first steps of a plain script, without the shim, beside those of the same script with the shim.

The data come in another order, so the two differ. A loss, a gradient or a learning rate that is a multiple of the plain
script's, though, is a factor that one of them has and the other has not, such as a left-over `loss / accumulation`.
"""

from __future__ import annotations

import json
import math
import statistics
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from trainer_shim.rehearse.compare import Check, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from trainer_shim.rehearse.history import History

STEPS = 5
"""Optimizer steps of the plain script that are compared."""
FACTOR = 1.6
"""Ratio from which two medians are taken for different: random data differ by less, a factor of 2 by more."""


class FirstStep(NamedTuple):
    """One of the first optimizer steps.

    Attributes:
        loss: the mean over the samples of the step, or the sum over its backward passes.
        gradient: the norm of the gradient, None where it is not known.
        lr: the largest learning rate.
    """

    loss: float
    gradient: float | None
    lr: float


def gradient_norm(optimizers: Iterable[torch.optim.Optimizer]) -> float | None:
    """Return the norm of all gradients of the optimizers' parameters on this rank, None without a gradient."""
    squares = [
        float(parameter.grad.detach().double().square().sum())
        for optimizer in optimizers
        for group in optimizer.param_groups
        for parameter in group["params"]
        if isinstance(parameter.grad, torch.Tensor) and not parameter.grad.is_sparse
    ]
    return math.sqrt(math.fsum(squares)) if squares else None


def record_plain_steps(records: Path, steps: int) -> None:
    """Write a line for each optimizer step of this process, a plain script; exit with 0 after so many."""
    file = records.open("w", buffering=1, encoding="utf-8")
    backward, total, done = torch.Tensor.backward, 0.0, 0

    def noted_backward(loss: torch.Tensor, *rest: Any, **options: Any) -> None:
        nonlocal total
        total += float(loss.detach().double().mean())
        backward(loss, *rest, **options)  # type: ignore[no-untyped-call]

    def before_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        nonlocal total, done
        rate = max(float(group["lr"]) for group in optimizer.param_groups)
        file.write(json.dumps({"loss": total, "gradient": gradient_norm([optimizer]), "lr": rate}) + "\n")
        total, done = 0.0, done + 1
        if done == steps:
            _end()

    torch.Tensor.backward = noted_backward  # type: ignore[method-assign, assignment]
    register_optimizer_step_pre_hook(before_step)


def _end() -> NoReturn:
    raise SystemExit(0)


def read_plain_steps(records: Path) -> list[FirstStep]:
    """Return the steps that `record_plain_steps` has written; empty where the script made none."""
    if not records.exists():
        return []
    return [FirstStep(**json.loads(line)) for line in records.read_text(encoding="utf-8").splitlines()]


def first_steps(history: History) -> list[FirstStep]:
    """Return the first steps of a run of the script with the shim, which began without a checkpoint."""
    steps = [history.steps[number] for number in sorted(history.steps)[:STEPS]]
    return [FirstStep(step.loss, step.gradient, max(step.lr, default=0.0)) for step in steps]


def compare_with_plain(plain: Sequence[FirstStep], elastic: Sequence[FirstStep]) -> list[Check]:
    """Return the checks of the first steps with the shim beside those of the plain script."""
    count = min(len(plain), len(elastic))
    checks = []
    for name, ours, theirs in (
        ("loss", [step.loss for step in elastic[:count]], [step.loss for step in plain[:count]]),
        ("gradient", [step.gradient for step in elastic[:count]], [step.gradient for step in plain[:count]]),
        ("learning rate", [step.lr for step in elastic[:count]], [step.lr for step in plain[:count]]),
    ):
        title = f"{name} beside the plain script"
        one, other = _median(ours), _median(theirs)
        if one is None or other is None:
            continue
        text = f"{one:.4g} with the shim, {other:.4g} without (medians of {count} steps)"
        limit = 1 + 1e-6 if name == "learning rate" else FACTOR
        alike = one == other or (one * other > 0 and 1 / limit < one / other < limit)
        checks.append(Check(title, Verdict.TOLERANCE if alike else Verdict.DIFFERS, text, None if alike else 1))
    return checks


def plain_causes(plain: Sequence[FirstStep], elastic: Sequence[FirstStep]) -> list[str]:
    """Return the likely causes of factors between the first steps of the two scripts, in words that name the fix."""
    found = []
    ratio = _ratio(plain, elastic, "loss")
    if ratio is not None and ratio <= 1 / FACTOR:
        found.append(
            f"The loss with the shim is {ratio:.3g} times that of the plain script, about 1/{round(1 / ratio)}: a "
            "division by the number of micro-batches or ranks is left over. ctx.backward(loss) weighs the mean loss."
        )
    elif ratio is not None and ratio >= FACTOR:
        found.append(
            f"The loss with the shim is {ratio:.3g} times that of the plain script: it is a sum over samples, or the "
            "mean that the plain script divided by. Give ctx.backward(loss) the mean over the micro-batch."
        )
    else:
        gradient = _ratio(plain, elastic, "gradient")
        if gradient is not None and not 1 / FACTOR < gradient < FACTOR:
            found.append(
                f"The gradient with the shim is {gradient:.3g} times that of the plain script, and the loss is alike: "
                "clipping, a scaler's unscale_ or zero_grad() is in another place, or the global batch is another."
            )
    rate = _ratio(plain, elastic, "lr")
    if rate is not None and not 1 - 1e-6 < rate < 1 + 1e-6:
        found.append(
            f"The learning rate with the shim is {rate:.4g} times that of the plain script: it is scaled by the number "
            "of GPUs or of micro-batches in one of them, or a schedule is stepped at another place."
        )
    return found


def _ratio(plain: Sequence[FirstStep], elastic: Sequence[FirstStep], name: str) -> float | None:
    count = min(len(plain), len(elastic))
    one = _median([getattr(step, name) for step in elastic[:count]])
    other = _median([getattr(step, name) for step in plain[:count]])
    return None if one is None or not other else one / other


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None and math.isfinite(value)]
    return statistics.median(known) if known else None
