"""The cluster's nodes and their GPUs, as jobs are read by them: who holds what, and who sits on which GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from metasched.core.model import Node, Placement
from metasched.observe.reservations import Reservations
from metasched.scheduling.gpu_shards import GpuShards
from metasched.slurm.client import JobState, SlurmJob, SlurmNode


@dataclass(frozen=True, slots=True)
class NodeInventory:
    """What the cluster's nodes are, as far as jobs are read by it.

    Attributes:
        gpu_type: of each node's GPUs.
        shards: into how many parts GPUs are given away; None for whole GPUs only.
        unshared: nodes with GPUs that are not given away in so many parts.
        seats: who has a part of which GPU.
        reservations: whose jobs may start where.
    """

    gpu_type: Mapping[str, str]
    shards: int | None
    unshared: frozenset[str]
    seats: GpuShards | None = None
    reservations: Reservations = field(default_factory=Reservations)

    @property
    def gpu_types(self) -> frozenset[str]:
        """All of them."""
        return frozenset(self.gpu_type.values())

    @classmethod
    def of(cls, nodes: Sequence[SlurmNode], reservations: Reservations | None = None) -> NodeInventory:
        """The nodes' own part of it."""
        kinds = {node.name: next(iter(node.gpus)) for node in nodes if len(node.gpus) == 1}
        counts = Counter(node.shards_per_gpu for node in nodes if node.name in kinds)
        even = [count for count in counts if count and count % 2 == 0]
        shards = max(even, key=lambda count: (counts[count], count), default=None)
        return cls(
            kinds,
            shards,
            frozenset(node.name for node in nodes if node.name in kinds and node.shards_per_gpu != shards),
            reservations=reservations or Reservations(),
        )

    def seated(
        self, nodes: Sequence[SlurmNode], jobs: Iterable[SlurmJob], ours: Mapping[str, SlurmJob], *, forgets: bool
    ) -> NodeInventory:
        """With who sits where; ``forgets`` as in ``GpuShards``."""
        if self.shards is None:
            return self
        shared = [node for node in nodes if node.name in self.gpu_type and node.name not in self.unshared]
        free = {node.name: [self.shards] * sum(node.gpus.values()) for node in shared}
        unsettled, whole = set(), set()
        for job in jobs:
            for name in free.keys() & job.allocated.keys():
                which = job.gpu_indices.get(name, ())
                if job.allocated[name] and (job.state is JobState.COMPLETING or not which):
                    unsettled.add(name)
                for gpu in which:
                    if name not in job.shards:
                        whole.add((name, gpu))
                    if gpu < len(free[name]):
                        free[name][gpu] = max(free[name][gpu] - job.shards.get(name, self.shards), 0)
        held = {
            uid: {name: which[0] for name, which in job.gpu_indices.items()}
            for uid, job in ours.items()
            if is_part(job, self.shards) and job.gpu_indices
        }
        frozen = {name: tuple(counts) for name, counts in free.items()}
        doubled = frozenset(uid for uid, seats in held.items() if whole & set(seats.items()))
        return replace(self, seats=GpuShards(self.shards, frozen, held, frozenset(unsettled), doubled, forgets))


def is_part(job: SlurmJob, shards: int | None) -> bool:
    """Whether it holds, or asks for, less than all shards of a GPU."""
    counts = list(job.shards.values()) or ([job.shards_per_node] if job.shards_per_node else [])
    return shards is not None and bool(counts) and max(counts) < shards


def observed_placement(job: SlurmJob, gpu_types: Mapping[str, str]) -> Placement | None:
    """What a job holds, or None where it holds nothing, GPUs of several types, or more on one node than on another.

    Args:
        job: as Slurm tells it.
        gpu_types: by node, since Slurm does not tell the type of a part of a GPU.
    """
    counts = set(job.allocated.values())
    if len(counts) != 1:
        return None
    (gpus_per_node,) = counts
    nodes = tuple(sorted(job.allocated))
    kind = gpu_types.get(nodes[0]) if job.shards else job.allocated_gpu_type
    if gpus_per_node and kind is None:
        return None
    return Placement(nodes=nodes, gpus_per_node=gpus_per_node, gpu_type=kind if gpus_per_node else None)


def usable(
    node: SlurmNode, others: Sequence[SlurmJob], ours_at: Collection[tuple[str, int]], rack: str | None = None
) -> Node:
    """What our jobs may use of a node: all of it but what other jobs hold.

    A GPU of which another job has a part is taken, unless one of ours has the rest of it already.
    """
    gpu_type = next(iter(node.gpus), None)
    holders = [job for job in others if node.name in job.allocated]
    known = {gpu for job in holders for gpu in job.gpu_indices.get(node.name, ())}
    untold = sum(job.allocated[node.name] for job in holders if not job.gpu_indices.get(node.name))
    taken = untold + sum((node.name, gpu) not in ours_at for gpu in known)
    return Node(
        name=node.name,
        gpu_type=gpu_type,
        gpus=max(0, sum(node.gpus.values()) - taken),
        cpus=max(0, node.cpus - sum(job.allocated_cpus.get(node.name, 0) for job in holders)),
        memory=max(0, node.memory - sum(job.allocated_memory.get(node.name, 0) for job in holders)),
        features=node.features,
        partitions=node.partitions,
        accepts=node.accepts,
        rack=rack,
    )
