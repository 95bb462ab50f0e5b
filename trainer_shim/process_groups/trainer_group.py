"""The process group, and the few collectives that the shim needs."""

from __future__ import annotations

import contextlib
import math
import os
import resource
from datetime import timedelta
from typing import TYPE_CHECKING, Callable, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from trainer_shim.errors import ShimError
from trainer_shim.process_groups.rendezvous import rendezvous
from trainer_shim.process_groups.watchdog import Watchdog, announce_first_failure

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from trainer_shim.environment.world import World

# While a job is suspended the clocks of gloo and NCCL go on, and a collective that was under way must not find that its
# time is up. Neither gives more time to one that has begun, so hangs are our watchdog's affair.
COLLECTIVE_TIMEOUT = timedelta(days=7)

T = TypeVar("T")


def run_on_rank_zero(
    action: Callable[[], T],
    *,
    is_rank_zero: bool,
    group: dist.ProcessGroup | None,
    busy: AbstractContextManager[object] | None = None,
    waiting: AbstractContextManager[object] | None = None,
) -> T:
    """Run `action` on the first rank and return its result on every rank of the group, all of them waiting.

    Args:
        action: what to do.
        is_rank_zero: whether this is the first rank.
        group: of the ranks.
        busy: entered by the first rank for the action.
        waiting: entered by all ranks while the result travels.

    Raises:
        ShimError, OSError: what `action` raised, on every rank, so that none waits for the others in vain.
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


class PendingVote:
    """Votes that are being summed over the ranks while other work goes on."""

    def __init__(self, votes: list[int], group: dist.ProcessGroup | None, watchdog: Watchdog) -> None:
        self._watchdog = watchdog
        self._votes = torch.tensor(votes)
        self._work = dist.all_reduce(self._votes, group=group, async_op=True)

    def result(self) -> list[int]:
        """Wait for every rank's votes; the same sums on all of them."""
        with self._watchdog.armed("a vote"):
            self._work.wait()
        return self._votes.tolist()


class TrainerGroup:
    """All processes of this trainer; also of a single one, so that a script is the same at every size.

    Decisions travel over gloo even where gradients travel over NCCL: a vote must not wait for the GPU's queue.
    """

    def __init__(self, world: World, collective_timeout: float | None = None) -> None:
        os.environ.update(world.variables())
        self.rank = world.rank
        self.size = world.size
        if torch.cuda.is_available():
            # A task sees all GPUs of its node, or only its own.
            self.device = torch.device("cuda", world.local_rank % torch.cuda.device_count())
            torch.cuda.set_device(self.device)
        else:
            self.device = torch.device("cpu")
        on_gpu = self.device.type == "cuda"
        self.watchdog = Watchdog(collective_timeout if world.size > 1 else None, world.rank, world.size)
        with self.watchdog.armed("the start of the process group"):
            store = rendezvous(world, self.device, os.environ)
            dist.init_process_group(
                "nccl" if on_gpu else "gloo",
                store=store,
                rank=world.rank,
                world_size=world.size,
                timeout=COLLECTIVE_TIMEOUT,
            )
            self._control = dist.new_group(backend="gloo", timeout=COLLECTIVE_TIMEOUT) if on_gpu else dist.group.WORLD
        if world.size > 1:
            attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")  # torchrun's store may outlive its workers
            self.watchdog.store = PrefixStore(f"trainer_shim/watchdog/{attempt}", store)
            announce_first_failure(self.watchdog.store, world.rank)

    def vote(self, votes: list[int]) -> PendingVote:
        """Start to sum `votes` over the ranks."""
        return PendingVote(votes, self._control, self.watchdog)

    def earliest(self, instant: float | None) -> float | None:
        """The least of the ranks' instants, None where all are None."""
        least = torch.tensor(math.inf if instant is None else instant, dtype=torch.float64)
        with self.watchdog.armed("a vote"):
            dist.all_reduce(least, dist.ReduceOp.MIN, group=self._control)
        return least.item() if least.isfinite() else None

    def sum_tensor(self, values: torch.Tensor) -> list[float]:
        """The sums over the ranks of values on this rank's device, in place."""
        with self.watchdog.armed("a sum"):
            dist.all_reduce(values)
            return values.tolist()

    def synchronize(self) -> None:
        """Wait until the device has done what it was given: on a GPU, the host runs ahead of it."""
        if self.device.type == "cuda":
            with self.watchdog.armed("the work of the GPU"):
                torch.cuda.synchronize(self.device)

    def peak_bytes(self) -> int:
        """The most memory that this rank has used so far: of its GPU, or without one what was resident."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def on_rank_zero(self, action: Callable[[], T]) -> T:
        """Run `action` on rank 0 and return its result on every rank, all of them waiting.

        Raises:
            ShimError, OSError: what `action` raised, on every rank, so that none waits for the others in vain.
        """
        return run_on_rank_zero(
            action,
            is_rank_zero=self.rank == 0,
            group=self._control,
            busy=self.watchdog.busy(),
            waiting=self.watchdog.armed("what rank 0 decides"),
        )

    def close(self) -> None:
        """Leave the process group, unless the script has already done so."""
        self.watchdog.close()
        if dist.is_initialized():
            dist.destroy_process_group()
