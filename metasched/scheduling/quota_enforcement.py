"""Quotas, which limit the grants of every policy: how many GPUs of each they allow, and their placement. Pure.

charge the allocations that no decision of this round can free
repeat
    admit each grant in the decision's order: whole, cut to the GPUs that its quotas leave, or not at all
    place the admitted grants
    limit each job that was placed on fewer GPUs than admitted to these GPUs, in all later passes
until every job has the GPUs that it was admitted, or no job that was cut or denied could gain by another pass
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from metasched.capacity.quota_budget import QuotaBudget, quota_reached
from metasched.core.model import Decision, Grant, Placement, Quota, Snapshot
from metasched.core.reasons import Code, Reason
from metasched.core.retention import consumes_quota_under_any_decision
from metasched.placement import Placements, place

# A decision is admitted and placed at most this often; each pass finds at least one more job that needs less.
MAX_PASSES = 16

HOST_CUT = Reason(Code.CO_RUNNER_CUT)


def place_within_quotas(
    snapshot: Snapshot, schedulable: Snapshot, decision: Decision
) -> tuple[Placements, Mapping[str, Reason]]:
    """Place as much of a decision as the quotas allow.

    Args:
        snapshot: all jobs, and the quotas.
        schedulable: the snapshot that the policy has seen.
        decision: the policy's decision.

    Returns:
        the placements, and by uid, which quota cut or denied the job's grant.
    """
    if not snapshot.quotas:
        return place(schedulable, decision.grants, decision.fallback), {}
    held = _held_regardless(snapshot)
    # A quota may be for one GPU type: what it allows of the granted type says nothing of others.
    grants, fallback = (
        tuple([replace(one, other_types=()) if one.other_types else one for one in ranked])
        for ranked in (decision.grants, decision.fallback)
    )
    decision = replace(decision, grants=grants, fallback=fallback)
    most: dict[str, Placement | None] = {}
    unplaced: dict[str, Reason] = {}
    reasons: dict[str, Reason] = {}
    for _ in range(MAX_PASSES):
        allowed = _Admission(snapshot, schedulable, held).admit(decision, most)
        reasons = {uid: reasons[uid] for uid in reasons.keys() & most.keys()} | allowed.reasons
        found = place(schedulable, allowed.grants, allowed.fallback)
        unplaced |= found.unplaced
        fewer = _jobs_with_fewer_gpus(snapshot.quotas, allowed, found, held)
        # A job without nodes of the one type that quotas leave it may find nodes of another type in the next pass.
        fewer = fewer or dict.fromkeys(allowed.narrowed - found.placed.keys())
        if not fewer or not _could_gain(snapshot, schedulable, allowed, found, held):
            break
        most |= fewer
    missing = {uid: why for uid, why in unplaced.items() if uid not in found.placed and uid not in allowed.denied}
    return replace(found, unplaced=missing), reasons


def jobs_without_quota(
    snapshot: Snapshot, schedulable: Snapshot, decision: Decision, found: Placements
) -> Mapping[str, Reason]:
    """The jobs that quotas leave too few GPUs to run, if other jobs wait behind them while GPUs are free.

    A policy without fallback is asked again without these jobs: it lets no other job overtake them, or gave their GPUs
    to nobody.

    Returns:
        by uid, the reason; empty where no job waits behind them.
    """
    if not snapshot.quotas or not decision.waits or any(schedulable.job[grant.uid].gpus for grant in decision.fallback):
        return {}
    held = _held_regardless(snapshot)
    budget, free = _remaining(snapshot, schedulable, held, found)
    out: dict[str, Reason] = {}
    for job in schedulable.jobs:
        if job.uid in budget.quotas_of and job.uid not in found.placed and job.uid not in held:
            types: Iterable[str | None] = (job.gpu_types or free) if job.gpus else (None,)
            most, quota = max((budget.most_gpus(job.uid, [t]) for t in types), default=(math.inf, -1))
            if most < job.min_gpus:
                out[job.uid] = quota_reached(snapshot.quotas[quota], most)
    behind = [schedulable.job[uid] for uid in decision.waits.keys() - out.keys() - found.placed.keys()]
    if any(not job.gpus or max(free.values(), default=0) >= job.min_gpus for job in behind):
        return out
    return {}


@dataclass(slots=True)
class _Allowed:
    """The part of a decision that quotas allow.

    Attributes:
        grants: the decision's grants, cut where necessary.
        fallback: the decision's fallbacks, cut where necessary.
        denied: uids of jobs that are admitted nothing.
        cut: uids of jobs that are admitted fewer GPUs than granted.
        narrowed: uids of jobs that are admitted GPUs of one type only.
        reasons: by uid of denied, cut and narrowed jobs, the quota that decides.
    """

    grants: list[Grant] = field(default_factory=list)
    fallback: list[Grant] = field(default_factory=list)
    denied: set[str] = field(default_factory=set)
    cut: set[str] = field(default_factory=set)
    narrowed: set[str] = field(default_factory=set)
    reasons: dict[str, Reason] = field(default_factory=dict)


class _Admission:
    """One pass over a decision, in its order."""

    def __init__(self, snapshot: Snapshot, schedulable: Snapshot, held: Mapping[str, Placement]) -> None:
        self.job = schedulable.job
        self.held = held
        self.types = sorted(schedulable.capacity)
        self.budget = QuotaBudget(snapshot.quotas)
        self.admitted_in_full: set[str] = set()  # uids of jobs that are admitted all that was granted
        self.allowed = _Allowed()
        for uid, placement in held.items():
            self.budget.charge([uid], placement.gpus, [placement.gpu_type])

    def admit(self, decision: Decision, most: Mapping[str, Placement | None]) -> _Allowed:
        """Admit the grants and fallbacks of a decision.

        Args:
            decision: the policy's decision.
            most: by uid, the placements of jobs that were placed on fewer GPUs than admitted in earlier passes; None
                for no placement.
        """
        allowed = self.allowed
        moved: list[Grant] = []
        for grants, to in ((decision.grants, allowed.grants), (decision.fallback, allowed.fallback)):
            for grant in grants:
                if grant.uid in most:
                    earlier = most[grant.uid]
                    admitted = None if earlier is None else _limited_to(grant, earlier)
                else:
                    admitted = self._admit_grant(grant)
                if admitted is None:
                    continue
                if grant.uid not in self.held:
                    self.budget.charge([grant.uid], admitted.gpus, self._types(admitted))
                # A placement that the policy did not prescribe must not take nodes from one that it did.
                (moved if grant.exact is not None and admitted.exact is None else to).append(admitted)
        allowed.fallback[:0] = moved
        return allowed

    def _admit_grant(self, grant: Grant) -> Grant | None:
        """The part of a grant that is allowed; None where nothing is."""
        uid, job = grant.uid, self.job[grant.uid]
        if uid in self.held:
            self.admitted_in_full.add(uid)
            return grant
        if grant.co_runner is not None and grant.co_runner not in self.admitted_in_full:
            self._deny(uid, HOST_CUT)
            return None
        most, quota = self.budget.most_gpus(uid, self._types(grant))
        if most < grant.gpus and grant.gpu_type is None:
            most, quota, grant = self._narrow_to_best_type(grant, most, quota)
        if most >= grant.gpus:
            self.admitted_in_full.add(uid)
            return grant
        if most < job.min_gpus or grant.co_runner is not None:
            self._deny(uid, quota_reached(self.budget.quotas[quota], most))
            return None
        gpus = int(most)
        self.allowed.cut.add(uid)
        name = self.budget.quotas[quota].name
        self.allowed.reasons[uid] = Reason.of(Code.QUOTA_CUT, quota=name, gpus=grant.gpus, gpus_left=gpus)
        return replace(grant, gpus=gpus, at_least=job.min_gpus, exact=None)

    def _narrow_to_best_type(self, grant: Grant, most: float, quota: int) -> tuple[float, int, Grant]:
        """Narrow a grant to the GPU type of which quotas leave most, if that is more than they leave of any type.

        Returns:
            the GPUs, the position of the deciding quota, and the grant.
        """
        for gpu_type in self._types(grant):
            of_type, deciding = self.budget.most_gpus(grant.uid, [gpu_type])
            if of_type > most:
                most, quota = of_type, deciding
                grant = replace(grant, gpu_type=gpu_type)
        if grant.gpu_type is not None:
            self.allowed.narrowed.add(grant.uid)
            self.allowed.reasons[grant.uid] = Reason.of(Code.QUOTA_ONE_TYPE, gpu_type=grant.gpu_type)
        return most, quota, grant

    def _deny(self, uid: str, reason: Reason) -> None:
        self.allowed.denied.add(uid)
        self.allowed.reasons[uid] = reason

    def _types(self, grant: Grant) -> Sequence[str | None]:
        """The GPU types that a grant allows; None for a CPU-only job."""
        if grant.gpu_type is not None or not grant.gpus:
            return [grant.gpu_type]
        return self.job[grant.uid].gpu_types or self.types


def _held_regardless(snapshot: Snapshot) -> Mapping[str, Placement]:
    """By uid, the allocations that no decision of this round can free."""
    return {
        job.uid: job.placement
        for job in snapshot.jobs
        if job.placement is not None and consumes_quota_under_any_decision(job)
    }


def _limited_to(grant: Grant, found: Placement) -> Grant:
    """A grant of the GPUs on which it was placed in an earlier pass, and no more."""
    if found.gpus == grant.gpus:
        return replace(grant, gpu_type=found.gpu_type)
    return replace(grant, gpus=found.gpus, at_least=None, gpu_type=found.gpu_type, exact=None)


def _jobs_with_fewer_gpus(
    quotas: Iterable[Quota], allowed: _Allowed, found: Placements, held: Collection[str]
) -> dict[str, Placement | None]:
    """By uid, the placements of jobs with quotas on fewer GPUs than admitted; None for no placement.

    A job that was admitted GPUs of any type is among them: in the next pass it is charged for the type that it found.
    """
    members = frozenset[str]().union(*(quota.members for quota in quotas)).difference(held)
    order = [*allowed.grants, *allowed.fallback]
    paired = {uid for grant in order if grant.co_runner is not None for uid in (grant.uid, grant.co_runner)}
    fewer: dict[str, Placement | None] = {}
    for grant in order:
        place = found.placed.get(grant.uid)
        if grant.uid not in members or grant.uid in (allowed.narrowed if place is None else paired):
            continue
        if place is None or place.gpus < grant.gpus or (grant.gpu_type is None and place.gpus):
            fewer[grant.uid] = place
    return fewer


def _could_gain(
    snapshot: Snapshot, schedulable: Snapshot, allowed: _Allowed, found: Placements, held: Mapping[str, Placement]
) -> bool:
    """Whether a job that was denied, cut or narrowed could have more, by its quotas and the GPUs that are free."""
    budget, free = _remaining(snapshot, schedulable, held, found)
    for uid in allowed.denied | allowed.cut | (allowed.narrowed - found.placed.keys()):
        job, place = schedulable.job[uid], found.placed.get(uid)
        types: Collection[str | None] = job.gpu_types or list(free)
        if place is not None or not job.gpus:
            types = [None if place is None else place.gpu_type]
        needs = job.min_gpus if place is None else 1
        for gpu_type in types:
            if budget.most_gpus(uid, [gpu_type])[0] >= needs and (gpu_type is None or free.get(gpu_type, 0) >= needs):
                return True
    return False


def _remaining(
    snapshot: Snapshot, schedulable: Snapshot, held: Mapping[str, Placement], found: Placements
) -> tuple[QuotaBudget, Mapping[str, int]]:
    """The amounts that the placements leave of quotas, and of GPUs by type on nodes that accept jobs."""
    budget, free = QuotaBudget(snapshot.quotas), dict(schedulable.capacity)
    for uid, placement in {**held, **found.placed}.items():
        budget.charge([uid], placement.gpus, [placement.gpu_type])
    for uid, placement in found.placed.items():
        for name, gpus in placement.node_gpus if uid not in found.co_runners or uid < found.co_runners[uid] else ():
            node = schedulable.node.get(name)
            if node is not None and node.accepts and node.gpu_type is not None:
                free[node.gpu_type] -= gpus
    return budget, free
