"""Checks for mistakes in scripts that would otherwise not be noticed, each with a message that names the fix."""

from __future__ import annotations

import logging
import signal
from typing import TYPE_CHECKING, Any, Callable

import torch
import torch.distributed as dist

from trainer_shim.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from trainer_shim.process_groups.rank_group import RankGroup

log = logging.getLogger("trainer_shim")

Handlers = dict[int, "Callable[..., Any] | int | None"]


def check_no_process_group() -> None:
    """Check that the script has made no process group of its own.

    Raises:
        UsageError: the script has made a process group.
    """
    if dist.is_available() and dist.is_initialized():
        raise UsageError("leave torch.distributed.init_process_group(...) out: trainer_shim.init(...) does it")


def signal_handlers(numbers: Iterable[int]) -> Handlers:
    """Return the present handlers of these signals, by signal number."""
    return {number: signal.getsignal(number) for number in numbers}


def warn_of_replaced_handlers(ours: Handlers) -> None:
    """Warn where the script has replaced a signal handler of the shim, so that stop signals are lost."""
    for number in (number for number, handler in ours.items() if signal.getsignal(number) is not handler):
        log.warning(
            "the script has replaced the handler of %s, so stop signals are lost: use ctx.on_stop(...) instead",
            signal.Signals(number).name,
        )


def warn_of_unwrapped_modules(modules: Iterable[torch.nn.Module]) -> None:
    """Warn of trainable parameters; to be called where no module exchanges gradients between the ranks."""
    if any(parameter.requires_grad for module in modules for parameter in module.parameters()):
        log.warning(
            "no model in ctx.track(...) exchanges gradients, so each rank would train one of its own: "
            "use ctx.wrap(model) or ctx.shard(model), unless the script sums gradients over the ranks itself"
        )


def check_same_data(order: Mapping[str, Any], group: RankGroup) -> None:
    """Check that all ranks have the same order of the training data. Collective.

    Raises:
        UsageError: the orders differ; raised on all ranks.
    """
    first = group.on_rank_zero(lambda: dict(order))
    if not group.any_rank(first != order):
        return
    difference = f"{order} here, and {first} on rank 0" if first != order else "another rank's error names them"
    raise UsageError(
        f"the ranks have different training data ({difference}): "
        "give every rank the whole data set, which ctx.loader splits"
    )


def check_gradients_kept(modules: Iterable[torch.nn.Module]) -> None:
    """Check that the modules still hold the gradients of earlier micro-batches.

    Raises:
        UsageError: no trainable parameter has a gradient.
    """
    has_trainable = False
    for parameter in (parameter for module in modules for parameter in module.parameters()):
        if parameter.grad is not None:
            return
        has_trainable |= parameter.requires_grad
    if has_trainable:
        raise UsageError(
            "the gradients were cleared in the middle of a global batch: leave zero_grad() out of the loop, "
            "ctx.step(optimizer) does it"
        )
