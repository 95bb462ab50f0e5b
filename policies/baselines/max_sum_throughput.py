"""The most steps per second in all jobs together (Gavel, OSDI 2020, section 4.2 and Table 1)."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import Any, ClassVar

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_array

from metasched.time_shares.allocation_inputs import AllocationInputs
from metasched.time_shares.equal_shares import equal_shares
from metasched.time_shares.policy_base import DEGRADED, TimeSharePolicy
from metasched.time_shares.round_mechanism import TimeShares, as_single_combinations


class MaxSumThroughput(TimeSharePolicy):
    """Maximises the sum of effective throughputs.

    Slow jobs may have no time share; they then run only on GPUs that remain.
    """

    name: ClassVar[str] = "max_sum_throughput"

    def time_shares(self, inputs: AllocationInputs, memory: Mapping[str, Any]) -> tuple[TimeShares, Mapping[str, Any]]:
        """The solution of the linear program over groups of jobs with equal GPUs and speeds.

        Where HiGHS gives up, time shares are equal, and the memory says so; else there is no memory.
        """
        del memory
        speeds = _speeds(inputs)
        groups: dict[tuple[int, tuple[tuple[str, float], ...]], list[str]] = {}
        for job in inputs.jobs:
            if speed := speeds[job.uid]:
                groups.setdefault((job.gpus, tuple(sorted(speed.items()))), []).append(job.uid)
        types = sorted(inputs.capacity)
        row_of = {gpu_type: len(groups) + i for i, gpu_type in enumerate(types)}
        variables = [(i, gpus, gpu_type, speed) for i, (gpus, pairs) in enumerate(groups) for gpu_type, speed in pairs]
        if not variables:
            return {}, {}
        count = len(variables)
        entries = np.concatenate([np.ones(count), [float(gpus) for _, gpus, _, _ in variables]])
        rows = [i for i, *_ in variables] + [row_of[gpu_type] for _, _, gpu_type, _ in variables]
        at_most = coo_array((entries, (rows, np.tile(np.arange(count), 2))), shape=(len(groups) + len(types), count))
        members = list(groups.values())
        limits = [*(float(len(uids)) for uids in members), *(float(inputs.capacity[gpu_type]) for gpu_type in types)]
        found = linprog([-speed for *_, speed in variables], A_ub=at_most.tocsr(), b_ub=limits, method="highs-ds")
        if found.status != 0:
            return equal_shares(inputs), {DEGRADED: "equal_shares"}
        shares: dict[str, dict[str, float]] = {}
        for (i, _, gpu_type, _), time in zip(variables, found.x, strict=True):
            for uid in members[i]:
                shares.setdefault(uid, {})[gpu_type] = min(max(float(time) / len(members[i]), 0.0), 1.0)
        return as_single_combinations(shares), {}


def _speeds(inputs: AllocationInputs) -> Mapping[str, Mapping[str, float]]:
    """Steps per second by uid and GPU type; the average of known speeds on the type where one is not known."""
    known: dict[str, list[float]] = {}
    for speeds in inputs.speeds.values():
        for gpu_type, speed in speeds.items():
            if speed is not None:
                known.setdefault(gpu_type, []).append(speed)
    average = {gpu_type: fmean(speeds) for gpu_type, speeds in known.items()}
    return {
        uid: {gpu_type: average.get(gpu_type, 1.0) if speed is None else speed for gpu_type, speed in speeds.items()}
        for uid, speeds in inputs.speeds.items()
    }
