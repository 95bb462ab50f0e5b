"""GPU types, shards and reservations of the cluster's nodes, and which job holds which GPU of a node. Pure."""

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
    """GPU types, shards and reservations of the nodes in one poll.

    Attributes:
        gpu_type: GPU type by node; nodes without GPUs, or with several types of them, are left out.
        shards: shards of each GPU, an even number; None where Slurm gives away whole GPUs only.
        unshared: nodes with GPUs whose number of shards differs from ``shards``.
        gpu_shards: which job holds shards of which GPU; None where Slurm gives away whole GPUs only.
        reservations: Slurm's reservations at the instant of the poll.
    """

    gpu_type: Mapping[str, str]
    shards: int | None
    unshared: frozenset[str]
    gpu_shards: GpuShards | None = None
    reservations: Reservations = field(default_factory=Reservations)

    def describes_jobs_like(self, other: NodeInventory) -> bool:
        """Whether every job has the same description under both inventories, but for the seconds of reservations."""
        if self is other:
            return True
        own = (self.gpu_type, self.shards, self.unshared, self.reservations.phase)
        shards, theirs = self.gpu_shards, other.gpu_shards
        return own == (other.gpu_type, other.shards, other.unshared, other.reservations.phase) and (
            (None if shards is None else shards.co_runners) == (None if theirs is None else theirs.co_runners)
        )

    @property
    def gpu_types(self) -> frozenset[str]:
        """The GPU types of the cluster."""
        return frozenset(self.gpu_type.values())

    @classmethod
    def of(cls, nodes: Sequence[SlurmNode], reservations: Reservations | None = None) -> NodeInventory:
        """Build the inventory from what Slurm lists of the nodes, without the jobs' GPU shards."""
        gpu_type = {node.name: next(iter(node.gpus)) for node in nodes if len(node.gpus) == 1}
        counts = Counter(node.shards_per_gpu for node in nodes if node.name in gpu_type)
        even = [count for count in counts if count and count % 2 == 0]
        shards = max(even, key=lambda count: (counts[count], count), default=None)
        return cls(
            gpu_type,
            shards,
            frozenset(node.name for node in nodes if node.name in gpu_type and node.shards_per_gpu != shards),
            reservations=reservations or Reservations(),
        )

    def with_shards(
        self, nodes: Sequence[SlurmNode], jobs: Iterable[SlurmJob], ours: Mapping[str, SlurmJob], *, forgets: bool
    ) -> NodeInventory:
        """Add which job holds shards of which GPU, where Slurm gives away shards.

        Args:
            nodes: every node that Slurm lists.
            jobs: every job that Slurm lists.
            ours: metasched's jobs, by uid.
            forgets: see ``GpuShards``.
        """
        if self.shards is None:
            return self
        shared = [node for node in nodes if node.name in self.gpu_type and node.name not in self.unshared]
        free = {node.name: [self.shards] * sum(node.gpus.values()) for node in shared}
        unsettled, whole = set(), set()
        for job in jobs:
            for name in free.keys() & job.allocated.keys():
                indices = job.gpu_indices.get(name, ())
                if job.allocated[name] and (job.state is JobState.COMPLETING or not indices):
                    unsettled.add(name)
                for gpu in indices:
                    if name not in job.shards:
                        whole.add((name, gpu))
                    if gpu < len(free[name]):
                        free[name][gpu] = max(free[name][gpu] - job.shards.get(name, self.shards), 0)
        held = {
            uid: {name: indices[0] for name, indices in job.gpu_indices.items()}
            for uid, job in ours.items()
            if has_part_of_gpu(job, self.shards) and job.gpu_indices
        }
        frozen = {name: tuple(counts) for name, counts in free.items()}
        doubled = frozenset(uid for uid, gpus in held.items() if whole & set(gpus.items()))
        return replace(self, gpu_shards=GpuShards(self.shards, frozen, held, frozenset(unsettled), doubled, forgets))


def has_part_of_gpu(job: SlurmJob, shards: int | None) -> bool:
    """Whether the job holds, or asks for, fewer than all shards of a GPU.

    Args:
        job: as Slurm lists it.
        shards: shards of each GPU; None where Slurm gives away whole GPUs only.
    """
    counts = list(job.shards.values()) or ([job.shards_per_node] if job.shards_per_node else [])
    return shards is not None and bool(counts) and max(counts) < shards


def observed_placement(job: SlurmJob, gpu_types: Mapping[str, str]) -> Placement | None:
    """Return the job's allocation; None for no GPUs or nodes, several GPU types, or uneven numbers on its nodes.

    Args:
        job: as Slurm lists it.
        gpu_types: GPU type by node, since Slurm does not list the type of a GPU of which the job holds shards.
    """
    counts = set(job.allocated.values())
    if len(counts) != 1:
        return None
    (gpus_per_node,) = counts
    nodes = tuple(sorted(job.allocated))
    gpu_type = gpu_types.get(nodes[0]) if job.shards else job.allocated_gpu_type
    if gpus_per_node and gpu_type is None:
        return None
    return Placement(nodes=nodes, gpus_per_node=gpus_per_node, gpu_type=gpu_type if gpus_per_node else None)


def usable_node(
    node: SlurmNode,
    others: Sequence[SlurmJob],
    our_gpus: Collection[tuple[str, int]],
    rack: str | None = None,
    leaked: int = 0,
) -> Node:
    """Return the node with the resources that metasched's jobs may use: all but those that other jobs hold.

    Args:
        node: as Slurm lists it.
        others: the jobs that metasched does not schedule.
        our_gpus: node and index of each GPU of which a job of metasched holds all or some shards. Where another job
            holds the other shards, the GPU still counts as usable.
        rack: the node's leaf switch or block; None where Slurm knows no topology.
        leaked: GPUs that Slurm counts as allocated although no job holds them: Slurm starts nothing on them.
    """
    gpu_type = next(iter(node.gpus), None)
    holders = [job for job in others if node.name in job.allocated]
    indices = {gpu for job in holders for gpu in job.gpu_indices.get(node.name, ())}
    without_index = sum(job.allocated[node.name] for job in holders if not job.gpu_indices.get(node.name))
    taken = leaked + without_index + sum((node.name, gpu) not in our_gpus for gpu in indices)
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
