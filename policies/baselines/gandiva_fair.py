"""Gandiva-Fair: proportional shares by tickets, for gangs (Chaudhary et al., EuroSys 2020, section 3).

Every user has the same number of tickets, divided among the user's jobs by weight. GPU time is given in proportion to
tickets; time that one user cannot use goes to the others. A gang of k GPUs pays k times for its time, so it runs for a
k-th of the time that a job of one GPU with the same tickets does.

Stride scheduling gives the next round to the job with the lowest *pass*, its received time over its tickets. The round
mechanism has the same order: its priorities are time shares over received time. Trading of fast for slow GPUs between
users (section 4) is left out: a job's time is divided over the GPU types that it can use in proportion to their GPUs,
as far as other jobs leave that many.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from metasched.core.model import Job
from metasched.time_shares.allocation_inputs import AllocationInputs
from metasched.time_shares.policy_base import TimeShareParameters, TimeSharePolicy
from metasched.time_shares.round_mechanism import TimeShares, as_single_combinations
from policies.baselines.max_min_division import TypeSet, divide, divide_over_types, regions, within


class GandivaFairParameters(TimeShareParameters):
    """Parameters of Gandiva-Fair."""

    by_user: bool = True
    """Whether users have equal numbers of tickets; without, each job has tickets by its weight."""
    as_published: bool = False
    """Whether every job has an equal time share on all GPUs, whatever its number of GPUs and its user, as in
    Shockwave's public code.
    """


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
        types = {job.uid: frozenset(t for t in inputs.gpus_per_node[job.uid] if inputs.capacity[t]) for job in jobs}
        jobs = [job for job in jobs if types[job.uid]]
        amounts = self._amounts(jobs, types, inputs.capacity)
        totals: dict[TypeSet, float] = {}
        for job in jobs:
            totals[types[job.uid]] = totals.get(types[job.uid], 0.0) + amounts[job.uid]
        parts = divide_over_types(totals, inputs.capacity)
        found = {}
        for job in jobs:
            fraction = min(amounts[job.uid] / job.gpus, 1.0)
            row = parts.get(types[job.uid], {})
            found[job.uid] = {gpu_type: fraction * part for gpu_type, part in row.items() if fraction * part > 0}
        return as_single_combinations(found), memory

    def _amounts(
        self, jobs: Sequence[Job], types: Mapping[str, TypeSet], capacity: Mapping[str, int]
    ) -> dict[str, float]:
        """GPUs of each job, by uid: divided among users by tickets, and then among each user's jobs by weight."""
        owners: dict[str, list[Job]] = {}
        for job in jobs:
            owners.setdefault(job.user if self.parameters.by_user else job.uid, []).append(job)
        wanted = [_limits(mine, types) for mine in owners.values()]
        tickets = [1.0 if self.parameters.by_user else mine[0].weight for mine in owners.values()]
        free = {region: float(sum(capacity[t] for t in region)) for region in regions(wanted)}
        of_owner = divide(free, tickets, wanted)
        for limits, amount in zip(wanted, of_owner, strict=True):
            free = {region: gpus - within(region, limits, amount) for region, gpus in free.items()}
        found: dict[str, float] = {}
        for mine, limits, amount in zip(owners.values(), wanted, of_owner, strict=True):
            free = {region: gpus + within(region, limits, amount) for region, gpus in free.items()}
            of_job = [_limits([job], types) for job in mine]
            parts = divide(free, [job.weight for job in mine], of_job)
            for job, one, part in zip(mine, of_job, parts, strict=True):
                found[job.uid] = part
                free = {region: gpus - within(region, one, part) for region, gpus in free.items()}
        return found


def _limits(jobs: Sequence[Job], types: Mapping[str, TypeSet]) -> dict[TypeSet, float]:
    """The GPUs that these jobs request, by the set of GPU types that they can use."""
    found: dict[TypeSet, float] = {}
    for job in jobs:
        found[types[job.uid]] = found.get(types[job.uid], 0.0) + job.gpus
    return found


def _over_types(inputs: AllocationInputs, job: Job, fraction: float) -> dict[str, float]:
    """A fraction of the time, divided over the GPU types that the job can use in proportion to their GPUs."""
    gpus = {gpu_type: inputs.capacity.get(gpu_type, 0) for gpu_type in inputs.gpus_per_node[job.uid]}
    total = sum(gpus.values())
    return {gpu_type: fraction * count / total for gpu_type, count in gpus.items()} if total else {}
