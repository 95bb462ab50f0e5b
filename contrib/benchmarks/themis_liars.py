"""What an app gains that lies in Themis's auctions: nothing, as proven; and where the proof does not reach.

    python -m contrib.benchmarks.themis_liars [--instances N] [--only NAME ...] [--json]

In single auctions, one of two to five apps tells seven lies, with all else equal; its gain is that of the best one, in
true value. Over many rounds, one of eight apps over-reports its slowdown over several nodes, as in the paper's Figure
18; its gain is the time that it saves.
"""

from __future__ import annotations

import math
import random
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from contrib.benchmarks import common
from policies.themis.agent import Agent
from policies.themis.arbiter import Arbiter, Candidate
from policies.themis.auction import Payment, hold_auction
from policies.themis.bids import Bid
from policies.themis.finish_time import AppJob, AppWork, ClampedSlowdown
from policies.themis.offer import NOTHING, Bundle, Offer, OfferedNode

Values = Mapping[Bundle, float]
MOST_GAIN = 1e-9
"""The most that a lie may gain where truth is proven to pay, relative to the app's largest value."""


def random_offer(rng: random.Random) -> Offer:
    """A few nodes with some GPUs on offer."""
    totals = [rng.choice((1, 2, 4, 8)) for _ in range(rng.randint(1, 3))]
    return Offer(tuple(OfferedNode(f"n{at}", "g", total, rng.randint(1, total)) for at, total in enumerate(totals)))


def speeds(rng: random.Random, offer: Offer) -> Values:
    """Values that are an app's speed on each bundle; none without GPUs."""
    power, spread, least = rng.choice((0.5, 0.8, 1.0)), rng.choice((1.0, 1.1, 1.4)), rng.choice((1, 1, 2, 4))
    rate = rng.uniform(0.2, 5.0)
    return {NOTHING: 0.0} | {
        row: rate * row.gpus**power / (spread if len(row.parts) > 1 else 1.0) if row.gpus >= least else 0.0
        for row in offer.bundles(rng.choice((2, 4, 8)))
        if row.parts
    }


def finish_times(rng: random.Random, offer: Offer) -> Values:
    """Values 1/rho of an app for which some time has elapsed."""
    elapsed = rng.uniform(0.0, 5.0)
    return {row: 1.0 / (elapsed + 1.0 / value) if value else 0.0 for row, value in speeds(rng, offer).items()}


def with_retained(rng: random.Random, offer: Offer) -> Values:
    """Values that are speeds of an app which retains GPUs beyond the auction."""
    values, retained = speeds(rng, offer), rng.uniform(0.2, 2.0)
    return {row: value + retained for row, value in values.items()}


def lies(truth: Values, rng: random.Random) -> Iterator[Values]:
    """Any scale, one bundle more or less, small or large bundles hidden, anything at all."""
    rows = [row for row in truth if row.parts]
    factor, chosen = math.exp(rng.uniform(-4.0, 4.0)), rng.choice(rows)
    yield {row: value * factor for row, value in truth.items()}
    yield {**truth, chosen: truth[chosen] * factor}
    yield {**truth, chosen: 1000.0}
    yield {row: value if row.gpus >= chosen.gpus or not row.parts else 0.0 for row, value in truth.items()}
    yield {row: value if row.gpus <= chosen.gpus else 0.0 for row, value in truth.items()}
    yield {row: value * rng.choice((0.0, 1.0, 1.0, 1.5)) for row, value in truth.items()}
    yield {**truth, NOTHING: truth[NOTHING] * rng.choice((0.0, 0.5, 2.0))}


def auction_gain(draw: Callable[[random.Random, Offer], Values], payment: Payment, seed: int) -> float:
    """The most that one lie gains in one auction, relative to the app's largest value."""
    rng = random.Random(seed)  # noqa: S311
    offer = random_offer(rng)
    truths = [draw(rng, offer) for _ in range(rng.randint(2, 5))]

    def utility(said: Values) -> float:
        bids = [Bid(f"a{at}", values) for at, values in enumerate([said, *truths[1:]])]
        award = hold_auction(bids, offer, seed=seed, payment=payment).awards.get("a0")
        without = truths[0][NOTHING]
        if award is None:
            return without
        return award.lease_fraction * truths[0][award.bundle] + (1.0 - award.lease_fraction) * without

    honest = utility(truths[0])
    return max(utility(said) - honest for said in lies(truths[0], rng)) / max(*truths[0].values(), MOST_GAIN)


LEASE = 600.0


