"""Where this process stands among those of its job: from torchrun's variables, from srun's, or alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from trainer_shim.errors import VariableError
from trainer_shim.job import integer

if TYPE_CHECKING:
    from collections.abc import Mapping


class World(NamedTuple):
    """A process's place. `master` is (address, port) of the meeting point, None for a process that is alone."""

    rank: int
    size: int
    local_rank: int
    master: tuple[str, int] | None

    def variables(self) -> dict[str, str]:
        """The same as torchrun's variables, for code that reads those."""
        found = {"RANK": self.rank, "WORLD_SIZE": self.size, "LOCAL_RANK": self.local_rank}
        if self.master:
            found["MASTER_ADDR"], found["MASTER_PORT"] = self.master  # type: ignore[assignment]
        return {name: str(value) for name, value in found.items()}


def find_world(environ: Mapping[str, str]) -> World:
    """Find the world in `environ`.

    RANK and WORLD_SIZE come first, because torchrun under srun sets both families. SLURM_STEP_NUM_TASKS tells a task
    of srun from a batch script, which has a SLURM_PROCID of its own.

    Raises:
        VariableError: half of a world is set.
    """
    if "RANK" in environ or "WORLD_SIZE" in environ:
        rank, size = _required(environ, "RANK"), _required(environ, "WORLD_SIZE")
        local_rank = integer(environ, "LOCAL_RANK")
    elif "SLURM_STEP_NUM_TASKS" in environ:
        rank, size = _required(environ, "SLURM_PROCID"), _required(environ, "SLURM_STEP_NUM_TASKS")
        local_rank = _required(environ, "SLURM_LOCALID")
    else:
        return World(rank=0, size=1, local_rank=0, master=None)
    if rank >= size:
        raise VariableError(f"rank {rank} in a world of {size}: ranks count from 0 to {size - 1}")
    master = _master(environ) if size > 1 else None
    return World(rank=rank, size=size, local_rank=rank if local_rank is None else local_rank, master=master)


def _master(environ: Mapping[str, str]) -> tuple[str, int]:
    address = environ.get("MASTER_ADDR") or environ.get("SLURM_LAUNCH_NODE_IPADDR")
    if not address:
        raise VariableError("MASTER_ADDR is not set: it must name the host of rank 0")
    port = integer(environ, "MASTER_PORT")
    if port is None:
        job = integer(environ, "SLURM_JOB_ID")
        if job is None:
            raise VariableError("MASTER_PORT is not set: it must be a free port of the host of rank 0")
        # Below the ephemeral range, and the same on every rank without a word between them.
        port = 20_000 + (job * 64 + (integer(environ, "SLURM_STEP_ID") or 0)) % 12_000
    return address, port


def _required(environ: Mapping[str, str], name: str) -> int:
    value = integer(environ, name)
    if value is None:
        raise VariableError(f"{name} is not set, but others of its family are: start the script with srun or torchrun")
    return value
