import math
import random
from collections import Counter

import pytest

from policies.themis.agent import Agent
from policies.themis.arbiter import Arbiter, Candidate
from policies.themis.auction import Payment, hold_auction
from policies.themis.bids import Bid
from policies.themis.bundle_placement import place_bundles
from policies.themis.finish_time import AppJob, AppWork
from policies.themis.leftovers import give_leftovers
from policies.themis.offer import NOTHING, Offer, OfferedNode
from tests.unit.policies.themis.auctions import bundle, offer_of, random_auction, random_offer


def used(allocations):
    """GPUs by node of several allocations."""
    total = Counter()
    for counts in allocations:
        total.update(counts)
    return total


def test_bundles_are_placed_as_they_were_won():
    """Random bundles that fit: each part on one node, or on whole nodes of one rack, and no GPU twice."""
    rng = random.Random(2)  # noqa: S311
    placed_bundles = 0
    for _ in range(400):
        offer = random_offer(rng, most_nodes=5, types=("g", "h"), racks=("r1", "r2"))
        rows = offer.bundles(32)[1:]
        asked = {f"a{at}": rng.choice(rows) for at in range(rng.randint(1, 3)) if rows}
        if not offer.holds(asked.values()):
            continue
        names = [node.name for node in offer.nodes]
        held = {app: dict.fromkeys(rng.sample(names, rng.randint(0, len(names))), 1) for app in asked}
        placed = place_bundles(offer, asked, held)
        nodes = {node.name: node for node in offer.nodes}
        assert all(gpus <= nodes[name].gpus for name, gpus in used(placed.values()).items())
        for app, one in asked.items():
            counts = placed[app]
            assert sum(counts.values()) == one.gpus
            assert {nodes[name].gpu_type for name in counts} == {one.gpu_type}
            if len(one.parts) == 1:
                assert len({nodes[name].rack for name in counts}) == 1
                assert len(counts) == max(one.gpus / offer.node_sizes[one.gpu_type][-1], 1) or one.parts[0] % 2
            placed_bundles += 1
    assert placed_bundles > 200


def test_apps_stay_where_they_are():
    """Each app keeps the nodes that it holds, whatever the order."""
    offer = offer_of(4, 4, 4)
    held = {"a": {"n2": 4}, "b": {"n0": 2}, "c": {"n0": 2}}
    placed = place_bundles(offer, {"c": bundle(2), "a": bundle(4), "b": bundle(2)}, held)
    assert placed == held
    moved = place_bundles(offer, {"a": bundle(4), "b": bundle(2), "d": bundle(2)}, held)
    assert moved["a"] == {"n2": 4}
    assert moved["b"] == {"n0": 2}


def concave(*apps, held=None):
    """Bids whose value grows with the square root of the GPUs."""
    offer = offer_of(4, 4)
    values = {row: math.sqrt(row.gpus) for row in offer.bundles(8)}
    return [Bid(app, values, (held or {}).get(app, {})) for app in apps], offer


def test_payment_in_lease_time_leaves_the_gang_whole():
    """All GPUs that are won, for c_i of the lease."""
    bids, offer = concave("a", "b", "c")
    outcome = hold_auction(bids, offer, seed=1)
    assert outcome.exact
    for award in outcome.awards.values():
        assert award.bundle == award.won
        assert award.lease_fraction == award.fraction < 1.0
        assert sum(award.counts.values()) == award.won.gpus


def test_payment_in_gpus_leaves_the_lease_whole():
    """At most c_i of the GPUs, in a bundle for which the app has bid."""
    bids, offer = concave("a", "b", "c")
    outcome = hold_auction(bids, offer, seed=1, payment=Payment.GPUS)
    assert outcome.awards
    for award in outcome.awards.values():
        assert award.bundle.gpus <= award.won.gpus * award.fraction + 1e-9
        assert award.lease_fraction == 1.0
        assert award.bundle in bids[0].values
    rigid = [Bid(app, {bundle(4): 1.0, NOTHING: 0.0}) for app in "abc"]
    assert hold_auction(rigid, offer, seed=1, payment=Payment.GPUS).awards == {}