def finish(offer: Offer, factor: float, seed: int) -> tuple[float, float]:
    """The seconds until the end of an app that multiplies its slowdown over several nodes, and of the others, on average.

    Eight apps alike, of one job of eight GPUs; all leases end at once. Left-overs and the filter are at work.
    """
    names = [f"a{at}" for at in range(8)]
    works = dict.fromkeys(names, 40_000.0)
    left, now, ends = dict(works), 0.0, dict[str, float]()
    rng, held = random.Random(seed), dict[str, dict[str, int]]()  # noqa: S311
    gpus = sum(node.gpus for node in offer.nodes)
    told = {"a0": ClampedSlowdown((1.0, 1.0, 1.3 * factor, 1.3 * factor))}
    true = ClampedSlowdown((1.0, 1.0, 1.3, 1.3))
    while left:
        agents = {
            app: Agent(
                app,
                AppWork(((AppJob(seconds, 1.0, 8, 1, told.get(app, true)),),), now, works[app], len(left)),
                {"g": gpus},
                held=held.get(app, {}),
            )
            for app, seconds in left.items()
        }
        candidates = [Candidate(app, agent.present_rho(offer)) for app, agent in agents.items()]
        found = Arbiter().hold_round(candidates, offer, lambda app, of: agents[app].bid(of), seed=rng.randrange(2**31))
        held = {app: one.counts for app, one in found.allocations.items()}
        for app, one in found.allocations.items():
            speed = one.bundle.gpus / true(offer.level("g", one.bundle.parts))
            if speed * one.lease_fraction * LEASE >= left[app]:
                ends[app] = now + left.pop(app) / speed
            else:
                left[app] -= speed * one.lease_fraction * LEASE
        now += LEASE
    return ends.pop("a0"), statistics.fmean(ends.values())


AUCTIONS: Mapping[str, tuple[Callable[[random.Random, Offer], Values], Payment, bool]] = {
    "lease time, speeds": (speeds, Payment.LEASE_TIME, True),
    "lease time, 1/rho": (finish_times, Payment.LEASE_TIME, True),
    "lease time, speeds, GPUs retained": (with_retained, Payment.LEASE_TIME, False),
    "GPUs, speeds": (speeds, Payment.GPUS, False),
    "GPUs, 1/rho": (finish_times, Payment.GPUS, False),
}
"""How values are drawn, what apps pay with, and whether truth is proven to pay."""

ROUNDS = "many rounds"
FACTORS = (1.1, 1.34, 1.7, 2.0)


def report_auctions(name: str, instances: int) -> dict[str, Any]:
    """Print and return one line: the part of the liars that gain, their mean gain, and the largest."""
    draw, payment, _ = AUCTIONS[name]
    gains = [auction_gain(draw, payment, seed) for seed in range(instances)]
    gainers = [gain for gain in gains if gain > MOST_GAIN]
    facts = {"gain": len(gainers) / instances, "mean": statistics.fmean(gainers or [0.0]), "most": max(gains)}
    print(f"| {name} | {facts['gain']:.1%} | {facts['mean']:.3f} | {facts['most']:.2g} |", flush=True)
    return facts


def report_rounds(seeds: int) -> dict[float, Any]:
    """Print and return the table of many rounds: end of the liar, and of the others, over those without a lie."""
    nodes = [OfferedNode("n0", "g", 8, 8), *(OfferedNode(f"n{at}", "g", 2, 2) for at in range(1, 29))]
    offer, found = Offer(tuple(nodes)), {}
    honest = [finish(offer, 1.0, seed) for seed in range(seeds)]
    print("\n| slowdown told, over the true one | end of the liar | end of the others |\n|---|---|---|")
    for factor in FACTORS:
        ends = [finish(offer, factor, seed) for seed in range(seeds)]
        liar, others = (
            statistics.fmean(one[at] for one in ends) / statistics.fmean(one[at] for one in honest) for at in (0, 1)
        )
        found[factor] = {"liar": liar, "others": others}
        print(f"| {factor} | {liar:.3f} | {others:.3f} |", flush=True)
    return found


def main(given: Sequence[str] | None = None) -> int:
    """Print the tables; the exit status is 1 if a lie gains where truth is proven to pay."""
    parser = common.arguments(__doc__ or "")
    parser.add_argument("--instances", type=common.positive, default=300, help="auctions of each row (default 300)")
    parser.add_argument("--seeds", type=common.positive, default=10, help="runs of many rounds (default 10)")
    parser.add_argument("--only", nargs="+", choices=[*AUCTIONS, ROUNDS], default=[*AUCTIONS, ROUNDS], help="tables")
    options = parser.parse_args(given)
    found: dict[str, Any] = {}
    print("| payment, values | liars that gain | mean gain of these | largest gain |\n|---|---|---|---|")
    for name in options.only:
        if name != ROUNDS:
            found[name] = report_auctions(name, options.instances)
    if ROUNDS in options.only:
        found[ROUNDS] = report_rounds(options.seeds)
    common.finish(found, as_json=options.json)
    proven = [name for name, (_, _, truth_pays) in AUCTIONS.items() if truth_pays and name in found]
    return 1 if any(found[name]["most"] > MOST_GAIN for name in proven) else 0


if __name__ == "__main__":
    sys.exit(main())
