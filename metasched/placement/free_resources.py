"""What is free on each node, indexed so that a fitting node is found without looking at all of them."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from metasched.capacity.shapes import interchangeable_nodes, units_within
from metasched.core.model import Job, Node, Placement


class Resources(NamedTuple):
    """What a job takes on one node."""

    gpus: int
    cpus: int
    memory: int

    @classmethod
    def of(cls, job: Job, gpus: int) -> Resources:
        """What it takes on a node for that many GPUs."""
        return cls(gpus, job.node_cpus(gpus), job.node_memory(gpus))

    def part(self, share: Resources) -> Resources:
        """Those kinds of resources that are 1 in the share, without those that are 0."""
        return Resources(self.gpus * share.gpus, self.cpus * share.cpus, self.memory * share.memory)


class NodeIndex:
    """A cluster's nodes, numbered in the order of their names: what stays the same while jobs come and go."""

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
        self._alike = self._kinds(frozenset())

    def kinds(self, named: frozenset[str]) -> list[list[int]]:
        """Accepting nodes that no job tells apart, if the named ones are all that jobs call by name."""
        return self._kinds(named) if named else self._alike

    def _kinds(self, named: frozenset[str]) -> list[list[int]]:
        return [[self.number[node.name] for node in kind] for kind in interchangeable_nodes(self.nodes, named)]


class Group:
    """Accepting nodes that no job tells apart."""

    __slots__ = ("by_cpus", "by_gpus", "example", "gpu_type", "numbers")

    def __init__(self, example: Node, numbers: list[int]) -> None:
        self.example = example
        self.gpu_type = example.gpu_type
        self.numbers = numbers
        # Sorted, once somebody has asked: (free GPUs, node) of those that have any, and (free CPUs, node) of all.
        self.by_gpus: list[tuple[int, int]] | None = None
        self.by_cpus: list[tuple[int, int]] | None = None


class FreeResources:
    """What is free on each node."""

    def __init__(self, ground: NodeIndex, named: frozenset[str]) -> None:
        self.nodes = ground.nodes
        self.number = ground.number
        self.gpus = ground.gpus.copy()
        self.cpus = ground.cpus.copy()
        self.memory = ground.memory.copy()
        self._total: dict[str | None, int] | None = None  # GPUs by type, once somebody has asked
        self.groups: list[Group] = []
        self.group: list[Group | None] = [None] * len(ground.nodes)
        self._matching: dict[object, list[Group]] = {}
        for numbers in ground.kinds(named):
            group = Group(ground.nodes[numbers[0]], numbers)
            self.groups.append(group)
            for i in numbers:
                self.group[i] = group

    @property
    def total(self) -> Mapping[str | None, int]:
        """GPUs by type, on nodes that accept jobs; a node that holds more than it has lacks nothing elsewhere."""
        if self._total is None:
            self._total, gpus = {}, self.gpus
            for group in self.groups:
                free = sum([gpus[i] for i in group.numbers if gpus[i] > 0])
                self._total[group.gpu_type] = self._total.get(group.gpu_type, 0) + free
        return self._total

    def matching(self, job: Job, gpu_type: str | None = None) -> list[Group]:
        """Groups whose nodes suit the job; of one GPU type, if it is given."""
        key = (gpu_type, job.gpus > 0, *job.constraints)
        found = self._matching.get(key)
        if found is None:
            found = [g for g in self.groups if job.matches(g.example) and gpu_type in (None, g.gpu_type)]
            self._matching[key] = found
        return found

    def fits(self, i: int, load: Resources) -> bool:
        """Whether node i can take the load now."""
        return self.gpus[i] >= load.gpus and self.cpus[i] >= load.cpus and self.memory[i] >= load.memory

    def units(self, i: int, job: Job) -> int:
        """GPUs of node i that a job could have now, with the CPUs and the memory that it needs for each."""
        return units_within(job, self.gpus[i], self.cpus[i], self.memory[i])

    def hold(self, holders: Iterable[tuple[Job, Placement]]) -> None:
        """Take what jobs have, before anything is searched: there is no order of the nodes to be kept yet.

        A node that is gone has nothing to be taken; no place may be uneven.
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

    def candidates(self, groups: Iterable[Group], load: Resources) -> Iterator[int]:
        """Nodes with enough free GPUs (CPU-only: CPUs), tightest fit first; a CPU-only load spares GPU nodes."""
        if load.gpus:
            yield from _merged([self._tail(group, load.gpus) for group in groups])
        else:
            without = [group for group in groups if group.gpu_type is None]
            having = [group for group in groups if group.gpu_type is not None]
            for some in (without, having):
                yield from _merged([self._cpu_tail(group, load.cpus) for group in some])

    def _tail(self, group: Group, least: int) -> list[tuple[int, int]]:
        if group.by_gpus is None:
            gpus = self.gpus
            group.by_gpus = sorted([(gpus[i], i) for i in group.numbers if gpus[i] > 0])
        return group.by_gpus[bisect_left(group.by_gpus, (least, -1)) :]

    def _cpu_tail(self, group: Group, least: int) -> list[tuple[int, int]]:
        if group.by_cpus is None:
            group.by_cpus = sorted((self.cpus[i], i) for i in group.numbers)
        return group.by_cpus[bisect_left(group.by_cpus, (least, -1)) :]

    def names(self, numbers: Iterable[int]) -> tuple[str, ...]:
        """The nodes' names."""
        return tuple([self.nodes[i].name for i in numbers])

    def numbers(self, place: Placement) -> list[int]:
        """The numbers of its nodes; a node that is gone has none."""
        number = self.number
        return [number[name] for name in place.nodes if name in number]


def _merged(tails: list[list[tuple[int, int]]]) -> Iterator[int]:
    return (i for _, i in (tails[0] if len(tails) == 1 else heapq.merge(*tails)))