def test_renamed_and_permuted_bids_change_names_only():
    """Bids that differ are told apart by what they say, never by names or order."""
    for seed in range(30):
        offer, bids = random_auction(seed)
        renamed = [Bid(f"z{9 - at}", bid.values) for at, bid in enumerate(bids)][::-1]
        outcomes = []
        for asked in (bids, renamed):
            awards = hold_auction(asked, offer, seed=3).awards
            outcomes.append(sorted((one.won, one.fraction, one.lease_fraction) for one in awards.values()))
        assert outcomes[0] == outcomes[1]


def leftovers(offer, free, others=(), bidders=(), *, seed=1):
    """What apps have after left-overs were given away."""
    bids = {bid.app: bid for bid in others}
    return give_leftovers(offer, free, bidders, [*bids], lambda app, _: bids[app], seed=seed)


def test_leftovers_go_to_those_who_did_not_bid_first():
    """They get what they can use; a winner grows on what is left, on its own node where that has free GPUs."""
    offer = offer_of(4, 2)
    values = {row: float(row.gpus) for row in offer.bundles(4)} | {NOTHING: 0.0}
    winner, small = Bid("winner", values), Bid("small", {NOTHING: 0.0, bundle(1): 1.0})
    got = leftovers(offer, {"n0": 2, "n1": 2}, [small], [(winner, bundle(2), {"n0": 2})])
    assert got["small"][0] == bundle(1)
    assert got["winner"][0].gpus == 4
    assert used(counts for _, counts in got.values()).total() == 5
    alone = leftovers(offer, {"n1": 1}, bidders=[(winner, bundle(2), {"n0": 2})])
    assert alone == {"winner": (bundle(2, 1), {"n0": 2, "n1": 1})}


def test_apps_are_asked_only_if_they_are_drawn():
    """One GPU is left for ten apps: one of them is asked."""
    asked = []

    def ask(app, _):
        asked.append(app)
        return Bid(app, {NOTHING: 0.0, bundle(1): 1.0})

    got = give_leftovers(offer_of(1), {"n0": 1}, [], [f"a{at}" for at in range(10)], ask, seed=1)
    assert [*got] == asked
    assert len(asked) == 1


def test_gangs_of_leftovers_are_whole():
    """A gang of three gets three GPUs of a node or none."""
    offer = offer_of(4, 4)
    gang = Bid("gang", {NOTHING: 0.0, bundle(3): 1.0})
    assert leftovers(offer, {"n0": 2, "n1": 2}, [gang]) == {}
    assert leftovers(offer, {"n0": 3, "n1": 4}, [gang]) == {"gang": (bundle(3), {"n0": 3})}


def test_random_leftovers_are_drawn_by_the_seed():
    """One GPU, two apps: equal seeds draw the same one, and each is drawn by some seed."""
    bids = [Bid(app, {NOTHING: 0.0, bundle(1): 1.0}) for app in "ab"]
    drawn = [min(leftovers(offer_of(1), {"n0": 1}, bids, seed=seed)) for seed in range(20)]
    assert drawn == [min(leftovers(offer_of(1), {"n0": 1}, bids[::-1], seed=seed)) for seed in range(20)]
    assert {*drawn} == {"a", "b"}


@pytest.mark.parametrize("fairness", [0.0, 1.0, -1.0, math.nan])
def test_a_wrong_fairness_is_refused(fairness):
    """With the range that is right."""
    with pytest.raises(ValueError, match="above 0 and below 1"):
        Arbiter(fairness=fairness)


