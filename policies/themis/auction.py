"""One auction: winners, their hidden payments, and the nodes that they get.

An app pays with the fraction 1 - c_i of what it wins (Themis, NSDI 2020, Pseudocode 1, lines 8 and 9): of its lease, so
that a gang stays whole, or of its GPUs. Paid in lease time, what an app gains, c_i times its value, is the product of
all apps' values over a number that the app cannot change; the winners maximise that product, so truth pays.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from policies.themis.bids import Bid
from policies.themis.bundle_placement import Counts, place_bundles
from policies.themis.choice_program import MOST_PARTIAL_CHOICES
from policies.themis.offer import NOTHING, Bundle, Offer
from policies.themis.winners import Win, find_winners

ROUNDING = 1e-9
"""A payment in GPUs is rounded in favour of the app within this, relatively."""


class Payment(Enum):
    """What an app pays with."""

    LEASE_TIME = "lease_time"
    GPUS = "gpus"


@dataclass(frozen=True)
class Award:
    """What one app gets.

    Attributes:
        bundle: the GPUs after the payment.
        counts: the GPUs by node.
        lease_fraction: the fraction of a lease for which it gets them; above 0.
        won: the bundle before the payment.
        fraction: c_i, which the app retains of what it won.
    """

    bundle: Bundle
    counts: Counts
    lease_fraction: float
    won: Bundle
    fraction: float


@dataclass(frozen=True)
class AuctionOutcome:
    """The outcome of one auction.

    Attributes:
        awards: by app, what it gets; apps that get nothing are missing.
        exact: whether winners and payments are those of the exact programs.
        gap: by how much the logarithm of the product of all values is below a bound, at most.
    """

    awards: dict[str, Award]
    exact: bool
    gap: float


def hold_auction(
    bids: Sequence[Bid],
    offer: Offer,
    *,
    seed: int,
    payment: Payment = Payment.LEASE_TIME,
    most_partial: int = MOST_PARTIAL_CHOICES,
) -> AuctionOutcome:
    """Hold one auction.

    Args:
        bids: the bids, in any order: bids that differ are ordered by what they say, equal ones at random.
        offer: the GPUs on offer.
        seed: the seed of that order. Equal arguments give equal outcomes.
        payment: what apps pay with.
        most_partial: the budget of the programs, as in ``find_winners``.
    """
    if len({bid.app for bid in bids}) != len(bids):
        raise ValueError("an app bids twice; ask each app for one bid")
    ordered = sorted(bids, key=lambda bid: bid.app)
    random.Random(seed).shuffle(ordered)  # noqa: S311  fairness, not secrecy
    ordered.sort(key=lambda bid: (sorted(bid.values.items()), sorted(bid.held.values())))
    found = find_winners(ordered, offer, most_partial=most_partial)
    paid = {bid.app: (win, _retained(bid, win, offer, payment)) for bid, win in zip(ordered, found.wins, strict=True)}
    bundles = {app: bundle for app, (_, bundle) in paid.items() if bundle.parts}
    counts = place_bundles(offer, bundles, {bid.app: bid.held for bid in ordered})
    awards = {}
    for app, bundle in bundles.items():
        win, _ = paid[app]
        lease_fraction = win.fraction if payment is Payment.LEASE_TIME else 1.0
        awards[app] = Award(bundle, counts[app], lease_fraction, win.bundle, win.fraction)
    exact = found.exact and all(win.exact for win in found.wins)
    return AuctionOutcome(awards, exact, found.gap)


def _retained(bid: Bid, win: Win, offer: Offer, payment: Payment) -> Bundle:
    """What an app retains of the GPUs that it wins; paid in GPUs, the largest of its own bundles within what it won."""
    if payment is Payment.LEASE_TIME or not win.bundle.parts:
        return win.bundle if win.fraction > 0.0 else NOTHING
    most, within = win.fraction * win.bundle.gpus, offer.usage(win.bundle)
    smaller = [
        bundle
        for bundle in bid.values
        if bid.value(bundle) > bid.retained_value and bundle.gpu_type == win.bundle.gpu_type
        if bundle.gpus <= most * (1.0 + ROUNDING) and offer.holds([bundle])
        if all(used <= won for used, won in zip(offer.usage(bundle), within, strict=True))
    ]
    return max(smaller, key=lambda bundle: (bundle.gpus, bid.value(bundle)), default=NOTHING)
