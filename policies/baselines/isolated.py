"""Equal time shares: 1/n of the time on every GPU type for each of n jobs.

Source: X isolated of Gavel (Narayanan et al., OSDI 2020, section 4.1).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from metasched.time_shares.allocation_inputs import AllocationInputs
from metasched.time_shares.equal_shares import equal_shares
from metasched.time_shares.policy_base import TimeSharePolicy
from metasched.time_shares.round_mechanism import TimeShares


class Isolated(TimeSharePolicy):
    """Equal time shares of each GPU type, whatever the speed; a job of k GPUs has a k-th of the time of one GPU's."""

    name: ClassVar[str] = "isolated"

    def time_shares(self, inputs: AllocationInputs, memory: Mapping[str, Any]) -> tuple[TimeShares, Mapping[str, Any]]:
        """Equal time shares of all jobs; no memory."""
        return equal_shares(inputs), memory