def test_those_who_are_worst_off_bid():
    """The fraction 1 - f with the highest rho, at least one; and none whose gang does not fit beside those before."""
    offer = offer_of(4, 4)
    candidates = [Candidate(f"a{at}", float(at)) for at in range(10)]
    assert [one.app for one in Arbiter().bidders(candidates, offer, seed=1)] == ["a9", "a8"]
    assert [one.app for one in Arbiter(0.99).bidders(candidates, offer, seed=1)] == ["a9"]
    assert len(Arbiter(0.01).bidders(candidates, offer, seed=1)) == 8
    gangs = [Candidate(app, rho, gang) for app, rho, gang in (("a", 9.0, 4), ("b", 8.0, 16), ("c", 7.0, 4))]
    assert [one.app for one in Arbiter(0.1).bidders(gangs, offer, seed=1)] == ["a", "c"]
    retains = [Candidate("a", 9.0, 8), Candidate("b", 8.0, 4, retains=True)]
    assert [one.app for one in Arbiter(0.1).bidders(retains, offer, seed=1)] == ["a", "b"]
    equal = [Candidate(f"a{at}", math.inf) for at in range(10)]
    assert {Arbiter(0.95).bidders(equal, offer, seed=seed)[0].app for seed in range(60)} == {
        f"a{at}" for at in range(10)
    }


class Cluster:
    """A closed loop of rounds in which all leases end at once; apps of one job, with linear speed-up on a node."""

    def __init__(self, offer, works, arbiter, *, lease=600.0):
        self.offer, self.arbiter, self.lease = offer, arbiter, lease
        self.works, self.left, self.now = dict(works), dict(works), 0.0
        self.service, self.held = Counter(), {}
        self.gpus = sum(node.gpus for node in offer.nodes)

    def agent(self, app):
        job = AppJob(self.left[app], 1.0, most_gpus=4)
        work = AppWork(((job,),), self.now, self.works[app], len(self.works))
        return Agent(app, work, {"g": self.gpus}, held=self.held.get(app, {}))

    def round(self, seed):
        agents = {app: self.agent(app) for app, left in self.left.items() if left > 0}
        candidates = [Candidate(app, agent.present_rho(self.offer)) for app, agent in agents.items()]
        found = self.arbiter.hold_round(candidates, self.offer, lambda app, offer: agents[app].bid(offer), seed=seed)
        self.held = {app: one.counts for app, one in found.allocations.items()}
        for app, one in found.allocations.items():
            seconds = one.lease_fraction * self.lease
            self.service[app] += seconds * one.bundle.gpus
            self.left[app] -= seconds * one.bundle.gpus
        self.now += self.lease
        return found, agents


def test_rounds_give_every_gpu_once_and_none_in_vain():
    """Counts are within the offer, gangs are whole, and nothing idles that an app could use."""
    rng = random.Random(4)  # noqa: S311
    for seed in range(40):
        offer = random_offer(rng, most_nodes=5)
        cluster = Cluster(offer, {f"a{at}": rng.uniform(1e3, 1e6) for at in range(rng.randint(1, 8))}, Arbiter(0.5))
        for step in range(3):
            found, agents = cluster.round(seed * 10 + step)
            total = used(one.counts for one in found.allocations.values())
            assert total + Counter(found.idle) == Counter({node.name: node.gpus for node in offer.nodes if node.gpus})
            for one in found.allocations.values():
                assert sum(one.counts.values()) == one.bundle.gpus > 0
                assert 0.0 < one.lease_fraction <= 1.0
            waiting = {*agents} - {*found.allocations}
            assert not (waiting and found.idle)
            assert found.exact


def test_equal_apps_have_equal_service_in_the_long_run():
    """Six apps on eight GPUs over 120 leases: each within 10 % of the mean."""
    cluster = Cluster(offer_of(4, 2, 2), {f"a{at}": 1e9 for at in range(6)}, Arbiter(0.5))
    for step in range(120):
        cluster.round(step)
    mean = sum(cluster.service.values()) / 6
    assert all(abs(service / mean - 1) < 0.1 for service in cluster.service.values()), cluster.service


def test_rounds_of_equal_seeds_are_equal():
    """Outcomes are functions of candidates, bids and seed."""
    offer = Offer(tuple(OfferedNode(f"n{at}", "g", 4, 4, f"r{at % 2}") for at in range(4)))
    works = {f"a{at}": 1e5 * (1 + at) for at in range(7)}
    runs = [Cluster(offer, dict(order), Arbiter(0.4)) for order in (works.items(), reversed(works.items()))]
    for step in range(4):
        first, second = (run.round(step)[0] for run in runs)
        assert first == second
