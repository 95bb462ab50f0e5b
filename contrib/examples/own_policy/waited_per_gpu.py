"""A policy of one's own: jobs that have waited longest for each GPU that they ask for come first."""

from typing import ClassVar

from metasched.core.model import Decision, Job, Snapshot
from metasched.core.policy import Policy, PolicyParameters, PolicyState
from metasched.core.reasons import Reason
from metasched.core.retention import holds_or_is_released
from policies.baselines.gpu_allocator import allocate


class WaitedPerGpuParameters(PolicyParameters):
    """Parameters of the policy."""

    elastic: bool = True
    """Whether jobs may get other numbers of GPUs than they requested."""


class WaitedPerGpu(Policy):
    """Small jobs pass large ones until the large ones have waited as long for each GPU; nothing is preempted."""

    name: ClassVar[str] = "waited_per_gpu"
    Parameters: ClassVar[type[PolicyParameters]] = WaitedPerGpuParameters
    parameters: WaitedPerGpuParameters

    def decide(self, snapshot: Snapshot, state: PolicyState) -> tuple[Decision, PolicyState]:
        """Serve running jobs, then waiting ones by seconds waited for each GPU; keeps no state."""

        def waited(job: Job) -> float:
            return job.waited_seconds(snapshot.now) / max(job.gpus, 1)

        queue = sorted(snapshot.jobs, key=lambda job: (not holds_or_is_released(job), -waited(job), job.uid))

        def reason(job: Job) -> Reason:
            return Reason.text(f"has waited {waited(job):.0f} s for each of {job.gpus} GPUs")

        return allocate(snapshot, queue, reason, strict=False, elastic=self.parameters.elastic), state
