"""GPUs that an auction leaves: at random to apps that did not bid, then to any app (section 3.3.2 of Themis)."""

from __future__ import annotations

import itertools
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from policies.themis.bids import Bid
from policies.themis.bundle_placement import Counts
from policies.themis.offer import NOTHING, Bundle, Offer


@dataclass
class _Asker:
    """An app that may get more GPUs.

    Attributes:
        bid: its bid for the GPUs of the auction.
        bundle: what it has so far.
        counts: the same by node.
    """

    bid: Bid
    bundle: Bundle
    counts: Counts


def give_leftovers(
    offer: Offer,
    free: Mapping[str, int],
    bidders: Sequence[tuple[Bid, Bundle, Counts]],
    others: Sequence[str],
    ask: Callable[[str, Offer], Bid],
    *,
    seed: int,
) -> dict[str, tuple[Bundle, Counts]]:
    """Give GPUs to apps drawn at random, one after the other, as few each time as raise the app's value.

    Args:
        offer: the offer of the auction.
        free: the GPUs of it that are left, by node.
        bidders: the bids of the auction, and what their apps have got, as a bundle and by node.
        others: the apps that took no part in the auction. They come first.
        ask: what an app would have bid. Only apps that are drawn are asked.
        seed: the seed of the draws.

    Returns:
        For each app that gets GPUs, all that it has then, as a bundle and by node.
    """
    rng = random.Random(seed)  # noqa: S311  fairness, not secrecy
    left = _Left(offer, free)
    askers = {bid.app: _Asker(bid, bundle, dict(counts)) for bid, bundle, counts in bidders}
    got: dict[str, tuple[Bundle, Counts]] = {}
    for group in (sorted(others), sorted(askers)):
        while group and left.gpus:
            index = rng.randrange(len(group))
            app = group[index]
            if app not in askers:
                askers[app] = _Asker(ask(app, offer), NOTHING, {})
            if left.extend(askers[app]):
                got[app] = (askers[app].bundle, askers[app].counts)
            else:
                del group[index]
    return got


class _Left:
    """The GPUs that are left.

    Attributes:
        gpus: their number.
    """

    def __init__(self, offer: Offer, free: Mapping[str, int]) -> None:
        self.gpus = sum(free.values())
        self._offer = offer
        self._types = {node.name: node.gpu_type for node in offer.nodes}
        self._free = dict(free)
        self._nodes: dict[tuple[str, int], dict[str, None]] = defaultdict(dict)
        for node in sorted(free):
            self._nodes[self._types[node], free[node]][node] = None

    def extend(self, asker: _Asker) -> bool:
        """Give an app as few GPUs as raise its value; whether there are such."""
        has = asker.bid.value(asker.bundle)
        better = [bundle for bundle in asker.bid.values if asker.bid.value(bundle) > has]
        for bundle in sorted(better, key=lambda one: (one.gpus, -asker.bid.value(one), len(one.parts), one)):
            if asker.bundle.gpu_type not in ("", bundle.gpu_type) or bundle.gpus > self.gpus + asker.bundle.gpus:
                continue
            more = self._more(bundle, asker)
            if more is not None:
                for node, gpus in more.items():
                    self._take(node, gpus)
                    asker.counts[node] = asker.counts.get(node, 0) + gpus
                asker.bundle = bundle
                return True
        return False

    def _more(self, bundle: Bundle, asker: _Asker) -> Counts | None:
        """The GPUs by node that make an app's bundle a larger one; None where there are none.

        Largest parts first, on the app's nodes until what it has there is used, or else on the node with the fewest
        free GPUs. A part of several nodes must be one that the app has already.
        """
        node_gpus = self._offer.node_sizes[bundle.gpu_type][-1]
        wide = Counter(part for part in bundle.parts if part > node_gpus)
        if wide - Counter(asker.bundle.parts):
            return None
        parts = [node_gpus] * (sum(wide.elements()) // node_gpus)
        parts += [part for part in bundle.parts if part <= node_gpus]
        has, more = dict(asker.counts), Counter[str]()
        sizes = sorted(free for (gpu_type, free), nodes in self._nodes.items() if gpu_type == bundle.gpu_type and nodes)
        others = {free: iter([n for n in self._nodes[bundle.gpu_type, free] if n not in has]) for free in sizes}
        for part in parts:
            fitting = [node for node in has if has[node] + self._free.get(node, 0) - more[node] >= part]
            if not fitting:
                fitting = [*itertools.islice((node for free in sizes if free >= part for node in others[free]), 1)]
            if not fitting:
                return None
            node = max(fitting, key=lambda one: (has.get(one, 0), one))
            more[node] += max(part - has.get(node, 0), 0)
            has[node] = max(has.get(node, 0) - part, 0)
        return dict(more) if not any(has.values()) else None

    def _take(self, node: str, gpus: int) -> None:
        gpu_type, free = self._types[node], self._free.get(node, 0)
        if gpus:
            del self._nodes[gpu_type, free][node]
            self._nodes[gpu_type, free - gpus][node] = None
            self._free[node] = free - gpus
            self.gpus -= gpus
