"""The bids of apps: tables of values over bundles."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from policies.themis.offer import NOTHING, Bundle

LEAST_VALUE, MOST_VALUE = 1e-6, 1e6
"""Values above 0 that can be told apart; lower and higher ones count as these."""


class BidError(ValueError):
    """A bid that no auction can use."""


@dataclass(frozen=True)
class Bid:
    """One app's bid.

    Attributes:
        app: the app's name.
        values: the value 1/rho of each bundle, together with what the app retains in any case; 0 where the app would
            not run. The bundle without GPUs is among them; other bundles that are missing have the value 0.
        held: of the GPUs on offer, those that the app holds now, by node; its lease on them ends.
    """

    app: str
    values: Mapping[Bundle, float]
    held: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for bundle, value in self.values.items():
            if not 0.0 <= value < math.inf:
                raise BidError(f"app {self.app!r} bids {value} for {bundle.parts}; bid 1/rho, a number of at least 0")
            if min(bundle.parts, default=1) < 1 or [*bundle.parts] != sorted(bundle.parts, reverse=True):
                raise BidError(f"app {self.app!r} bids for {bundle.parts}; give counts above 0, the largest first")

    def value(self, bundle: Bundle) -> float:
        """The value of a bundle, between the least and the most value that can be told apart; or 0."""
        value = self.values.get(bundle, 0.0)
        return min(max(value, LEAST_VALUE), MOST_VALUE) if value > 0.0 else 0.0

    @property
    def retained_value(self) -> float:
        """The value of winning nothing."""
        return self.value(NOTHING)

    def held_gpus(self, bundle: Bundle) -> int:
        """How many of the GPUs that the app holds it can keep where they are, if it wins a bundle."""
        if not self.held:
            return 0
        held, parts = Counter(self.held.values()), Counter(bundle.parts)
        return sum(gpus * count for gpus, count in (held & parts).items())
