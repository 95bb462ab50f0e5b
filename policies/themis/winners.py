"""Who wins which bundle: the proportionally fair allocation, and what each app's presence costs the others.

The winners maximise the product of all apps' values (Themis, NSDI 2020, Pseudocode 1, line 6). Where not all apps can
have a value above 0, as many as possible have, and the product is over those; that is the limit of the product for a
value of nothing that tends to 0. Equal products are decided by how many GPUs stay with the app that holds them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from policies.themis.bids import MOST_VALUE, Bid
from policies.themis.choice_program import MOST_PARTIAL_CHOICES, Ints, Solution, Table, solve
from policies.themis.offer import NOTHING, Bundle, Offer

WORTH_BITS = 61
"""Bits of the sum of all worths."""


@dataclass(frozen=True)
class Win:
    """What one app wins.

    Attributes:
        bundle: the bundle; the one without GPUs if it wins nothing.
        fraction: c_i: the product of the other apps' values over the product that they would have without the app; in
            (0, 1]. It is 0 where the app wins in place of another one that could be served without it.
        exact: whether no allocation is better for the others without the app than the one that was found.
    """

    bundle: Bundle
    fraction: float
    exact: bool


@dataclass(frozen=True)
class Winners:
    """The outcome for all apps.

    Attributes:
        wins: what each app wins, in the order of the bids.
        exact: whether no allocation has a higher product.
        gap: by how much the logarithm of the product is below a bound, at most; 0 if ``exact``.
    """

    wins: tuple[Win, ...]
    exact: bool
    gap: float


@dataclass(frozen=True)
class _Units:
    """Values as worths: integers whose sum orders allocations by the product, then by GPUs that stay.

    Attributes:
        one: the worth of a factor e of the product.
        stay: a number above all GPUs on offer: the worth of the smallest step of the product.
    """

    one: int
    stay: int

    @classmethod
    def of(cls, apps: int, gpus: int) -> _Units:
        stay = gpus + 1
        most = apps * 2 * math.log(MOST_VALUE) + 1
        return cls(math.floor(2**WORTH_BITS / (most * stay)) * stay, stay)

    def worth(self, value: float, staying_gpus: int) -> int:
        return round(math.log(value) * (self.one // self.stay)) * self.stay + staying_gpus

    def logarithm(self, worth: int) -> float:
        return (worth // self.stay) / (self.one // self.stay)


def find_winners(bids: Sequence[Bid], offer: Offer, *, most_partial: int = MOST_PARTIAL_CHOICES) -> Winners:
    """The winners of one auction, and the fraction that each retains after its hidden payment.

    Bundles that the offer cannot hold are ignored.

    Args:
        bids: the bids; their order decides between outcomes that are equal in all else.
        offer: the GPUs on offer.
        most_partial: the most partial choices of the program at a time.
    """
    if not bids:
        return Winners((), exact=True, gap=0.0)
    capacity = np.array(offer.capacity, dtype=np.int64)
    usages = [_usages(bid, offer) for bid in bids]
    served = _Served.of(bids, usages, capacity, most_partial)
    unserved = len(bids) - served.most
    units = _Units.of(len(bids), sum(node.gpus for node in offer.nodes))
    menus = []
    for bid, known in zip(bids, usages, strict=True):
        rows = []
        for bundle, usage in known.items():
            value = bid.value(bundle)
            if value > 0.0:
                rows.append(_Row(bundle, units.worth(value, bid.held_gpus(bundle)), (*usage, 0)))
            elif not bundle.parts and unserved:
                rows.append(_Row(bundle, 0, (*usage, 1)))
        menus.append(_undominated(rows))
    tables = [_table(rows) for rows in menus]
    solution = solve(tables, np.append(capacity, unserved), most_partial=most_partial)
    if not solution.rows:
        return Winners(tuple(Win(NOTHING, 1.0, exact=False) for _ in bids), exact=False, gap=math.inf)
    wins = [
        _win(index, menus[index][row].bundle, solution, tables, units, displaces=served.without[index] == served.most)
        for index, row in enumerate(solution.rows)
    ]
    exact = served.exact and solution.whole.exact
    gap = units.logarithm(solution.whole.bound) - units.logarithm(solution.whole.worth)
    return Winners(tuple(wins), exact, 0.0 if exact else gap)


class _Row(NamedTuple):
    """One bundle of a bid in a program: its worth, and what it uses of each capacity."""

    bundle: Bundle
    worth: int
    usage: tuple[int, ...]


def _table(rows: Sequence[_Row]) -> Table:
    return Table(
        np.array([row.worth for row in rows], dtype=np.int64), np.array([row.usage for row in rows], dtype=np.int64)
    )


def _undominated(rows: Sequence[_Row]) -> list[_Row]:
    """The rows without those that are worth no more than one that uses no more."""
    ordered = sorted(rows, key=lambda row: (-row.worth, row.usage))
    usage = np.array([row.usage for row in ordered])
    no_more = (usage[:, None] <= usage[None]).all(axis=2)
    dominated = np.asarray(np.triu(no_more, k=1).any(axis=0))
    return [row for row, other in zip(ordered, dominated, strict=True) if not other]


def _usages(bid: Bid, offer: Offer) -> dict[Bundle, tuple[int, ...]]:
    """The bundles of a bid that the offer can hold, and the one without GPUs, with what they use."""
    bundles = [NOTHING, *(bundle for bundle in bid.values if bundle.parts and offer.holds([bundle]))]
    return {bundle: offer.usage(bundle) for bundle in bundles}


class _Served(NamedTuple):
    """How many apps can have a value above 0 at once.

    Attributes:
        most: of all apps.
        without: of the others, without each app.
        exact: whether ``most`` is known to be the most.
    """

    most: int
    without: tuple[int, ...]
    exact: bool

    @classmethod
    def of(
        cls, bids: Sequence[Bid], usages: Sequence[dict[Bundle, tuple[int, ...]]], capacity: Ints, most_partial: int
    ) -> _Served:
        menus = [
            _undominated([_Row(bundle, int(bid.value(bundle) > 0.0), usage) for bundle, usage in known.items()])
            for bid, known in zip(bids, usages, strict=True)
        ]
        least = np.array([menu[0].usage for menu in menus]).reshape(len(bids), len(capacity)).sum(axis=0)
        if all(menu[0].worth for menu in menus) and (least <= capacity).all():
            return cls(len(bids), (len(bids) - 1,) * len(bids), exact=True)
        solution = solve([_table(menu) for menu in menus], capacity, most_partial=most_partial)
        return cls(solution.whole.worth, tuple(one.worth for one in solution.without), solution.whole.exact)


def _win(
    index: int, bundle: Bundle, solution: Solution, tables: Sequence[Table], units: _Units, *, displaces: bool
) -> Win:
    if not bundle.parts:
        return Win(bundle, 1.0, exact=True)
    if displaces:
        return Win(bundle, 0.0, exact=True)
    without = solution.without[index]
    others = solution.whole.worth - int(tables[index].worths[solution.rows[index]])
    loss = units.logarithm(max(without.worth, others)) - units.logarithm(others)
    return Win(bundle, math.exp(-loss), without.exact)
