"""The preconditioner P of an optimizer: the diagonal by which it multiplies a gradient, apart from momentum.

The gradient noise is that of P g (Eq. 5 of "Pollux"), because an adaptive optimizer takes its steps along P g.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Callable

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable

# The mean square by which an optimizer normalizes a parameter's gradient, from the parameter's group and its state in
# the optimizer. The bias of Adam's averages is corrected, or its first steps, whose averages are still small, would
# outweigh all others.
MeanSquare = Callable[[dict[str, Any], dict[str, Any]], torch.Tensor]


def _adam(group: dict[str, Any], state: dict[str, Any]) -> torch.Tensor:
    square = state["max_exp_avg_sq"] if group["amsgrad"] else state["exp_avg_sq"]
    unbiased = 1 - group["betas"][1] ** state["step"]
    return square / unbiased  # type: ignore[no-any-return]


def _adagrad(_: dict[str, Any], state: dict[str, Any]) -> torch.Tensor:
    return state["sum"]  # type: ignore[no-any-return]


def _rmsprop(group: dict[str, Any], state: dict[str, Any]) -> torch.Tensor:
    square = state["square_avg"]
    if group["centered"]:
        square = square - state["grad_avg"].square()
    return square.clamp(min=0)  # type: ignore[no-any-return]


# By exact type: a subclass may take other steps. None is the identity.
_MEAN_SQUARES: dict[type[torch.optim.Optimizer], MeanSquare | None] = {
    torch.optim.SGD: None,
    torch.optim.Adam: _adam,
    torch.optim.AdamW: _adam,
    torch.optim.Adagrad: _adagrad,
    torch.optim.RMSprop: _rmsprop,
}


def unknown_optimizers(optimizers: Iterable[torch.optim.Optimizer]) -> list[str]:
    """Return the class names of the optimizers whose preconditioner is not known."""
    return sorted({type(optimizer).__name__ for optimizer in optimizers if type(optimizer) not in _MEAN_SQUARES})


def known_optimizers() -> list[str]:
    """Return the class names of the optimizers whose preconditioner is known."""
    return sorted(kind.__name__ for kind in _MEAN_SQUARES)


class Preconditioner:
    """The preconditioner of one parameter.

    Args:
        optimizer: the parameter's optimizer, of a type that `unknown_optimizers` does not name.
        group: the parameter's group in that optimizer.
        parameter: the parameter.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, group: dict[str, Any], parameter: torch.nn.Parameter) -> None:
        self._optimizer = optimizer
        self._group = group
        self._parameter = parameter
        self._mean_square = _MEAN_SQUARES[type(optimizer)]

    @property
    def ready(self) -> bool:
        """Whether the optimizer has the state that the preconditioner needs; after its first step."""
        return self._mean_square is None or bool(self._optimizer.state.get(self._parameter))

    def apply(self, *gradients: torch.Tensor) -> list[torch.Tensor]:
        """Return P times each of the gradients; the gradients themselves where P is the identity.

        An element that has had no gradient so far, such as the row of a rare word, counts as 0: nothing but the
        optimizer's epsilon would bound its P, which the step itself bounds by the new gradient.
        """
        if self._mean_square is None:
            return list(gradients)
        square = self._mean_square(self._group, self._optimizer.state[self._parameter])
        divisor = square.sqrt().add_(self._group["eps"]).masked_fill_(square == 0, math.inf)
        return [gradient / divisor for gradient in gradients]
