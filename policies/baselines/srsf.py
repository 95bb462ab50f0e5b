"""Shortest remaining service first: remaining time x GPUs, so that a wide job counts for all of its GPUs.

The clairvoyant order that Tiresias (Gu et al., NSDI 2019, sections 2.2 and 3.2) extends to jobs on several GPUs.
"""

from __future__ import annotations

from typing import ClassVar

from metasched.core.model import Decision, Snapshot
from metasched.core.policy import Policy, PolicyParameters, PolicyState
from metasched.core.reasons import Code, Reason
from policies.baselines.srtf import ShortestParameters, shortest_first

SHORTEST = Reason(Code.SHORTEST_SERVICE)


class Srsf(Policy):
    """Shortest remaining service first; preemptive. Jobs of unknown remaining time come last, by submission."""

    name: ClassVar[str] = "srsf"
    Parameters: ClassVar[type[PolicyParameters]] = ShortestParameters
    parameters: ShortestParameters

    def decide(self, snapshot: Snapshot, state: PolicyState) -> tuple[Decision, PolicyState]:
        """Serve jobs by remaining time x requested GPUs; keeps no state."""
        return shortest_first(snapshot, lambda job: job.gpus or job.nodes or 1, SHORTEST, self.parameters), state
