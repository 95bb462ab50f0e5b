"""Random auctions, and the best allocation of small ones by trying all."""

from __future__ import annotations

import itertools
import math
import random

from policies.themis.bids import Bid
from policies.themis.offer import NOTHING, Bundle, Offer, OfferedNode


def offer_of(*gpus, rack="", total=None):
    """An offer of nodes with these numbers of free GPUs of type "g"."""
    return Offer(tuple(OfferedNode(f"n{at}", "g", total or free, free, rack) for at, free in enumerate(gpus)))


def bundle(*parts):
    """A bundle of GPUs of type "g"."""
    return Bundle("g", parts) if parts else NOTHING


def random_offer(rng, *, most_nodes=3, totals=(1, 2, 3, 4, 6, 8), types=("g",), racks=("",)):
    """A few nodes, some of them partly or wholly taken."""
    return Offer(
        tuple(
            OfferedNode(
                f"n{at}", rng.choice(types), total := rng.choice(totals), rng.randint(0, total), rng.choice(racks)
            )
            for at in range(rng.randint(1, most_nodes))
        )
    )


def random_bids(rng, offer, *, most_apps=4, most_rows=6, retained=0.2):
    """Bids for a few bundles each; ``retained`` is the part of the apps that have a value without any."""
    bids = []
    for at in range(rng.randint(1, most_apps)):
        rows = offer.bundles(rng.choice((1, 2, 4, 8)))[1:]
        rows = rng.sample(rows, min(len(rows), rng.randint(1, most_rows)))
        values = {row: rng.choice((0.0, 1.0, 2.0, rng.uniform(0.1, 3.0), rng.uniform(0.1, 3.0))) for row in rows}
        values[NOTHING] = rng.uniform(0.1, 1.0) if rng.random() < retained else 0.0
        bids.append(Bid(f"a{at}", values))
    return bids


def fits(offer, bundles):
    """Whether bundles fit on the nodes, by trying: parts need blocks on one node, or whole nodes of a rack."""
    free = {node.name: node.gpus for node in offer.nodes}
    parts = sorted(
        ((offer.reserved(one.gpu_type, part), one.gpu_type) for one in bundles for part in one.parts), reverse=True
    )

    def place(at):
        if at == len(parts):
            return True
        size, gpu_type = parts[at]
        top = offer.node_sizes[gpu_type][-1]
        nodes = [node for node in offer.nodes if node.gpu_type == gpu_type]
        if size <= top:
            choices = [(node.name,) for node in nodes if free[node.name] >= size]
        else:
            whole = [node for node in nodes if free[node.name] >= top]
            choices = [
                tuple(node.name for node in chosen)
                for chosen in itertools.combinations(whole, size // top)
                if len({node.rack for node in chosen}) == 1
            ]
        for choice in choices:
            for name in choice:
                free[name] -= min(size, top)
            if place(at + 1):
                return True
            for name in choice:
                free[name] += min(size, top)
        return False

    return place(0)


def score(values):
    """What winners maximise: how many apps have a value, and then the product (its logarithm)."""
    return sum(value > 0 for value in values), math.fsum(math.log(value) for value in values if value > 0)


def best_score(bids, offer, within=fits):
    """The highest score of all allocations that fit."""
    tables = [[*bid.values.items()] for bid in bids]
    choices = itertools.product(*tables)
    return max(
        (score([value for _, value in chosen]), [one for one, _ in chosen])
        for chosen in choices
        if within(offer, [one for one, _ in chosen])
    )[0]


def expected_fraction(bids, offer, won, index):
    """c_i by its definition, for the winners' bundles."""
    values = [bid.values[one] for bid, one in zip(bids, won, strict=True)]
    count, product = best_score([bid for at, bid in enumerate(bids) if at != index], offer)
    own_count, own_product = score(values[:index] + values[index + 1 :])
    return 0.0 if count > own_count else math.exp(own_product - product)


def random_auction(seed, **more):
    """A random offer with random bids."""
    rng = random.Random(seed)  # noqa: S311
    offer = random_offer(rng, **more)
    return offer, random_bids(rng, offer)
