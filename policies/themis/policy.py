"""Themis: apps bid for free GPUs with their finish-time fairness, and hold what they win until their leases end.

Source: Mahajan et al., "Themis: Fair and Efficient GPU Cluster Scheduling", NSDI 2020.
A round, step by step:

1. Leases that have ended, and GPUs that apps no longer use, are on offer (``lease_round``).
2. Where something is on offer, the apps with the worst rho bid, and winners get leases (``arbiter``). Long auctions are
   held in the background; the leases that ended last until then.
3. Each app divides what it has among its members (``member_placement``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from metasched.core.model import Decision, Grant, Job, Placement, Snapshot
from metasched.core.policy import Policy, PolicyParameters, PolicyState
from metasched.core.reasons import Code, Reason
from policies.themis.auction import Payment
from policies.themis.choice_program import MOST_PARTIAL_CHOICES
from policies.themis.lease_round import LeaseRound, Outcome, Terms
from policies.themis.leases import VERSION, Lease, Leases

LEASES, ADMITTED, PENDING = "leases", "admitted", "pending"
"""Keys of the state: the leases; uids of the admitted apps; whether an auction is to be held in the background."""

MOST_AUCTIONS = 3
"""Auctions in one round, at most: what a winner cannot use is offered again."""

NO_GPUS = Reason(Code.CPU_ONLY)
AUCTION_PENDING = Reason(Code.AUCTION_PENDING)


class ThemisParameters(PolicyParameters):
    """Parameters of Themis.

    Attributes:
        fairness: f: the fraction of the apps that do not bid, those that are best off.
        lease_seconds: the length of a lease before the payment.
        payment: what winners pay with: ``lease_time``, or ``gpus``.
        most_demand: new apps wait while the admitted ones ask for more GPUs than this times the cluster's; None to
            admit all.
        restart_seconds: assumed seconds of a restart of a job of which none was measured.
        background: whether the daemon holds long auctions in the background, rather than in the round.
        rows_in_round: auctions with more rows of bids count as long.
        most_partial_choices: the budget of the exact programs.
        seed: of all draws.
    """

    fairness: float = Field(default=0.8, gt=0, lt=1)
    lease_seconds: float = Field(default=600.0, gt=0)
    payment: Literal["lease_time", "gpus"] = "lease_time"
    most_demand: float | None = Field(default=None, gt=0)
    restart_seconds: float = Field(default=30.0, ge=0)
    background: bool = True
    rows_in_round: int = Field(default=4000, ge=0)
    most_partial_choices: int = Field(default=MOST_PARTIAL_CHOICES, ge=1)
    seed: int = Field(default=0, ge=0)

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
            most_partial=given.most_partial_choices,
            seed=given.seed,
        )

    def decide(self, snapshot: Snapshot, state: PolicyState) -> tuple[Decision, PolicyState]:
        """Hold the auctions that are due, and place all members on what their apps have."""
        stored = Leases.from_json(state.data[LEASES]) if LEASES in state.data else Leases()
        admitted, waiting, crowd = self._admission(snapshot, state)
        found = self._round(snapshot, self._live(snapshot, stored), waiting)
        given = Outcome.from_json(snapshot.precomputed) if snapshot.precomputed else Outcome()
        found, placed, told, pending = self._settle(found, given, stored)
        decision = _decision(found, placed, told, crowd, pending=pending)
        data = {LEASES: found.leases.to_json(), ADMITTED: admitted, PENDING: pending}
        return decision, PolicyState(VERSION, data)

    def precompute(self, snapshot: Snapshot, state: PolicyState) -> Mapping[str, Any] | None:
        """Hold the auction that the latest round put off; None where it put none off."""
        if not state.data.get(PENDING):
            return None
        _, waiting, _ = self._admission(snapshot, state)
        found = self._round(snapshot, self._live(snapshot, Leases.from_json(state.data[LEASES])), waiting)
        placed, space = found.place(found.leases)
        return found.auction(placed, space).hold().to_json()

    def _live(self, snapshot: Snapshot, leases: Leases) -> Leases:
        nodes = {node.name: node.gpus for node in snapshot.nodes if node.accepts}
        return leases.live(snapshot.now, (app.uid for app in snapshot.apps), nodes)

    def _round(self, snapshot: Snapshot, leases: Leases, waiting: frozenset[str]) -> LeaseRound:
        return LeaseRound(snapshot, self.terms, leases, waiting)

    def _settle(
        self, found: LeaseRound, given: Outcome, stored: Leases
    ) -> tuple[LeaseRound, dict[str, Placement], Mapping[str, Reason], bool]:
        """Auctions until nothing is left that a winner could use.

        Returns:
            the round with all leases; the placements; why apps without GPUs have none; whether an auction is pending.
        """
        told = dict(given.told)
        placed, space = found.place(found.leases)
        found = self._round(found.snapshot, found.used(found.leases, placed), found.waiting)
        if given.leases:
            free = space.gpus()
            found, placed, space = _with_leases(found, [one for one in given.leases if _is_free(one, free, found)])
        for number in range(MOST_AUCTIONS):
            auction = found.auction(placed, space)
            if not auction.agents:
                break
            late = found.snapshot.precomputed is not None and auction.rows > self.parameters.rows_in_round
            if late and number == 0:
                found = self._round(found.snapshot, _extended(found, stored), found.waiting)
                placed, _ = found.place(found.leases)
                return found, placed, told, True
            outcome = auction.hold()
            told |= {app: reason for app, reason in outcome.told.items() if app not in told or not number}
            if not outcome.leases:
                break
            before = sum(place.gpus for place in placed.values())
            found, placed, space = _with_leases(found, outcome.leases)
            if sum(place.gpus for place in placed.values()) <= before:
                break
        return found, placed, told, False

    def _admission(self, snapshot: Snapshot, state: PolicyState) -> tuple[list[str], frozenset[str], dict[str, Reason]]:
        """Which apps are admitted, the earliest first; which wait, and why (section 3.2, footnote).

        An app that has begun is admitted. Another one is, while those before it ask for less than the threshold.
        """
        most = self.parameters.most_demand
        if most is None:
            return [], frozenset(), {}
        gpus = sum(snapshot.capacity.values())
        before = set(state.data.get(ADMITTED, ()))
        jobs: dict[str, list[Job]] = {}
        app_of = {uid: app.uid for app in snapshot.apps for uid in app.members}
        for job in snapshot.jobs:
            if job.gpus and job.uid in app_of:
                jobs.setdefault(app_of[job.uid], []).append(job)
        asked, admitted, told = 0, list[str](), dict[str, Reason]()
        begun = {uid for uid, members in jobs.items() if uid in before or any(job.run or job.active for job in members)}
        for app in sorted(snapshot.apps, key=lambda one: (one.uid not in begun, one.first_submitted, one.uid)):
            if app.uid not in jobs:
                continue
            if app.uid in begun or asked < most * gpus or not admitted:
                admitted.append(app.uid)
                asked += sum(job.gpus for job in jobs[app.uid])
            else:
                told[app.uid] = Reason.of(Code.APP_NOT_ADMITTED, asked=asked, gpus=gpus, most=most)
        return admitted, frozenset(told), told


def _with_leases(
    found: LeaseRound, more: list[Lease] | tuple[Lease, ...]
) -> tuple[LeaseRound, dict[str, Placement], Any]:
    """The round with more leases, without what their apps cannot use; the placements, and what is free."""
    leases = found.leases.plus(more)
    placed, space = found.place(leases)
    return LeaseRound(found.snapshot, found.terms, found.used(leases, placed), found.waiting), placed, space


def _is_free(lease: Lease, free: dict[str, int], found: LeaseRound) -> bool:
    """Whether a lease of an earlier auction is still possible; its GPUs are then no longer free."""
    live = lease.app in found.members and lease.ends > found.snapshot.now
    if not live or any(free.get(node, 0) < gpus for node, gpus in lease.gpus.items()):
        return False
    for node, gpus in lease.gpus.items():
        free[node] -= gpus
    return True


def _extended(found: LeaseRound, stored: Leases) -> Leases:
    """The leases that hold, and those that have ended while their auction is pending, as far as that is possible."""
    ended = [lease for lease in stored.leases if lease.ends <= found.snapshot.now]
    nodes = {node.name: node.gpus for node in found.snapshot.nodes if node.accepts}
    for app, gpus in found.leases.gpus.items():
        del app
        for node, count in gpus.items():
            nodes[node] = nodes.get(node, 0) - count
    live = Leases(tuple(ended)).live(float("-inf"), found.members, nodes)
    return found.leases.plus(live.leases)


def _decision(
    found: LeaseRound,
    placed: Mapping[str, Placement],
    told: Mapping[str, Reason],
    crowd: Mapping[str, Reason],
    *,
    pending: bool,
) -> Decision:
    """Grants of what is placed; other jobs wait, or run where grants leave GPUs that no auction could give away."""
    grants, fallback, waits = list[Grant](), list[Grant](), dict[str, Reason]()
    reasons = {
        app: reasons[0].and_also(*reasons[1:]) for app in found.leases.gpus if (reasons := found.leases.reasons(app))
    }
    for job in found.snapshot.jobs:
        app = found.app_of.get(job.uid)
        uid = job.uid if app is None else app.uid
        if not job.gpus:
            fallback.append(Grant(job.uid, 0, NO_GPUS))
        elif (held := found.fixed.get(job.uid)) is not None:
            grants.insert(0, _grant(job, held, Reason(Code.RUNS_TO_END)))
        elif (place := placed.get(job.uid)) is not None:
            grants.append(_grant(job, place, reasons[uid]))
        elif uid in crowd:
            waits[job.uid] = crowd[uid]
        elif job not in found.members.get(uid, ()):
            waits[job.uid] = Reason.of(
                Code.EXCEEDS_NODES, gpus=job.min_gpus, gpu_types=job.gpu_types, nodes=None, cpus=None
            )
        elif pending:
            waits[job.uid] = AUCTION_PENDING
        else:
            why = told.get(uid) or Reason.of(Code.APP_DIVIDES, app=job.uid if app is None else app.name)
            fallback.append(Grant(job.uid, job.min_gpus, why, at_least=job.min_gpus))
    return Decision(tuple(grants), tuple(fallback), waits)


def _grant(job: Job, place: Placement, reason: Reason) -> Grant:
    return Grant(job.uid, place.gpus, reason, gpu_type=place.gpu_type, exact=place)
