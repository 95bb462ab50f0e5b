"""The nodes of a fake Slurm: their state, their reservations, and the resources that are free for jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from metasched.slurm.client import JobState, Reservation, SlurmJob, SlurmNode
from metasched.slurm.errors import SlurmCommandError

if TYPE_CHECKING:
    from tests.fakes.fake_slurm import FakeJob

MIB = 2**20


@dataclass(frozen=True)
class FakeNode:
    """One node of a FakeSlurm: memory in bytes, ``shards`` of each GPU (0: whole GPUs only), its switch or block."""

    name: str
    gpus: int = 4
    gpu_type: str = "v100"
    cpus: int = 16
    memory: int = 64000 * MIB
    partitions: frozenset[str] = frozenset({"main"})
    shards: int = 0
    rack: str | None = None


class FakeNodes:
    """All nodes of a FakeSlurm.

    Args:
        nodes: the nodes.
        jobs: all jobs by Slurm job id; the FakeSlurm changes this mapping and its records.

    Attributes:
        by_name: the nodes by name.
        down: names of the nodes that are lost.
        drained: names of the nodes that get no new jobs.
        reasons: why nodes were drained, by name.
        reservations: reservations by name.
        forgotten: GPUs, as (node, index), of which one of two jobs has ended: Slurm before 23.02 forgets then that the
            other job still holds the rest.
        leaked: GPUs, as (node, index), that Slurm counts as allocated although no job holds them.
    """

    def __init__(self, nodes: Sequence[FakeNode], jobs: Mapping[str, FakeJob]) -> None:
        self.by_name = {node.name: node for node in nodes}
        self.down: set[str] = set()
        self.drained: set[str] = set()
        self.reasons: dict[str, str] = {}
        self.reservations: dict[str, Reservation] = {}
        self.forgotten: set[tuple[str, int]] = set()
        self.leaked: set[tuple[str, int]] = set()
        self._jobs = jobs

    def shown(self, now: float) -> tuple[SlurmNode, ...]:
        """Return all nodes as Slurm would show them."""
        return tuple(self._shown(node, now) for node in self.by_name.values())

    def check_possible(self, job: SlurmJob) -> None:
        """Raise SlurmCommandError for a request that fits on no node, even an empty one."""
        nodes = self.by_name.values()
        if (job.gpus_per_node or 0) > max(node.gpus for node in nodes) or (job.shards_per_node or 0) > max(
            node.shards for node in nodes
        ):
            raise SlurmCommandError("sbatch: Requested node configuration is not available")

    def needs(self, job: SlurmJob, nodes: int) -> tuple[int, int, int]:
        """Return the GPUs, CPUs and bytes that the job needs on each of a number of nodes."""
        total = job.gpus_total or (job.gpus_per_task or 0) * job.tasks or (nodes if job.shards_per_node else 0)
        gpus = job.gpus_per_node if job.gpus_per_node is not None else -(-total // nodes)
        cpus = max(-(-job.cpus // nodes), (job.cpus_per_gpu or 0) * gpus)
        if job.memory_per_node is not None:
            return gpus, cpus, job.memory_per_node
        return gpus, cpus, job.memory_per_gpu * gpus if job.memory_per_gpu else (job.memory_per_cpu or 0) * cpus

    def choose(self, job: SlurmJob, now: float) -> tuple[str, ...] | None:
        """Return the nodes on which the job starts: those that it requires, or the first that fit; None for none."""
        wanted = job.required_nodes or tuple(self.by_name)
        number = len(job.required_nodes) or job.nodes_requested
        fit = [name for name in wanted if self._fits(self.by_name[name], job, self.needs(job, number), now)]
        return tuple(fit[:number]) if len(fit) >= number else None

    def choose_gpus(self, name: str, job: SlurmJob, gpus: int) -> tuple[int, ...] | None:
        """Return the indices of the GPUs that the job gets on a node: the first free ones; None where too few are."""
        free = self._free_units(name)
        if job.shards_per_node is not None:
            return next(((gpu,) for gpu, shards in enumerate(free) if shards >= job.shards_per_node), None)
        units = self.by_name[name].shards or 1
        whole = [gpu for gpu, shards in enumerate(free) if shards == units or (name, gpu) in self.forgotten]
        return tuple(whole[:gpus]) if len(whole) >= gpus else None

    def _on_node(self, name: str) -> list[SlurmJob]:
        return [job.shown for job in self._jobs.values() if name in job.shown.allocated]

    def _shown(self, node: FakeNode, now: float) -> SlurmNode:
        return SlurmNode(
            name=node.name,
            gpus={node.gpu_type: node.gpus} if node.gpus else {},
            cpus=node.cpus,
            memory=node.memory,
            accepts=node.name not in self.down | self.drained,
            features=frozenset({node.gpu_type}) if node.gpus else frozenset(),
            partitions=node.partitions,
            shards_per_gpu=node.shards,
            reason=self.reasons.get(node.name, ""),
            gpus_allocated=None if node.shards else self._free_units(node.name).count(0),
            reserved=any(node.name in one.nodes and one.start <= now < one.end for one in self.reservations.values()),
        )

    def _fits(self, node: FakeNode, job: SlurmJob, need: tuple[int, int, int], now: float) -> bool:
        on_node, (gpus, cpus, memory) = self._on_node(node.name), need
        computing = [other for other in on_node if other.state is not JobState.SUSPENDED]
        return (
            node.name not in self.down | self.drained
            and (not job.gpu_type or job.gpu_type == node.gpu_type)
            and self._lets_in(node.name, job, now)
            and not (job.exclusive and on_node)
            and self.choose_gpus(node.name, job, gpus) is not None
            and sum(other.allocated_cpus[node.name] for other in computing) + cpus <= node.cpus
            and sum(other.allocated_memory[node.name] for other in computing) + memory <= node.memory
        )

    def _lets_in(self, name: str, job: SlurmJob, now: float) -> bool:
        """Whether the reservations let a job start on a node."""
        names = set(filter(None, job.reservation.split(",")))
        until = now + (job.time_limit or inf)
        overlapping = {
            one.name: one
            for one in self.reservations.values()
            if name in one.nodes and now < one.end and one.start < until
        }
        has_begun = any(overlapping[one].start <= now for one in names & overlapping.keys())
        return has_begun if names else not overlapping

    def _free_units(self, name: str) -> list[int]:
        """Return the free shards of each GPU of a node; without shards a free GPU counts 1."""
        units = self.by_name[name].shards or 1
        free = [units] * self.by_name[name].gpus
        for job in self._jobs.values():
            for gpu in job.indices.get(name, ()):
                free[gpu] -= job.shown.shards.get(name, units)
        for gpu in (gpu for node, gpu in self.leaked if node == name):
            free[gpu] = 0
        return free
