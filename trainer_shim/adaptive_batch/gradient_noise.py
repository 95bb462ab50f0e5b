"""The gradient noise of a training: measured in some of its steps, from the gradients that the steps compute anyway.

A measurement has two numbers, whose expectations are exact: |Pg|^2 of the true gradient g, and tr(P Sigma P^T), where
Sigma is the covariance of the gradients of single samples and P the optimizer's preconditioner. The gradients of
K > 1 micro-batches, over all ranks and passes, are compared with their mean; n_i of B samples are in micro-batch i:

    tr(P Sigma P^T) = B / (K - 1) * (sum(n_i / B * |P g_i|^2) - |P G|^2),    |Pg|^2 = |P G|^2 - tr(P Sigma P^T) / B

The weights n_i / B make that right for micro-batches of different sizes. With one micro-batch alone, the gradients of
two steps in a row are compared (a differenced estimator): |P (G - G')|^2 / (1/n + 1/n') and the product of PG and PG'.

Source: McCandlish et al., "An empirical model of large-batch training", 2018, appendix A.1; Qiao et al., "Pollux",
OSDI 2021, section 3.1.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Callable, NamedTuple

import torch

from trainer_shim.adaptive_batch.preconditioner import Preconditioner, known_optimizers, unknown_optimizers

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trainer_shim.data.sample_order import MicroBatch

MEASURE_EVERY = 10  # steps between two measurements; the cost of one is up to some percent of a step


class NoiseMeasurement(NamedTuple):
    """One measurement of the gradient noise; its parts may be negative by chance.

    Attributes:
        grad_square: |Pg|^2.
        grad_variance: tr(P Sigma P^T) of one sample.
    """

    grad_square: float
    grad_variance: float


class LocalSums(NamedTuple):
    """One rank's part of a measurement, whose fields are summed over the ranks.

    Attributes:
        weighted_squares: the sum of n_i / B * |P g_i|^2 over this rank's micro-batches.
        micro_batches: the number of this rank's micro-batches that have samples.
        mean_square: |P G|^2 of the mean gradient, of this rank's share of the parameters; 0 where one gradient is
            compared.
        product, difference_square: the product of PG and PG' of two steps in a row, and |P (G - G')|^2, divided by the
            number of ranks.
        difference_weight: 1/n + 1/n' of these two steps, divided by the number of ranks.
        invalid: 1 where the rank has nothing to compare, or could not measure; else 0.
    """

    weighted_squares: float = 0.0
    micro_batches: float = 0.0
    mean_square: float = 0.0
    product: float = 0.0
    difference_square: float = 0.0
    difference_weight: float = 0.0
    invalid: float = 0.0

    def measurement(self, samples: int) -> NoiseMeasurement | None:
        """Return what the sums over all ranks give for a step of `samples` samples, None without a measurement."""
        if self.invalid or not all(map(math.isfinite, self)):
            return None
        if self.micro_batches > 1:
            spread = self.weighted_squares - self.mean_square
            variance = spread * samples / (self.micro_batches - 1)
            return NoiseMeasurement(self.mean_square - variance / samples, variance)
        if self.difference_weight:
            return NoiseMeasurement(self.product, self.difference_square / self.difference_weight)
        return None


class _EarlierGradients(NamedTuple):
    """A copy of the unscaled gradients of an earlier step, by parameter, with the step's number and samples."""

    step: int
    samples: int
    gradients: list[torch.Tensor | None]


