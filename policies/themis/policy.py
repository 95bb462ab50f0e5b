"""Themis: apps bid for free GPUs with their finish-time fairness, and hold what they win until their leases end.

Source: Mahajan et al., "Themis: Fair and Efficient GPU Cluster Scheduling", NSDI 2020.
A round, step by step:

1. Leases that have ended, and GPUs that apps no longer use, are on offer (``lease_round``).
2. Where something is on offer, the apps with the worst rho bid, and winners get leases (``arbiter``). Long auctions are
   held in the background; the leases that ended last until then.
3. Each app divides what it has among its members (``member_placement``).
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from metasched.core.model import Decision, Grant, Job, Placement, Snapshot
from metasched.core.policy import Policy, PolicyParameters, PolicyState
from metasched.core.reasons import Code, Reason
from metasched.core.retention import is_non_preemptible
from policies.themis.auction import Payment
from policies.themis.choice_program import MOST_PARTIAL_CHOICES
from policies.themis.job_slowdown import MeasuredSlowdowns
from policies.themis.lease_auction import LeaseAuction, Outcome
from policies.themis.lease_round import LeaseRound, Terms
from policies.themis.leases import Lease, Leases
from policies.themis.member_placement import ClusterSpace

VERSION = 1
"""The version of the state's layout."""
LEASES, SLOWDOWNS, ADMITTED, PENDING = "leases", "slowdowns", "admitted", "pending"
"""Keys of the state: leases; measured slowdowns; uids of admitted apps; whether an auction is to be held."""

MOST_AUCTIONS = 3
"""Auctions in one round, at most: what a winner cannot use is offered again."""
SHOWN_LEASES = 2
"""Leases of one app that a reason tells, the latest ends first."""

NO_GPUS = Reason(Code.CPU_ONLY)
AUCTION_PENDING = Reason(Code.AUCTION_PENDING)


class ThemisParameters(PolicyParameters):
    """Parameters of the policy Themis."""

    fairness: float = Field(default=0.8, gt=0, lt=1)
    """Fraction of the apps that do not bid, those that are best off; f in the paper."""
    lease_seconds: float = Field(default=600.0, gt=0)
    """The length of a lease before the payment."""
    payment: Literal["lease_time", "gpus"] = "lease_time"
    """What winners pay with: ``lease_time``, or ``gpus``."""
    most_demand: float | None = Field(default=None, gt=0)
    """New apps wait while the admitted ones ask for more GPUs than this times the cluster's; None to admit all."""
    restart_seconds: float = Field(default=30.0, ge=0)
    """Assumed seconds of a restart of a job of which none was measured."""
    slot_gpus: int = Field(default=1, ge=1)
    """GPUs of one slot of a node, in simulations that have slots."""
    background: bool = True
    """Whether the daemon holds long auctions in the background, rather than in the round."""
    rows_in_round: int = Field(default=4000, ge=0)
    """Auctions with more rows of bids count as long."""
    most_partial_choices: int = Field(default=MOST_PARTIAL_CHOICES, ge=1)
    """The budget of the exact programs."""
    seed: int = Field(default=0, ge=0)
    """Seed of all draws."""

    @model_validator(mode="after")
    def _check_lease(self) -> Self:
        if self.lease_seconds < self.restart_seconds:
            raise ValueError(
                f"lease_seconds is {self.lease_seconds:g}, less than a restart of {self.restart_seconds:g} s "
                "(restart_seconds): jobs would do nothing but restart; give longer leases, such as 600"
            )
        return self


