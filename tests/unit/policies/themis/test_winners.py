import math
import random

import pytest

from policies.themis.agent import Agent
from policies.themis.bids import Bid, BidError
from policies.themis.finish_time import AppJob, AppWork, ClampedSlowdown
from policies.themis.offer import NOTHING, Bundle, Offer, OfferedNode
from policies.themis.winners import find_winners
from tests.unit.policies.themis.auctions import best_score, bundle, expected_fraction, offer_of, random_auction, score


def wins(bids, offer, **more):
    return find_winners(bids, offer, **more).wins


def divisible(apps, gpus):
    """Apps whose value is the number of their GPUs, at equal distance from each other."""
    values = {bundle(*[1] * count): float(count) for count in range(1, gpus + 1)} | {NOTHING: 0.0}
    return [Bid(f"a{at}", values) for at in range(apps)], offer_of(*[1] * gpus)


def test_winners_and_payments_are_those_of_trying_all():
    """On random auctions with odd nodes, racks and two GPU types; also where not all apps can be served."""
    displaced = 0
    for seed in range(60):
        offer, bids = random_auction(seed, types=("g", "h"), racks=("r1", "r2"))
        found = find_winners(bids, offer)
        won = [win.bundle for win in found.wins]
        assert found.exact
        assert found.gap == 0.0
        got = score([bid.value(one) for bid, one in zip(bids, won, strict=True)])
        assert got == pytest.approx(best_score(bids, offer), abs=1e-9)
        for index, win in enumerate(found.wins):
            expected = expected_fraction(bids, offer, won, index) if win.bundle.parts else 1.0
            assert win.fraction == pytest.approx(expected, abs=1e-9)
            assert win.exact
            displaced += win.fraction == 0.0
    assert displaced


@pytest.mark.parametrize("apps", [2, 3, 4, 8])
def test_equal_apps_pay_what_the_theory_says(apps):
    """Of GPUs that they divide, n equal apps retain ((n - 1) / n)^(n - 1) each, which is above 1/e."""
    bids, offer = divisible(apps, apps * (apps - 1))
    expected = ((apps - 1) / apps) ** (apps - 1)
    for win in wins(bids, offer):
        assert win.bundle.gpus == apps - 1
        assert win.fraction == pytest.approx(expected, rel=1e-9)
        assert win.fraction > 1 / math.e
    assert apps != 8 or expected == pytest.approx(0.3927, abs=5e-5)


def test_an_app_alone_pays_nothing():
    """Without others there is nobody to pay for."""
    bids, offer = divisible(1, 4)
    assert wins(bids, offer) == (find_winners(bids, offer).wins[0],)
    assert wins(bids, offer)[0].bundle.gpus == 4
    assert wins(bids, offer)[0].fraction == 1.0


def job(slowdown, offer, *, most=4):
    """The bid of an app with one job of four GPUs."""
    work = AppWork(((AppJob(100.0, 1.0, most, 1, slowdown),),), 0.0, 100.0, 2.0)
    return Agent("", work, {"g": 8}).bid(offer).values


VGG16 = ClampedSlowdown((1.0, 1.0, 103.6 / 80.4, 103.6 / 80.4))
INCEPTION = ClampedSlowdown((1.0, 1.0, 1.0, 1.0))
"""Of the paper's Table 1: images per second on one server over those on two."""


def test_the_papers_two_servers_of_four():
    """Figure 5, instance 1: each of two VGG16 gets a server of its own."""
    offer = offer_of(4, 4)
    bids = [Bid(app, job(VGG16, offer)) for app in "ab"]
    assert [win.bundle for win in wins(bids, offer)] == [bundle(4), bundle(4)]
    assert [win.fraction for win in wins(bids, offer)] == [1.0, 1.0]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_the_papers_servers_of_four_and_two(order):
    """Figure 5, instance 2: VGG16 gets the server of four, Inception the two of two."""
    offer = offer_of(4, 2, 2)
    bids = [Bid("inception", job(INCEPTION, offer)), Bid("vgg", job(VGG16, offer))]
    won = {bids[at].app: win.bundle for at, win in zip(order, wins([bids[at] for at in order], offer), strict=True)}
    assert won["vgg"] == bundle(4)
    assert won["inception"].gpus == 4
    assert won["inception"].parts[0] <= 2


def test_most_apps_are_served_first():
    """Two apps on one GPU each go before one that would make more of both."""
    offer = offer_of(2)
    bids = [Bid("a", {bundle(2): 1000.0}), Bid("b", {bundle(1): 1.0}), Bid("c", {bundle(1): 1.0})]
    assert [win.bundle.gpus for win in wins(bids, offer)] == [0, 1, 1]


