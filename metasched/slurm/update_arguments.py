"""The arguments of ``scontrol update`` that give a pending job another size and other nodes. Pure."""

from __future__ import annotations

import re
from math import ceil

from metasched.slurm import field_parsers, hostlist
from metasched.slurm.client import Geometry
from metasched.slurm.errors import InvalidArgumentError

MIB = 2**20


def update_arguments(geometry: Geometry) -> tuple[list[str], list[str]]:
    """Return the arguments of two ``scontrol update`` commands, for size and nodes, for any form of request.

    Measured on Slurm 22.05, for every way in which sbatch lets a user ask for GPUs:

    - NumNodes=k-k: a bare k sets the minimum only.
    - NumTasks x CPUsPerTask must equal NumCPUs, and TasksPerNode must say how they spread, or the job ends in
      BadConstraints or gets its CPUs unevenly (7 + 1). MinCPUsNode of a request forbids a smaller size.
    - Empty TresPerJob, TresPerTask, TresPerSocket, CpusPerTres and MemPerTres remove these requests, after which
      ``Gres`` (per node) alone counts: a ``--gpus=4`` job is 2 + 2 for certain, and a ``--gpus-per-task`` job can be
      resized.
    - A request for GPUs cannot become one for shards, nor the reverse ("Invalid generic resource"), whatever is cleared
      before: Slurm keeps an empty entry of the old kind. The number of shards can change. (25.11 lets the kind change,
      too, but refuses CpusPerTres and MemPerTres, empty or not, without whole GPUs.)
    - MinMemoryNode: a smaller job would otherwise wait for the memory of its old size.
    - ReqNodeList in the second update: for a running job it means "shrink to these nodes". Slurm shrinks the job, or
      refuses all later updates of it. The first update fails for a running job without harm.
    - StartTime: a requeued job otherwise waits for two minutes, even after a release.

    Raises:
        InvalidArgumentError: the geometry contradicts itself, or holds a name that is no node's or no GPU type's.
    """
    nodes = len(geometry.nodes)
    if (
        not nodes
        or not all(field_parsers.is_node_name(name) for name in geometry.nodes)
        or len(set(geometry.nodes)) != nodes
    ):
        raise InvalidArgumentError(f"not a list of different node names: {list(geometry.nodes)!a:.200}")
    if geometry.tasks < 1 or geometry.tasks % nodes or geometry.cpus < 1 or geometry.cpus % geometry.tasks:
        raise InvalidArgumentError(
            f"{geometry.cpus} CPUs for {geometry.tasks} tasks on {nodes} nodes: each must be a multiple of the next"
        )
    if geometry.gpus_per_node < 0 or geometry.delay < 0:
        raise InvalidArgumentError(f"below zero: {geometry}")
    if geometry.shards_per_node is not None and (geometry.shards_per_node < 1 or geometry.gpus_per_node != 1):
        raise InvalidArgumentError(f"shards are parts of one GPU on each node: {geometry}")
    words = [
        f"NumNodes={nodes}-{nodes}",
        f"NumTasks={geometry.tasks}",
        f"TasksPerNode={geometry.tasks // nodes}",
        f"CPUsPerTask={geometry.cpus // geometry.tasks}",
        f"NumCPUs={geometry.cpus}",
        f"MinCPUsNode={geometry.cpus // nodes}",
    ]
    if geometry.memory_per_node is not None:
        words.append(f"MinMemoryNode={ceil(geometry.memory_per_node / MIB)}")
    if geometry.gpus_per_node:
        if geometry.gpu_type is not None and not re.fullmatch(r"[A-Za-z0-9_.+-]+", geometry.gpu_type, re.ASCII):
            raise InvalidArgumentError(f"not a GPU type: {geometry.gpu_type!a:.80}")
        kind = f"{geometry.gpu_type}:" if geometry.gpu_type else ""
        words += ["TresPerJob=", "TresPerTask=", "TresPerSocket="]
        if geometry.shards_per_node is None:
            words += ["CpusPerTres=", "MemPerTres=", f"Gres=gpu:{kind}{geometry.gpus_per_node}"]
        else:
            words.append(f"Gres=shard:{kind}{geometry.shards_per_node}")
    return words, [
        f"ReqNodeList={hostlist.compress(geometry.nodes)}",
        f"StartTime=now+{geometry.delay}" if geometry.delay else "StartTime=now",
    ]
