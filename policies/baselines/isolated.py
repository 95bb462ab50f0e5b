"""Everybody's own part of the cluster: 1/n of the time on every GPU type.

Source: X isolated of Gavel (Narayanan et al., OSDI 2020, section 4.1).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from metasched.time_shares.allocation_inputs import AllocationInputs
from metasched.time_shares.policy_base import TimeSharePolicy, equal_parts
from metasched.time_shares.round_mechanism import Times


class Isolated(TimeSharePolicy):
    """Equal shares of each type, whatever the speed there; a job of k GPUs has a k-th of the time for its part."""

    name: ClassVar[str] = "isolated"

    def shares(self, claims: AllocationInputs, memory: Mapping[str, Any]) -> tuple[Times, Mapping[str, Any]]:
        """Equal parts; remembers nothing."""
        return equal_parts(claims, [((job.uid,), job.gpus) for job in claims.jobs]), memory
