"""Weighted max-min fair parts of GPUs, for users that can each use some groups of nodes only.

Every user should have GPUs in proportion to its weight. A user that can use few groups may be unable to. In a max-min
fair division, no user can have more GPUs per weight unless another, which has no more per weight, gets fewer. The
parts follow from *bottlenecks*: the users with the fewest GPUs for each unit of weight fill all groups that any of
them can use; what remains is divided among the others in the same way (Megiddo, "Optimal flows in networks with
multiple sources and sinks", 1974). With one node set, all users have equal GPUs per weight.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from metasched.capacity.shapes import NodeSet

ROUNDING = 1e-9
"""Fraction of the GPUs that a node set wants below which a lack counts as rounding."""


class Bottleneck(NamedTuple):
    """Node sets whose users have equally many GPUs for each unit of weight.

    Attributes:
        gpus: GPUs that the users of these node sets have together.
        weight: the weight of all these users.
    """

    gpus: float
    weight: float

    def part(self, weight: float) -> float:
        """The GPUs of users with this weight, which belong to the bottleneck."""
        return self.gpus * weight / self.weight


def max_min_bottlenecks(weights: Mapping[NodeSet, float], gpus: Mapping[NodeSet, float]) -> dict[NodeSet, Bottleneck]:
    """Divide GPUs among node sets by weighted max-min fairness.

    Args:
        weights: by node set, the weight of the users that can use these groups; above 0.
        gpus: by group, which is a node set of one bit, its GPUs.

    Returns:
        By node set, its bottleneck. A node set without GPUs has a bottleneck of 0 GPUs.
    """
    found: dict[NodeSet, Bottleneck] = {}
    remaining = dict(weights)
    free = _merged(weights, gpus)
    while remaining:
        tightest, bottleneck = _tightest(remaining, free)
        found |= dict.fromkeys(tightest, bottleneck)
        used = _union(tightest)
        remaining = {node_set: weight for node_set, weight in remaining.items() if node_set not in tightest}
        free = {group: amount for group, amount in free.items() if not group & used}
    return found


def _merged(node_sets: Iterable[NodeSet], gpus: Mapping[NodeSet, float]) -> dict[NodeSet, float]:
    """The GPUs of the groups, those in the same node sets added up; groups in none are left out."""
    first: dict[tuple[bool, ...], NodeSet] = {}
    merged: dict[NodeSet, float] = {}
    for group, amount in gpus.items():
        membership = tuple([bool(group & node_set) for node_set in node_sets])
        if amount > 0 and any(membership):
            same = first.setdefault(membership, group)
            merged[same] = merged.get(same, 0) + amount
    return merged


def _tightest(weights: Mapping[NodeSet, float], gpus: Mapping[NodeSet, float]) -> tuple[set[NodeSet], Bottleneck]:
    """Node sets that together have the fewest GPUs per weight.

    Dinkelbach's method: while some node sets cannot have the ratio of all of them, their own ratio is the next one.
    """
    tightest = set(weights)
    while True:
        used = _union(tightest)
        amount = sum(amount for group, amount in gpus.items() if group & used)
        bottleneck = Bottleneck(amount, sum(weights[node_set] for node_set in tightest))
        if len(tightest) == 1 or not amount:
            return tightest, bottleneck
        short = _short({node_set: bottleneck.part(weights[node_set]) for node_set in tightest}, gpus)
        if not short or short == tightest:
            return tightest, bottleneck
        tightest = short


def _short(wanted: Mapping[NodeSet, float], gpus: Mapping[NodeSet, float]) -> set[NodeSet]:
    """Node sets that cannot all have what they want, by augmenting paths of a maximum flow; empty if all can.

    Args:
        wanted: GPUs that each node set wants.
        gpus: GPUs of each group.
    """
    free = dict(gpus)
    flow: dict[NodeSet, dict[NodeSet, float]] = {group: {} for group in gpus}  # by group, then node set
    lacking = dict(wanted)
    short: set[NodeSet] = set()
    for node_set in wanted:
        while lacking[node_set] > ROUNDING * wanted[node_set]:
            path = _augmenting_path(node_set, free, flow)
            if isinstance(path, set):
                short |= path
                break
            amount = min(lacking[node_set], free[path[-1][1]])
            for (_, group), (other, _) in itertools.pairwise(path):
                amount = min(amount, flow[group][other])
            for user, group in path:
                flow[group][user] = flow[group].get(user, 0.0) + amount
            for (_, group), (other, _) in itertools.pairwise(path):
                flow[group][other] -= amount
            free[path[-1][1]] -= amount
            lacking[node_set] -= amount
    return short


def _augmenting_path(
    start: NodeSet, free: Mapping[NodeSet, float], flow: Mapping[NodeSet, Mapping[NodeSet, float]]
) -> list[tuple[NodeSet, NodeSet]] | set[NodeSet]:
    """A shortest path on which a node set gets more GPUs: (node set, group that it gets more of), from ``start`` on.

    Every further node set of the path gives up as much of the group before it. Where there is no path, the node sets
    that were reached: together they have all groups that they can use.
    """
    came_from: dict[NodeSet, tuple[NodeSet, NodeSet] | None] = {start: None}
    seen_groups: set[NodeSet] = set()
    queue = [start]
    for node_set in queue:
        for group in free:
            if not group & node_set or group in seen_groups:
                continue
            seen_groups.add(group)
            if free[group] > 0:
                path = [(node_set, group)]
                while (step := came_from[path[0][0]]) is not None:
                    path.insert(0, step)
                return path
            for other, amount in flow[group].items():
                if amount > 0 and other not in came_from:
                    came_from[other] = (node_set, group)
                    queue.append(other)
    return set(came_from)


def _union(node_sets: Iterable[NodeSet]) -> NodeSet:
    union = 0
    for node_set in node_sets:
        union |= node_set
    return union
