"""FIFO over GPU types, in both of Gavel's forms: agnostic of speeds, and aware of them (OSDI 2020, section 4.2).

Jobs are given a GPU type in the order of their arrival, until one finds none with room; the others wait. A job that
finds room only on types where it does not run is passed over, and so is one that could not run even if it were alone
with the jobs that stay.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

from pydantic import model_validator

from metasched.core.model import Job
from metasched.core.seeded_rng import SeededRng
from metasched.time_shares.allocation_inputs import AllocationInputs
from metasched.time_shares.policy_base import TimeShareParameters, TimeSharePolicy
from metasched.time_shares.round_mechanism import Times, alone


class GavelFifoParameters(TimeShareParameters):
    """Parameters of Gavel's FIFO.

    Attributes:
        aware: whether each job takes the fastest type with room, and moves to a faster one when that has; else it takes
            one by chance, and stays.
        as_published: without ``aware``, whether a type is chosen as the public simulator does by a slip: the last by
            name of those not full yet, with room or without, while chance strikes one off the list; and a job that ends
            is succeeded on its type as if nobody who came after it were there. Types are then given to too many.
    """

    aware: bool = True
    as_published: bool = False

    @model_validator(mode="after")
    def _one_or_the_other(self) -> Self:
        if self.aware and self.as_published:
            message = "as_published is about types chosen by chance: set aware = false with it"
            raise ValueError(message)
        return self


class GavelFifo(TimeSharePolicy):
    """All of the time on one type for the first in line; nobody overtakes the first who has to wait."""

    name: ClassVar[str] = "gavel_fifo"
    Parameters: ClassVar[type[GavelFifoParameters]] = GavelFifoParameters
    parameters: GavelFifoParameters
    fills: ClassVar[bool] = False

    def shares(self, claims: AllocationInputs, memory: Mapping[str, Any]) -> tuple[Times, Mapping[str, Any]]:
        """One type each, first come first served; remembers who has which, and how much chance is used up."""
        if self.parameters.aware:
            line = _Line(claims, {})
            line.serve(lambda job, kinds: max(kinds, key=lambda kind: claims.speed(job, kind) or 0.0))
            return alone({uid: {kind: 1.0} for uid, kind in line.taken.items()}), memory
        chance = SeededRng.resume(self.parameters.seed, memory.get("used", 0))
        before: Mapping[str, str] = memory.get("taken", {})
        if self.parameters.as_published:
            taken = _slip(claims, before, chance)
        else:
            line = _Line(claims, before)
            line.serve(lambda _, kinds: kinds[chance.randrange(len(kinds))])
            taken = line.taken
        return alone({uid: {kind: 1.0} for uid, kind in taken.items()}), {"taken": taken, "used": chance.used}


class _Line:
    """GPUs that are given away in the order of arrival."""

    def __init__(self, claims: AllocationInputs, before: Mapping[str, str]) -> None:
        self.claims = claims
        self.free = dict(claims.capacity)
        self.taken: dict[str, str] = {}
        for job in claims.jobs:
            kind = before.get(job.uid, "")
            if kind in claims.spreads[job.uid] and self.free.get(kind, 0) >= job.gpus:
                self._take(job, kind)

    def serve(self, pick: Callable[[Job, list[str]], str]) -> None:
        """Go down the line until a job finds no room.

        One that finds room only where it cannot run is passed over, and one that cannot run anywhere now.
        """
        for job in self.claims.jobs:
            if job.uid in self.taken or not self.claims.spreads[job.uid]:
                continue
            roomy = [kind for kind, gpus in sorted(self.free.items()) if gpus >= job.gpus]
            if not roomy:
                return
            if kinds := [kind for kind in roomy if kind in self.claims.spreads[job.uid]]:
                self._take(job, pick(job, kinds))

    def _take(self, job: Job, kind: str) -> None:
        self.taken[job.uid] = kind
        self.free[kind] -= job.gpus


def _slip(claims: AllocationInputs, before: Mapping[str, str], chance: SeededRng) -> dict[str, str]:
    """The public simulator's choice of types (see ``as_published``)."""
    jobs = {job.uid: job for job in claims.jobs}
    free = dict(claims.capacity)
    before = {uid: kind for uid, kind in before.items() if kind in claims.spreads.get(uid, free)}
    queue = [job for job in claims.jobs if job.uid not in before and claims.spreads[job.uid]]
    taken: dict[str, str] = {}
    for uid, kind in sorted(before.items()):
        if uid in jobs:
            taken[uid] = kind
            free[kind] -= jobs[uid].gpus
        elif queue and queue[0].gpus <= free[kind] and kind in claims.spreads[queue[0].uid]:
            job = queue.pop(0)
            taken[job.uid] = kind
            free[kind] -= job.gpus
    listed = sorted(kind for kind, gpus in free.items() if gpus > 0)
    for job in queue:
        roomy = [kind for kind in listed if free[kind] >= job.gpus]
        if not roomy:
            break
        drawn, chosen = roomy[chance.randrange(len(roomy))], listed[-1]
        if chosen in claims.spreads[job.uid]:
            taken[job.uid] = chosen
            free[chosen] -= job.gpus
            if free[chosen] == 0:
                listed.remove(drawn)
    return taken
