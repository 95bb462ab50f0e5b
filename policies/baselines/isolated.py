"""Everybody's own part of the cluster: 1/n of the time on every GPU type.

Source: X isolated of Gavel (Narayanan et al., OSDI 2020, section 4.1).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from metasched.fractions import Claims, FractionPolicy
from metasched.mechanism import Combination, Times


class Isolated(FractionPolicy):
    """Equal shares of each type, whatever the speed there; a job of k GPUs has a k-th of the time for its part."""

    name: ClassVar[str] = "isolated"

    def shares(self, claims: Claims, memory: Mapping[str, Any]) -> tuple[Times, Mapping[str, Any]]:
        """Equal parts; remembers nothing."""
        return equal_parts(claims, [((job.uid,), job.gpus) for job in claims.jobs]), memory


def equal_parts(claims: Claims, who: Sequence[tuple[Combination, int]]) -> dict[Combination, dict[str, float]]:
    """The cluster in equal parts for combinations of so many GPUs each; nobody gets more than all of the time."""
    parts = {}
    for combination, gpus in who:
        share = {
            kind: count / len(who) / gpus
            for kind, count in claims.capacity.items()
            if all(kind in claims.spreads[uid] for uid in combination)
        }
        too_much = max(sum(share.values()), 1.0)
        parts[combination] = {kind: part / too_much for kind, part in share.items()}
    return parts
