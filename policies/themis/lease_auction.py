"""The auction of one round of leases: what agents bid becomes leases, and reasons that people can read."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from metasched.core.model import Job, Placement
from metasched.core.reasons import Code, Reason, from_json, to_json
from policies.themis.agent import Agent
from policies.themis.arbiter import Allocation, Arbiter, Candidate
from policies.themis.bidders import Bidder, agent_of, bidders_of, offer_of
from policies.themis.bids import Bid
from policies.themis.lease_round import LeaseRound
from policies.themis.leases import Lease, Leases
from policies.themis.member_placement import ClusterSpace
from policies.themis.offer import Bundle, Offer

SHOWN_BIDS = 3
"""Rows of a bid that ``explain`` shows."""
STAGGERED_FROM = 0.5
"""Where more than this part of the GPUs is on offer at once, leases get different lengths, so that they end apart."""
LEAST_LENGTH = 0.5
"""The shortest such lease, over ``lease_seconds``."""


class Outcome(NamedTuple):
    """What an auction gave.

    Attributes:
        leases: the new leases.
        unserved: why each app that could have used more GPUs got none, by uid.
    """

    leases: tuple[Lease, ...] = ()
    unserved: Mapping[str, Reason] = {}

    def to_json(self) -> dict[str, Any]:
        """The outcome as JSON-compatible data."""
        return {
            "leases": Leases(self.leases).to_json(),
            "unserved": {app: to_json(reason) for app, reason in self.unserved.items()},
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Outcome:
        """The outcome that ``to_json`` wrote."""
        unserved = {app: from_json(reason) for app, reason in data["unserved"].items()}
        return cls(Leases.from_json(data["leases"]).leases, unserved)


@dataclass(frozen=True, eq=False)
class LeaseAuction:
    """An auction that can be held.

    Attributes:
        round: the round.
        offer: the GPUs.
        agents: the agents of the apps that could use more GPUs, by their bidders' names.
        bidders: the bidders by name.
    """

    round: LeaseRound
    offer: Offer
    agents: Mapping[str, Agent]
    bidders: Mapping[str, Bidder]

    @classmethod
    def of(cls, found: LeaseRound, placed: Mapping[str, Placement], space: ClusterSpace) -> LeaseAuction:
        """The auction of what is free.

        Args:
            found: the round.
            placed: the members that run on leases that hold, by uid.
            space: what is free beside them.
        """
        offer = offer_of(found, space)
        agents, bidders = {}, {}
        for one in bidders_of(found) if offer.nodes else ():
            if (agent := agent_of(found, one, placed, space, offer)) is not None:
                agents[one.name], bidders[one.name] = agent, one
        return cls(found, offer, agents, bidders)

    @property
    def rows(self) -> int:
        """How many rows all bids have together, about: a measure of how long the auction takes."""
        asked = math.ceil((1.0 - self.round.terms.fairness) * len(self.agents))
        gpus = sum(node.gpus for node in self.offer.nodes)
        most = max((agent.demand for agent in self.agents.values()), default=0)
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
        unserved = {}
        for name, agent in self.agents.items():
            uid = self.bidders[name].app.uid
            if name not in found.allocations and not agent.retained.parts:
                unserved[uid] = self._lost(name, rhos[name], bids.get(name), found.bidders)
        return Outcome(tuple(leases), unserved)

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
