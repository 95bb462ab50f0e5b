"""The collectives of the shim: decisions of rank 0, and small sums over the ranks, in a gloo group of their own."""

from __future__ import annotations

import collections
import contextlib
import math
import resource
from datetime import timedelta
from typing import TYPE_CHECKING, Callable, TypeVar

import torch
import torch.distributed as dist

from trainer_shim.errors import ShimError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from trainer_shim.process_groups.watchdog import Watchdog

# The clocks of gloo and NCCL run while a job is suspended, and a collective under way must not time out. Neither
# extends the time of a collective that has begun, so hangs are the watchdog's responsibility.
COLLECTIVE_TIMEOUT = timedelta(days=7)

_KEPT_SUMS = 16

T = TypeVar("T")


def run_on_rank_zero(
    action: Callable[[], T],
    *,
    is_rank_zero: bool,
    group: dist.ProcessGroup | None,
    busy: AbstractContextManager[object] | None = None,
    waiting: AbstractContextManager[object] | None = None,
) -> T:
    """Run `action` on rank 0, and return its result on every rank of the group. Collective.

    Args:
        action: the function to run.
        is_rank_zero: whether this process is rank 0.
        group: the process group of the ranks.
        busy: a context that rank 0 enters for the action.
        waiting: a context that all ranks enter while the result is broadcast.

    Raises:
        ShimError, OSError: the error that `action` raised, on every rank, so that none waits for a result forever.
    """
    outcome: list[tuple[T | None, Exception | None]] = [(None, None)]
    if is_rank_zero:
        try:
            with busy or contextlib.nullcontext():
                outcome = [(action(), None)]
        except (ShimError, OSError) as error:
            outcome = [(None, error)]
    with waiting or contextlib.nullcontext():
        dist.broadcast_object_list(outcome, src=0, group=group)
    value, failure = outcome[0]
    if failure is not None:
        raise failure
    return value  # type: ignore[return-value]


class PendingSum:
    """A sum over the ranks that is under way while the caller does other work."""

    def __init__(self, values: torch.Tensor, group: dist.ProcessGroup | None, watchdog: Watchdog) -> None:
        self._values = values
        self._watchdog = watchdog
        self._work = None if group is None else dist.all_reduce(values, group=group, async_op=True)

    def result(self) -> torch.Tensor:
        """Wait for every rank's values, and return their sums, the same on all ranks."""
        if self._work is not None:
            with self._watchdog.armed("a vote"):
                self._work.wait()
        return self._values


class RankGroup:
    """All processes of a training, and the collectives that a trainer session needs of them.

    Attributes:
        rank: this process's number, from 0.
        size: the number of processes.
        watchdog: the watchdog that ends this process when it waits too long for the other ranks.
    """

    def __init__(self, rank: int, size: int, control: dist.ProcessGroup | None, watchdog: Watchdog) -> None:
        self.rank = rank
        self.size = size
        self.watchdog = watchdog
        self._control = control  # None for a process that is alone, and has no process group
        # A gloo thread that drops the last reference to a tensor of Python takes the interpreter lock, shortly after
        # the sum: perhaps just when a loader worker is forked, which then hangs. So Python keeps a later reference.
        self._latest_sums: collections.deque[PendingSum] = collections.deque(maxlen=_KEPT_SUMS)

    def start_sum(self, values: torch.Tensor) -> PendingSum:
        """Start to sum a CPU tensor over the ranks, in place."""
        pending = PendingSum(values, self._control, self.watchdog)
        self._latest_sums.append(pending)
        return pending

    def sum(self, values: Sequence[float]) -> list[float]:
        """Return the sums of the ranks' values, the same on all ranks. Collective."""
        found: list[float] = self._reduced(torch.tensor(values, dtype=torch.float64), dist.ReduceOp.SUM).tolist()
        return found

    def earliest(self, instant: float | None) -> float | None:
        """Return the least of the ranks' instants, None where every rank's instant is None. Collective."""
        least = torch.tensor(math.inf if instant is None else instant, dtype=torch.float64)
        found = self._reduced(least, dist.ReduceOp.MIN).item()
        return found if math.isfinite(found) else None

    def any_rank(self, flag: bool) -> bool:  # noqa: FBT001  the only argument of a predicate
        """Return whether the flag is true on any rank, the same on all ranks. Collective."""
        return bool(self.start_sum(torch.tensor(int(flag))).result().item())

    def on_rank_zero(self, action: Callable[[], T]) -> T:
        """Run `action` on rank 0, and return its result on every rank. Collective.

        Raises:
            ShimError, OSError: the error that `action` raised, on every rank, so that none waits for a result forever.
        """
        if self._control is None:
            return action()
        return run_on_rank_zero(
            action,
            is_rank_zero=self.rank == 0,
            group=self._control,
            busy=self.watchdog.busy(),
            waiting=self.watchdog.armed("what rank 0 decides"),
        )

    def synchronize(self) -> None:
        """Wait until the device has finished the work that this process has launched."""
        raise NotImplementedError

    def peak_bytes(self) -> int:
        """Return the largest memory use of this rank so far, in bytes: of its GPU, or else of its resident set."""
        raise NotImplementedError

    def close(self) -> None:
        """Destroy the process group, if it was made by the shim and still exists."""
        raise NotImplementedError

    def _reduced(self, values: torch.Tensor, operation: dist.ReduceOp.RedOpType) -> torch.Tensor:
        if self._control is not None:
            with self.watchdog.armed("a sum"):
                dist.all_reduce(values, operation, group=self._control)
        return values


def resident_peak_bytes() -> int:
    """Return the largest resident set size of this process so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
