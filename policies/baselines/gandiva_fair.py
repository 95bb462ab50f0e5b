"""Gandiva-Fair: proportional shares by tickets, for gangs (Chaudhary et al., EuroSys 2020, section 3).

Every user has the same number of tickets, divided among the user's jobs by weight. GPU time is given in proportion to
tickets; time that one user cannot use goes to the others. A gang of k GPUs pays k times for its time, so it runs for a
k-th of the time that a job of one GPU with the same tickets does.

Stride scheduling gives the next round to the job with the lowest *pass*, its received time over its tickets. The round
mechanism has the same order: its priorities are time shares over received time. Trading of fast for slow GPUs between
users (section 4) is left out: a job has the same share of every GPU type that it can use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from metasched.core.model import Job
from metasched.time_shares.allocation_inputs import AllocationInputs
from metasched.time_shares.policy_base import TimeShareParameters, TimeSharePolicy
from metasched.time_shares.round_mechanism import TimeShares, as_single_combinations


class GandivaFairParameters(TimeShareParameters):
    """Parameters of Gandiva-Fair.

    Attributes:
        by_user: whether users have equal numbers of tickets; without, each job has tickets by its weight.
        as_published: whether every job has an equal time share on all GPUs, whatever its number of GPUs and its user,
            as in Shockwave's public code.
    """

    by_user: bool = True
    as_published: bool = False


class GandivaFair(TimeSharePolicy):
    """Equal GPU time for users, divided among the jobs of each by weight."""

    name: ClassVar[str] = "gandiva_fair"
    Parameters: ClassVar[type[GandivaFairParameters]] = GandivaFairParameters
    parameters: GandivaFairParameters

    def time_shares(self, inputs: AllocationInputs, memory: Mapping[str, Any]) -> tuple[TimeShares, Mapping[str, Any]]:
        """Time shares in proportion to tickets; no memory."""
        jobs = [job for job in inputs.jobs if inputs.gpus_per_node[job.uid]]
        if self.parameters.as_published:
            part = sum(inputs.capacity.values()) / max(len(jobs), 1)
            return as_single_combinations({job.uid: _over_types(inputs, job, min(part, 1.0)) for job in jobs}), memory
        owners: dict[str, list[Job]] = {}
        for job in jobs:
            owners.setdefault(job.user if self.parameters.by_user else job.uid, []).append(job)
        usable = [float(_usable_gpus(inputs, mine)) for mine in owners.values()]
        tickets = [1.0 if self.parameters.by_user else mine[0].weight for mine in owners.values()]
        found: dict[str, dict[str, float]] = {}
        for gpus, mine in zip(divide(sum(inputs.capacity.values()), tickets, usable), owners.values(), strict=True):
            parts = divide(gpus, [job.weight for job in mine], [float(job.gpus) for job in mine])
            found |= {job.uid: _over_types(inputs, job, part / job.gpus) for job, part in zip(mine, parts, strict=True)}
        return as_single_combinations({job.uid: found[job.uid] for job in jobs}), memory


def divide(total: float, tickets: Sequence[float], most: Sequence[float]) -> list[float]:
    """Divide a total in proportion to tickets, no part above its ``most``; the excess goes to the others likewise."""
    found = [0.0] * len(tickets)
    order = sorted(range(len(tickets)), key=lambda i: most[i] / tickets[i])
    left = sum(tickets)
    for i in order:
        found[i] = min(most[i], total * tickets[i] / left)
        total -= found[i]
        left -= tickets[i]
    return found


def _usable_gpus(inputs: AllocationInputs, jobs: Sequence[Job]) -> int:
    """The most GPUs that these jobs could have at once: what they request, as far as their GPU types have it."""
    types = {gpu_type for job in jobs for gpu_type in inputs.gpus_per_node[job.uid]}
    return min(sum(job.gpus for job in jobs), sum(inputs.capacity[gpu_type] for gpu_type in types))


def _over_types(inputs: AllocationInputs, job: Job, fraction: float) -> dict[str, float]:
    """A fraction of the time, divided over the GPU types that the job can use in proportion to their GPUs."""
    gpus = {gpu_type: inputs.capacity.get(gpu_type, 0) for gpu_type in inputs.gpus_per_node[job.uid]}
    total = sum(gpus.values())
    return {gpu_type: fraction * count / total for gpu_type, count in gpus.items()} if total else {}
