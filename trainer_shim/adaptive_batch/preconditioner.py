"""The preconditioner P of an optimizer: the diagonal by which it multiplies a gradient, apart from momentum.

The gradient noise is that of P g (Eq. 5 of "Pollux"), because an adaptive optimizer takes its steps along P g.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Callable, Optional

import torch

from trainer_shim.adaptive_batch.gradient_batches import join

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

# The root mean squares by which an optimizer normalizes the gradients of parameters, from the parameters' group, a
# function that returns a value of their states as one tensor, and a tensor for the result (None: a new one).
RootMeanSquare = Callable[[dict[str, Any], Callable[[str], torch.Tensor], Optional[torch.Tensor]], torch.Tensor]


def _adam(group: dict[str, Any], read: Callable[[str], torch.Tensor], out: torch.Tensor | None) -> torch.Tensor:
    return torch.sqrt(read("max_exp_avg_sq" if group["amsgrad"] else "exp_avg_sq"), out=out)


def _adagrad(_: dict[str, Any], read: Callable[[str], torch.Tensor], out: torch.Tensor | None) -> torch.Tensor:
    return torch.sqrt(read("sum"), out=out)


def _rmsprop(group: dict[str, Any], read: Callable[[str], torch.Tensor], out: torch.Tensor | None) -> torch.Tensor:
    square = read("square_avg")
    if group["centered"]:
        mean = read("grad_avg")
        return torch.addcmul(square, mean, mean, value=-1, out=out).clamp_(min=0).sqrt_()
    return torch.sqrt(square, out=out)


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
    """The preconditioner of the parameters of one group.

    Args:
        optimizer: an optimizer of a type that `unknown_optimizers` does not name.
        group: a group of its parameters.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> None:
        self._optimizer = optimizer
        self._group = group
        self._root_mean_square = _ROOT_MEAN_SQUARES[type(optimizer)]

    @property
    def is_identity(self) -> bool:
        """Whether P is the identity."""
        return self._root_mean_square is None

    def steps(self, parameter: torch.Tensor) -> float | None:
        """Return the steps by which the bias of a parameter's averages is corrected, None before its first step.

        0 where no bias is corrected, and where the steps are on a GPU, for which the host would have to wait.
        """
        if self._root_mean_square is None:
            return 0.0
        state = self._optimizer.state.get(parameter)
        if not state:
            return None
        return 0.0 if not self._corrects_bias or _is_on_gpu(state["step"]) else float(state["step"])

    def apply(
        self, parameters: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor], out: torch.Tensor | None = None
    ) -> tuple[list[torch.Tensor], float]:
        """Return P times each of the gradients as tensors and a factor on them; the gradients where P is the identity.

        An element that has had no gradient so far, such as the row of a rare word, counts as 0: nothing but the
        optimizer's epsilon would bound its P, which the step itself bounds by the new gradient.

        Args:
            parameters: parameters with equal `steps`.
            gradients: gradients, at least one, each of all these parameters, as `join` returns them. All but the last
                are overwritten.
            out: a tensor in which the last result may be, None for a new one.
        """
        if self._root_mean_square is None:
            return list(gradients), 1.0
        last = gradients[-1]
        states = [self._optimizer.state[each] for each in parameters]
        divisor = self._root_mean_square(
            self._group, lambda name: join([state[name] for state in states], last.dtype), out
        )
        torch.nn.functional.threshold(divisor, 0.0, math.inf, inplace=True)  # 0 becomes infinity
        factor = self._bias_factor(parameters, states)
        if isinstance(factor, torch.Tensor):
            divisor.div_(factor)
            factor = 1.0
        divisor.add_(self._group["eps"] * factor)
        found = [torch.div(gradient, divisor, out=gradient) for gradient in gradients[:-1]]
        return [*found, torch.div(last, divisor, out=divisor)], factor

    @property
    def _corrects_bias(self) -> bool:
        return "betas" in self._group

    def _bias_factor(
        self, parameters: Sequence[torch.Tensor], states: Sequence[Mapping[str, Any]]
    ) -> float | torch.Tensor:
        """Return the number by which P is larger than without a correction of the bias of Adam's averages.

        Without the correction, Adam's first steps, whose averages are still small, would outweigh all others. A number
        costs nothing, unlike a correction of each element, which there is where the steps are on a GPU.
        """
        if not self._corrects_bias:
            return 1.0
        decay = self._group["betas"][1]
        if not _is_on_gpu(states[0]["step"]):
            return float((1 - decay ** float(states[0]["step"])) ** 0.5)
        factors: torch.Tensor = (1 - decay ** torch.stack([state["step"] for state in states])).sqrt_()
        if len(parameters) == 1:
            return factors.squeeze(0)  # a parameter may have no dimension
        return torch.cat([factor.expand(each.numel()) for factor, each in zip(factors.unbind(), parameters)])


def _is_on_gpu(steps: float | torch.Tensor) -> bool:
    return isinstance(steps, torch.Tensor) and steps.device.type != "cpu"