class Themis(Policy):
    """Auctions of GPU leases among apps; preemptive, elastic."""

    name: ClassVar[str] = "themis"
    Parameters: ClassVar[type[PolicyParameters]] = ThemisParameters
    parameters: ThemisParameters
    reads_apps: ClassVar[bool] = True
    wakes_on_result: ClassVar[bool] = True

    @property
    def solves_in_background(self) -> bool:
        """Whether the daemon holds long auctions between rounds."""
        return self.parameters.background

    @property
    def terms(self) -> Terms:
        """The terms of auctions and leases."""
        given = self.parameters
        return Terms(
            fairness=given.fairness,
            lease_seconds=given.lease_seconds,
            payment=Payment(given.payment),
            restart_seconds=given.restart_seconds,
            slot_gpus=given.slot_gpus,
            most_partial=given.most_partial_choices,
            seed=given.seed,
        )

    def initial_state(self, snapshot: Snapshot) -> PolicyState:
        """Leases for the apps that run already, which end one after the other within ``lease_seconds``."""
        gpus: dict[str, Counter[str]] = {}
        for app, jobs in _members(snapshot).items():
            for job in jobs:
                if job.placement is not None and not is_non_preemptible(job):
                    gpus.setdefault(app, Counter()).update(dict(job.placement.node_gpus))
        in_order = sorted(gpus, key=lambda app: sorted(gpus[app].items()))
        random.Random(self.parameters.seed).shuffle(in_order)  # noqa: S311  fairness, not secrecy
        leases = []
        for number, app in enumerate(in_order, 1):
            seconds = self.parameters.lease_seconds * number / len(in_order)
            reason = Reason.of(Code.LEASE_AT_FIRST, minutes=round(seconds / 60.0, 1))
            leases.append(Lease.of(app, gpus[app], snapshot.now + seconds, reason))
        return _Memory(Leases().plus(leases)).state()

    def decide(self, snapshot: Snapshot, state: PolicyState) -> tuple[Decision, PolicyState]:
        """Hold the auctions that are due, and place all members on what their apps have."""
        before = _Memory.of(state) or _Memory.of(self.initial_state(snapshot)) or _Memory()
        admitted, waiting, not_admitted = self._admission(snapshot, before.admitted)
        slowdowns = before.slowdowns.after(_members(snapshot), snapshot.node, self.parameters.slot_gpus)
        found = LeaseRound(snapshot, self.terms, slowdowns, waiting)
        settled = self._settle(found, before.leases)
        decision = _decision(found, settled, not_admitted)
        after = _Memory(settled.leases, slowdowns, tuple(admitted), pending=settled.pending)
        return decision, after.state()

    def precompute(self, snapshot: Snapshot, state: PolicyState) -> Mapping[str, Any] | None:
        """Hold the auction that the latest round put off; None where it put none off."""
        before = _Memory.of(state)
        if before is None or not before.pending:
            return None
        _, waiting, _ = self._admission(snapshot, before.admitted)
        found = LeaseRound(snapshot, self.terms, before.slowdowns, waiting)
        return LeaseAuction.of(found, *found.place(_live(found, before.leases))).hold().to_json()

    def _settle(self, found: LeaseRound, stored: Leases) -> _Settled:
        """Auctions until nothing is left that a winner could use, after what an earlier auction gave."""
        snapshot = found.snapshot
        given = Outcome.from_json(snapshot.precomputed) if snapshot.precomputed else Outcome()
        leases, unserved = _live(found, stored), dict(given.unserved)
        placed, space = found.place(leases)
        if given.leases:
            leases = found.used(leases, placed).plus(_possible(given.leases, space, found))
            placed, space = found.place(leases)
        for number in range(MOST_AUCTIONS):
            auction = LeaseAuction.of(found, placed, space)
            if number == 0 and self._is_long(auction, snapshot):
                leases = leases.plus(_ended(found, stored, leases))
                return _Settled(leases, found.place(leases)[0], unserved, pending=True)
            outcome = auction.hold()
            unserved |= {app: reason for app, reason in outcome.unserved.items() if number == 0 or app not in unserved}
            if not outcome.leases:
                break
            before = sum(place.gpus for place in placed.values())
            leases = found.used(leases, placed).plus(outcome.leases)
            placed, space = found.place(leases)
            if sum(place.gpus for place in placed.values()) <= before:
                break
        return _Settled(found.used(leases, placed), placed, unserved, pending=False)

    def _is_long(self, auction: LeaseAuction, snapshot: Snapshot) -> bool:
        """Whether the auction is to be held in the background."""
        return snapshot.precomputed is not None and auction.rows > self.parameters.rows_in_round

    def _admission(
        self, snapshot: Snapshot, before: Collection[str]
    ) -> tuple[list[str], frozenset[str], dict[str, Reason]]:
        """Which apps are admitted, the earliest first; which wait, and why (section 3.2, footnote).

        An app that has begun is admitted. Another one is, while those before it ask for less than the threshold.
        """
        most = self.parameters.most_demand
        if most is None:
            return [], frozenset(), {}
        gpus = sum(snapshot.capacity.values())
        jobs = _members(snapshot)
        asked, admitted, not_admitted = 0, list[str](), dict[str, Reason]()
        begun = {uid for uid, members in jobs.items() if uid in before or any(job.run or job.active for job in members)}
        for app in sorted(snapshot.apps, key=lambda one: (one.uid not in begun, one.first_submitted, one.uid)):
            if app.uid not in jobs:
                continue
            if app.uid in begun or asked < most * gpus or not admitted:
                admitted.append(app.uid)
                asked += sum(job.gpus for job in jobs[app.uid])
            else:
                not_admitted[app.uid] = Reason.of(Code.APP_NOT_ADMITTED, asked=asked, gpus=gpus, most=most)
        return admitted, frozenset(not_admitted), not_admitted


class _Settled(NamedTuple):
    """What a round has come to.

    Attributes:
        leases: the leases that hold.
        placed: the placements of members, by uid.
        unserved: why apps that got nothing in an auction got nothing, by uid.
        pending: whether an auction is to be held in the background.
    """

    leases: Leases
    placed: Mapping[str, Placement]
    unserved: Mapping[str, Reason]
    pending: bool


