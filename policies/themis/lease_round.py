"""One round of leases: what is held, what is free, the auction of it, and the members that run on what their apps have.

retained = leases that have not ended, as far as their apps' members use them
offer    = all other GPUs that jobs may have
auction  = apps bid for the offer (``arbiter``); winners get leases
members  = each app divides what it has (``member_placement``)
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from metasched.capacity.shapes import ClusterShapes
from metasched.core.apps import App
from metasched.core.model import Job, Placement, Snapshot
from metasched.core.reasons import Code, Reason, from_json, to_json
from metasched.core.retention import holds_unassignable_nodes, is_non_preemptible
from policies.themis.agent import Agent
from policies.themis.app_work import Rates, app_work, one_node_only
from policies.themis.arbiter import Allocation, Arbiter, Candidate
from policies.themis.auction import Payment
from policies.themis.bids import Bid
from policies.themis.finish_time import ClampedSlowdown, Slowdown
from policies.themis.leases import Lease, Leases
from policies.themis.member_placement import ClusterSpace, Member, place_members, present
from policies.themis.node_kinds import NodeKinds
from policies.themis.offer import NOTHING, Bundle, Offer, OfferedNode

SHOWN_BIDS = 3
"""Rows of a bid that ``explain`` shows."""
STAGGERED_FROM = 0.5
"""Where more than this part of the GPUs is on offer at once, leases get different lengths, so that they end apart."""
LEAST_LENGTH = 0.5
"""The shortest such lease, over ``lease_seconds``."""


@dataclass(frozen=True)
class Terms:
    """What all auctions and leases have in common; see ``ThemisParameters``."""

    fairness: float
    lease_seconds: float
    payment: Payment
    restart_seconds: float
    most_partial: int
    seed: int

    def restart(self, job: Job) -> float:
        """Seconds that a restart of the job costs."""
        return self.restart_seconds if job.restart_seconds is None else job.restart_seconds


class Outcome(NamedTuple):
    """What an auction gave.

    Attributes:
        leases: the new leases.
        told: why each app that could have used more GPUs got none, by uid.
    """

    leases: tuple[Lease, ...] = ()
    told: Mapping[str, Reason] = {}

    def to_json(self) -> dict[str, Any]:
        """The outcome as JSON-compatible data."""
        return {
            "leases": Leases(self.leases).to_json(),
            "told": {app: to_json(reason) for app, reason in self.told.items()},
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Outcome:
        """The outcome that ``to_json`` wrote."""
        told = {app: from_json(reason) for app, reason in data["told"].items()}
        return cls(Leases.from_json(data["leases"]).leases, told)


@dataclass(frozen=True)
class Bidder:
    """Members of one app that accept the same nodes. Usually these are all of its members.

    Attributes:
        name: the app's uid, with that of the first member where the app's members differ.
        app: the app.
        jobs: the members.
        kinds: the kinds of nodes that suit them.
    """

    name: str
    app: App
    jobs: tuple[Job, ...]
    kinds: frozenset[str]


@dataclass(frozen=True, eq=False)
class LeaseRound:
    """A round's jobs and nodes, and the leases that hold in it.

    Attributes:
        snapshot: the round.
        terms: the terms of auctions and leases.
        leases: the leases that hold.
        waiting: uids of apps that are not admitted.
    """

    snapshot: Snapshot
    terms: Terms
    leases: Leases
    waiting: frozenset[str] = field(default=frozenset())

    @cached_property
    def app_of(self) -> Mapping[str, App]:
        """The app of each job, by the job's uid."""
        return {uid: app for app in self.snapshot.apps for uid in app.members}

    @cached_property
    def fixed(self) -> Mapping[str, Placement]:
        """What jobs hold that is not taken from them, by uid: pinned ones, and those whose nodes accept no others."""
        found = {}
        for job in self.snapshot.jobs:
            place = job.placement
            if job.gpus and place is not None and self._is_fixed(job):
                found[job.uid] = place
        return found

    def _is_fixed(self, job: Job) -> bool:
        return is_non_preemptible(job) or (job.active and holds_unassignable_nodes(job, self.snapshot.node))

    @cached_property
    def members(self) -> Mapping[str, tuple[Job, ...]]:
        """The members of each admitted app that auctions can serve, by the app's uid."""
        shapes = ClusterShapes(self.snapshot.nodes, self.snapshot.jobs, uneven=self.snapshot.uneven)
        found: dict[str, list[Job]] = {}
        for job in self.snapshot.jobs:
            if not job.gpus or job.uid in self.fixed or (app := self.app_of.get(job.uid)) is None:
                continue
            if app.uid not in self.waiting and self._could_run(job, shapes):
                found.setdefault(app.uid, []).append(job)
        return {uid: tuple(jobs) for uid, jobs in found.items()}

    @staticmethod
    def _could_run(job: Job, shapes: ClusterShapes) -> bool:
        """Whether the nodes that accept jobs could hold the job if they were empty."""
        shape = shapes.of(job)
        return any(
            shape.consolidated(gpu_type, gpus) is not None
            for gpu_type, units in shape.units.items()
            for gpus in range(job.min_gpus, min(job.max_gpus, sum(units)) + 1)
        )

    @cached_property
    def kinds(self) -> NodeKinds:
        """The nodes that accept jobs, in kinds."""
        return NodeKinds(self.snapshot.nodes, [job for jobs in self.members.values() for job in jobs])

    @cached_property
    def rates(self) -> Mapping[str, Rates]:
        """How fast each app's jobs are."""
        types = sorted({*self.kinds.gpu_type.values()})
        return {uid: Rates.of(jobs, types) for uid, jobs in self.members.items()}

    def place(self, leases: Leases) -> tuple[dict[str, Placement], ClusterSpace]:
        """The placements of all members on what their apps have by some leases, by uid; and what is left free."""
        space = ClusterSpace(self.snapshot.nodes, self.snapshot.quotas, uneven=self.snapshot.uneven)
        for uid, place in self.fixed.items():
            space.take(self.snapshot.job[uid], place)
        members = {uid: [self._member(uid, job) for job in jobs] for uid, jobs in self.members.items()}
        return place_members(members, leases.gpus, space), space

    def _member(self, app: str, job: Job) -> Member:
        steps, rates = job.remaining_steps, self.rates[app]
        seconds = rates.seconds_per_step(job)
        work = math.inf if steps is None else steps * (seconds or 1.0)
        return Member(job, work, 1.0 + self.terms.restart(job) / self.terms.lease_seconds)

    def used(self, leases: Leases, placed: Mapping[str, Placement]) -> Leases:
        """The leases without what the apps' members do not use."""
        gpus: dict[str, Counter[str]] = {}
        for uid, place in placed.items():
            gpus.setdefault(self.app_of[uid].uid, Counter()).update(dict(place.node_gpus))
        return leases.used(gpus)

    def offer(self, space: ClusterSpace) -> Offer:
        """What is free, as an offer."""
        free = space.gpus()
        racks = self.snapshot.node
        return Offer(
            tuple(
                OfferedNode(name, kind, racks[name].gpus, min(free[name], racks[name].gpus), racks[name].rack or "")
                for name, kind in self.kinds.of.items()
                if name in free
            )
        )

    def auction(self, placed: Mapping[str, Placement], space: ClusterSpace) -> Auction:
        """The auction of what is free.

        Args:
            placed: the members that run on leases that hold, by uid.
            space: what is free beside them.
        """
        offer = self.offer(space)
        agents = {}
        bidders = {}
        for one in self._bidders():
            if (agent := self._agent(one, placed, space, offer)) is not None:
                agents[one.name], bidders[one.name] = agent, one
        return Auction(self, offer, agents, bidders, placed)

    def _bidders(self) -> Iterable[Bidder]:
        apps = {app.uid: app for app in self.snapshot.apps}
        for uid, jobs in self.members.items():
            groups: dict[frozenset[str], list[Job]] = {}
            for job in jobs:
                groups.setdefault(self.kinds.suitable(job), []).append(job)
            for kinds, members in groups.items():
                name = uid if len(groups) == 1 else f"{uid} {members[0].uid}"
                yield Bidder(name, apps[uid], tuple(members), kinds)

    def _agent(self, one: Bidder, placed: Mapping[str, Placement], space: ClusterSpace, offer: Offer) -> Agent | None:
        """The agent of a bidder; None where the bidder can use no more GPUs."""
        jobs = []
        for job in one.jobs:
            most = max((space.most_gpus(job, self.kinds.gpu_type[kind]) for kind in one.kinds), default=0)
            has = placed[job.uid].gpus if job.uid in placed else 0
            most = min(job.max_gpus, has + most)
            if most >= max(job.min_gpus, has, 1):
                jobs.append(job.evolve(max_gpus=most))
        has_type = {placed[job.uid].gpu_type or "" for job in jobs if job.uid in placed}
        kinds = {kind for kind in one.kinds if not has_type or self.kinds.gpu_type[kind] in has_type}
        on_offer = {node.name: node for node in offer.nodes if node.gpus and node.gpu_type in kinds}
        retained, held = Counter[str](), Counter[str]()
        for job in jobs:
            place = placed.get(job.uid)
            if place is not None:
                retained.update(dict(place.node_gpus))
            elif (place := present(job)) is not None:
                held.update({name: gpus for name, gpus in place.node_gpus if name in on_offer})
        most_kind = max(
            kinds, key=lambda kind: (sum(n.gpus for n in on_offer.values() if n.gpu_type == kind), kind), default=""
        )
        held = Counter(
            {
                name: min(gpus, on_offer[name].gpus)
                for name, gpus in held.items()
                if on_offer[name].gpu_type == most_kind
            }
        )
        rates = self.rates[one.app.uid]
        work = app_work(one.app, jobs, rates, self.snapshot.now, self._slowdown)
        if not on_offer or work.demand <= retained.total():
            return None
        cluster: Counter[str] = Counter()
        for name, kind in self.kinds.of.items():
            if kind in one.kinds:
                cluster[kind] += self.snapshot.node[name].gpus
        return Agent(
            one.name,
            work,
            dict(cluster),
            speeds={kind: rates.speeds.get(self.kinds.gpu_type[kind], 1.0) for kind in one.kinds},
            retained=Bundle(most_kind, tuple(sorted(retained.values(), reverse=True))) if retained else NOTHING,
            held=dict(held),
            gpu_types=frozenset(kinds),
        )

    @staticmethod
    def _slowdown(job: Job) -> Slowdown:
        found = ClampedSlowdown()
        return one_node_only(found) if 1 in (job.nodes, job.max_nodes) else found


