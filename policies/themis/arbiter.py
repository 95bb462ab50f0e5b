"""The arbiter's round: who may bid, the auction, and what it leaves. It sees bids alone, never an app's work.

Of all apps, the fraction 1 - f with the highest rho is asked for bids (Themis, NSDI 2020, section 3.3.2). Among them,
an app that has nothing is asked only if its smallest gang fits beside those of the apps that are worse off: an app that
wins in place of another one pays with all that it wins. Sizes of gangs are facts, not bids, so no bid changes who bids.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from policies.themis.auction import Award, Payment, hold_auction
from policies.themis.bids import Bid
from policies.themis.bundle_placement import Counts
from policies.themis.choice_program import MOST_PARTIAL_CHOICES
from policies.themis.leftovers import give_leftovers
from policies.themis.offer import NOTHING, Bundle, Offer

ROUNDING = 1e-9
"""(1 - f) times the number of apps is rounded up beyond this."""


class Candidate(NamedTuple):
    """An app that could use GPUs.

    Attributes:
        app: the app's name.
        rho: its finish-time fairness with what it has now; infinity where it has nothing.
        least_gpus: the GPUs of its smallest gang.
        retains: whether it retains GPUs beyond this round.
        gpu_types: the GPU types that it can use; None for all.
        rho_so_far: the least that its rho can become, by the time elapsed. It decides between apps of equal rho, and so
            among those that have nothing.
    """

    app: str
    rho: float
    least_gpus: int = 1
    retains: bool = False
    gpu_types: frozenset[str] | None = None
    rho_so_far: float = 0.0


class Allocation(NamedTuple):
    """What one app has of the GPUs on offer after a round.

    Attributes:
        bundle: the GPUs.
        counts: the GPUs by node.
        lease_fraction: the fraction of a lease for which it has them.
        award: what it got in the auction; None for an app that did not bid or won nothing.
    """

    bundle: Bundle
    counts: Counts
    lease_fraction: float
    award: Award | None


@dataclass(frozen=True)
class Round:
    """The outcome of one round.

    Attributes:
        allocations: by app, what it has of the GPUs on offer; apps that have none are missing.
        bidders: the apps that were asked for bids, the highest rho first.
        exact: whether winners and payments are those of the exact programs.
        gap: by how much the logarithm of the product of all values is below a bound, at most.
        idle: the GPUs that no app has, by node.
    """

    allocations: dict[str, Allocation]
    bidders: tuple[str, ...]
    exact: bool
    gap: float
    idle: Counts


@dataclass(frozen=True)
class Arbiter:
    """The arbiter's parameters.

    Attributes:
        fairness: f, the fraction of the apps that do not bid, above 0 and below 1. Higher values help those that are
            worst off, and leave less choice among placements.
        payment: what apps pay with.
        most_partial: the budget of the programs, as in ``find_winners``.
    """

    fairness: float = 0.8
    payment: Payment = Payment.LEASE_TIME
    most_partial: int = MOST_PARTIAL_CHOICES

    def __post_init__(self) -> None:
        if not 0.0 < self.fairness < 1.0:
            raise ValueError(f"fairness is {self.fairness}; give a number above 0 and below 1, such as 0.8")

    def bidders(self, candidates: Sequence[Candidate], offer: Offer, *, seed: int) -> list[Candidate]:
        """The apps that are asked for bids, the highest rho first; equal ones at random."""
        ordered = sorted(candidates, key=lambda one: one.app)
        random.Random(seed).shuffle(ordered)  # noqa: S311  fairness, not secrecy
        ordered.sort(key=lambda one: (-one.rho, -one.rho_so_far))
        free = Counter[str]()
        for node in offer.nodes:
            free[node.gpu_type] += node.gpus
        chosen: list[Candidate] = []
        for candidate in ordered:
            if len(chosen) >= math.ceil((1.0 - self.fairness) * len(candidates) - ROUNDING):
                break
            usable = free if candidate.gpu_types is None else free.keys() & candidate.gpu_types
            fitting = [gpu_type for gpu_type in sorted(usable) if free[gpu_type] >= candidate.least_gpus]
            if not candidate.retains:
                if not fitting:
                    continue
                free[fitting[0]] -= candidate.least_gpus
            chosen.append(candidate)
        return chosen

    def hold_round(
        self, candidates: Sequence[Candidate], offer: Offer, ask: Callable[[str, Offer], Bid], *, seed: int
    ) -> Round:
        """Hold one round: ask for bids, hold the auction, and give away what it leaves.

        Args:
            candidates: the apps that could use GPUs.
            offer: the GPUs on offer.
            ask: the bid of an app for an offer. Apps that take no part in the auction are asked only if they are drawn
                for GPUs that it leaves.
            seed: the seed of all draws. Equal arguments give equal outcomes.
        """
        bidders = [one.app for one in self.bidders(candidates, offer, seed=seed)]
        bids = [ask(app, offer) for app in bidders]
        outcome = hold_auction(bids, offer, seed=seed, payment=self.payment, most_partial=self.most_partial)
        awards = outcome.awards
        free = _left(offer, [award.counts for award in awards.values()])
        got = {}
        if free:
            others = [one.app for one in candidates if one.app not in bidders]
            got = give_leftovers(offer, free, [_has(bid, awards.get(bid.app)) for bid in bids], others, ask, seed=seed)
        allocations = {
            app: Allocation(award.bundle, award.counts, award.lease_fraction, award) for app, award in awards.items()
        }
        for app, (bundle, counts) in got.items():
            award = awards.get(app)
            allocations[app] = Allocation(bundle, counts, award.lease_fraction if award else 1.0, award)
        idle = _left(offer, [one.counts for one in allocations.values()])
        return Round(allocations, tuple(bidders), outcome.exact, outcome.gap, idle)


def _has(bid: Bid, award: Award | None) -> tuple[Bid, Bundle, Counts]:
    return (bid, award.bundle, award.counts) if award else (bid, NOTHING, {})


def _left(offer: Offer, taken: Sequence[Counts]) -> Counts:
    """The GPUs on offer that nobody has, by node."""
    free = Counter({node.name: node.gpus for node in offer.nodes})
    for counts in taken:
        free.subtract(counts)
    return {node: gpus for node, gpus in free.items() if gpus}
