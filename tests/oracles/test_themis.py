"""Themis's auction against trying all allocations, and against liars (``make oracles``)."""

import itertools
import math
import random

import pytest

from policies.themis.bids import Bid
from policies.themis.offer import NOTHING
from policies.themis.winners import find_winners
from tests.oracles.examples import EXAMPLES, for_examples
from tests.unit.policies.themis.auctions import best_score, expected_fraction, fits, random_bids, random_offer, score

GAIN = 1e-9
"""What no liar gains more than: a part of a lease, times the value."""


def drawn(rng):
    """An offer with bids; some offers have racks or two GPU types, and some apps retain GPUs."""
    racks, types = rng.choice((("",), ("r1", "r2"))), rng.choice((("g",), ("g", "h")))
    offer = random_offer(rng, most_nodes=4, types=types, racks=racks)
    return offer, random_bids(rng, offer, retained=rng.choice((0.0, 0.3)))


def fewer(example):
    """Examples with an app or a row less."""
    offer, bids = example
    for at, bid in enumerate(bids):
        others = bids[:at] + bids[at + 1 :]
        yield offer, others
        for row in bid.values:
            if row.parts:
                yield offer, [*others, Bid(bid.app, {one: bid.values[one] for one in bid.values if one != row})]


def test_winners_and_payments_are_those_of_trying_all():
    """The product, how many are served, and every c_i; and no other allocation is better for all (Pareto)."""

    def check(example):
        offer, bids = example
        found = find_winners(bids, offer)
        won = [win.bundle for win in found.wins]
        assert found.exact
        assert fits(offer, won)
        values = [bid.value(one) for bid, one in zip(bids, won, strict=True)]
        assert score(values) == pytest.approx(best_score(bids, offer), abs=1e-9)
        for index, win in enumerate(found.wins):
            expected = expected_fraction(bids, offer, won, index) if win.bundle.parts else 1.0
            assert win.fraction == pytest.approx(expected, abs=1e-9)
        for chosen in itertools.product(*(bid.values.items() for bid in bids)):
            others = [value for _, value in chosen]
            if (
                all(mine <= other for mine, other in zip(values, others, strict=True))
                and sum(others) > sum(values) + 1e-9
            ):
                assert not fits(offer, [one for one, _ in chosen])

    for_examples(drawn, check, fewer)


def speeds(rng):
    """An auction in which values are speeds: an app without GPUs has none."""
    offer = random_offer(rng, most_nodes=3)
    bids = []
    for at in range(rng.randint(2, 5)):
        power, spread, least = rng.choice((0.5, 0.8, 1.0)), rng.choice((1.0, 1.1, 1.4)), rng.choice((1, 1, 2, 4))
        rate = rng.uniform(0.2, 5.0)
        values = {
            row: rate * row.gpus**power / (spread if len(row.parts) > 1 else 1.0) if row.gpus >= least else 0.0
            for row in offer.bundles(rng.choice((2, 4, 8)))
        }
        bids.append(Bid(f"a{at}", values | {NOTHING: 0.0}))
    return offer, bids, rng.randrange(10**9)


def misreports(truth, rng):
    """What a liar may say: any scale, some bundles more or less, small or random ones hidden, anything at all."""
    rows = [row for row in truth.values if row.parts]
    if not rows:
        return
    factor = math.exp(rng.uniform(-4.0, 4.0))
    yield {row: value * factor for row, value in truth.values.items()}
    for chosen in rng.sample(rows, min(2, len(rows))):
        yield {**truth.values, chosen: truth.values[chosen] * factor}
        yield {**truth.values, chosen: 1000.0}
    least = rng.choice(rows).gpus
    yield {row: value if row.gpus >= least else 0.0 for row, value in truth.values.items()}
    yield {row: value if row.gpus <= least else 0.0 for row, value in truth.values.items()}
    yield {row: value * rng.choice((0.0, 1.0, 1.0, 1.5)) for row, value in truth.values.items()}
    yield {row: rng.choice((0.0, 1e-3, 1.0, 1e3)) if row.parts else 0.0 for row in truth.values}


def auction(bids, offer):
    """What each app wins, and the fraction that it retains."""
    return [(win.bundle, win.fraction) for win in find_winners(bids, offer).wins]


def free_auction(bids, offer):
    """The same winners, who pay nothing: a mutant."""
    return [(win.bundle, 1.0) for win in find_winners(bids, offer).wins]


def greedy_auction(bids, offer):
    """The same payments for winners that are chosen one by one, by the value of a GPU: a mutant."""

    def winners(taking):
        won = dict.fromkeys((bid.app for bid in taking), NOTHING)
        rows = [(bid.values[row] / row.gpus, bid.app, row) for bid in taking for row in bid.values if row.parts]
        for value, app, row in sorted(rows, reverse=True):
            if value > 0.0 and not won[app].parts and offer.holds([*won.values(), row]):
                won[app] = row
        return won

    def product(taking, won, but):
        return score([bid.values[won[bid.app]] for bid in taking if bid.app != but])

    won, found = winners(bids), []
    for bid in bids:
        others = [other for other in bids if other.app != bid.app]
        (count, mine), (best_count, best) = product(bids, won, bid.app), product(others, winners(others), bid.app)
        found.append((won[bid.app], 0.0 if best_count > count else min(math.exp(mine - best), 1.0)))
    return found


def most_gained(mechanism, example):
    """The most that one app gains by a lie: lease time times true value, relative to its largest value."""
    offer, bids, seed = example
    rng = random.Random(seed)  # noqa: S311
    index = rng.randrange(len(bids))
    truth, most = bids[index], 0.0

    def utility(said):
        row, fraction = mechanism([*bids[:index], Bid(truth.app, said), *bids[index + 1 :]], offer)[index]
        return fraction * truth.values.get(row, 0.0)

    honest = utility(truth.values)
    for said in misreports(truth, rng):
        most = max(most, utility(said) - honest)
    return most / max(*truth.values.values(), 1e-9)


def test_no_misreport_gains():
    """With the lease as the payment, and speeds as values."""

    def check(example):
        assert most_gained(auction, example) <= GAIN

    for_examples(speeds, check)


@pytest.mark.parametrize("mutant", [free_auction, greedy_auction])
def test_the_liars_find_what_is_wrong_with_a_mutant(mutant):
    """Without payments, or with winners that are not exact, lies pay; so the test of misreports would fail."""
    examples = (speeds(random.Random(seed)) for seed in range(EXAMPLES))  # noqa: S311
    assert any(most_gained(mutant, example) > 1e-3 for example in examples)
