"""What an auction offers: free GPUs as blocks, and the bundles of blocks that apps can bid for.

Bundles are counts of GPUs on nodes. The range of bundles that can be won follows from the offer alone, never from a
bid: winners that are exact over such a range leave no app a reason to lie. The range is a buddy system. Sizes of
blocks are a chain in which each size divides the next one; a node's free GPUs are cut into such blocks, the largest
first. Beyond the size of a node, a block is a number of whole nodes of one rack. Blocks with this structure hold a set
of bundles exactly if, for each size, the parts of at least that size need no more GPUs than the blocks of at least that
size have. So a program over bundles has one constraint for each size, and none for each node.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from metasched.core.distance import Level

AMOUNTS_BETWEEN_DOUBLINGS = 4
"""Amounts of GPUs between a power of two and the next one."""


class OfferedNode(NamedTuple):
    """A node with GPUs on offer.

    Attributes:
        name: the node's name.
        gpu_type: the type of its GPUs.
        total: all GPUs of the node.
        gpus: those on offer.
        rack: the rack's name; the empty name where racks are not known.
    """

    name: str
    gpu_type: str
    total: int
    gpus: int
    rack: str = ""


class Bundle(NamedTuple):
    """Counts of GPUs on nodes that are not named: equal counts on nodes alike are one bundle.

    Attributes:
        gpu_type: the GPUs' type; the empty name for no GPUs.
        parts: the counts, descending. A part above the GPUs of a node is a number of nodes of one rack.
    """

    gpu_type: str
    parts: tuple[int, ...]

    @property
    def gpus(self) -> int:
        """The number of GPUs of all parts."""
        return sum(self.parts)


NOTHING = Bundle("", ())
"""The bundle without GPUs."""


class Block(NamedTuple):
    """GPUs on offer that lie together.

    Attributes:
        gpu_type: the GPUs' type.
        size: the number of GPUs.
        nodes: the nodes, each with an equal part of the GPUs.
    """

    gpu_type: str
    size: int
    nodes: tuple[str, ...]

    def pieces(self, size: int) -> list[Block]:
        """The block, cut into blocks of a smaller size of the chain."""
        count = self.size // size
        each, on_one = max(len(self.nodes) // count, 1), max(count // len(self.nodes), 1)
        starts = range(0, len(self.nodes), each)
        return [self._replace(size=size, nodes=self.nodes[at : at + each]) for at in starts for _ in range(on_one)]


@dataclass(frozen=True)
class Offer:
    """The GPUs of one auction.

    Attributes:
        nodes: the nodes, each once; those without GPUs on offer count for nothing.
        slot_gpus: GPUs of a node that are closer to each other than to the others; 1 where that is not known.
    """

    nodes: tuple[OfferedNode, ...]
    slot_gpus: int = 1

    def __post_init__(self) -> None:
        for node in self.nodes:
            if not 0 <= node.gpus <= node.total:
                raise ValueError(f"node {node.name} offers {node.gpus} of {node.total} GPUs; offer at most all of them")
        if len({node.name for node in self.nodes}) != len(self.nodes):
            raise ValueError("two nodes on offer have the same name; list each node once")

    @cached_property
    def gpu_types(self) -> tuple[str, ...]:
        """The types of the GPUs on offer, in alphabetical order."""
        return tuple(sorted({node.gpu_type for node in self.nodes if node.gpus}))

    @cached_property
    def racks(self) -> int:
        """The number of racks with GPUs on offer."""
        return len({node.rack for node in self.nodes if node.gpus})

    @cached_property
    def node_sizes(self) -> dict[str, tuple[int, ...]]:
        """For each GPU type, the chain of sizes of blocks on one node, ascending.

        Nodes that are all of one size are divided by their prime factors; otherwise sizes are powers of two.
        """
        totals: dict[str, set[int]] = defaultdict(set)
        for node in self.nodes:
            if node.gpus:
                totals[node.gpu_type].add(node.total)
        return {gpu_type: _chain(totals[gpu_type]) for gpu_type in self.gpu_types}

    @cached_property
    def sizes(self) -> tuple[tuple[str, int], ...]:
        """The GPU types with the sizes of their blocks, ascending: the constraints of a program over bundles."""
        found = [(gpu_type, size) for gpu_type in self.gpu_types for size in self.node_sizes[gpu_type]]
        if self.racks > 1:
            whole = Counter((block.gpu_type, rack) for rack, block in self._node_blocks if self._is_whole(block))
            most = {
                gpu_type: max((whole[key] for key in whole if key[0] == gpu_type), default=0) for gpu_type, _ in found
            }
            found += [
                (gpu_type, self.node_sizes[gpu_type][-1] << doublings)
                for gpu_type in self.gpu_types
                for doublings in range(1, most[gpu_type].bit_length())
            ]
        return tuple(sorted(found))

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """The GPUs on offer, cut into the largest blocks."""
        found: list[Block] = []
        whole: dict[tuple[str, str], list[str]] = defaultdict(list)
        for rack, block in self._node_blocks:
            if self._is_whole(block):
                whole[block.gpu_type, rack].extend(block.nodes)
            else:
                found.append(block)
        for (gpu_type, _), names in sorted(whole.items()):
            node_size = self.node_sizes[gpu_type][-1]
            for size in sorted((size for other, size in self.sizes if other == gpu_type), reverse=True):
                while size >= node_size and len(names) * node_size >= size:
                    found.append(Block(gpu_type, size, tuple(names[: size // node_size])))
                    del names[: size // node_size]
        return tuple(found)

    @cached_property
    def capacity(self) -> tuple[int, ...]:
        """For each entry of ``sizes``, how many blocks of that size the blocks of at least that size hold."""
        return tuple(
            sum(block.size for block in self.blocks if block.gpu_type == gpu_type and block.size >= size) // size
            for gpu_type, size in self.sizes
        )

    def usage(self, bundle: Bundle) -> tuple[int, ...]:
        """For each entry of ``sizes``, how many blocks of that size the parts of at least that size need.

        Raises:
            ValueError: no block is as large as one of the parts.
        """
        if bundle not in self._usages:
            reserved = [self.reserved(bundle.gpu_type, part) for part in bundle.parts]
            self._usages[bundle] = tuple(
                sum(part for part in reserved if part >= size) // size if gpu_type == bundle.gpu_type else 0
                for gpu_type, size in self.sizes
            )
        return self._usages[bundle]

    def reserved(self, gpu_type: str, gpus: int) -> int:
        """The size of the smallest block that holds this many GPUs.

        Raises:
            ValueError: no size is as large.
        """
        for other, size in self.sizes:
            if other == gpu_type and size >= gpus:
                return size
        raise ValueError(f"no block of {gpus} GPUs of type {gpu_type!r} can be offered; bid for smaller parts")

    def holds(self, bundles: Iterable[Bundle]) -> bool:
        """Whether bundles can be allocated together."""
        try:
            used = [sum(counts) for counts in zip(*map(self.usage, bundles), strict=True)]
        except ValueError:
            return False
        return all(one <= most for one, most in zip(used, self.capacity, strict=False))

    def level(self, gpu_type: str, parts: Sequence[int]) -> Level:
        """How far GPUs in these parts of a bundle can be from each other."""
        if len(parts) > 1:
            return Level.CLUSTER if self.racks > 1 else Level.RACK
        if sum(parts) <= self.slot_gpus:
            return Level.SLOT
        sizes = self.node_sizes.get(gpu_type)
        return Level.NODE if sizes is None or sum(parts) <= sizes[-1] else Level.RACK

    def bundles(self, most_gpus: int) -> list[Bundle]:
        """The bundles that an app which can use so many GPUs bids for; the one without GPUs is the first.

        For each amount of GPUs, and for each size, the bundle with as many parts of that size as possible; and the
        amount as one part. Amounts grow in steps that do not depend on the app.
        """
        found = [NOTHING]
        for gpu_type in self.gpu_types:
            sizes = [size for other, size in self.sizes if other == gpu_type]
            capacity = [most for (other, _), most in zip(self.sizes, self.capacity, strict=True) if other == gpu_type]
            shapes: dict[tuple[int, ...], None] = {}
            for gpus in amounts(capacity[0], sizes):
                if gpus <= sizes[-1]:
                    shapes[gpus,] = None
                shapes.update(dict.fromkeys(_parts(gpus, sizes[: index + 1]) for index in range(len(sizes))))
                if gpus >= most_gpus:
                    break
            found += [bundle for shape in shapes if self.holds([bundle := Bundle(gpu_type, shape)])]
        return found

    @cached_property
    def _usages(self) -> dict[Bundle, tuple[int, ...]]:
        return {}

    @cached_property
    def _node_blocks(self) -> list[tuple[str, Block]]:
        """The blocks on single nodes, each with its rack."""
        return [
            (node.rack, Block(node.gpu_type, size, (node.name,)))
            for node in self.nodes
            if node.gpus
            for size in _parts(node.gpus, self.node_sizes[node.gpu_type])
        ]

    def _is_whole(self, block: Block) -> bool:
        return block.size == self.node_sizes[block.gpu_type][-1]


def amounts(most: int, sizes: Sequence[int]) -> list[int]:
    """The amounts of GPUs up to a number that bundles can have: the sizes, and some between each doubling."""
    steps = {size for size in sizes if size <= most} | {most}
    amount, step = 1, 1
    while amount <= most:
        steps.add(amount)
        amount += step
        if amount >= 2 * AMOUNTS_BETWEEN_DOUBLINGS * step:
            step *= 2
    return sorted(steps)


def _parts(gpus: int, sizes: Sequence[int]) -> tuple[int, ...]:
    """Parts of the given sizes, as large as possible; sizes are ascending and begin with 1."""
    found: list[int] = []
    for size in reversed(sizes):
        found += [size] * (gpus // size)
        gpus %= size
    return tuple(found)


def _chain(totals: set[int]) -> tuple[int, ...]:
    if len(totals) > 1:
        return tuple(1 << doublings for doublings in range(max(totals).bit_length()))
    found = [*totals]
    while (size := found[-1]) > 1:
        found.append(size // next(factor for factor in range(2, size + 1) if size % factor == 0))
    assert all(larger % smaller == 0 for larger, smaller in pairwise(found))  # noqa: S101  the theory rests on it
    return tuple(reversed(found))