def test_who_wins_in_place_of_another_retains_nothing():
    """One GPU, two apps: the other one would be served without the winner."""
    bids = [Bid("a", {bundle(1): 2.0}), Bid("b", {bundle(1): 1.0})]
    first, second = wins(bids, offer_of(1))
    assert (first.bundle, first.fraction) == (bundle(1), 0.0)
    assert (second.bundle, second.fraction) == (NOTHING, 1.0)


@pytest.mark.parametrize("holder", ["a", "b", "c"])
def test_equal_outcomes_keep_apps_where_they_are(holder):
    """Of three equal apps and one block of four, the one that holds it wins it."""
    offer = offer_of(4, 1, 1)
    values = {bundle(4): 2.0, bundle(1): 1.0}
    bids = [Bid(app, values, {"n0": 4} if app == holder else {}) for app in "abc"]
    assert {bid.app: win.bundle.gpus for bid, win in zip(bids, wins(bids, offer), strict=True)}[holder] == 4


def test_permuted_bids_win_the_same():
    """The multiset of values and payments does not depend on the order of the bids."""
    for seed in range(40):
        offer, bids = random_auction(seed)
        shuffled = random.Random(seed).sample(bids, len(bids))  # noqa: S311
        outcomes = []
        for order in (bids, shuffled):
            found = wins(order, offer)
            outcomes.append(score([bid.value(win.bundle) for bid, win in zip(order, found, strict=True)]))
        assert outcomes[0] == pytest.approx(outcomes[1])


def large(seed, apps, nodes):
    """Apps with concave values on nodes of eight GPUs."""
    rng = random.Random(seed)  # noqa: S311
    offer = Offer(tuple(OfferedNode(f"n{at}", "g", 8, rng.randint(1, 8), f"r{at // 4}") for at in range(nodes)))
    bids = []
    for at in range(apps):
        power, spread = rng.uniform(0.4, 1.0), rng.uniform(0.0, 0.3)
        rows = offer.bundles(rng.choice((4, 8, 16, 32)))
        bids.append(Bid(f"a{at}", {row: row.gpus**power * (1 - spread * (len(row.parts) > 1)) for row in rows}))
    return offer, bids


def test_a_budget_that_is_too_small_is_said():
    """With few partial choices the answer is feasible, its payments are at most 1, and the gap bounds the loss."""
    offer, bids = large(1, 12, 10)
    exact = find_winners(bids, offer)
    assert exact.exact
    assert exact.gap == 0.0
    best = score([bid.value(win.bundle) for bid, win in zip(bids, exact.wins, strict=True)])[1]
    said = 0
    for most_partial in (1, 2, 4):
        found = find_winners(bids, offer, most_partial=most_partial)
        assert offer.holds([win.bundle for win in found.wins])
        product = score([bid.value(win.bundle) for bid, win in zip(bids, found.wins, strict=True)])[1]
        assert best - 1e-9 <= product + found.gap
        assert all(0.0 < win.fraction <= 1.0 for win in found.wins)
        said += not (found.exact and all(win.exact for win in found.wins))
    assert said


def test_fractions_are_above_0_and_at_most_1():
    """Where all apps are served also without any one of them."""
    for seed in range(3):
        offer, bids = large(seed, 10, 8)
        assert all(0.0 < win.fraction <= 1.0 for win in wins(bids, offer))


def test_what_no_offer_can_hold_is_ignored():
    """Bundles beyond the offer, of another type, or of a billion GPUs."""
    values = {bundle(1): 1.0, bundle(8): 9.0, Bundle("h", (1,)): 9.0, bundle(10**9): 9.0}
    assert [win.bundle for win in wins([Bid("a", values)], offer_of(2))] == [bundle(1)]
    assert [win.bundle for win in wins([Bid("a", {})], offer_of(2))] == [NOTHING]
    assert wins([], offer_of(2)) == ()
    assert [win.bundle for win in wins([Bid("a", values)], Offer(()))] == [NOTHING]


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0])
def test_wrong_values_are_refused(value):
    """By the name of the app."""
    with pytest.raises(BidError, match=r"app 'a' bids .* bid 1/rho"):
        Bid("a", {bundle(1): value})


def test_wrong_bundles_are_refused():
    """Counts of 0, and parts that are not in order."""
    for parts in ((0,), (1, 2)):
        with pytest.raises(BidError, match="the largest first"):
            Bid("a", {Bundle("g", parts): 1.0})


def test_values_that_are_all_zero_win_nothing():
    """Nobody is served, and nobody pays."""
    bids = [Bid(app, {bundle(1): 0.0, NOTHING: 0.0}) for app in "ab"]
    assert [(win.bundle, win.fraction) for win in wins(bids, offer_of(2))] == [(NOTHING, 1.0)] * 2
