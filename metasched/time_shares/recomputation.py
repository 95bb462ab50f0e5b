"""The inputs on which time shares depend, and the changes of these for which they are recomputed. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from metasched.time_shares.allocation_inputs import AllocationInputs
from metasched.time_shares.round_mechanism import TimeShares

SPEED_CHANGE = 0.05
"""Relative change of a known speed above which time shares are recomputed; less is noise of measurement."""


def pair_speeds(inputs: AllocationInputs, shares: TimeShares) -> list[list[Any]]:
    """A row for each pair and GPU type of the time shares: both uids, the GPU type, and both co-located speeds.

    The speeds are steps per second, None where they are not known.
    """
    jobs = {job.uid: job for job in inputs.jobs} if inputs.sharing else {}
    found: list[list[Any]] = []
    for combination, share in shares.items():
        if len(combination) > 1 and all(uid in jobs for uid in combination):
            one, other = (jobs[uid] for uid in combination)
            common = inputs.common_types(one, other)
            for gpu_type in share:
                if gpu_type in common:
                    speed = inputs.colocated_speed(one, other, gpu_type)
                    found.append([*combination, gpu_type, speed, inputs.colocated_speed(other, one, gpu_type)])
    return found


def has_changed(computed_for: Mapping[str, Any] | None, current: Mapping[str, Any]) -> bool:
    """Whether time shares were computed for other inputs than the current ones.

    Args:
        computed_for: the inputs for which they were computed; None where there are none. Both have ``speeds`` (by uid,
            by GPU type) and ``together`` (rows of ``pair_speeds``) where speeds count.
        current: the inputs now. Speeds that differ by less than ``SPEED_CHANGE`` count as equal.
    """
    exact = current.keys() - {"speeds", "together"}
    if computed_for is None or any(computed_for.get(key) != current[key] for key in exact):
        return True
    pairs = {(one, other, gpu_type): speeds for one, other, gpu_type, *speeds in computed_for.get("together", ())}
    for one, other, gpu_type, *speeds in current.get("together", ()):
        if any(map(_differ, speeds, pairs.get((one, other, gpu_type), speeds))):
            return True
    before: Mapping[str, Mapping[str, float | None]] = computed_for.get("speeds", {})
    return any(
        speeds.keys() != before[uid].keys()
        or any(_differ(speed, before[uid][gpu_type]) for gpu_type, speed in speeds.items())
        for uid, speeds in current.get("speeds", {}).items()
        if uid in before
    )


def _differ(speed: float | None, before: float | None) -> bool:
    """Whether two speeds (steps per second; None: not known) differ by more than noise."""
    if speed is None or before is None:
        return speed is not before
    return abs(speed - before) > SPEED_CHANGE * before
