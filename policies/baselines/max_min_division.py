"""Weighted max-min fair division of GPUs among entities, each of which wants limited amounts on sets of GPU types.

An entity is a user or a job. No entity can have more GPUs per ticket unless another, which has no more per ticket, gets
fewer. ``capacity.max_min`` divides GPUs among entities that want any amount, on one set of groups each. Here an
entity has several sets with a limit for each, because a user's jobs accept different GPU types.

Amounts are possible if no *region*, a union of these sets, has too few GPUs: every entity has in the region what its
limits outside the region cannot hold (max-flow min-cut). The amounts of all entities rise in proportion to tickets
until a region is full; the entities with GPUs in this region stop, the others rise on (Megiddo, 1974).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

TypeSet = frozenset[str]
"""A set of GPU types."""

Limits = Mapping[TypeSet, float]
"""The most GPUs that an entity can use, by set of GPU types."""

ROUNDING = 1e-9
"""Relative difference of GPUs that counts as rounding."""


def regions(limits: Iterable[Limits]) -> set[TypeSet]:
    """All unions of the sets of GPU types that entities have limits on; at most 2 to the number of GPU types."""
    found: set[TypeSet] = {frozenset()}
    for types in {types: None for one in limits for types in one}:
        found |= {region | types for region in found}
    return found - {frozenset()}


def within(region: TypeSet, limits: Limits, amount: float) -> float:
    """GPUs of an entity with this amount that are in a region at least: those that its limits outside cannot hold."""
    return max(amount - _outside(region, limits), 0.0)


def divide(free: Mapping[TypeSet, float], tickets: Sequence[float], limits: Sequence[Limits]) -> list[float]:
    """Divide GPUs among entities by weighted max-min fairness.

    Args:
        free: GPUs by region, for all ``regions`` of the entities.
        tickets: the weight of each entity, above 0.
        limits: the limits of each entity.

    Returns:
        The GPUs of each entity.
    """
    most = [sum(one.values()) for one in limits]
    outside = {region: [_outside(region, one) for one in limits] for region in free}
    left = dict(free)
    found = [0.0] * len(tickets)
    rising = list(range(len(tickets)))
    while rising:
        levels = {
            region: _level(left[region], [(tickets[i], outside[region][i], most[i]) for i in rising]) for region in free
        }
        level = min(levels.values(), default=math.inf)
        full = [region for region in free if levels[region] <= level * (1 + ROUNDING)]
        risen = {i: min(level * tickets[i], most[i]) for i in rising}
        stopped = [
            i
            for i in rising
            if risen[i] >= most[i]
            or any(outside[region][i] < most[i] and outside[region][i] <= risen[i] * (1 + ROUNDING) for region in full)
        ] or rising
        for i in stopped:
            found[i] = risen[i]
            for region in free:
                left[region] -= max(found[i] - outside[region][i], 0.0)
        ended = set(stopped)
        rising = [i for i in rising if i not in ended]
    return found


def divide_over_types(amounts: Mapping[TypeSet, float], gpus: Mapping[str, int]) -> dict[TypeSet, dict[str, float]]:
    """Divide amounts of GPUs over GPU types.

    Args:
        amounts: GPUs by set of GPU types on which they can be.
        gpus: the GPUs of each type, which suffice.

    Returns:
        By set, the fraction of its amount on each of its types: in proportion to the types' GPUs, as far as the other
        sets leave that many.
    """
    flow: dict[TypeSet, dict[str, float]] = {}
    for types, amount in amounts.items():
        total = sum(gpus[gpu_type] for gpu_type in types)
        flow[types] = {gpu_type: amount * gpus[gpu_type] / total for gpu_type in sorted(types)}
    free = {t: count - sum(row.get(t, 0.0) for row in flow.values()) for t, count in gpus.items()}
    for gpu_type, count in gpus.items():
        while free[gpu_type] < -ROUNDING * count and (path := _path(gpu_type, flow, free, gpus)):
            last = path[-1][2]
            moved = min(-free[gpu_type], free[last], *(flow[types][before] for types, before, _ in path))
            for types, before, after in path:
                flow[types][before] -= moved
                flow[types][after] += moved
            free[gpu_type] += moved
            free[last] -= moved
    return {
        types: {t: part / amounts[types] for t, part in row.items()} for types, row in flow.items() if amounts[types]
    }


def _outside(region: TypeSet, limits: Limits) -> float:
    """The most GPUs that an entity can use on sets with a type that is not in the region."""
    return sum(most for types, most in limits.items() if not types <= region)


def _level(available: float, entities: Iterable[tuple[float, float, float]]) -> float:
    """GPUs per ticket at which entities fill what is available.

    Args:
        available: GPUs.
        entities: of each, its tickets, and the amounts of GPUs at which it begins and ceases to use more of these.

    Returns:
        The level; infinite if all entities cease before.
    """
    events = [(start / tickets, tickets) for tickets, start, end in entities if start < end]
    events += [(end / tickets, -tickets) for tickets, start, end in entities if start < end]
    level, tickets = 0.0, 0.0
    for event, change in sorted(events):
        if tickets * (event - level) > available:
            return level + max(available, 0.0) / tickets
        available -= tickets * (event - level)
        level = event
        tickets += change
    return math.inf


def _path(
    start: str, flow: Mapping[TypeSet, Mapping[str, float]], free: Mapping[str, float], gpus: Mapping[str, int]
) -> list[tuple[TypeSet, str, str]]:
    """The shortest path from a GPU type to one with free GPUs: sets, each with the types before and after its move."""
    came_from: dict[str, tuple[TypeSet, str, str]] = {}
    queue = [start]
    for before in queue:
        for types, row in flow.items():
            if row.get(before, 0.0) <= ROUNDING * gpus[before]:
                continue
            for after in row:
                if after == start or after in came_from:
                    continue
                came_from[after] = types, before, after
                queue.append(after)
                if free[after] > ROUNDING * gpus[after]:
                    path = [came_from[after]]
                    while path[0][1] != start:
                        path.insert(0, came_from[path[0][1]])
                    return path
    return []
