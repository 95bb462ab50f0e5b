"""What an app gains that lies in Themis's auctions: nothing, as proven; and where the proof does not reach.

    python -m contrib.benchmarks.themis_liars [--instances N] [--only NAME ...] [--json]

In single auctions, one of two to five apps tells seven lies, with all else equal; its gain is that of the best one, in
speed averaged over the lease. Over many rounds, one of eight apps over-reports its slowdown over several nodes, as in
the paper's Figure 18; its gain is the time that it saves.
"""

from __future__ import annotations

import math
import random
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from contrib.benchmarks import common
from policies.themis.agent import Agent
from policies.themis.arbiter import Arbiter, Candidate
from policies.themis.auction import Award, Payment, hold_auction
from policies.themis.bids import Bid
from policies.themis.finish_time import AppJob, AppWork, ClampedSlowdown
from policies.themis.offer import NOTHING, Bundle, Offer, OfferedNode

Values = Mapping[Bundle, float]


class Drawn(NamedTuple):
    """An app: what it bids if it does not lie, and the speed that it has on each bundle."""

    values: Values
    speeds: Values


MOST_GAIN = 1e-9
"""The most that a lie may gain where truth is proven to pay, relative to the app's largest speed."""


def random_offer(rng: random.Random) -> Offer:
    """A few nodes with some GPUs on offer."""
    totals = [rng.choice((1, 2, 4, 8)) for _ in range(rng.randint(1, 3))]
    return Offer(tuple(OfferedNode(f"n{at}", "g", total, rng.randint(1, total)) for at, total in enumerate(totals)))


def speeds(rng: random.Random, offer: Offer) -> Drawn:
    """An app that bids its speed on each bundle, and has none without GPUs."""
    power, spread, least = rng.choice((0.5, 0.8, 1.0)), rng.choice((1.0, 1.1, 1.4)), rng.choice((1, 1, 2, 4))
    rate = rng.uniform(0.2, 5.0)
    values = {NOTHING: 0.0} | {
        row: rate * row.gpus**power / (spread if len(row.parts) > 1 else 1.0) if row.gpus >= least else 0.0
        for row in offer.bundles(rng.choice((2, 4, 8)))
        if row.parts
    }
    return Drawn(values, values)


def inverse_rho(rng: random.Random, offer: Offer) -> Drawn:
    """An app that bids 1/rho, which is not proportional to its speed because of the time elapsed."""
    elapsed, speed = rng.uniform(0.0, 5.0), speeds(rng, offer).values
    return Drawn({row: 1.0 / (elapsed + 1.0 / value) if value else 0.0 for row, value in speed.items()}, speed)


def with_retained(rng: random.Random, offer: Offer) -> Drawn:
    """An app that bids its speed, part of which it has from GPUs beyond the auction."""
    values, retained = speeds(rng, offer).values, rng.uniform(0.2, 2.0)
    values = {row: value + retained for row, value in values.items()}
    return Drawn(values, values)


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


class Outcome(NamedTuple):
    """One auction: the most that a lie gains, and whether an app would rather have what another one gets."""

    gain: float
    envy: bool


def auction_outcome(draw: Callable[[random.Random, Offer], Drawn], payment: Payment, seed: int) -> Outcome:
    """The most speed, averaged over the lease, that one lie gains in one auction, relative to the app's largest."""
    rng = random.Random(seed)  # noqa: S311
    offer = random_offer(rng)
    apps = {f"a{at}": draw(rng, offer) for at in range(rng.randint(2, 5))}

    def awards(said: Values) -> Mapping[str, Award]:
        bids = [Bid(app, one.values) for app, one in apps.items() if app != "a0"]
        return hold_auction([Bid("a0", said), *bids], offer, seed=seed, payment=payment).awards

    def utility(app: str, award: Award | None) -> float:
        speed = apps[app].speeds
        if award is None:
            return speed[NOTHING]
        part = award.lease_fraction
        return part * speed.get(award.bundle, speed[NOTHING]) + (1.0 - part) * speed[NOTHING]

    honest = awards(apps["a0"].values)
    has = {app: utility(app, honest.get(app)) for app in apps}
    envy = any(utility(app, other) > has[app] * (1.0 + MOST_GAIN) for app in apps for other in honest.values())
    gain = max(utility("a0", awards(said).get("a0")) for said in lies(apps["a0"].values, rng)) - has["a0"]
    return Outcome(gain / max(*apps["a0"].speeds.values(), MOST_GAIN), envy)


LEASE = 600.0


def bid_of(agents: Mapping[str, Agent], app: str, offer: Offer) -> Bid:
    """The bid of an app's agent."""
    return agents[app].bid(offer)


def finish(offer: Offer, factor: float, seed: int) -> tuple[float, float]:
    """The seconds until the end of an app that multiplies its slowdown over several nodes, and the mean of the others.

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
        found = Arbiter().hold_round(candidates, offer, partial(bid_of, agents), seed=rng.randrange(2**31))
        held = {app: one.counts for app, one in found.allocations.items()}
        for app, one in found.allocations.items():
            speed = one.bundle.gpus / true(offer.level("g", one.bundle.parts))
            if speed * one.lease_fraction * LEASE >= left[app]:
                ends[app] = now + left.pop(app) / speed
            else:
                left[app] -= speed * one.lease_fraction * LEASE
        now += LEASE
    return ends.pop("a0"), statistics.fmean(ends.values())


AUCTIONS: Mapping[str, tuple[Callable[[random.Random, Offer], Drawn], Payment, bool]] = {
    "lease time, speeds": (speeds, Payment.LEASE_TIME, True),
    "lease time, 1/rho": (inverse_rho, Payment.LEASE_TIME, False),
    "lease time, speeds, GPUs retained": (with_retained, Payment.LEASE_TIME, False),
    "GPUs, speeds": (speeds, Payment.GPUS, False),
    "GPUs, 1/rho": (inverse_rho, Payment.GPUS, False),
}
"""How values are drawn, what apps pay with, and whether truth is proven to pay."""

ROUNDS = "many rounds"
FACTORS = (1.1, 1.34, 1.7, 2.0)


def report_auctions(name: str, instances: int) -> dict[str, Any]:
    """Print and return one line: the part of the liars that gain, their mean gain, the largest; and where apps envy."""
    draw, payment, _ = AUCTIONS[name]
    outcomes = [auction_outcome(draw, payment, seed) for seed in range(instances)]
    gainers = [one.gain for one in outcomes if one.gain > MOST_GAIN]
    facts = {
        "gain": len(gainers) / instances,
        "mean": statistics.fmean(gainers or [0.0]),
        "most": max(one.gain for one in outcomes),
        "envy": sum(one.envy for one in outcomes) / instances,
    }
    print(
        f"| {name} | {facts['gain']:.1%} | {facts['mean']:.3f} | {facts['most']:.2g} | {facts['envy']:.1%} |",
        flush=True,
    )
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
    print("| payment, values | liars that gain | mean gain of these | largest gain | envy |\n|---|---|---|---|---|")
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
