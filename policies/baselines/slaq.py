"""SLAQ: each GPU goes where the loss falls most in the next round (Zhang et al., SoCC 2017, sections 3 and 4).

A job's next losses are predicted from its reported ones, by a curve that is fitted to them, newer ones counting more.
Losses of different models are made comparable by the largest fall of the job's loss so far. GPUs are given out step by
step, to the job whose predicted fall grows most for each of them. A job with too few losses comes first, because its
loss falls most at the start, and gets its minimum.
"""

from __future__ import annotations

import heapq
import math
from functools import lru_cache
from typing import ClassVar, NamedTuple

import numpy as np
from pydantic import Field

from metasched.capacity.capacity_pool import GpuAmount
from metasched.core.apps import LossPoint
from metasched.core.model import Decision, Job, Snapshot
from metasched.core.policy import Policy, PolicyParameters, PolicyState
from metasched.core.reasons import Code, Reason
from policies.baselines.gpu_allocator import Allocator
from policies.baselines.remaining_time import RemainingTime

KNOWN = Reason(Code.MOST_LOSS_REDUCED)
UNKNOWN = Reason(Code.LOSS_UNKNOWN)
FEWEST_LOSSES = 3
"""The fewest losses from which a curve is fitted."""
EXPONENTS = np.geomspace(0.05, 4.0, 32)
"""Powers that are tried; the other parameters of a curve are a linear regression."""


class SlaqParameters(PolicyParameters):
    """Parameters of the policy SLAQ."""

    history_weight: float = Field(default=0.9, gt=0, le=1)
    """The weight of a loss in the fit, over that of the next newer one."""


class LossCurve(NamedTuple):
    """A fitted learning curve: loss = offset + scale * steps^-exponent.

    Attributes:
        offset: the loss that it tends to.
        scale: the loss above that after one step, 0 or more.
        exponent: the power.
        largest_fall: the largest fall of the reported loss so far.
    """

    offset: float
    scale: float
    exponent: float
    largest_fall: float

    def fall(self, done: float, steps: float) -> float:
        """The fall of the loss in the next ``steps`` after ``done``, over the largest one so far."""
        before, after = max(done, 1.0), max(done, 1.0) + steps
        fall: float = self.scale * (before**-self.exponent - after**-self.exponent)
        return fall / self.largest_fall


class Slaq(Policy):
    """Greedy by the predicted fall of the loss; elastic, preemptive."""

    name: ClassVar[str] = "slaq"
    Parameters: ClassVar[type[PolicyParameters]] = SlaqParameters
    reads_losses: ClassVar[bool] = True
    parameters: SlaqParameters

    def decide(self, snapshot: Snapshot, state: PolicyState) -> tuple[Decision, PolicyState]:
        """Give out GPUs by the fall of the losses until the next round; keeps no state."""
        weight = self.parameters.history_weight
        curves = {job.uid: fitted_curve(job.losses, weight) for job in snapshot.jobs}
        queue = sorted(snapshot.jobs, key=lambda job: (curves[job.uid] is not None, job.submitted, job.uid))
        allocator = Allocator(snapshot, queue, elastic=True)
        falls = _Falls(allocator, snapshot.round_seconds)
        heap: list[tuple[float, bool, int, GpuAmount]] = []

        def push(position: int) -> None:
            job = queue[position]
            if (step := falls.next_step(job, curves[job.uid])) is not None:
                heapq.heappush(heap, (-step[0], not job.active, position, step[1]))

        for position, job in enumerate(queue):
            if job.uid not in allocator.pool.assigned:
                push(position)
        while heap:
            _, _, position, amount = heapq.heappop(heap)
            job = queue[position]
            if allocator.pool.assign(job, amount) or job.uid not in allocator.pool.assigned:
                push(position)
        return allocator.decision(lambda job: UNKNOWN if curves[job.uid] is None else KNOWN, None), state


class _Falls:
    """The next amounts of jobs, and how much the loss falls by each of their GPUs.

    Args:
        allocator: the round's GPUs.
        seconds: until the next round.
    """

    def __init__(self, allocator: Allocator, seconds: float) -> None:
        self._allocator = allocator
        self._known = RemainingTime(allocator.pool)
        self._seconds = seconds

    def next_step(self, job: Job, curve: LossCurve | None) -> tuple[float, GpuAmount] | None:
        """The fall for each further GPU of the job's next larger amount, and the amount; None where nothing fits."""
        pool = self._allocator.pool
        present = pool.assigned.get(job.uid)
        if present is None:
            amount = next((one for one in self._allocator.options(job) if pool.fits(job, one)), None)
        else:
            amount = self._allocator.larger_amount(job)
        if amount is None:
            return None
        if curve is None:
            return (math.inf, amount) if present is None else None
        now = 0.0 if present is None else self._fall(job, curve, present)
        then = self._fall(job, curve, amount)
        if now is None or then is None:  # of unknown speed: as much as it holds, up to its request
            return (0.0, amount) if amount.gpus <= job.gpus else None
        more = amount.gpus - (0 if present is None else present.gpus)
        return ((then - now) / max(more, 1), amount) if then > now or present is None else None

    def _fall(self, job: Job, curve: LossCurve, amount: GpuAmount) -> float | None:
        """The fall until the next round on an amount of GPUs; None where the speed is not known."""
        speed = self._known.speed(job, amount.gpu_type, amount.gpus)
        return None if speed is None else curve.fall(job.progress_steps or 0.0, speed * self._seconds)


@lru_cache(maxsize=8192)  # a job's losses are the same in most rounds
def fitted_curve(losses: tuple[LossPoint, ...], weight: float) -> LossCurve | None:
    """The curve of a job's losses; None where they are too few, or never fell.

    Args:
        losses: reported losses, by progress.
        weight: see ``SlaqParameters.history_weight``.
    """
    usable = [one for one in losses if one.progress_steps >= 1.0 and abs(one.loss) < 1e100]  # noqa: PLR2004  for squares
    if len(usable) < FEWEST_LOSSES:
        return None
    fall = max(one.loss for one in usable) - min(one.loss for one in usable)
    if fall <= 0.0:
        return None
    done, loss = np.array(usable).T
    weights = weight ** np.arange(len(usable) - 1, -1, -1.0)
    weights /= weights.sum()
    x = done ** -EXPONENTS[:, None]
    mean_x, mean = x @ weights, float(loss @ weights)
    centred = x - mean_x[:, None]
    spread = (centred**2) @ weights
    with np.errstate(all="ignore"):  # one step at all points
        slope = np.nan_to_num(np.maximum((centred * weights) @ (loss - mean) / spread, 0.0), posinf=0.0)
    errors = ((loss - mean - slope[:, None] * centred) ** 2) @ weights
    best = int(errors.argmin())
    scale = float(slope[best])
    return LossCurve(mean - scale * float(mean_x[best]), scale, float(EXPONENTS[best]), fall)
