"""First in, first out: jobs in the order of their first submission, without preemption of whole jobs."""

from __future__ import annotations

from typing import ClassVar

from metasched.core.model import Decision, Snapshot
from metasched.core.policy import Policy, PolicyParameters, PolicyState
from metasched.core.retention import holds_or_is_released
from policies.baselines.gpu_allocator import allocate


class FifoParameters(PolicyParameters):
    """Parameters of the policy FIFO."""

    backfill: bool = False
    """Whether later jobs may use GPUs for which an earlier job waits without being able to use them yet."""
    elastic: bool = True
    """Whether jobs may get other numbers of GPUs than they requested."""


class Fifo(Policy):
    """Jobs in the order of their first submission; running jobs come first, so none is stopped for another."""

    name: ClassVar[str] = "fifo"
    Parameters: ClassVar[type[PolicyParameters]] = FifoParameters
    steady: ClassVar[bool] = True
    parameters: FifoParameters

    def decide(self, snapshot: Snapshot, state: PolicyState) -> tuple[Decision, PolicyState]:
        """Serve jobs in order of submission; keeps no state."""
        queue = sorted(snapshot.jobs, key=lambda job: (not holds_or_is_released(job), job.submitted, job.uid))
        strict, elastic = not self.parameters.backfill, self.parameters.elastic
        return allocate(snapshot, queue, lambda _: None, strict=strict, elastic=elastic), state
