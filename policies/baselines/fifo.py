"""First in, first out."""

from __future__ import annotations

from typing import ClassVar

from metasched.core.model import Decision, Snapshot
from metasched.core.policy import Policy, PolicyParameters, PolicyState
from policies.baselines.gpu_allocator import allocate


class FifoParameters(PolicyParameters):
    """Parameters of FIFO.

    Attributes:
        backfill: whether later jobs may use GPUs that an earlier one waits for and cannot fill yet.
        elastic: whether jobs may get other amounts than they asked for.
    """

    backfill: bool = False
    elastic: bool = True


class Fifo(Policy):
    """Jobs in the order of their first submission; those that run come first, so none is stopped for another."""

    name: ClassVar[str] = "fifo"
    Parameters: ClassVar[type[PolicyParameters]] = FifoParameters
    steady: ClassVar[bool] = True
    parameters: FifoParameters

    def decide(self, snapshot: Snapshot, state: PolicyState) -> tuple[Decision, PolicyState]:
        """Serve jobs in order of submission; keeps no state."""
        queue = sorted(
            snapshot.jobs,
            key=lambda job: (not (job.active or job.released is not None), job.submitted, job.uid),
        )
        decision = allocate(
            snapshot,
            queue,
            lambda _: None,
            strict=not self.parameters.backfill,
            elastic=self.parameters.elastic,
        )
        return decision, state
