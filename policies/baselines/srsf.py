"""Shortest remaining service first: remaining time x GPUs, so that a job on many GPUs counts for all of them.

The clairvoyant order that Tiresias (Gu et al., NSDI 2019, sections 2.2 and 3.2) extends to jobs on several GPUs.
"""

from __future__ import annotations

from typing import ClassVar

from metasched.core.model import Job
from metasched.core.reasons import Code, Reason
from policies.baselines.app_groups import AppGroup
from policies.baselines.remaining_time import RemainingTime
from policies.baselines.srtf import Srtf


class Srsf(Srtf):
    """Shortest remaining service first; preemptive. Jobs of unknown remaining time come last, by submission."""

    name: ClassVar[str] = "srsf"
    shortest: ClassVar[Reason] = Reason(Code.SHORTEST_SERVICE)

    def size(self, job: Job) -> int:
        """The requested GPUs of the job (CPU-only: nodes)."""
        return job.gpus or job.nodes or 1

    def left_of_app(self, group: AppGroup, remaining_time: RemainingTime) -> float | None:
        """The GPU-seconds that the app still needs."""
        return group.remaining_gpu_seconds(remaining_time)
