"""Bundles that were won, on nodes: apps stay on the nodes that they hold where the sizes of the blocks allow it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import groupby

from policies.themis.offer import Block, Bundle, Offer

Counts = dict[str, int]
"""GPUs by node."""


def place_bundles(
    offer: Offer, bundles: Mapping[str, Bundle], held: Mapping[str, Mapping[str, int]]
) -> dict[str, Counts]:
    """The nodes of each app's bundle.

    The largest parts are placed first. Each of them fits, wherever the parts before it lie, because sizes divide each
    other. So each may lie where its app is, or else on the smallest block; of several, on the one of which apps hold
    the fewest GPUs.

    Args:
        offer: the offer; it holds the bundles.
        bundles: the bundle of each app.
        held: the GPUs on offer that apps hold now, by app and node.

    Returns:
        GPUs by app and node.
    """
    placed: dict[str, Counts] = {app: {} for app in bundles}
    held_by_node = Counter[str]()
    for app in bundles:
        held_by_node.update(held.get(app, {}))
    for gpu_type in offer.gpu_types:
        free = _FreeBlocks([block for block in offer.blocks if block.gpu_type == gpu_type], held_by_node)
        parts = [
            (offer.reserved(gpu_type, part), part, app)
            for app, bundle in bundles.items()
            if bundle.gpu_type == gpu_type
            for part in bundle.parts
        ]
        parts.sort(key=lambda one: -one[0])
        for size, of_size in groupby(parts, key=lambda one: one[0]):
            moving = []
            for _, part, app in of_size:
                block = free.of_holder(size, part, held.get(app, {}), placed[app])
                if block is None:
                    moving.append((part, app))
                else:
                    _add(placed[app], block, part)
            for part, app in moving:
                _add(placed[app], free.smallest(size), part)
    return placed


def _add(counts: Counts, block: Block, part: int) -> None:
    each = block.size // len(block.nodes)
    for node in block.nodes:
        if part > 0:
            counts[node] = counts.get(node, 0) + min(part, each)
        part -= each


class _FreeBlocks:
    """Blocks of one GPU type that are free, by size; the ones with the fewest GPUs that apps hold are the last ones."""

    def __init__(self, blocks: Sequence[Block], held_by_node: Mapping[str, int]) -> None:
        self._by_size: dict[int, list[Block]] = defaultdict(list)
        for block in sorted(blocks, key=lambda one: -sum(held_by_node.get(node, 0) for node in one.nodes)):
            self._by_size[block.size].append(block)

    def of_holder(self, size: int, part: int, held: Mapping[str, int], placed: Counts) -> Block | None:
        """Take a block of a size on nodes where an app holds what a part needs, beyond the GPUs placed there before."""
        left = {node: gpus - placed.get(node, 0) for node, gpus in held.items() if gpus > placed.get(node, 0)}
        if sum(left.values()) < part:
            return None
        for larger in sorted(self._by_size):
            for block in self._by_size[larger] if larger >= size else ():
                if not left.keys() & set(block.nodes):
                    continue
                for index, piece in enumerate(block.pieces(size)):
                    if sum(left.get(node, 0) for node in piece.nodes) >= part:
                        self._by_size[larger].remove(block)
                        return self._split(block, size, index)
        return None

    def smallest(self, size: int) -> Block:
        """Take a block of a size out of the smallest block that has one."""
        larger = min(other for other, blocks in self._by_size.items() if other >= size and blocks)
        return self._split(self._by_size[larger].pop(), size, 0)

    def _split(self, block: Block, size: int, index: int) -> Block:
        pieces = block.pieces(size)
        piece = pieces.pop(index)
        self._by_size[size].extend(pieces)
        return piece
