"""Gandiva by app, as in Themis's comparison (Mahajan et al., NSDI 2020, section 6.1): the greediest packing.

Free GPUs go to the app that several nodes slow down most; jobs hold their GPUs to their end. Time slices and packing of
jobs on the same GPUs are left out there, and so they are here: ``gandiva`` has them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from metasched.core.model import Decision, Snapshot
from metasched.core.policy import Policy, PolicyState
from metasched.core.reasons import Code, Reason
from policies.baselines.app_groups import AppGroup, by_app
from policies.baselines.gpu_allocator import allocate

PLACEMENT_PREFERENCE = Reason(Code.PLACEMENT_PREFERENCE)


class GandivaApps(Policy):
    """Apps with the strongest placement preference first; elastic, without preemption of whole jobs."""

    name: ClassVar[str] = "gandiva_apps"

    def decide(self, snapshot: Snapshot, state: PolicyState) -> tuple[Decision, PolicyState]:
        """Serve jobs that hold GPUs, then apps by placement preference; keeps no state."""
        queue = by_app(snapshot, lambda group: -placement_preference(group, snapshot.capacity))
        queue.sort(key=lambda job: not job.active)
        return allocate(snapshot, queue, lambda _: PLACEMENT_PREFERENCE, strict=False, elastic=True), state


def placement_preference(group: AppGroup, gpu_types: Iterable[str]) -> float:
    """By what factor an app's jobs are slower with each GPU on a node of its own, at most; 1.0 where nothing is known.

    Each job is compared on two GPUs, or on its requested ones where those are more.
    """
    found = 1.0
    for job in group.jobs:
        if (speed := job.speed) is None:
            continue
        gpus = max(job.gpus, 2)
        for gpu_type in gpu_types:
            packed = speed.steps_per_second(gpu_type, (gpus,))
            spread = speed.steps_per_second(gpu_type, (1,) * gpus)
            if packed and spread:
                found = max(found, packed / spread)
    return found
