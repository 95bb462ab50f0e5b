"""The most steps per second in all jobs together (Gavel, OSDI 2020, section 4.2 and Table 1)."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import Any, ClassVar

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_array

from metasched.time_shares.allocation_inputs import AllocationInputs
from metasched.time_shares.policy_base import TimeSharePolicy
from metasched.time_shares.round_mechanism import TimeShares, alone


class MaxSumThroughput(TimeSharePolicy):
    """Maximises the sum of effective throughputs; slow jobs may starve, except for GPUs that remain."""

    name: ClassVar[str] = "max_sum_throughput"

    def time_shares(self, inputs: AllocationInputs, memory: Mapping[str, Any]) -> tuple[TimeShares, Mapping[str, Any]]:
        """The solution of the linear program over groups of jobs with equal GPUs and speeds; no memory."""
        speeds = _speeds(inputs)
        groups: dict[tuple[int, tuple[tuple[str, float], ...]], list[str]] = {}
        for job in inputs.jobs:
            if speed := speeds[job.uid]:
                groups.setdefault((job.gpus, tuple(sorted(speed.items()))), []).append(job.uid)
        kinds = sorted(inputs.capacity)
        row_of = {kind: len(groups) + i for i, kind in enumerate(kinds)}
        cells = [(i, gpus, kind, speed) for i, (gpus, pairs) in enumerate(groups) for kind, speed in pairs]
        if not cells:
            return {}, memory
        count = len(cells)
        at_most = coo_array(
            (
                np.concatenate([np.ones(count), [float(gpus) for _, gpus, _, _ in cells]]),
                (
                    np.concatenate([[i for i, *_ in cells], [row_of[kind] for _, _, kind, _ in cells]]),
                    np.tile(np.arange(count), 2),
                ),
            ),
            shape=(len(groups) + len(kinds), count),
        )
        members = list(groups.values())
        limits = [*(float(len(uids)) for uids in members), *(float(inputs.capacity[kind]) for kind in kinds)]
        found = linprog([-speed for *_, speed in cells], A_ub=at_most.tocsr(), b_ub=limits, method="highs-ds")
        shares: dict[str, dict[str, float]] = {}
        for (i, _, kind, _), time in zip(cells, found.x, strict=True):
            for uid in members[i]:
                shares.setdefault(uid, {})[kind] = min(max(float(time) / len(members[i]), 0.0), 1.0)
        return alone(shares), memory


def _speeds(inputs: AllocationInputs) -> Mapping[str, Mapping[str, float]]:
    """Steps per second by uid and GPU type; the average where a speed is not known."""
    known: dict[str, list[float]] = {}
    found: dict[str, dict[str, float | None]] = {}
    for job in inputs.jobs:
        found[job.uid] = {kind: inputs.speed(job, kind) for kind in inputs.gpus_per_node[job.uid]}
        for kind, speed in found[job.uid].items():
            if speed is not None:
                known.setdefault(kind, []).append(speed)
    average = {kind: fmean(speeds) for kind, speeds in known.items()}
    return {
        uid: {kind: average.get(kind, 1.0) if speed is None else speed for kind, speed in speeds.items()}
        for uid, speeds in found.items()
    }
