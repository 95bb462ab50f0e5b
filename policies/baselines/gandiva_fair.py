"""Gandiva-Fair: proportional shares by tickets, for gangs (Chaudhary et al., EuroSys 2020, section 3).

Every user has the same tickets, whatever they submit, and a user's jobs share the user's. GPU time goes to tickets in
proportion; what somebody cannot use goes to the others. A gang of k GPUs pays k times for its time, so it runs for a
k-th of the time that a job of one GPU with the same tickets does.

Stride scheduling gives the next round to the lowest *pass*: what a job has had, over its tickets. That is the round
mechanism's order: its priorities are shares over what was received. Trading of fast for slow GPUs between users
(section 4) is left out: a share of GPU time is the same share of every type that a job can use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from metasched.core.model import Job
from metasched.time_shares.allocation_inputs import AllocationInputs
from metasched.time_shares.policy_base import TimeShareParameters, TimeSharePolicy
from metasched.time_shares.round_mechanism import Times, alone


class GandivaFairParameters(TimeShareParameters):
    """Parameters of Gandiva-Fair.

    Attributes:
        by_user: whether users have equal tickets; else jobs have.
        as_published: whether every job has an equal part of all GPUs' time, however many it takes at a time: so read
            Shockwave's authors it in their comparison. Users then do not count.
    """

    by_user: bool = True
    as_published: bool = False


class GandivaFair(TimeSharePolicy):
    """Equal shares of GPU time for users, and among the jobs of each by weight."""

    name: ClassVar[str] = "gandiva_fair"
    Parameters: ClassVar[type[GandivaFairParameters]] = GandivaFairParameters
    parameters: GandivaFairParameters

    def shares(self, claims: AllocationInputs, memory: Mapping[str, Any]) -> tuple[Times, Mapping[str, Any]]:
        """The fraction of time that a job's tickets are worth; remembers nothing."""
        jobs = [job for job in claims.jobs if claims.spreads[job.uid]]
        if self.parameters.as_published:
            part = sum(claims.capacity.values()) / max(len(jobs), 1)
            return alone({job.uid: _over_types(claims, job, min(part, 1.0)) for job in jobs}), memory
        users: dict[str, list[Job]] = {}
        for job in jobs:
            users.setdefault(job.user if self.parameters.by_user else job.uid, []).append(job)
        each = [float(sum(job.gpus for job in mine)) for mine in users.values()]
        tickets = [1.0 if self.parameters.by_user else mine[0].weight for mine in users.values()]
        found: dict[str, dict[str, float]] = {}
        for gpus, mine in zip(fair(sum(claims.capacity.values()), tickets, each), users.values(), strict=True):
            given = fair(gpus, [job.weight for job in mine], [float(job.gpus) for job in mine])
            found |= {job.uid: _over_types(claims, job, gpus / job.gpus) for job, gpus in zip(mine, given, strict=True)}
        return alone({job.uid: found[job.uid] for job in jobs}), memory


def fair(total: float, tickets: Sequence[float], most: Sequence[float]) -> list[float]:
    """Amounts in proportion to tickets, none above its most; what that leaves over goes to the others likewise."""
    found = [0.0] * len(tickets)
    order = sorted(range(len(tickets)), key=lambda i: most[i] / tickets[i])
    left = sum(tickets)
    for i in order:
        found[i] = min(most[i], total * tickets[i] / left)
        total -= found[i]
        left -= tickets[i]
    return found


def _over_types(claims: AllocationInputs, job: Job, fraction: float) -> dict[str, float]:
    """A fraction of time, on every type that the job can use in proportion to the type's GPUs."""
    gpus = {kind: claims.capacity.get(kind, 0) for kind in claims.spreads[job.uid]}
    total = sum(gpus.values())
    return {kind: fraction * count / total for kind, count in gpus.items()} if total else {}
