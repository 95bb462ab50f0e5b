"""Who wins which bundle: the proportionally fair allocation, and what each app's presence costs the others.

The winners maximise the product of all apps' values (Themis, NSDI 2020, Pseudocode 1, line 6). Where not all apps can
have a value above 0, as many as possible have, and the product is over those; that is the limit of the product for a
value of nothing that tends to 0. Equal products are decided by how many GPUs stay with the app that holds them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from policies.themis.bids import MOST_VALUE, Bid
from policies.themis.choice_program import MOST_PARTIAL_CHOICES, UNREACHED, Ints, Optimum, Solution, Table, solve
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

    Bundles that the offer cannot hold, or that are not of its range, are ignored.

    Args:
        bids: the bids; their order decides between outcomes that are equal in all else.
        offer: the GPUs on offer.
        most_partial: the most partial choices of the program at a time.
    """
    rows = [_rows(bid, offer) for bid in bids]
    capacity = np.array(offer.capacity, dtype=np.int64)
    served, without, unserved_exact = _served(bids, rows, capacity, most_partial)
    most_unserved = len(bids) - served
    units = _Units.of(len(bids), sum(node.gpus for node in offer.nodes))
    offered, tables = [], []
    for bid, found in zip(bids, rows, strict=True):
        entries = []
        for bundle, usage in found:
            value = bid.value(bundle)
            if value > 0.0:
                entries.append((bundle, units.worth(value, bid.held_gpus(bundle)), [*usage, 0]))
            elif not bundle.parts and most_unserved:
                entries.append((bundle, 0, [*usage, 1]))
        entries = _undominated(entries)
        offered.append([bundle for bundle, _, _ in entries])
        worths, usages = [worth for _, worth, _ in entries], [usage for _, _, usage in entries]
        tables.append(Table(np.array(worths, dtype=np.int64), np.array(usages, dtype=np.int64)))
    if most_unserved:
        capacity = np.append(capacity, most_unserved)
    else:
        tables = [table._replace(usage=table.usage[:, :-1]) for table in tables]
    solution = solve(tables, capacity, most_partial=most_partial)
    wins = [
        _win(index, offered[index][row], solution, tables, units, displaces=without[index] == served)
        for index, row in enumerate(solution.rows)
    ]
    gap = units.logarithm(solution.whole.bound) - units.logarithm(solution.whole.worth)
    exact = unserved_exact and _is_exact(solution.whole)
    return Winners(tuple(wins), exact, 0.0 if exact else gap)


def _rows(bid: Bid, offer: Offer) -> list[tuple[Bundle, tuple[int, ...]]]:
    """The bundles of a bid that the offer can hold, with what they use; the bundle without GPUs is always among them."""
    found = [(NOTHING, (0,) * len(offer.sizes))]
    for bundle in bid.values:
        if bundle.parts and offer.holds([bundle]):
            found.append((bundle, offer.usage(bundle)))
    return found


def _undominated(entries: list[tuple[Bundle, int, list[int]]]) -> list[tuple[Bundle, int, list[int]]]:
    """The entries without those that are worth no more than one that needs no more."""
    usage = np.array([needs for _, _, needs in entries])
    worths = np.array([worth for _, worth, _ in entries], dtype=np.int64)
    order = sorted(range(len(entries)), key=lambda row: (-worths[row], entries[row][2]))
    chosen: list[int] = []
    for row in order:
        if not chosen or not (usage[chosen] <= usage[row]).all(axis=1).any():
            chosen.append(row)
    return [entries[row] for row in chosen]


def _served(
    bids: Sequence[Bid], rows: Sequence[list[tuple[Bundle, tuple[int, ...]]]], capacity: Ints, most_partial: int
) -> tuple[int, list[int], bool]:
    """How many apps can have a value above 0 at once: of all, and of the others without each; and whether that is exact."""
    tables = []
    for bid, found in zip(bids, rows, strict=True):
        entries = [(bundle, int(bid.value(bundle) > 0.0), [*usage]) for bundle, usage in found]
        entries = _undominated(entries)
        worths, usages = [worth for _, worth, _ in entries], [usage for _, _, usage in entries]
        tables.append(Table(np.array(worths, dtype=np.int64), np.array(usages, dtype=np.int64)))
    least = [table.usage[(table.worths > 0).argmax()] for table in tables]
    if all(table.worths.any() for table in tables) and (sum(least) <= capacity).all():
        return len(bids), [len(bids) - 1] * len(bids), True
    solution = solve(tables, capacity, most_partial=most_partial)
    exact = _is_exact(solution.whole)
    return solution.whole.worth, [one.worth for one in solution.without], exact


def _win(
    index: int, bundle: Bundle, solution: Solution, tables: Sequence[Table], units: _Units, *, displaces: bool
) -> Win:
    without = solution.without[index]
    if not bundle.parts:
        return Win(bundle, 1.0, exact=True)
    if displaces:
        return Win(bundle, 0.0, exact=True)
    others = sum(int(table.worths[row]) for table, row in zip(tables, solution.rows, strict=True))
    others -= int(tables[index].worths[solution.rows[index]])
    best = max(without.worth, others)
    exact = without.worth != UNREACHED and _is_exact(without)
    return Win(bundle, math.exp(min(units.logarithm(others) - units.logarithm(best), 0.0)), exact)


def _is_exact(optimum: Optimum) -> bool:
    return optimum.bound <= optimum.worth
