"""How far the GPUs of one job are from each other, and what policies may ask about it (Themis, NSDI 2020, 4.3.1)."""

from __future__ import annotations

from collections.abc import Collection
from enum import IntEnum
from typing import Protocol, runtime_checkable


class Level(IntEnum):
    """The distance of GPUs: in one slot of a node, on one node, on nodes of one rack, or on nodes of several racks."""

    SLOT = 0
    NODE = 1
    RACK = 2
    CLUSTER = 3


def distance(gpus: int, racks: Collection[str | None], slot_gpus: int = 1) -> Level:
    """The distance of a job's GPUs.

    Args:
        gpus: their number.
        racks: the rack of each node, one for each node; None where it is not known.
        slot_gpus: GPUs of one slot; a job with as many or fewer on a node is taken to have them in one slot. Slots are
            known in simulations only: elsewhere a slot is one GPU.
    """
    if len(racks) > 1:
        return Level.RACK if len({*racks}) == 1 else Level.CLUSTER
    return Level.SLOT if gpus <= slot_gpus else Level.NODE


@runtime_checkable
class SpeedByDistance(Protocol):
    """A ``Speed`` that knows what distance costs beyond what the numbers of GPUs on the nodes say."""

    def steps_per_second_at(self, gpu_type: str, spread: tuple[int, ...], level: Level) -> float | None:
        """Optimizer steps per second; ``Speed.steps_per_second`` on nodes at a distance.

        Args:
            gpu_type: the type.
            spread: GPUs on each node, descending.
            level: the distance of the GPUs.
        """
