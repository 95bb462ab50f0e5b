"""FIFO over GPU types, in both of Gavel's forms: agnostic of speeds, and aware of them (OSDI 2020, section 4.2).

Jobs get a GPU type in the order of submission, until a job finds no type with enough free GPUs; this job and all later
ones wait. A job that cannot run on any type with enough free GPUs, or that quotas allow none of them, is passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

from pydantic import model_validator

from metasched.capacity.quota_budget import QuotaBudget
from metasched.core.model import Job
from metasched.core.resumable_rng import ResumableRng
from metasched.time_shares.allocation_inputs import AllocationInputs
from metasched.time_shares.policy_base import TimeShareParameters, TimeSharePolicy
from metasched.time_shares.round_mechanism import TimeShares, as_single_combinations


class GavelFifoParameters(TimeShareParameters):
    """Parameters of Gavel's FIFO."""

    aware: bool = True
    """Whether each job gets its fastest GPU type with enough free GPUs, and moves to a faster type when that has
    enough; without, it gets a random type and keeps it.
    """
    as_published: bool = False
    """Without ``aware``, whether types are chosen with a defect of the public code: a job gets the last type by name of
    those listed as not full, while a type drawn at random is removed from the list; the successor of an ended job
    ignores which other jobs have its type. Types are then given to too many jobs, which alternate.
    """

    @model_validator(mode="after")
    def _one_or_the_other(self) -> Self:
        if self.aware and self.as_published:
            message = "as_published is about types drawn at random: set aware = false with it"
            raise ValueError(message)
        return self


class GavelFifo(TimeSharePolicy):
    """All of the time on one GPU type for the first jobs; no job overtakes the first that waits."""

    name: ClassVar[str] = "gavel_fifo"
    Parameters: ClassVar[type[GavelFifoParameters]] = GavelFifoParameters
    parameters: GavelFifoParameters
    fills: ClassVar[bool] = False

    def time_shares(self, inputs: AllocationInputs, memory: Mapping[str, Any]) -> tuple[TimeShares, Mapping[str, Any]]:
        """One GPU type for each job in order; the memory has these types, and how many random numbers were drawn."""
        if self.parameters.aware:
            fastest = _assign(inputs, {}, lambda job, types: max(types, key=lambda t: inputs.speed(job, t) or 0.0))
            return as_single_combinations({uid: {gpu_type: 1.0} for uid, gpu_type in fastest.items()}), memory
        rng = ResumableRng.resume(self.parameters.seed, memory.get("used", 0))
        before: Mapping[str, str] = memory.get("taken", {})
        if self.parameters.as_published:
            assigned = _assign_as_published(inputs, before, rng)
        else:
            assigned = _assign(inputs, before, lambda _, types: types[rng.randrange(len(types))])
        shares = as_single_combinations({uid: {gpu_type: 1.0} for uid, gpu_type in assigned.items()})
        return shares, {"taken": assigned, "used": rng.used}


def _assign(
    inputs: AllocationInputs, before: Mapping[str, str], choose: Callable[[Job, list[str]], str]
) -> dict[str, str]:
    """By uid, the GPU type of each job that is served.

    Args:
        inputs: allocation inputs of the round.
        before: by uid, the GPU types of the last round, which jobs keep while GPUs suffice.
        choose: chooses a job's type among those with enough free GPUs.
    """
    free, budget = dict(inputs.capacity), QuotaBudget(inputs.quotas)
    assigned: dict[str, str] = {}

    def assign(job: Job, gpu_type: str) -> None:
        """Give a job its GPUs of a type, and charge them to its quotas."""
        assigned[job.uid] = gpu_type
        free[gpu_type] -= job.gpus
        budget.charge([job.uid], job.gpus, [gpu_type])

    for job in inputs.jobs:
        gpu_type = before.get(job.uid, "")
        if (
            gpu_type in inputs.gpus_per_node[job.uid]
            and free.get(gpu_type, 0) >= job.gpus
            and budget.allows([job.uid], job.gpus, gpu_type)
        ):
            assign(job, gpu_type)
    for job in inputs.jobs:
        if job.uid in assigned or not inputs.gpus_per_node[job.uid]:
            continue
        with_enough = [gpu_type for gpu_type, gpus in sorted(free.items()) if gpus >= job.gpus]
        if not with_enough:
            break
        types = [gpu_type for gpu_type in with_enough if gpu_type in inputs.gpus_per_node[job.uid]]
        if types := [gpu_type for gpu_type in types if budget.allows([job.uid], job.gpus, gpu_type)]:
            assign(job, choose(job, types))
    return assigned


def _assign_as_published(inputs: AllocationInputs, before: Mapping[str, str], rng: ResumableRng) -> dict[str, str]:
    """By uid, the GPU type of each job that is served, with the defect of the public code (see ``as_published``)."""
    jobs = {job.uid: job for job in inputs.jobs}
    free = dict(inputs.capacity)
    before = {uid: gpu_type for uid, gpu_type in before.items() if gpu_type in inputs.gpus_per_node.get(uid, free)}
    queue = [job for job in inputs.jobs if job.uid not in before and inputs.gpus_per_node[job.uid]]
    assigned: dict[str, str] = {}
    for uid, gpu_type in sorted(before.items()):
        if uid in jobs:
            assigned[uid] = gpu_type
            free[gpu_type] -= jobs[uid].gpus
        elif queue and queue[0].gpus <= free[gpu_type] and gpu_type in inputs.gpus_per_node[queue[0].uid]:
            job = queue.pop(0)
            assigned[job.uid] = gpu_type
            free[gpu_type] -= job.gpus
    listed = sorted(gpu_type for gpu_type, gpus in free.items() if gpus > 0)
    for job in queue:
        with_enough = [gpu_type for gpu_type in listed if free[gpu_type] >= job.gpus]
        if not with_enough:
            break
        drawn, chosen = with_enough[rng.randrange(len(with_enough))], listed[-1]
        if chosen in inputs.gpus_per_node[job.uid]:
            assigned[job.uid] = chosen
            free[chosen] -= job.gpus
            if free[chosen] == 0:
                listed.remove(drawn)
    return assigned
