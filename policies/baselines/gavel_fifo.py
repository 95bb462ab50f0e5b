"""FIFO over GPU types, in both of Gavel's forms: agnostic of speeds, and aware of them (OSDI 2020, section 4.2).

Jobs get a GPU type in the order of submission, until one finds no type with enough free GPUs; the others wait. A job
is passed over if only types on which it does not run have free GPUs, or if it could not be placed on any type.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

from pydantic import model_validator

from metasched.core.model import Job
from metasched.core.seeded_rng import SeededRng
from metasched.time_shares.allocation_inputs import AllocationInputs
from metasched.time_shares.policy_base import TimeShareParameters, TimeSharePolicy
from metasched.time_shares.round_mechanism import TimeShares, alone


class GavelFifoParameters(TimeShareParameters):
    """Parameters of Gavel's FIFO.

    Attributes:
        aware: whether each job gets its fastest GPU type with enough free GPUs, and moves to a faster type when that
            has enough; without, it gets a random type and stays there.
        as_published: without ``aware``, whether a type is chosen by a slip of the public code: the last type by name of
            those that are not full, while a type drawn at random is struck off the list; the successor of an ended job
            ignores which other jobs have its type. Types are then given to too many jobs, which alternate.
    """

    aware: bool = True
    as_published: bool = False

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
            line = _Line(inputs, {})
            line.serve(lambda job, kinds: max(kinds, key=lambda kind: inputs.speed(job, kind) or 0.0))
            return alone({uid: {kind: 1.0} for uid, kind in line.taken.items()}), memory
        rng = SeededRng.resume(self.parameters.seed, memory.get("used", 0))
        before: Mapping[str, str] = memory.get("taken", {})
        if self.parameters.as_published:
            taken = _slip(inputs, before, rng)
        else:
            line = _Line(inputs, before)
            line.serve(lambda _, kinds: kinds[rng.randrange(len(kinds))])
            taken = line.taken
        return alone({uid: {kind: 1.0} for uid, kind in taken.items()}), {"taken": taken, "used": rng.used}


class _Line:
    """Free GPUs by type, and the GPU type of each served job, in the order of submission."""

    def __init__(self, inputs: AllocationInputs, before: Mapping[str, str]) -> None:
        self.inputs = inputs
        self.free = dict(inputs.capacity)
        self.taken: dict[str, str] = {}
        for job in inputs.jobs:
            kind = before.get(job.uid, "")
            if kind in inputs.gpus_per_node[job.uid] and self.free.get(kind, 0) >= job.gpus:
                self._take(job, kind)

    def serve(self, pick: Callable[[Job, list[str]], str]) -> None:
        """Serve jobs in order until one finds no GPU type with enough free GPUs.

        Jobs that cannot run on any of these types are passed over.
        """
        for job in self.inputs.jobs:
            if job.uid in self.taken or not self.inputs.gpus_per_node[job.uid]:
                continue
            roomy = [kind for kind, gpus in sorted(self.free.items()) if gpus >= job.gpus]
            if not roomy:
                return
            if kinds := [kind for kind in roomy if kind in self.inputs.gpus_per_node[job.uid]]:
                self._take(job, pick(job, kinds))

    def _take(self, job: Job, kind: str) -> None:
        self.taken[job.uid] = kind
        self.free[kind] -= job.gpus


def _slip(inputs: AllocationInputs, before: Mapping[str, str], rng: SeededRng) -> dict[str, str]:
    """The GPU type of each job by the slip of the public code (see ``as_published``)."""
    jobs = {job.uid: job for job in inputs.jobs}
    free = dict(inputs.capacity)
    before = {uid: kind for uid, kind in before.items() if kind in inputs.gpus_per_node.get(uid, free)}
    queue = [job for job in inputs.jobs if job.uid not in before and inputs.gpus_per_node[job.uid]]
    taken: dict[str, str] = {}
    for uid, kind in sorted(before.items()):
        if uid in jobs:
            taken[uid] = kind
            free[kind] -= jobs[uid].gpus
        elif queue and queue[0].gpus <= free[kind] and kind in inputs.gpus_per_node[queue[0].uid]:
            job = queue.pop(0)
            taken[job.uid] = kind
            free[kind] -= job.gpus
    listed = sorted(kind for kind, gpus in free.items() if gpus > 0)
    for job in queue:
        roomy = [kind for kind in listed if free[kind] >= job.gpus]
        if not roomy:
            break
        drawn, chosen = roomy[rng.randrange(len(roomy))], listed[-1]
        if chosen in inputs.gpus_per_node[job.uid]:
            taken[job.uid] = chosen
            free[chosen] -= job.gpus
            if free[chosen] == 0:
                listed.remove(drawn)
    return taken