class GradientNoise:
    """Measures the gradient noise on one rank, by hooks on the parameters, before gradients are summed or clipped.

    A training of one micro-batch a step, and one whose steps are compared, holds one copy of its gradients. No other
    training copies gradients.

    Args:
        optimizers: the optimizers of the training; `unmeasurable` has no objection to them.
        rank: the number of this rank.
        ranks: the number of ranks.
        by_steps: whether two steps in a row are compared at every number of ranks and micro-batches, which makes the
            measurement the same for all of them.
        every: the steps between two measurements.

    Attributes:
        device: the device of the parameters.
    """

    def __init__(
        self,
        optimizers: Iterable[torch.optim.Optimizer],
        *,
        rank: int = 0,
        ranks: int = 1,
        by_steps: bool = False,
        every: int = MEASURE_EVERY,
    ) -> None:
        self._alone = ranks == 1
        self._ranks = ranks
        self._by_steps = by_steps
        self._every = every
        self._groups = [(optimizer, group) for optimizer in optimizers for group in optimizer.param_groups]
        trained = [
            (parameter, number, Preconditioner(optimizer, group, parameter))
            for number, (optimizer, group) in enumerate(self._groups)
            for parameter in group["params"]
            if parameter.requires_grad
        ]
        self._parameters: list[torch.nn.Parameter] = [parameter for parameter, _, _ in trained]
        self._group_numbers = [number for _, number, _ in trained]
        self._preconditioners = [preconditioner for _, _, preconditioner in trained]
        self.device = self._parameters[0].device if self._parameters else torch.device("cpu")
        self._share = _share_of([each.numel() for each in self._parameters], rank, ranks)
        self._dtype = torch.float64 if torch.float64 in {each.dtype for each in self._parameters} else torch.float32
        self._earlier: _EarlierGradients | None = None
        self._copies: dict[int, torch.Tensor] = {}  # gradients of an earlier step, by the parameter's number
        self._buffers: dict[torch.dtype, torch.Tensor] = {}  # memory for one parameter's results
        # The measurement of the present step.
        self._step = -1
        self._measured = False
        self._micro: MicroBatch | None = None
        self._micro_batches = 0
        self._seen: set[int] = set()  # the parameters that have a gradient of this micro-batch, by number
        self._collects = False  # whether the gradients of the present pass are measured
        self._norms: list[torch.Tensor] = []
        self._rates: list[float] = []  # the learning rates of the groups, relative to the highest
        self._invalid = False
        self._weighted_squares: torch.Tensor | None = None
        self._mean_square: torch.Tensor | None = None
        self._product: torch.Tensor | None = None
        self._difference_square: torch.Tensor | None = None
        self._difference_weight = 0.0
        self._handles = [parameter.register_hook(self._hook(n)) for n, parameter in enumerate(self._parameters)]  # type: ignore[no-untyped-call]

    def close(self) -> None:
        """Remove the hooks; nothing is measured any more."""
        for handle in self._handles:
            handle.remove()

    def forget_earlier(self) -> None:
        """Compare the next step with no earlier one."""
        self._earlier = None

    def begin_pass(self, step: int, micro: MicroBatch) -> None:
        """Begin a backward pass of a micro-batch, in the step with the number `step`, from 0."""
        if step != self._step:
            self._begin_step(step)
        if micro is not self._micro:  # else a further backward pass, of other parameters
            self._micro = micro
            self._seen.clear()
            self._micro_batches += micro.samples > 0
        # the only gradient of a step is measured when it is whole
        single = self._by_steps or (self._alone and micro.last and self._micro_batches <= 1)
        self._collects = self._measured and not single and micro.samples > 0

    def end_pass(self, scale: torch.Tensor | None) -> None:
        """End a backward pass; after the last one of a step its gradients are whole, and neither unscaled nor clipped.

        Args:
            scale: the factor of a GradScaler on the loss, None without a scaler.
        """
        micro = self._micro
        if micro is None:
            return
        if self._norms:
            own = _sum_of_squares(self._norms, scale) * (micro.samples / micro.global_samples / micro.weight**2)
            self._weighted_squares = own if self._weighted_squares is None else self._weighted_squares + own
            self._norms.clear()
        self._collects = False
        if not micro.last:
            return
        single = self._by_steps or (self._alone and self._micro_batches == 1)
        if self._measured and not self._invalid:
            if single:
                self._compare(micro.global_samples, scale)
            else:
                self._measure_mean(scale)
        if single:
            self._copy_gradients(micro.global_samples, scale)

    def finish_step(self, step: int) -> LocalSums | None:
        """Return this rank's part of the measurement of a step, None on all ranks for a step that is not measured.

        Waits for the device where there is a measurement.

        Args:
            step: the number of the step.
        """
        if self._earlier is not None and self._earlier.step != self._step:
            self._earlier = None  # compared by now
        if not self._measures(step):
            return None
        parts = [self._weighted_squares, self._mean_square, self._product, self._difference_square]
        known = [part for part in parts if part is not None]
        if self._invalid or not known or step != self._step:  # a step without `begin_pass` has no gradients here
            return LocalSums(invalid=1.0)
        zero = torch.zeros_like(known[0])
        squares, mean, product, difference = torch.stack([zero if part is None else part for part in parts]).tolist()
        count = 0 if self._by_steps else self._micro_batches
        ranks = self._ranks  # all of them compare the same gradients, and their parts are summed
        return LocalSums(squares, count, mean, product / ranks, difference / ranks, self._difference_weight / ranks)

    def _begin_step(self, step: int) -> None:
        self._step = step
        self._measured = self._measures(step)
        self._micro = None
        self._micro_batches = 0
        self._invalid = False
        self._weighted_squares = self._mean_square = self._product = self._difference_square = None
        self._difference_weight = 0.0
        if self._measured:
            rates = [float(group["lr"]) for _, group in self._groups]
            highest = max(rates)
            self._rates = [rate / highest if highest > 0 else 1.0 for rate in rates]

    def _measures(self, step: int) -> bool:
        return step % self._every == self._every - 1

    def _hook(self, number: int) -> Callable[[torch.Tensor], None]:
        def collect(gradient: torch.Tensor) -> None:
            if not self._collects:
                return
            if number in self._seen:  # a second backward pass: the gradients of the micro-batch are a sum of both
                self._invalid = True
            self._seen.add(number)
            self._norms += self._norms_of(number, gradient)

        return collect

    def _preconditioned(
        self, number: int, gradient: torch.Tensor, before: torch.Tensor | None = None
    ) -> list[torch.Tensor]:
        """Return P times the gradients of a parameter, without the factor of its `_weight`; empty where P is not known.

        Args:
            number: of the parameter.
            gradient: the gradient of the present step.
            before: that of an earlier step, whose memory is used for its result, which comes first.
        """
        preconditioner = self._preconditioners[number]
        gradients = [gradient] if before is None else [before, gradient]
        if not preconditioner.ready or any(each.layout is not torch.strided for each in gradients):
            self._invalid = True
            return []
        out = None if preconditioner.is_identity else self._buffer(gradient)
        return preconditioner.apply(gradients, [before, out][-len(gradients) :])

    def _weight(self, number: int) -> float | torch.Tensor:
        """Return the number by which the preconditioned gradients of a parameter count."""
        return self._rates[self._group_numbers[number]] * self._preconditioners[number].factor

    def _buffer(self, like: torch.Tensor) -> torch.Tensor | None:
        """Return a tensor like another one in memory that is used again, None on a GPU.

        On a CPU, new memory would be the dearest part of a measurement.
        """
        if self.device.type != "cpu":
            return None
        buffer = self._buffers.get(like.dtype)
        if buffer is None or buffer.numel() < like.numel():
            buffer = self._buffers[like.dtype] = torch.empty(like.numel(), dtype=like.dtype)
        return buffer[: like.numel()].view_as(like)

    def _norms_of(self, number: int, gradient: torch.Tensor) -> list[torch.Tensor]:
        """Return the norm of P times the gradient of a parameter; empty where P is not known."""
        found = self._preconditioned(number, gradient.detach())
        return [torch.linalg.vector_norm(each, dtype=self._dtype) * self._weight(number) for each in found]

    def _measure_mean(self, scale: torch.Tensor | None) -> None:
        """Measure this rank's share of the mean gradient, which is the same on all ranks."""
        gradients = [(number, self._parameters[number].grad) for number in self._share]
        norms = [norm for number, each in gradients if each is not None for norm in self._norms_of(number, each)]
        if norms:
            self._mean_square = _sum_of_squares(norms, scale)
        elif any(each.grad is not None for each in self._parameters):  # all of them in other ranks' shares
            self._mean_square = torch.zeros((), dtype=torch.float64, device=self.device)

    def _copy_gradients(self, samples: int, scale: torch.Tensor | None) -> None:
        """Copy the gradients of this step, if the next one is measured."""
        if self._measures(self._step + 1):
            copies = [
                None if each.grad is None else self._copied(number, each.grad.detach(), scale)
                for number, each in enumerate(self._parameters)
            ]
            self._earlier = _EarlierGradients(self._step, samples, copies)

    def _copied(self, number: int, gradient: torch.Tensor, scale: torch.Tensor | None) -> torch.Tensor:
        """Return a copy of a parameter's gradient without the factor of a GradScaler, in the memory of the last one."""
        if gradient.layout is not torch.strided:
            return gradient  # it is not compared
        if number not in self._copies:
            self._copies[number] = torch.empty_like(gradient)
        copy = self._copies[number].copy_(gradient)
        return copy if scale is None else copy.div_(scale)

    def _compare(self, samples: int, scale: torch.Tensor | None) -> None:
        """Compare the gradients of this step with those of the last one."""
        earlier = self._earlier
        if earlier is None or earlier.step != self._step - 1:
            self._invalid = True
            return
        products, norms = [], []
        for number, (parameter, before) in enumerate(zip(self._parameters, earlier.gradients)):
            if parameter.grad is None or before is None:
                continue
            whole = parameter.grad.detach()
            gradient = whole if scale is None else whole / scale
            found = self._preconditioned(number, gradient, before)
            if not found:
                return
            other, one = (each.to(self._dtype).flatten() for each in found)
            weight = self._weight(number)
            products.append(torch.dot(one, other) * weight**2)
            norms.append(torch.linalg.vector_norm(other.sub_(one)) * weight)
        if products:
            self._product = torch.stack(products).double().sum()
            self._difference_square = _sum_of_squares(norms, None)
            self._difference_weight = 1 / samples + 1 / earlier.samples


