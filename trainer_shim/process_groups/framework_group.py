"""The process group of a training whose loop belongs to a framework."""

from __future__ import annotations

import torch
import torch.distributed as dist

from trainer_shim.environment.world import World
from trainer_shim.process_groups.rank_group import COLLECTIVE_TIMEOUT, RankGroup, resident_peak_bytes
from trainer_shim.process_groups.script_group import ScriptGroup
from trainer_shim.process_groups.watchdog import Watchdog


class FrameworkGroup(RankGroup):
    """The framework's process group if there is one, else a group that the shim makes for both.

    A single process gets no process group, because a framework would then act as if it were distributed. The shim's
    collectives use a gloo group apart from the framework's collectives.
    """

    def __init__(self, world: World) -> None:
        joined = dist.is_available() and dist.is_initialized()
        self._own = ScriptGroup(world) if world.size > 1 and not joined else None
        distributed = joined or self._own is not None
        rank, size = (dist.get_rank(), dist.get_world_size()) if distributed else (0, 1)
        control = dist.new_group(backend="gloo", timeout=COLLECTIVE_TIMEOUT) if distributed else None
        super().__init__(rank, size, control, Watchdog(None, rank, size))

    def synchronize(self) -> None:
        """Wait until the GPU, if this process uses one, has finished the work that was launched."""
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.synchronize()

    def peak_bytes(self) -> int:
        """Return the largest memory use of this rank so far, in bytes: of its GPU, or else of its resident set."""
        on_gpu = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        return torch.cuda.max_memory_allocated() if on_gpu else resident_peak_bytes()

    def close(self) -> None:
        """Destroy the process group, where the shim has made it."""
        self._latest_sums.clear()  # they hold connections of the group
        if self._own is not None:
            self._own.close()
