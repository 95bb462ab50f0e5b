"""All ranks in a process group of their own, to agree on a save that runs beside the training.

Collectives of two threads must not meet in one group.
"""

from __future__ import annotations

from typing import Any, Callable, TypeVar

import torch.distributed as dist

from trainer_shim.process_groups.trainer_group import SUSPENSION, on_first

T = TypeVar("T")


class Team:
    """Made on all ranks at once. `first` is whether this is rank 0."""

    def __init__(self) -> None:
        self.group = dist.new_group(backend="gloo", timeout=SUSPENSION)
        self.first = dist.get_rank() == 0

    def from_first(self, action: Callable[[], T]) -> T:
        """Run `action` on rank 0 and return its result on every rank.

        Raises:
            ShimError, OSError: what `action` raised, on every rank.
        """
        return on_first(action, first=self.first, group=self.group)

    def everyones(self, value: T) -> list[T]:
        """The ranks' values, by rank."""
        values: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(values, value, group=self.group)
        return values
