import random

import pytest

from metasched.core.distance import Level
from policies.themis.offer import NOTHING, Bundle, Offer, OfferedNode, amounts
from tests.unit.policies.themis.auctions import bundle, fits, offer_of, random_offer


def test_sizes_divide_each_other():
    """Powers of two where nodes differ; otherwise the node's own divisors."""
    assert [size for _, size in offer_of(8, 8).sizes] == [1, 2, 4, 8]
    assert [size for _, size in offer_of(6, 3, total=6).sizes] == [1, 3, 6]
    assert [size for _, size in offer_of(6, 4).sizes] == [1, 2, 4]


def test_a_size_beyond_a_node_is_a_number_of_whole_nodes_of_one_rack():
    """Three whole nodes of a rack hold one block of two nodes; without racks there is no such size."""
    nodes = [OfferedNode(f"n{at}", "g", 4, 4, "r1" if at < 3 else "r2") for at in range(4)]
    offer = Offer(tuple(nodes))
    assert [size for _, size in offer.sizes] == [1, 2, 4, 8]
    assert offer.capacity == (16, 8, 4, 1)
    assert offer.level("g", (8,)) is Level.RACK
    assert offer.level("g", (4, 4)) is Level.CLUSTER
    assert [size for _, size in offer_of(4, 4, 4).sizes] == [1, 2, 4]
    assert offer_of(4, 4).level("g", (4, 4)) is Level.RACK


def test_bundles_fit_exactly_if_the_capacities_say_so():
    """Against a search for nodes, on random offers with racks, two GPU types and odd nodes."""
    rng, both = random.Random(1), set()  # noqa: S311
    for _ in range(400):
        offer = random_offer(rng, most_nodes=4, types=("g", "h"), racks=("r1", "r2"))
        rows = offer.bundles(32)
        asked = [rng.choice(rows) for _ in range(rng.randint(1, 4))]
        assert offer.holds(asked) == fits(offer, asked), (offer, asked)
        both.add(offer.holds(asked))
    assert both == {True, False}


def test_the_range_has_each_amount_in_each_size():
    """Amounts packed as one part, and as parts of each size; equal counts on nodes alike are one bundle."""
    rows = offer_of(4, 4).bundles(6)
    assert rows[0] == NOTHING
    assert {bundle(4), bundle(3), bundle(2, 1), bundle(2, 2), bundle(1, 1, 1, 1), bundle(4, 2)} <= set(rows)
    assert len(rows) == len(set(rows))
    assert bundle(8) not in rows
    assert max(row.gpus for row in rows) == 6


def test_the_range_stays_small_where_bundles_are_without_number():
    """4,096 GPUs have some hundred bundles."""
    offer = Offer(tuple(OfferedNode(f"n{at}", "g", 8, 8, f"r{at // 16}") for at in range(512)))
    assert len(offer.bundles(4096)) < 400
    assert amounts(4096, (1, 2, 4, 8))[-1] == 4096


def test_wrong_offers_are_refused():
    """More GPUs than there are, and a node twice."""
    with pytest.raises(ValueError, match=r"n0 offers 5 of 4 GPUs"):
        Offer((OfferedNode("n0", "g", 4, 5),))
    with pytest.raises(ValueError, match="same name"):
        Offer((OfferedNode("n0", "g", 4, 4),) * 2)
    with pytest.raises(ValueError, match="bid for smaller parts"):
        offer_of(4).usage(Bundle("g", (5,)))
