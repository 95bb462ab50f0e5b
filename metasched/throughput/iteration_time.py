"""Seconds of a training iteration by GPUs, placement and batch (Pollux, OSDI 2021, section 3.2, Eq. 8-11).

An iteration is one optimizer step: one or more forward and backward passes on every GPU, and one synchronisation of
the gradients, which overlaps with the last pass.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


class IterationModel(Protocol):
    """A model of the seconds of a job's iteration on one GPU type. Immutable.

    The goodput (``goodput.py``) needs nothing else of a model, so that another one can replace that of Pollux.
    """

    def iteration_seconds(self, gpus: int, per_gpu: int, accumulation: int, *, multi_node: bool) -> float:
        """The seconds of one iteration.

        Args:
            gpus: the number of GPUs, 1 or more.
            per_gpu: the samples of a GPU in one pass.
            accumulation: the passes of an iteration; 1 without gradient accumulation.
            multi_node: whether the GPUs are on several nodes.
        """

    def iteration_seconds_of(self, gpus: Ints, per_gpu: Ints, accumulation: Ints, multi_node: Bools) -> Floats:
        """The seconds of many iterations at once; the arguments of ``iteration_seconds`` as arrays that broadcast."""


class IterationParameters(NamedTuple):
    """The parameters of Pollux's model (theta_sys, Eq. 12), in this order: an ``IterationModel``.

    Attributes:
        alpha_grad: seconds of a pass, besides those for each sample.
        beta_grad: seconds of a pass for each sample of a GPU.
        alpha_local: seconds to synchronise two GPUs of one node.
        beta_local: seconds more for each GPU beyond two, on one node.
        alpha_node: seconds to synchronise two GPUs of two nodes.
        beta_node: seconds more for each GPU beyond two, on several nodes.
        gamma: the overlap of the last pass and the synchronisation: 1 is none, 10 almost complete.
    """

    alpha_grad: float
    beta_grad: float
    alpha_local: float = 0.0
    beta_local: float = 0.0
    alpha_node: float = 0.0
    beta_node: float = 0.0
    gamma: float = 1.0

    def scaled(self, factor: float) -> IterationParameters:
        """The parameters of iterations that take ``factor`` times as long in every configuration."""
        return IterationParameters._make([*(seconds * factor for seconds in self[:-1]), self.gamma])

    def pass_seconds(self, per_gpu: float) -> float:
        """The seconds of a forward and backward pass over ``per_gpu`` samples (T_grad, Eq. 8)."""
        return self.alpha_grad + self.beta_grad * per_gpu

    def sync_seconds(self, gpus: int, *, multi_node: bool) -> float:
        """The seconds of a synchronisation by itself (T_sync, Eq. 9)."""
        if gpus == 1:
            return 0.0
        alpha, beta = (self.alpha_node, self.beta_node) if multi_node else (self.alpha_local, self.beta_local)
        return alpha + beta * (gpus - 2)

    def iteration_seconds(self, gpus: int, per_gpu: int, accumulation: int, *, multi_node: bool) -> float:
        """The seconds of one iteration (T_iter, Eq. 10 and 11)."""
        one_pass, sync = self.pass_seconds(per_gpu), self.sync_seconds(gpus, multi_node=multi_node)
        longer, shorter = max(one_pass, sync), min(one_pass, sync)
        if not shorter:
            return (accumulation - 1) * one_pass + longer
        # Eq. 10 as written overflows for short or long iterations and a large gamma.
        last = longer * math.pow(1.0 + math.pow(shorter / longer, self.gamma), 1.0 / self.gamma)
        return (accumulation - 1) * one_pass + last

    def iteration_seconds_of(self, gpus: Ints, per_gpu: Ints, accumulation: Ints, multi_node: Bools) -> Floats:
        """The seconds of many iterations at once (T_iter, Eq. 10 and 11)."""
        one_pass = self.alpha_grad + self.beta_grad * per_gpu
        local = self.alpha_local + self.beta_local * (gpus - 2)
        sync = np.where(multi_node, self.alpha_node + self.beta_node * (gpus - 2), local)
        sync = np.where(gpus == 1, 0.0, sync)
        longer = np.maximum(np.maximum(one_pass, sync), np.finfo(float).tiny)
        last = longer * (1.0 + (np.minimum(one_pass, sync) / longer) ** self.gamma) ** (1.0 / self.gamma)
        seconds: Floats = (accumulation - 1) * one_pass + last
        return seconds