@dataclass(frozen=True, eq=False)
class Auction:
    """An auction that can be held.

    Attributes:
        round: the round.
        offer: the GPUs.
        agents: the agents of the apps that could use more GPUs, by their bidders' names.
        bidders: the bidders by name.
        placed: the members that run on leases that hold.
    """

    round: LeaseRound
    offer: Offer
    agents: Mapping[str, Agent]
    bidders: Mapping[str, Bidder]
    placed: Mapping[str, Placement]

    @property
    def rows(self) -> int:
        """How many rows all bids have together, about: a measure of how long the auction takes."""
        asked = math.ceil((1.0 - self.round.terms.fairness) * len(self.agents))
        gpus = sum(node.gpus for node in self.offer.nodes)
        most = max((agent.work.demand for agent in self.agents.values()), default=0)
        return asked * len(self.offer.bundles(min(gpus, most))) if gpus else 0

    def hold(self) -> Outcome:
        """Hold the auction, and give winners their leases."""
        if not self.agents or not any(node.gpus for node in self.offer.nodes):
            return Outcome()
        terms, seed = self.round.terms, self.round.terms.seed + self.round.snapshot.round
        arbiter = Arbiter(terms.fairness, terms.payment, terms.most_partial)
        candidates = [
            Candidate(
                name,
                agent.present_rho(self.offer),
                min(job.min_gpus for job in self.bidders[name].jobs),
                retains=bool(agent.retained.parts),
                gpu_types=agent.gpu_types,
                rho_so_far=agent.rho_so_far,
            )
            for name, agent in self.agents.items()
        ]
        rhos = {one.app: one.rho for one in candidates}
        bids: dict[str, Bid] = {}

        def ask(name: str, offer: Offer) -> Bid:
            bids[name] = self._realistic(self.agents[name].bid(offer), self.bidders[name])
            return bids[name]

        found = arbiter.hold_round(candidates, self.offer, ask, seed=seed)
        lengths = self._lengths(found.allocations, seed)
        leases = []
        for name, one in found.allocations.items():
            reason, fraction = self._reason(name, one, rhos[name], bids[name], lengths[name]), one.lease_fraction
            least = max(terms.restart(job) for job in self.bidders[name].jobs)
            ends = self.round.snapshot.now + max(fraction * lengths[name], min(least, lengths[name]))
            leases.append(Lease.of(self.bidders[name].app.uid, one.counts, ends, reason))
        told = {}
        for name, agent in self.agents.items():
            uid = self.bidders[name].app.uid
            if name not in found.allocations and not agent.retained.parts:
                told[uid] = self._lost(name, rhos[name], bids.get(name), found.bidders)
        return Outcome(tuple(leases), told)

    def _realistic(self, bid: Bid, one: Bidder) -> Bid:
        """The bid without values for bundles on which no member could run."""
        if bid.retained_value > 0.0:
            return bid
        values = {
            bundle: value if any(self._could_run(job, bundle) for job in one.jobs) else 0.0
            for bundle, value in bid.values.items()
        }
        return Bid(bid.app, values, bid.held)

    def _could_run(self, job: Job, bundle: Bundle) -> bool:
        """Whether a bundle's parts could hold a gang of the job."""
        if not bundle.parts:
            return False
        if bundle.gpus < job.min_gpus:
            return False
        size = self.offer.node_sizes[bundle.gpu_type][-1]
        units = [size] * sum(part // size for part in bundle.parts) + [p % size for p in bundle.parts if p % size]
        units.sort(reverse=True)
        if self.round.snapshot.uneven and job.nodes is None:
            return sum(units[: job.max_nodes]) >= job.min_gpus
        return any(
            k <= len(units) and units[k - 1] >= g
            for gpus in range(job.min_gpus, min(job.max_gpus, bundle.gpus) + 1)
            for k, g in job.spreads(gpus)
        )

    def _lengths(self, allocations: Mapping[str, Allocation], seed: int) -> Mapping[str, float]:
        """The seconds of each lease before the payment; where much is on offer at once, drawn at random."""
        full = self.round.terms.lease_seconds
        gpus = sum(node.gpus for node in self.offer.nodes)
        total = sum(self.round.snapshot.capacity.values())
        if gpus <= STAGGERED_FROM * total or len(allocations) < 2:  # noqa: PLR2004  one cannot be staggered
            return dict.fromkeys(allocations, full)
        rng = random.Random(seed)  # noqa: S311  fairness, not secrecy
        in_order = sorted(allocations, key=lambda name: sorted(allocations[name].counts.items()))
        return {name: full * rng.uniform(LEAST_LENGTH, 1.0) for name in in_order}

    def _reason(self, name: str, one: Allocation, rho: float, bid: Bid, length: float) -> Reason:
        app, nodes = self.bidders[name].app.name, tuple(sorted(one.counts))
        minutes, full = round(one.lease_fraction * length / 60.0, 1), round(length / 60.0, 1)
        if one.award is None:
            return Reason.of(
                Code.LEASE_LEFTOVER, app=app, rho=_shown(rho), gpus=one.bundle.gpus, nodes=nodes, minutes=minutes
            )
        return Reason.of(
            Code.LEASE_WON,
            app=app,
            rho=_shown(rho),
            bids=_shown_bids(bid, one.bundle),
            won=one.award.won.gpus,
            gpus=one.bundle.gpus,
            nodes=nodes,
            minutes=minutes,
            of=full,
            paid=round(full - minutes, 1),
        )

    def _lost(self, name: str, rho: float, bid: Bid | None, asked: Sequence[str]) -> Reason:
        app = self.bidders[name].app.name
        if name not in asked or bid is None:
            return Reason.of(Code.DID_NOT_BID, app=app, rho=_shown(rho), asked=len(asked), apps=len(self.agents))
        return Reason.of(Code.OUTBID, app=app, rho=_shown(rho), bids=_shown_bids(bid, None))


def _shown(rho: float) -> float | None:
    """A rho with the digits that are shown; None for an infinite one."""
    return float(f"{rho:.3g}") if math.isfinite(rho) else None


def _shown_bids(bid: Bid, won: Bundle | None) -> tuple[tuple[int, float | None], ...]:
    """GPUs and rho of some rows of a bid, the most GPUs first: the largest amount, the one won, and one between."""
    best: dict[int, float] = {}
    for bundle, value in bid.values.items():
        if bundle.parts and value > 0.0:
            best[bundle.gpus] = max(value, best.get(bundle.gpus, 0.0))
    amounts = sorted(best, reverse=True)
    chosen = {*amounts[:1], *amounts[len(amounts) // 2 :][:1], *amounts[-1:]}
    if won is not None and won.gpus in best:
        chosen = {*amounts[:1], won.gpus, *amounts[len(amounts) // 2 :][:1]}
    return tuple((gpus, _shown(1.0 / best[gpus])) for gpus in sorted(chosen, reverse=True)[:SHOWN_BIDS])
