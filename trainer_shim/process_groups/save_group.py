"""The process group for saves that run while training goes on.

The collectives of two threads must not share one process group.
"""

from __future__ import annotations

from typing import Any, Callable, TypeVar

import torch.distributed as dist

from trainer_shim.process_groups.rank_group import COLLECTIVE_TIMEOUT, run_on_rank_zero

T = TypeVar("T")


class SaveGroup:
    """A gloo group of all ranks for the thread that saves. The constructor is collective.

    Attributes:
        process_group: the torch process group.
        is_rank_zero: whether this process is rank 0.
    """

    def __init__(self) -> None:
        self.process_group = dist.new_group(backend="gloo", timeout=COLLECTIVE_TIMEOUT)
        self.is_rank_zero = dist.get_rank() == 0

    def on_rank_zero(self, action: Callable[[], T]) -> T:
        """Run `action` on rank 0 and return its result on every rank.

        Raises:
            ShimError, OSError: the error that `action` raised, on every rank.
        """
        return run_on_rank_zero(action, is_rank_zero=self.is_rank_zero, group=self.process_group)

    def all_gather(self, value: T) -> list[T]:
        """Return every rank's value, by rank. Collective."""
        values: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(values, value, group=self.process_group)
        return values
