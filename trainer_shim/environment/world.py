"""The world of ranks, and this process's place in it: from torchrun's variables, from srun's, or a world of one."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, NamedTuple

from trainer_shim.environment.job import integer
from trainer_shim.errors import VariableError

if TYPE_CHECKING:
    from collections.abc import Mapping

FIRST_PORT, PORTS = 20_000, 12_000  # below the ephemeral range
CANDIDATES = 8  # ports that ranks derive; one may be in use on a node that jobs share
# Variables that are equal on every rank of a step, and differ in another step, run or cluster. Clusters on one host may
# have the same name, but two sruns never have the same launcher port. (SLURM_SRUN_COMM_PORT differs between nodes.)
_STEP = (
    "SLURM_CLUSTER_NAME",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "SLURM_RESTART_COUNT",
    "SLURM_STEP_LAUNCHER_PORT",
)


class Master(NamedTuple):
    """The address of the rendezvous.

    Attributes:
        address: the host of rank 0.
        ports: the candidates, of which rank 0 uses the first free one.
        name: distinguishes this world from others on the same host; None where the port is given.
    """

    address: str
    ports: tuple[int, ...]
    name: str | None = None


class World(NamedTuple):
    """A process's place in the world of ranks.

    Attributes:
        rank: this process's number, from 0.
        size: the number of processes.
        local_rank: this process's number on its node, from 0.
        master: the address of the rendezvous, None for a single process.
    """

    rank: int
    size: int
    local_rank: int
    master: Master | None

    def variables(self) -> dict[str, str]:
        """Return the same as torchrun's variables, for code that reads those."""
        found = {"RANK": str(self.rank), "WORLD_SIZE": str(self.size), "LOCAL_RANK": str(self.local_rank)}
        if self.master:
            found |= {"MASTER_ADDR": self.master.address, "MASTER_PORT": str(self.master.ports[0])}
        return found


def find_world(environ: Mapping[str, str]) -> World:
    """Find the world in `environ`.

    RANK and WORLD_SIZE come first, because under torchrun in srun both families are set. SLURM_STEP_NUM_TASKS
    distinguishes a task of srun from a batch script, which also has a SLURM_PROCID.

    Raises:
        VariableError: variables are missing or contradict each other.
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


def launch_warning(environ: Mapping[str, str], world: World) -> str | None:
    """Return a warning if the way in which the script was started looks like a mistake, else None."""
    if "SLURM_STEP_NUM_TASKS" not in environ:
        tasks = environ.get("SLURM_NTASKS", "1")
        if world.size == 1 and "RANK" not in environ and tasks != "1":
            return f"one process trains in a Slurm job of {tasks} tasks: start the script with metasched-run or srun"
        return None
    tasks = environ["SLURM_STEP_NUM_TASKS"]
    launchers = environ.get("GROUP_WORLD_SIZE", str(world.size))  # torchrun's own processes
    if "RANK" in environ and tasks.isdigit() and launchers.isdigit() and int(launchers) < int(tasks):
        return (
            f"the Slurm step has {tasks} tasks, and this is one of several worlds in it, of {world.size} ranks: "
            "RANK and WORLD_SIZE are set for each task, or torchrun is started once for each GPU instead of each node"
        )
    return None


def _master(environ: Mapping[str, str]) -> Master:
    address = environ.get("MASTER_ADDR") or environ.get("SLURM_LAUNCH_NODE_IPADDR")
    if not address:
        raise VariableError("MASTER_ADDR is not set: it must name the host of rank 0")
    port = integer(environ, "MASTER_PORT")
    if "RANK" in environ:
        if port is None:
            raise VariableError("MASTER_PORT is not set: it must be a free port of the host of rank 0")
        return Master(address, (port,))
    step = ".".join(environ.get(key, "0") for key in _STEP)
    digest = hashlib.blake2b(step.encode(), digest_size=4 * CANDIDATES).digest()
    derived = [FIRST_PORT + int.from_bytes(digest[at : at + 4], "little") % PORTS for at in range(0, len(digest), 4)]
    return Master(address, (*([] if port is None else [port]), *derived), digest.hex())


def _required(environ: Mapping[str, str], name: str) -> int:
    value = integer(environ, name)
    if value is None:
        raise VariableError(f"{name} is not set, but related variables are: start the script with srun or torchrun")
    return value
