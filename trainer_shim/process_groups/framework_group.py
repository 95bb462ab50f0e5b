"""The processes of a framework, and the few collectives that a companion needs of them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Callable, TypeVar

import torch
import torch.distributed as dist

from trainer_shim.process_groups.trainer_group import COLLECTIVE_TIMEOUT, TrainerGroup, run_on_rank_zero

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainer_shim.environment.world import World

T = TypeVar("T")


class FrameworkGroup:
    """The framework's process group if there is one, else one that is made for both; none for a single process.

    A single process with a process group would be a reason for a framework to act distributed. The companion's own
    words travel in a gloo group beside the framework's, whose collectives they never meet.
    """

    def __init__(self, world: World) -> None:
        joined = dist.is_available() and dist.is_initialized()
        self._own = TrainerGroup(world) if world.size > 1 and not joined else None
        distributed = joined or self._own is not None
        self.rank = dist.get_rank() if distributed else 0
        self.size = dist.get_world_size() if distributed else 1
        self._control = dist.new_group(backend="gloo", timeout=COLLECTIVE_TIMEOUT) if distributed else None

    def sum(self, values: Sequence[float]) -> list[float]:
        """The sums over the ranks, the same on all of them."""
        return self._reduced(values, dist.ReduceOp.SUM)

    def earliest(self, instant: float | None) -> float | None:
        """The least of the ranks' instants, None where all are None."""
        least = self._reduced([math.inf if instant is None else instant], dist.ReduceOp.MIN)[0]
        return least if math.isfinite(least) else None

    def on_rank_zero(self, action: Callable[[], T]) -> T:
        """Run `action` on rank 0 and return its result on every rank, all of them waiting.

        Raises:
            ShimError, OSError: what `action` raised, on every rank, so that none waits for the others in vain.
        """
        if self._control is None:
            return action()
        return run_on_rank_zero(action, is_rank_zero=self.rank == 0, group=self._control)

    def close(self) -> None:
        """Leave the process group, where it was made here."""
        if self._own is not None:
            self._own.close()

    def _reduced(self, values: Sequence[float], operation: dist.ReduceOp.RedOpType) -> list[float]:
        if self._control is None:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(tensor, operation, group=self._control)
        return tensor.tolist()