def _share_of(sizes: Sequence[int], rank: int, ranks: int) -> list[int]:
    """Return the numbers of the parameters in one rank's share; the shares have about as many elements each."""
    total, begun, found = sum(sizes), 0, []
    for number, size in enumerate(sizes):
        if (begun + size / 2) * ranks // max(total, 1) == rank:
            found.append(number)
        begun += size
    return found


def unmeasurable(
    optimizers: Sequence[torch.optim.Optimizer], *, ranks: int, exchanged: bool, sharded: bool
) -> str | None:
    """Return why the gradient noise of a training cannot be measured, with the fix; None where it can be.

    Args:
        optimizers: the tracked optimizers.
        ranks: the number of ranks.
        exchanged: whether a tracked module exchanges gradients between the ranks.
        sharded: whether a tracked object is sharded over the ranks.
    """
    if not optimizers:
        return "no optimizer is in ctx.track(...): track it"
    if sharded:
        return "no rank has whole gradients of a model that is sharded by FSDP: use ctx.wrap(model)"
    unknown = unknown_optimizers(optimizers)
    if unknown:
        return f"the preconditioner of {', '.join(unknown)} is not known: use one of {', '.join(known_optimizers())}"
    parameters = [each for optimizer in optimizers for group in optimizer.param_groups for each in group["params"]]
    if len({each.device for each in parameters}) > 1:
        return "the parameters are on several devices: use one device for each rank"
    if ranks > 1 and not exchanged:
        return "no tracked model exchanges gradients: use ctx.wrap(model)"
    return None


def _sum_of_squares(norms: list[torch.Tensor], scale: torch.Tensor | None) -> torch.Tensor:
    """Return the sum of the squares of norms, which a GradScaler has multiplied by `scale`, as float64."""
    found = torch.stack(norms).double().square().sum()
    return found if scale is None else found / scale.double().square()
