"""GPU leases: which app has which GPUs until when. What an app won is its own until its lease ends.

An auction gives each winner one lease. An app may have several, which end at different times. GPUs that an app cannot
use any more return at once (``Leases.used``); the rest of the lease is unchanged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from metasched.core.reasons import Reason, from_json, to_json


@dataclass(frozen=True)
class Lease:
    """GPUs of one app for some time.

    Attributes:
        app: the app's uid.
        gpus: GPUs by node, above 0.
        ends: the end of the lease, unix seconds.
        reason: how the app got them, as JSON (``reasons.to_json``).
    """

    app: str
    gpus: dict[str, int]
    ends: float
    reason: dict[str, Any]

    @classmethod
    def of(cls, app: str, gpus: Mapping[str, int], ends: float, reason: Reason) -> Lease:
        """A lease with a reason that is data."""
        return cls(app, dict(sorted(gpus.items())), ends, to_json(reason))

    @property
    def why(self) -> Reason:
        """How the app got the GPUs."""
        return from_json(self.reason)


@dataclass(frozen=True)
class Leases:
    """All leases, as they are between two rounds.

    Attributes:
        leases: the leases, the earliest end first.
    """

    leases: tuple[Lease, ...] = field(default=())

    @property
    def gpus(self) -> dict[str, Counter[str]]:
        """GPUs of all leases by app and node."""
        found: dict[str, Counter[str]] = {}
        for lease in self.leases:
            found.setdefault(lease.app, Counter()).update(lease.gpus)
        return found

    @property
    def first_ends(self) -> dict[str, float]:
        """When the first lease of each app ends, unix seconds, by uid."""
        return {lease.app: lease.ends for lease in reversed(self.leases)}

    @property
    def reasons(self) -> dict[str, list[Reason]]:
        """How each app got what it has, the latest end first, by uid."""
        found: dict[str, list[Reason]] = {}
        for lease in reversed(self.leases):
            found.setdefault(lease.app, []).append(lease.why)
        return found

    def live(self, now: float, apps: Iterable[str], nodes: Mapping[str, int]) -> Leases:
        """The leases that have not ended, of live apps, on GPUs that there are.

        Args:
            now: unix seconds.
            apps: uids of the apps that have a member.
            nodes: GPUs by node. Where a node has fewer than its leases, the leases that end first lose theirs.
        """
        left, known, found = dict(nodes), set(apps), []
        for lease in reversed(self.leases):
            if lease.ends <= now or lease.app not in known:
                continue
            gpus = {node: min(count, left.get(node, 0)) for node, count in lease.gpus.items()}
            for node, count in gpus.items():
                left[node] = left.get(node, 0) - count
            found.append(replace(lease, gpus=gpus))
        return _ordered(found)

    def used(self, gpus: Mapping[str, Mapping[str, int]]) -> Leases:
        """The leases without GPUs that their apps do not use; those that end last are used first.

        Args:
            gpus: by app and node, the GPUs that the app uses.
        """
        left = {app: dict(counts) for app, counts in gpus.items()}
        found = []
        for lease in reversed(self.leases):
            use = left.get(lease.app, {})
            kept = {node: min(count, use.get(node, 0)) for node, count in lease.gpus.items()}
            for node, count in kept.items():
                use[node] = use.get(node, 0) - count
            found.append(replace(lease, gpus=kept))
        return _ordered(found)

    def plus(self, more: Iterable[Lease]) -> Leases:
        """These leases and others."""
        return _ordered([*self.leases, *more])

    def to_json(self) -> list[dict[str, Any]]:
        """The leases as JSON-compatible data."""
        return [msgspec.to_builtins(lease) for lease in self.leases]

    @classmethod
    def from_json(cls, data: object) -> Leases:
        """The leases that ``to_json`` wrote."""
        return cls(tuple(msgspec.convert(data, list[Lease])))


def _ordered(leases: Iterable[Lease]) -> Leases:
    """The leases in order of their ends, without counts of 0, and without those that have no GPUs."""
    cut = [replace(one, gpus={node: count for node, count in one.gpus.items() if count > 0}) for one in leases]
    return Leases(tuple(sorted((one for one in cut if one.gpus), key=lambda one: (one.ends, one.app, [*one.gpus]))))
