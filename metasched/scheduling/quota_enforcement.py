"""Limits that hold whatever a policy decides: what of its grants they allow, and where that goes. Pure.

Grants are taken in the decision's order, after what nothing in this round can free. One that would exceed a limit is
cut to what is left, or goes without; what it leaves is there for those after it. What is allowed and finds no place, or
less of one, uses nothing up: the decision is gone through again without it, as long as somebody who was cut could gain.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from metasched.core.model import Decision, Grant, Job, Placement, Quota, Snapshot, Status
from metasched.core.reasons import Code, Reason
from metasched.placement import Placements, place

# So often a decision is gone through at most; each time, at least one more job is known to find no more than it has.
MOST_TIMES = 16

HOST_WITHOUT = Reason(Code.CO_RUNNER_CUT)


def place_within(snapshot: Snapshot, view: Snapshot, decision: Decision) -> tuple[Placements, Mapping[str, Reason]]:
    """Find nodes for what the limits allow of a decision; and by uid, what they took from whom.

    Args:
        snapshot: all jobs.
        view: those that the policy has decided about, and the nodes without what the others hold.
        decision: the policy's.
    """
    if not snapshot.quotas:
        return place(view, decision.grants, decision.fallback), {}
    held = _held(snapshot)
    most: dict[str, Placement | None] = {}
    unplaced: dict[str, Reason] = {}
    reasons: dict[str, Reason] = {}
    for _ in range(MOST_TIMES):
        allowed = _Admission(snapshot, view, held).admit(decision, most)
        reasons = {uid: reasons[uid] for uid in reasons.keys() & most.keys()} | allowed.reasons
        found = place(view, allowed.grants, allowed.fallback)
        unplaced |= found.unplaced
        less = _less(snapshot.quotas, allowed, found, held)
        # Who finds no place on the one type that it is left may find one on another, once others have theirs.
        less = less or dict.fromkeys(allowed.narrowed - found.placed.keys())
        if not less or not _could_gain(snapshot, view, allowed, found, held):
            break
        most |= less
    missing = {uid: why for uid, why in unplaced.items() if uid not in found.placed and uid not in allowed.denied}
    return replace(found, unplaced=missing), reasons


def shut_out(snapshot: Snapshot, view: Snapshot, decision: Decision, found: Placements) -> Mapping[str, Reason]:
    """Jobs that limits leave nothing, with the reason, where others wait behind them while GPUs are free.

    A policy that keeps a strict order, and so offers nobody as fallback, is to be asked again without them: it knows
    nothing of limits, and would let nobody pass.
    """
    if not snapshot.quotas or not decision.waits or any(view.job[grant.uid].gpus for grant in decision.fallback):
        return {}
    held = _held(snapshot)
    room, free = _left(snapshot, view, held, found)
    out: dict[str, Reason] = {}
    for job in view.jobs:
        if job.uid in room.of and job.uid not in found.placed and job.uid not in held:
            limits = [room.most(job.uid, [kind]) for kind in (job.gpu_types or free if job.gpus else (None,))]
            most, limit = max(limits, default=(math.inf, -1))
            if most < job.min_gpus:
                out[job.uid] = _reached(snapshot.quotas[limit], most)
    behind = [view.job[uid] for uid in decision.waits.keys() - out.keys() - found.placed.keys()]
    if any(not job.gpus or max(free.values(), default=0) >= job.min_gpus for job in behind):
        return out
    return {}


@dataclass(slots=True)
class _Allowed:
    """What limits allow of a decision.

    Attributes:
        grants, fallback: the decision's, cut.
        denied, cut, narrowed: who goes without, who has less than granted, and who is left but one type.
        reasons: of them all, which limit it was.
    """

    grants: list[Grant] = field(default_factory=list)
    fallback: list[Grant] = field(default_factory=list)
    denied: set[str] = field(default_factory=set)
    cut: set[str] = field(default_factory=set)
    narrowed: set[str] = field(default_factory=set)
    reasons: dict[str, Reason] = field(default_factory=dict)


class _Room:
    """What is left of each limit."""

    def __init__(self, limits: Sequence[Quota]) -> None:
        self.limits = limits
        self.left = [limit.left for limit in limits]
        self.of: dict[str, list[int]] = {}
        for i, limit in enumerate(limits):
            for uid in limit.members:
                self.of.setdefault(uid, []).append(i)

    def take(self, uid: str, gpus: int, kinds: Collection[str | None]) -> None:
        """A job has so many GPUs, of one of these types."""
        for i in self.of.get(uid, ()):
            limit = self.limits[i]
            if limit.of_jobs:
                self.left[i] -= 1
            elif limit.gpu_type is None or limit.gpu_type in kinds:
                self.left[i] -= gpus

    def most(self, uid: str, kinds: Collection[str | None]) -> tuple[float, int]:
        """The GPUs that a job could have, whichever of these types they are; and the limit that says so.

        Negative where it must not run at all. Infinite, and -1, where no limit says anything.
        """
        found: tuple[float, int] = (math.inf, -1)
        for i in self.of.get(uid, ()):
            limit, left = self.limits[i], self.left[i]
            if limit.of_jobs:
                found = min(found, (math.inf if left > 0 else -1.0, i))
            elif limit.gpu_type is None or limit.gpu_type in kinds:
                found = min(found, (max(left, 0), i))
        return found


class _Admission:
    """One pass over a decision."""

    def __init__(self, snapshot: Snapshot, view: Snapshot, held: Mapping[str, Placement]) -> None:
        self.job = view.job
        self.held = held
        self.types = sorted(view.capacity)
        self.room = _Room(snapshot.quotas)
        self.whole: set[str] = set()  # who has got all that it was granted
        self.allowed = _Allowed()
        for uid, placement in held.items():
            self.room.take(uid, placement.gpus, [placement.gpu_type])

    def admit(self, decision: Decision, most: Mapping[str, Placement | None]) -> _Allowed:
        """What is allowed, if some jobs are known to find no more than ``most``, None being no place at all."""
        allowed, moved = self.allowed, []
        for grants, to in ((decision.grants, allowed.grants), (decision.fallback, allowed.fallback)):
            for grant in grants:
                if grant.uid in most:
                    place_found = most[grant.uid]
                    got = None if place_found is None else _of(grant, place_found)
                else:
                    got = self._cut(grant)
                if got is not None and grant.exact is not None and got.exact is None:
                    moved.append(self._taken(got))  # its place is no longer the policy's: nobody else's may suffer
                elif got is not None:
                    to.append(self._taken(got))
        allowed.fallback[:0] = moved
        return allowed

    def _taken(self, grant: Grant) -> Grant:
        if grant.uid not in self.held:
            self.room.take(grant.uid, grant.gpus, self._kinds(grant))
        return grant

    def _cut(self, grant: Grant) -> Grant | None:
        """What of a grant is allowed; None for nothing."""
        uid, job = grant.uid, self.job[grant.uid]
        if uid in self.held:
            self.whole.add(uid)
            return grant
        if grant.co_runner is not None and grant.co_runner not in self.whole:
            self._deny(uid, HOST_WITHOUT)
            return None
        most, limit = self.room.most(uid, self._kinds(grant))
        if most < grant.gpus and grant.gpu_type is None:
            most, limit, grant = self._of_one_type(grant, most, limit)
        if most >= grant.gpus:
            self.whole.add(uid)
            return grant
        if most < job.min_gpus or grant.co_runner is not None:
            self._deny(uid, _reached(self.room.limits[limit], most))
            return None
        gpus = int(most)
        self.allowed.cut.add(uid)
        quota = self.room.limits[limit].name
        self.allowed.reasons[uid] = Reason.of(Code.QUOTA_CUT, quota=quota, gpus=grant.gpus, gpus_left=gpus)
        return replace(grant, gpus=gpus, at_least=job.min_gpus, exact=None)

    def _of_one_type(self, grant: Grant, most: float, limit: int) -> tuple[float, int, Grant]:
        """The type of which it can have most, if that is more than of all that it accepts."""
        for kind in self._kinds(grant):
            there, what = self.room.most(grant.uid, [kind])
            if there > most:
                most, limit = there, what
                grant = replace(grant, gpu_type=kind)
        if grant.gpu_type is not None:
            self.allowed.narrowed.add(grant.uid)
            self.allowed.reasons[grant.uid] = Reason.of(Code.QUOTA_ONE_TYPE, gpu_type=grant.gpu_type)
        return most, limit, grant

    def _deny(self, uid: str, reason: Reason) -> None:
        self.allowed.denied.add(uid)
        self.allowed.reasons[uid] = reason

    def _kinds(self, grant: Grant) -> Sequence[str | None]:
        """The types of which its GPUs may be."""
        if grant.gpu_type is not None or not grant.gpus:
            return [grant.gpu_type]
        return self.job[grant.uid].gpu_types or self.types


def _held(snapshot: Snapshot) -> Mapping[str, Placement]:
    """What nothing in this round can free."""
    return {job.uid: job.placement for job in snapshot.jobs if job.placement is not None and _stays(job)}


def _stays(job: Job) -> bool:
    """Whether it holds what nothing in this round can free: what must not start (again) runs on."""
    suspended, runs = job.status is Status.SUSPENDED, job.status is Status.RUNNING
    return suspended or (runs and (job.pinned or job.blocked is not None))


def _of(grant: Grant, found: Placement) -> Grant:
    """The grant, for no more than what was found for it."""
    if found.gpus == grant.gpus:
        return replace(grant, gpu_type=found.gpu_type)
    return replace(grant, gpus=found.gpus, at_least=None, gpu_type=found.gpu_type, exact=None)


def _less(
    limits: Iterable[Quota], allowed: _Allowed, found: Placements, held: Collection[str]
) -> dict[str, Placement | None]:
    """Of the jobs that count against limits, what those have found that use up less than they were allowed."""
    members = frozenset[str]().union(*(limit.members for limit in limits)).difference(held)
    order = [*allowed.grants, *allowed.fallback]
    paired = {uid for grant in order if grant.co_runner is not None for uid in (grant.uid, grant.co_runner)}
    less: dict[str, Placement | None] = {}
    for grant in order:
        there = found.placed.get(grant.uid)
        if grant.uid not in members or grant.uid in (allowed.narrowed if there is None else paired):
            continue
        if there is None or there.gpus < grant.gpus or (grant.gpu_type is None and there.gpus):
            less[grant.uid] = there
    return less


def _could_gain(
    snapshot: Snapshot, view: Snapshot, allowed: _Allowed, found: Placements, held: Mapping[str, Placement]
) -> bool:
    """Whether somebody whom a limit took something from could have more of it, now that all have their places."""
    room, free = _left(snapshot, view, held, found)
    for uid in allowed.denied | allowed.cut | (allowed.narrowed - found.placed.keys()):
        job, has = view.job[uid], found.placed.get(uid)
        kinds: Collection[str | None] = job.gpu_types or list(free)
        if has is not None or not job.gpus:
            kinds = [None if has is None else has.gpu_type]
        needs = job.min_gpus if has is None else 1
        for kind in kinds:
            if room.most(uid, [kind])[0] >= needs and (kind is None or free.get(kind, 0) >= needs):
                return True
    return False


def _left(
    snapshot: Snapshot, view: Snapshot, held: Mapping[str, Placement], found: Placements
) -> tuple[_Room, Mapping[str, int]]:
    """What is left of limits, and of GPUs by type, once all have their places."""
    room, free = _Room(snapshot.quotas), dict(view.capacity)
    for uid, there in {**held, **found.placed}.items():
        room.take(uid, there.gpus, [there.gpu_type])
    for uid, there in found.placed.items():
        for name, gpus in there.node_gpus if uid not in found.co_runners or uid < found.co_runners[uid] else ():
            node = view.node.get(name)
            if node is not None and node.accepts and node.gpu_type is not None:
                free[node.gpu_type] -= gpus
    return room, free


def _reached(quota: Quota, most: float) -> Reason:
    return Reason.of(Code.QUOTA_REACHED, quota=quota.name, gpus_left=int(most) if most >= 0 else None)