@dataclass(frozen=True)
class _Memory:
    """What a round remembers for the next one."""

    leases: Leases = field(default_factory=Leases)
    slowdowns: MeasuredSlowdowns = field(default_factory=MeasuredSlowdowns)
    admitted: tuple[str, ...] = ()
    pending: bool = False

    @classmethod
    def of(cls, state: PolicyState) -> _Memory | None:
        """What a state says; None if it is of another version."""
        if state.version != VERSION or not state.data:
            return None
        data = state.data
        leases, slowdowns = Leases.from_json(data[LEASES]), MeasuredSlowdowns.from_json(data[SLOWDOWNS])
        return cls(leases, slowdowns, tuple(data[ADMITTED]), data[PENDING])

    def state(self) -> PolicyState:
        """The state, whose data is JSON-compatible."""
        data = {LEASES: self.leases.to_json(), SLOWDOWNS: self.slowdowns.to_json(), ADMITTED: list(self.admitted)}
        return PolicyState(VERSION, data | {PENDING: self.pending})


def _members(snapshot: Snapshot) -> dict[str, list[Job]]:
    """The live members of each app, by its uid."""
    apps = {uid: app.uid for app in snapshot.apps for uid in app.members}
    found: dict[str, list[Job]] = {}
    for job in snapshot.jobs:
        if job.gpus and job.uid in apps:
            found.setdefault(apps[job.uid], []).append(job)
    return found


def _node_gpus(found: LeaseRound) -> dict[str, int]:
    return {node.name: node.gpus for node in found.snapshot.nodes if node.accepts}


def _live(found: LeaseRound, stored: Leases) -> Leases:
    """The leases that have not ended, of apps that have members, on GPUs that there are."""
    return stored.live(found.snapshot.now, found.members, _node_gpus(found))


def _possible(given: Iterable[Lease], space: ClusterSpace, found: LeaseRound) -> list[Lease]:
    """The leases of an earlier auction that are still possible."""
    free, possible = space.gpus(), []
    for lease in given:
        live = lease.app in found.members and lease.ends > found.snapshot.now
        if live and all(free.get(node, 0) >= gpus for node, gpus in lease.gpus.items()):
            possible.append(lease)
            for node, gpus in lease.gpus.items():
                free[node] -= gpus
    return possible


def _ended(found: LeaseRound, stored: Leases, leases: Leases) -> tuple[Lease, ...]:
    """The leases that have ended, as far as other leases leave their GPUs: they last until the next auction."""
    free = _node_gpus(found)
    for gpus in leases.gpus.values():
        for node, count in gpus.items():
            free[node] = free.get(node, 0) - count
    ended = Leases(tuple(lease for lease in stored.leases if lease.ends <= found.snapshot.now))
    return ended.live(-math.inf, found.members, free).leases


def _decision(found: LeaseRound, settled: _Settled, not_admitted: Mapping[str, Reason]) -> Decision:
    """Grants of what is placed; other jobs wait, or run where grants leave GPUs that no auction could give away.

    Args:
        found: the round.
        settled: its leases and placements.
        not_admitted: why apps that are not admitted wait, by uid.
    """
    grants, fallback, waits = list[Grant](), list[Grant](), dict[str, Reason]()
    reasons = {
        app: latest.and_also(*others[: SHOWN_LEASES - 1]) for app, (latest, *others) in settled.leases.reasons.items()
    }
    served = {job.uid for jobs in found.members.values() for job in jobs}
    for job in found.snapshot.jobs:
        app = found.app_of.get(job.uid)
        uid = job.uid if app is None else app.uid
        if not job.gpus:
            fallback.append(Grant(job.uid, 0, NO_GPUS))
        elif (held := found.fixed.get(job.uid)) is not None:
            grants.insert(0, _grant(job, held, Reason(Code.RUNS_TO_END)))
        elif (place := settled.placed.get(job.uid)) is not None:
            grants.append(_grant(job, place, reasons[uid]))
        elif uid in not_admitted:
            waits[job.uid] = not_admitted[uid]
        elif job.uid not in served:
            waits[job.uid] = Reason.of(
                Code.EXCEEDS_NODES, gpus=job.min_gpus, gpu_types=job.gpu_types, nodes=None, cpus=None
            )
        elif settled.pending:
            waits[job.uid] = AUCTION_PENDING
        else:
            why = settled.unserved.get(uid) or Reason.of(Code.APP_DIVIDES, app=job.uid if app is None else app.name)
            fallback.append(Grant(job.uid, job.min_gpus, why, at_least=job.min_gpus))
    return Decision(tuple(grants), tuple(fallback), waits)


def _grant(job: Job, place: Placement, reason: Reason) -> Grant:
    return Grant(job.uid, place.gpus, reason, gpu_type=place.gpu_type, exact=place)
