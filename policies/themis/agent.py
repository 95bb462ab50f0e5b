"""One app's side of an auction: its rho, and its bid. An agent knows nothing of other apps but how many there were."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from policies.themis.bids import Bid
from policies.themis.finish_time import AppWork, GangPlaces
from policies.themis.offer import NOTHING, Bundle, Offer


@dataclass(frozen=True)
class Agent:
    """The agent of one app.

    Attributes:
        app: the app's name.
        work: what the app has done and has to do, clamped to what was measured.
        cluster: the GPUs of the whole cluster by type.
        speeds: the speed of a GPU by type; 1 where a type is not named.
        retained: the GPUs that the app holds beyond this auction, as counts on nodes.
        held: the GPUs on offer that the app holds now, by node.
        gpu_types: the GPU types for which the app bids; None for that of what it retains, or for all.
        usable: the GPUs that its jobs can use now, what it retains included; None where that is the demand of its work.
    """

    app: str
    work: AppWork
    cluster: Mapping[str, int]
    speeds: Mapping[str, float] = field(default_factory=dict)
    retained: Bundle = NOTHING
    held: Mapping[str, int] = field(default_factory=dict)
    gpu_types: frozenset[str] | None = None
    usable: int | None = None

    @property
    def demand(self) -> int:
        """The GPUs that the app can use now beyond what it retains."""
        most = self.work.demand if self.usable is None else min(self.usable, self.work.demand)
        return max(most - self.retained.gpus, 0)

    def rho(self, bundle: Bundle, offer: Offer) -> float:
        """The app's finish-time fairness, if it has a bundle, and what it retains, until its end; infinity for none.

        Raises:
            ValueError: the bundle is of another GPU type than what the app retains.
        """
        types = {part.gpu_type for part in (bundle, self.retained) if part.parts}
        if len(types) > 1 and not types <= (self.gpu_types or frozenset()):
            raise ValueError(f"app {self.app!r} would have GPUs of the types {sorted(types)}; give it GPUs of one type")
        gpu_type = bundle.gpu_type or self.retained.gpu_type
        parts = tuple(sorted(bundle.parts + self.retained.parts, reverse=True))
        places = GangPlaces(
            parts,
            level=lambda gpus: offer.level(gpu_type, (gpus,)),
            across=offer.level(gpu_type, (1, 1)),
            speed=self.speeds.get(gpu_type, 1.0),
        )
        independent = self.work.independent_seconds(self.cluster, self.speeds)
        return self.work.shared_seconds(places) / independent if independent > 0.0 else math.inf

    def present_rho(self, offer: Offer) -> float:
        """The app's finish-time fairness, if it keeps what it holds until its end; infinity where it holds nothing.

        Args:
            offer: the offer, whose nodes tell the type of the GPUs held there.
        """
        return self.rho(self.present_bundle(offer), offer)

    @property
    def rho_so_far(self) -> float:
        """The app's finish-time fairness if it ended now: the least that it can become."""
        independent = self.work.independent_seconds(self.cluster, self.speeds)
        return self.work.elapsed / independent if independent > 0.0 else math.inf

    def present_bundle(self, offer: Offer) -> Bundle:
        """Of the GPUs on offer, those that the app holds now, as a bundle."""
        types = {node.gpu_type for node in offer.nodes if self.held.get(node.name)}
        return Bundle(min(types), tuple(sorted(self.held.values(), reverse=True))) if types else NOTHING

    def bid(self, offer: Offer) -> Bid:
        """The app's bid: the value of each bundle on offer that it can use, and of what it holds."""
        left = self.demand
        bundles = offer.bundles(left) if left else [NOTHING]
        present = self.present_bundle(offer)
        if left and present not in bundles and offer.holds([present]):
            bundles.append(present)
        usable = {"", *self._gpu_types(offer)}
        values = {bundle: self._value(bundle, offer) for bundle in bundles if bundle.gpu_type in usable}
        return Bid(self.app, values, self.held)

    def _gpu_types(self, offer: Offer) -> Iterable[str]:
        if self.gpu_types is not None:
            return self.gpu_types
        return (self.retained.gpu_type,) if self.retained.parts else offer.gpu_types

    def _value(self, bundle: Bundle, offer: Offer) -> float:
        rho = self.rho(bundle, offer)
        return 1.0 / rho if rho > 0.0 else 0.0
