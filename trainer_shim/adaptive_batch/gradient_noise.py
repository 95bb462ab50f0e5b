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
from typing import TYPE_CHECKING, Any, Callable, NamedTuple

import torch

from trainer_shim.adaptive_batch.gradient_batches import BATCH_BYTES, STEP_FACTOR, batches, join, size_in_bytes
from trainer_shim.adaptive_batch.preconditioner import Preconditioner, known_optimizers, unknown_optimizers

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from torch.utils.hooks import RemovableHandle

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
    """A copy of the gradients of an earlier step, by the parameter's number, with the step's number and samples.

    Attributes:
        scale: the factor of a GradScaler on the gradients, None without a scaler.
    """

    step: int
    samples: int
    gradients: dict[int, torch.Tensor]
    scale: torch.Tensor | None


class GradientNoise:
    """Measures the gradient noise on one rank, before gradients are summed over the ranks, or clipped.

    A training of one micro-batch a step, and one whose steps are compared, holds one copy of its gradients, and its
    parameters have no hooks. In any other training the parameters have hooks in the backward passes that are measured,
    and BATCH_BYTES of gradients are kept alive in such a pass.

    On a GPU, whose host may take longer to launch kernels than the GPU to run them, the gradients of several parameters
    are measured as one tensor; on a CPU those of each parameter are, in memory that is used again.

    Args:
        optimizers: the optimizers of the training; `unmeasurable` has no objection to them.
        rank: the number of this rank.
        ranks: the number of ranks.
        by_steps: whether two steps in a row are compared at every number of ranks and micro-batches, which makes the
            measurement the same for all of them.
        every: the steps between two measurements.
        batch_bytes: the most bytes of gradients that are measured as one tensor in a backward pass; by default 0 on a
            CPU, so that each parameter is measured by itself, and BATCH_BYTES on a GPU.

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
        batch_bytes: int | None = None,
    ) -> None:
        self._alone = ranks == 1
        self._ranks = ranks
        self._by_steps = by_steps
        self._every = every
        self._groups = [(optimizer, group) for optimizer in optimizers for group in optimizer.param_groups]
        trained = [
            (parameter, number)
            for number, (_, group) in enumerate(self._groups)
            for parameter in group["params"]
            if parameter.requires_grad
        ]
        self._parameters: list[torch.nn.Parameter] = [parameter for parameter, _ in trained]
        self._group_numbers = [number for _, number in trained]
        self._preconditioners = [Preconditioner(optimizer, group) for optimizer, group in self._groups]
        self.device = self._parameters[0].device if self._parameters else torch.device("cpu")
        on_cpu = self.device.type == "cpu"
        self._batch_bytes = (0 if on_cpu else BATCH_BYTES) if batch_bytes is None else batch_bytes
        self._share = _share_of([each.numel() for each in self._parameters], rank, ranks)
        self._dtype = torch.float64 if torch.float64 in {each.dtype for each in self._parameters} else torch.float32
        self._earlier: _EarlierGradients | None = None
        self._copies: dict[int, torch.Tensor] = {}  # gradients of an earlier step, by the parameter's number
        self._memory: torch.Tensor | None = None  # for results of one parameter
        # The measurement of the present step.
        self._step = -1
        self._measured = False
        self._micro: MicroBatch | None = None
        self._micro_batches = 0
        self._seen: set[int] = set()  # the parameters that have a gradient of this micro-batch, by number
        self._hooks: list[tuple[torch.nn.Parameter, RemovableHandle]] = []  # of the present pass
        self._pending: list[tuple[int, torch.Tensor]] = []  # gradients of this pass without a norm so far
        self._pending_bytes = 0
        self._norms: list[torch.Tensor] = []
        self._rates: list[float] = []  # the learning rates of the groups, relative to the highest
        self._keys: list[tuple[int, float | None]] | None = None  # of parameters: group, steps; read in measured steps
        self._invalid = False
        self._weighted_squares: torch.Tensor | None = None
        self._mean_square: torch.Tensor | None = None
        self._product: torch.Tensor | None = None
        self._difference_square: torch.Tensor | None = None
        self._difference_weight = 0.0

    @property
    def needs_gradients(self) -> bool:
        """Whether the gradients of the present step are measured, or copied to be compared with the next step's."""
        return self._measured or self._measures(self._step + 1)

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
        self._forget_pass()  # one that failed
        if self._measured and not single and micro.samples > 0:
            self._add_hooks()

    def end_pass(self, scale: torch.Tensor | None) -> None:
        """End a backward pass; after the last one of a step its gradients are whole, and neither unscaled nor clipped.

        Args:
            scale: the factor of a GradScaler on the loss, None without a scaler.
        """
        micro = self._micro
        if micro is None:
            return
        if self._pending:
            self._measure_pending()
        if self._norms:
            own = _sum_of_squares(self._norms, scale) * (micro.samples / micro.global_samples / micro.weight**2)
            self._weighted_squares = own if self._weighted_squares is None else self._weighted_squares + own
        self._forget_pass()
        if not micro.last:
            return
        single = self._by_steps or (self._alone and self._micro_batches == 1)
        if self._measured and not self._invalid:
            if single:
                self._compare(micro.global_samples, scale)
            else:
                self._measure_mean(scale)
        if single and self._measures(self._step + 1):
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
        self._keys = None
        self._invalid = False
        self._weighted_squares = self._mean_square = self._product = self._difference_square = None
        self._difference_weight = 0.0
        if self._measured:
            self._rates = _relative_rates([group for _, group in self._groups])

    def _measures(self, step: int) -> bool:
        return step % self._every == self._every - 1

    def _add_hooks(self) -> None:
        for number, parameter in enumerate(self._parameters):
            if parameter.requires_grad:  # still
                self._hooks.append((parameter, parameter.register_hook(self._hook(number))))  # type: ignore[no-untyped-call]

    def _forget_pass(self) -> None:
        """Remove the hooks of a pass, and what is left of its gradients."""
        self._pending.clear()
        self._pending_bytes = 0
        self._norms.clear()
        for parameter, handle in self._hooks:
            handle.remove()
            if not parameter._backward_hooks:  # noqa: SLF001  each pass would call an empty dictionary of hooks, too
                parameter._backward_hooks = None  # noqa: SLF001
        self._hooks.clear()

    def _hook(self, number: int) -> Callable[[torch.Tensor], None]:
        def collect(gradient: torch.Tensor) -> None:
            if number in self._seen:  # a second backward pass: the gradients of the micro-batch are a sum of both
                self._invalid = True
            self._seen.add(number)
            self._pending.append((number, gradient))
            self._pending_bytes += size_in_bytes(gradient)
            if self._pending_bytes > self._batch_bytes:
                self._measure_pending()

        return collect

    def _measure_pending(self) -> None:
        self._norms += self._norms_of(self._pending, self._batch_bytes)
        self._pending.clear()
        self._pending_bytes = 0

    @torch.no_grad()
    def _norms_of(self, gradients: Sequence[tuple[int, torch.Tensor]], limit: int) -> list[torch.Tensor]:
        """Return norms of P times gradients, given with the parameters' numbers; none of those whose P is not known."""
        norms = []
        for numbers, members in self._batches(gradients, limit):
            (whole,), weight = self._preconditioned(numbers, [join(members, self._dtype)])
            norms.append(_weighted(torch.linalg.vector_norm(whole), weight))
        return norms

    def _batches(
        self, gradients: Sequence[tuple[int, torch.Tensor]], limit: int
    ) -> Iterator[tuple[list[int], list[torch.Tensor]]]:
        """Yield batches of gradients of parameters with one preconditioner, of so many bytes at most.

        The step has no measurement where one of the gradients is sparse, or its preconditioner is not known.
        """
        if self._keys is None:
            self._keys = [
                (group, self._preconditioners[group].steps(parameter))
                for group, parameter in zip(self._group_numbers, self._parameters)
            ]
        keys = self._keys
        known = [
            (number, gradient)
            for number, gradient in gradients
            if gradient.layout is torch.strided and keys[number][1] is not None
        ]
        self._invalid |= len(known) < len(gradients)
        return batches(known, keys.__getitem__, limit)

    def _preconditioned(
        self, numbers: Sequence[int], gradients: Sequence[torch.Tensor]
    ) -> tuple[list[torch.Tensor], float]:
        """Return P times gradients as tensors and the number by which they count.

        Args:
            numbers: of the parameters of a batch.
            gradients: gradients of all these parameters, joined; all but the last are overwritten.
        """
        group = self._group_numbers[numbers[0]]
        preconditioner = self._preconditioners[group]
        out = None if preconditioner.is_identity else self._buffer(gradients[-1])
        found, factor = preconditioner.apply([self._parameters[number] for number in numbers], gradients, out)
        return found, self._rates[group] * factor

    def _buffer(self, like: torch.Tensor) -> torch.Tensor | None:
        """Return a tensor like another one in memory that is used again, None on a GPU.

        On a CPU, new memory would be the dearest part of a measurement.
        """
        if self.device.type != "cpu":
            return None
        if self._memory is None or self._memory.numel() < like.numel():
            self._memory = torch.empty(like.numel(), dtype=like.dtype)
        return self._memory[: like.numel()].view_as(like)

    def _gradients(self, numbers: Iterable[int]) -> list[tuple[int, torch.Tensor]]:
        """Return the whole gradients of those of the parameters that have one, with the parameters' numbers."""
        found = [(number, self._parameters[number].grad) for number in numbers]
        return [(number, gradient) for number, gradient in found if gradient is not None]

    def _measure_mean(self, scale: torch.Tensor | None) -> None:
        """Measure this rank's share of the mean gradient, which is the same on all ranks."""
        norms = self._norms_of(self._gradients(self._share), STEP_FACTOR * self._batch_bytes)
        if norms:
            self._mean_square = _sum_of_squares(norms, scale)
        elif any(each.grad is not None for each in self._parameters):  # all of them in other ranks' shares
            self._mean_square = torch.zeros((), dtype=torch.float64, device=self.device)

    @torch.no_grad()
    def _copy_gradients(self, samples: int, scale: torch.Tensor | None) -> None:
        """Copy the gradients of this step, to be compared with the next one's, into the memory of the last copy."""
        gradients = self._gradients(range(len(self._parameters)))
        strided = [(number, each) for number, each in gradients if each.layout is torch.strided]
        for numbers, members in batches(strided, lambda _: None, STEP_FACTOR * self._batch_bytes):
            for number, gradient in zip(numbers, members):
                if number not in self._copies:
                    self._copies[number] = torch.empty_like(gradient)
            torch._foreach_copy_([self._copies[number] for number in numbers], members)
        copies = {number: self._copies[number] for number, _ in strided}
        self._earlier = _EarlierGradients(self._step, samples, copies, scale)

    @torch.no_grad()
    def _compare(self, samples: int, scale: torch.Tensor | None) -> None:
        """Compare the gradients of this step with those of the last one, whose copies are overwritten."""
        earlier = self._earlier
        if earlier is None or earlier.step != self._step - 1:
            self._invalid = True
            return
        gradients = self._gradients(range(len(self._parameters)))
        products, norms = [], []
        # a sparse gradient has no copy, and `_batches` says that the step has no measurement
        compared = [
            (number, each)
            for number, each in gradients
            if number in earlier.gradients or each.layout is not torch.strided
        ]
        for numbers, members in self._batches(compared, STEP_FACTOR * self._batch_bytes):
            before = [earlier.gradients[number] for number in numbers]
            joined = [_unscaled(join(before, self._dtype), earlier.scale), _unscaled(join(members, self._dtype), scale)]
            (other, one), weight = self._preconditioned(numbers, joined)
            products.append(_weighted(torch.dot(one.flatten(), other.flatten()), weight**2))
            norms.append(_weighted(torch.linalg.vector_norm(other.sub_(one)), weight))
        if products:
            self._product = torch.stack(products).double().sum()
            self._difference_square = _sum_of_squares(norms, None)
            self._difference_weight = 1 / samples + 1 / earlier.samples


def _relative_rates(groups: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return the learning rates of the groups, relative to the highest."""
    if len(groups) == 1:
        return [1.0]  # for a rate on a GPU the host would have to wait
    rates = [float(group["lr"]) for group in groups]
    highest = max(rates)
    return [rate / highest if highest > 0 else 1.0 for rate in rates]


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


def _weighted(value: torch.Tensor, weight: float) -> torch.Tensor:
    """Return a value times a weight; a GPU's host launches no kernel for a weight of 1."""
    return value if weight == 1 else value * weight


def _unscaled(gradient: torch.Tensor, scale: torch.Tensor | None) -> torch.Tensor:
    """Return a gradient without the factor of a GradScaler."""
    return gradient if scale is None else gradient / scale


def _sum_of_squares(norms: list[torch.Tensor], scale: torch.Tensor | None) -> torch.Tensor:
    """Return the sum of the squares of norms, which a GradScaler has multiplied by `scale`, as float64."""
    found = torch.stack(norms).double().square().sum()
    return found if scale is None else found / scale.double().square()
