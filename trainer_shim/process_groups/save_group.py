"""All ranks in a process group of their own, to agree on a save that runs beside the training.

Collectives of two threads must not meet in one group.
"""

from __future__ import annotations

from typing import Any, Callable, TypeVar

import torch.distributed as dist

from trainer_shim.process_groups.rank_group import COLLECTIVE_TIMEOUT, run_on_rank_zero

T = TypeVar("T")


class SaveGroup:
    """Made on all ranks at once. `is_rank_zero` is whether this is rank 0."""

    def __init__(self) -> None:
        self.process_group = dist.new_group(backend="gloo", timeout=COLLECTIVE_TIMEOUT)
        self.is_rank_zero = dist.get_rank() == 0

    def on_rank_zero(self, action: Callable[[], T]) -> T:
        """Run `action` on rank 0 and return its result on every rank.

        Raises:
            ShimError, OSError: what `action` raised, on every rank.
        """
        return run_on_rank_zero(action, is_rank_zero=self.is_rank_zero, group=self.process_group)

    def all_gather(self, value: T) -> list[T]:
        """The ranks' values, by rank."""
        values: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(values, value, group=self.process_group)
        return values
