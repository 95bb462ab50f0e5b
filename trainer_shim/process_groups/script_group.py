"""The process group that the shim makes for scripts that own their training loop."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from trainer_shim.environment.world import World
from trainer_shim.process_groups.rank_group import COLLECTIVE_TIMEOUT, RankGroup, resident_peak_bytes
from trainer_shim.process_groups.rendezvous import rendezvous
from trainer_shim.process_groups.watchdog import Watchdog, announce_first_failure


class ScriptGroup(RankGroup):
    """All processes of this trainer. A single process has a process group, too: scripts are the same at every size.

    Decisions use gloo even where gradients use NCCL, because a vote must not wait for the GPU's queue.

    Attributes:
        device: the device on which this rank computes.
    """

    def __init__(self, world: World, collective_timeout: float | None = None) -> None:
        os.environ.update(world.variables())
        if torch.cuda.is_available():
            # A task sees all GPUs of its node, or only its own.
            self.device = torch.device("cuda", world.local_rank % torch.cuda.device_count())
            torch.cuda.set_device(self.device)
        else:
            self.device = torch.device("cpu")
        on_gpu = self.device.type == "cuda"
        watchdog = Watchdog(collective_timeout if world.size > 1 else None, world.rank, world.size)
        with watchdog.armed("the start of the process group"):
            store = rendezvous(world, self.device, os.environ)
            dist.init_process_group(
                "nccl" if on_gpu else "gloo",
                store=store,
                rank=world.rank,
                world_size=world.size,
                timeout=COLLECTIVE_TIMEOUT,
            )
            # A script may destroy its group, and free its model right after that. Torch would then wait for gloo's
            # threads while it holds Python's lock, and a thread that frees the last collective waits for that lock.
            self._kept_group = None if on_gpu else dist.group.WORLD
            control = None  # a process that is alone votes without gloo, whose threads could disturb a worker's fork
            if world.size > 1:
                control = dist.new_group(backend="gloo", timeout=COLLECTIVE_TIMEOUT) if on_gpu else dist.group.WORLD
        super().__init__(world.rank, world.size, control, watchdog)
        if world.size > 1:
            attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")  # torchrun's store may outlive its workers
            watchdog.store = PrefixStore(f"trainer_shim/watchdog/{attempt}", store)
            announce_first_failure(watchdog.store, world.rank)

    def synchronize(self) -> None:
        """Wait until the device has finished the work that this process has launched."""
        if self.device.type == "cuda":
            with self.watchdog.armed("the work of the GPU"):
                torch.cuda.synchronize(self.device)

    def peak_bytes(self) -> int:
        """Return the largest memory use of this rank so far, in bytes: of its GPU, or else of its resident set."""
        return torch.cuda.max_memory_allocated(self.device) if self.device.type == "cuda" else resident_peak_bytes()

    def close(self) -> None:
        """Destroy the process group, unless the script has already done so."""
        self.watchdog.close()
        self._latest_sums.clear()  # they hold connections of the group
        if dist.is_initialized():
            dist.destroy_process_group()
