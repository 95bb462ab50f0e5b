"""The free resources of each node, indexed so that a fitting node is found without a scan of all nodes.

Unlike a ``CapacityPool``, which counts amounts on sets of nodes, this index knows every node.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from metasched.capacity.shapes import interchangeable_nodes, units_within
from metasched.core.model import Job, Node, Placement


class Resources(NamedTuple):
    """GPUs, CPUs and bytes of memory that a job takes on one node."""

    gpus: int
    cpus: int
    memory: int

    @classmethod
    def of(cls, job: Job, gpus: int) -> Resources:
        """The resources that a job takes on a node for that many GPUs there."""
        return cls(gpus, job.node_cpus(gpus), job.node_memory(gpus))

    def masked(self, kinds: Resources) -> Resources:
        """The same, with those kinds of resources set to 0 that are 0 in ``kinds``; the others are 1 there."""
        return Resources(self.gpus * kinds.gpus, self.cpus * kinds.cpus, self.memory * kinds.memory)


class NodeIndex:
    """A cluster's nodes, numbered in the order of their names; independent of jobs, so rounds can share it.

    Attributes:
        nodes: nodes by number.
        number: node numbers by name.
        gpus, cpus, memory: resources of each node for metasched's jobs, by number.
        widest: by GPU type, the most GPUs on one node.
        types: GPU types, sorted.
        has_racks: whether the rack of any node is known.
    """

    def __init__(self, nodes: Iterable[Node]) -> None:
        self.nodes = sorted(nodes, key=lambda node: node.name)
        self.number = {node.name: i for i, node in enumerate(self.nodes)}
        self.gpus = [node.gpus for node in self.nodes]
        self.cpus = [node.cpus for node in self.nodes]
        self.memory = [node.memory for node in self.nodes]
        self.widest: dict[str, int] = {}
        for node in self.nodes:
            if node.gpu_type is not None:
                self.widest[node.gpu_type] = max(node.gpus, self.widest.get(node.gpu_type, 0))
        self.types = sorted(self.widest)
        self.has_racks = any(node.rack is not None for node in self.nodes)
        self._without_names = self._group(frozenset())

    def groups(self, named: frozenset[str]) -> list[list[int]]:
        """Numbers of the nodes that accept jobs, in groups of interchangeable ones; ``named``: nodes that jobs name."""
        return self._group(named) if named else self._without_names

    def _group(self, named: frozenset[str]) -> list[list[int]]:
        return [[self.number[node.name] for node in group] for group in interchangeable_nodes(self.nodes, named)]


class NodeGroup:
    """Interchangeable nodes that accept jobs, sorted by their free resources.

    Attributes:
        example: any node of the group.
        gpu_type: the GPU type of its nodes; None for nodes without GPUs.
        numbers: the nodes' numbers.
        by_gpus: (free GPUs, node number) of nodes with free GPUs, ascending; None until it is needed.
        by_cpus: (free CPUs, node number) of all nodes, ascending; None until it is needed.
    """

    __slots__ = ("by_cpus", "by_gpus", "example", "gpu_type", "numbers")

    def __init__(self, example: Node, numbers: list[int]) -> None:
        self.example = example
        self.gpu_type = example.gpu_type
        self.numbers = numbers
        self.by_gpus: list[tuple[int, int]] | None = None
        self.by_cpus: list[tuple[int, int]] | None = None


class FreeResources:
    """The free resources of each node, by node number, and the groups of nodes.

    Attributes:
        nodes: nodes by number.
        number: node numbers by name.
        gpus, cpus, memory: free resources of each node; negative where jobs hold more than the node has.
        groups: groups of interchangeable nodes that accept jobs.
        group: the group of each node; None for a node that accepts no jobs.
    """

    def __init__(self, node_index: NodeIndex, named: frozenset[str]) -> None:
        self.nodes = node_index.nodes
        self.number = node_index.number
        self.gpus = node_index.gpus.copy()
        self.cpus = node_index.cpus.copy()
        self.memory = node_index.memory.copy()
        self._total: dict[str | None, int] | None = None  # GPUs by type; None until it is needed
        self.groups: list[NodeGroup] = []
        self.group: list[NodeGroup | None] = [None] * len(node_index.nodes)
        self._matching: dict[object, list[NodeGroup]] = {}
        for numbers in node_index.groups(named):
            group = NodeGroup(node_index.nodes[numbers[0]], numbers)
            self.groups.append(group)
            for i in numbers:
                self.group[i] = group

    @property
    def total(self) -> Mapping[str | None, int]:
        """Free GPUs by type, on nodes that accept jobs; a node with negative free GPUs counts as 0."""
        if self._total is None:
            self._total, gpus = {}, self.gpus
            for group in self.groups:
                free = sum([gpus[i] for i in group.numbers if gpus[i] > 0])
                self._total[group.gpu_type] = self._total.get(group.gpu_type, 0) + free
        return self._total

    def matching(self, job: Job, gpu_type: str | None = None) -> list[NodeGroup]:
        """The groups whose nodes suit the job; only those of one GPU type, if it is given."""
        key = (gpu_type, job.gpus > 0, *job.constraints)
        found = self._matching.get(key)
        if found is None:
            found = [g for g in self.groups if job.matches(g.example) and gpu_type in (None, g.gpu_type)]
            self._matching[key] = found
        return found

    def fits(self, i: int, load: Resources) -> bool:
        """Whether the free resources of node i suffice for a load."""
        return self.gpus[i] >= load.gpus and self.cpus[i] >= load.cpus and self.memory[i] >= load.memory

    def units(self, i: int, job: Job) -> int:
        """Free GPUs of node i for which its free CPUs and memory suffice, too, by the job's needs for each GPU."""
        return units_within(job, self.gpus[i], self.cpus[i], self.memory[i])

    def take_all(self, holders: Iterable[tuple[Job, Placement]]) -> None:
        """Take the resources of running jobs, before the first search, while there are no sorted lists to update.

        Args:
            holders: jobs with their placements, none of them uneven; nodes that no longer exist are ignored.
        """
        gpus, cpus, memory, number = self.gpus, self.cpus, self.memory, self.number
        for job, place in holders:
            each = place.gpus_per_node
            units = each or 1
            for name in place.nodes:
                i = number.get(name)
                if i is not None:
                    gpus[i] -= each
                    cpus[i] -= job.cpus_per_unit * units
                    memory[i] -= job.memory_per_unit * units

    def change(self, i: int, load: Resources, sign: int) -> None:
        """Take a load from node i (sign -1) or give it back (+1)."""
        gpus, cpus = self.gpus[i], self.cpus[i]
        self.gpus[i] = after = gpus + sign * load.gpus
        self.cpus[i] = cpus + sign * load.cpus
        self.memory[i] += sign * load.memory
        group = self.group[i]
        if group is None:
            return
        if load.gpus:
            if self._total is not None:
                self._total[group.gpu_type] += max(after, 0) - max(gpus, 0)
            if group.by_gpus is not None:
                if gpus > 0:
                    del group.by_gpus[bisect_left(group.by_gpus, (gpus, i))]
                if after > 0:
                    insort(group.by_gpus, (after, i))
        if load.cpus and group.by_cpus is not None:
            del group.by_cpus[bisect_left(group.by_cpus, (cpus, i))]
            insort(group.by_cpus, (self.cpus[i], i))

    def candidates(self, groups: Iterable[NodeGroup], load: Resources) -> Iterator[int]:
        """Numbers of nodes with enough free GPUs (CPU-only: CPUs), tightest fit first, GPU nodes last for CPU-only."""
        if load.gpus:
            yield from _merged([self._at_least_gpus(group, load.gpus) for group in groups])
        else:
            cpu_groups = [group for group in groups if group.gpu_type is None]
            gpu_groups = [group for group in groups if group.gpu_type is not None]
            for some in (cpu_groups, gpu_groups):
                yield from _merged([self._at_least_cpus(group, load.cpus) for group in some])

    def _at_least_gpus(self, group: NodeGroup, least: int) -> list[tuple[int, int]]:
        if group.by_gpus is None:
            gpus = self.gpus
            group.by_gpus = sorted([(gpus[i], i) for i in group.numbers if gpus[i] > 0])
        return group.by_gpus[bisect_left(group.by_gpus, (least, -1)) :]

    def _at_least_cpus(self, group: NodeGroup, least: int) -> list[tuple[int, int]]:
        if group.by_cpus is None:
            group.by_cpus = sorted((self.cpus[i], i) for i in group.numbers)
        return group.by_cpus[bisect_left(group.by_cpus, (least, -1)) :]

    def names(self, numbers: Iterable[int]) -> tuple[str, ...]:
        """The names of nodes, by their numbers."""
        return tuple([self.nodes[i].name for i in numbers])

    def numbers(self, place: Placement) -> list[int]:
        """The numbers of a placement's nodes; nodes that no longer exist are left out."""
        number = self.number
        return [number[name] for name in place.nodes if name in number]


def _merged(ascending: list[list[tuple[int, int]]]) -> Iterator[int]:
    return (i for _, i in (ascending[0] if len(ascending) == 1 else heapq.merge(*ascending)))
