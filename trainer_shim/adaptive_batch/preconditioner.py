"""The preconditioner P of an optimizer: the diagonal by which it multiplies a gradient, apart from momentum.

The gradient noise is that of P g (Eq. 5 of "Pollux"), because an adaptive optimizer takes its steps along P g.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Callable, Optional

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# The root mean squares by which an optimizer normalizes a parameter's gradient, from the parameter's group, its state
# in the optimizer, and a tensor for the result (None: a new one).
RootMeanSquare = Callable[[dict[str, Any], dict[str, Any], Optional[torch.Tensor]], torch.Tensor]


def _adam(group: dict[str, Any], state: dict[str, Any], out: torch.Tensor | None) -> torch.Tensor:
    return torch.sqrt(state["max_exp_avg_sq"] if group["amsgrad"] else state["exp_avg_sq"], out=out)


def _adagrad(_: dict[str, Any], state: dict[str, Any], out: torch.Tensor | None) -> torch.Tensor:
    return torch.sqrt(state["sum"], out=out)


def _rmsprop(group: dict[str, Any], state: dict[str, Any], out: torch.Tensor | None) -> torch.Tensor:
    if group["centered"]:
        mean = state["grad_avg"]
        return torch.addcmul(state["square_avg"], mean, mean, value=-1, out=out).clamp_(min=0).sqrt_()
    return torch.sqrt(state["square_avg"], out=out)


# By exact type: a subclass may take other steps. None is the identity.
_ROOT_MEAN_SQUARES: dict[type[torch.optim.Optimizer], RootMeanSquare | None] = {
    torch.optim.SGD: None,
    torch.optim.Adam: _adam,
    torch.optim.AdamW: _adam,
    torch.optim.Adagrad: _adagrad,
    torch.optim.RMSprop: _rmsprop,
}


def unknown_optimizers(optimizers: Iterable[torch.optim.Optimizer]) -> list[str]:
    """Return the class names of the optimizers whose preconditioner is not known."""
    return sorted({type(optimizer).__name__ for optimizer in optimizers if type(optimizer) not in _ROOT_MEAN_SQUARES})


def known_optimizers() -> list[str]:
    """Return the class names of the optimizers whose preconditioner is known."""
    return sorted(kind.__name__ for kind in _ROOT_MEAN_SQUARES)


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
        self._root_mean_square = _ROOT_MEAN_SQUARES[type(optimizer)]

    @property
    def ready(self) -> bool:
        """Whether the optimizer has the state that the preconditioner needs; after its first step."""
        return self._root_mean_square is None or bool(self._optimizer.state.get(self._parameter))

    @property
    def is_identity(self) -> bool:
        """Whether P is the identity."""
        return self._root_mean_square is None

    @property
    def factor(self) -> float | torch.Tensor:
        """Return the number by which P is larger than what `apply` multiplies by.

        It corrects the bias of Adam's averages, or its first steps, whose averages are still small, would outweigh all
        others. A number costs nothing, unlike a correction of each element.
        """
        if self.is_identity or "betas" not in self._group:
            return 1.0
        unbiased: torch.Tensor = 1 - self._group["betas"][1] ** self._optimizer.state[self._parameter]["step"]
        return unbiased**0.5

    def apply(self, gradients: Sequence[torch.Tensor], outs: Sequence[torch.Tensor | None]) -> list[torch.Tensor]:
        """Return P / `factor` times each of the gradients; the gradients themselves where P is the identity.

        An element that has had no gradient so far, such as the row of a rare word, counts as 0: nothing but the
        optimizer's epsilon would bound its P, which the step itself bounds by the new gradient.

        Args:
            gradients: the gradients of the parameter, at least one.
            outs: a tensor for each result, None for a new one.
        """
        if self._root_mean_square is None:
            return list(gradients)
        divisor = self._root_mean_square(self._group, self._optimizer.state[self._parameter], outs[-1])
        torch.nn.functional.threshold(divisor, 0.0, math.inf, inplace=True)  # 0 becomes infinity
        divisor.add_(self._group["eps"] * self.factor)
        found = [torch.div(gradient, divisor, out=out) for gradient, out in zip(gradients[:-1], outs)]
        return [*found, torch.div(gradients[-1], divisor, out=divisor)]
