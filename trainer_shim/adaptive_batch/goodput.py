"""Goodput: throughput times statistical efficiency, and the batch plan that maximizes it.

Source: Qiao et al., "Pollux", OSDI 2021, equations 4 to 13.
"""

from __future__ import annotations

import math
from typing import NamedTuple

CANDIDATES = 64  # most batch sizes that `best_plan` compares, evenly spaced on a logarithmic scale


class IterationTime(NamedTuple):
    """The model of the time of an optimizer step (Eq. 8 to 11), fitted by the daemon.

    Attributes:
        alpha_grad, beta_grad: seconds of a forward and backward pass, and seconds more for each sample.
        alpha_local, beta_local: seconds of the exchange of gradients on one node, and seconds more for each GPU beyond
            two.
        alpha_node, beta_node: the same where the GPUs are on several nodes.
        gamma: how far the exchange overlaps with the last pass, from 1 (not at all) to 10.
    """

    alpha_grad: float
    beta_grad: float
    alpha_local: float
    beta_local: float
    alpha_node: float
    beta_node: float
    gamma: float

    def seconds(self, gpus: int, per_gpu: int, accumulation: int, *, several_nodes: bool) -> float:
        """Return the seconds of a step with `accumulation` passes of `per_gpu` samples on each of `gpus` GPUs."""
        gradient = self.alpha_grad + self.beta_grad * per_gpu
        sync = 0.0
        if gpus > 1:
            alpha, beta = (self.alpha_node, self.beta_node) if several_nodes else (self.alpha_local, self.beta_local)
            sync = alpha + beta * (gpus - 2)
        longer = max(gradient, sync)
        if longer <= 0:
            return 0.0
        # divided by the longer time, so that no power overflows
        overlapped = longer * ((gradient / longer) ** self.gamma + (sync / longer) ** self.gamma) ** (1 / self.gamma)
        return (accumulation - 1) * gradient + float(overlapped)


class PlanLimits(NamedTuple):
    """The batches that a training may use.

    Attributes:
        first_batch: M0, the smallest global batch in samples.
        max_batch: the largest global batch in samples.
        max_per_gpu: the most samples that fit on a GPU at once.
    """

    first_batch: int
    max_batch: int
    max_per_gpu: int


class PlanChoice(NamedTuple):
    """A batch plan, and its predicted goodput in samples at M0 a second."""

    per_gpu: int
    accumulation: int
    goodput: float


def gain(first_batch: float, batch: float, noise_scale: float) -> float:
    """Return the progress of a step at `batch` in steps at M0: (phi/M0 + 1) / (phi/M + 1), M/M0 for an infinite phi."""
    if math.isinf(noise_scale):
        return batch / first_batch
    return (noise_scale / first_batch + 1) / (noise_scale / batch + 1)


class GoodputModel(NamedTuple):
    """The goodput of one training on its present GPUs, by batch plan.

    Attributes:
        time: the model of the time of a step.
        limits: the batches that the training may use.
        noise_scale: the gradient noise scale in samples.
        gpus: the number of GPUs.
        several_nodes: whether the GPUs are on more than one node.
    """

    time: IterationTime
    limits: PlanLimits
    noise_scale: float
    gpus: int
    several_nodes: bool

    def goodput(self, batch: int, per_gpu: int, accumulation: int) -> float:
        """Return the goodput of a plan in samples at M0 a second (Eq. 4); infinity where a step takes no time.

        Args:
            batch: the global batch in samples.
            per_gpu: the samples that a GPU processes at once.
            accumulation: the passes of a step.
        """
        seconds = self.time.seconds(self.gpus, per_gpu, accumulation, several_nodes=self.several_nodes)
        useful = gain(self.limits.first_batch, batch, self.noise_scale) * self.limits.first_batch
        return useful / seconds if seconds > 0 else math.inf

    def best_plan(self) -> PlanChoice | None:
        """Return the plan of the highest goodput within the limits (Eq. 13), the smallest batch among equals.

        A plan has as few passes as the limit of a GPU allows, because each further pass costs `alpha_grad`. None where
        no even plan on this number of GPUs is within the limits.
        """
        least, most = -(-self.limits.first_batch // self.gpus), self.limits.max_batch // self.gpus
        if least > most:
            return None
        ratio = (most / least) ** (1 / (CANDIDATES - 1))
        shares = {least, most} | {min(most, round(least * ratio**number)) for number in range(CANDIDATES)}
        best: PlanChoice | None = None
        for share in sorted(shares):
            accumulation = -(-share // self.limits.max_per_gpu)
            per_gpu = -(-share // accumulation)
            batch = self.gpus * per_gpu * accumulation
            if batch > self.limits.max_batch:
                continue
            found = self.goodput(batch, per_gpu, accumulation)
            if best is None or found > best.goodput:
                best = PlanChoice(per_gpu, accumulation, found)
        return best
