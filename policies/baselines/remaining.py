"""How long a job would still run, as far as is known."""

from __future__ import annotations

from collections.abc import Mapping

from metasched.model import Job, Snapshot


class Outlook:
    """What a snapshot lets one know of speeds, on GPUs as close together as its nodes allow."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.uneven = snapshot.uneven
        self.node_gpus: Mapping[str, int] = {
            kind: max(node.gpus for node in snapshot.nodes if node.gpu_type == kind and node.accepts)
            for kind in snapshot.capacity
        }

    def spread(self, job: Job, gpu_type: str, gpus: int) -> tuple[int, ...] | None:
        """So many GPUs on the fewest nodes that hold them; None where no nodes do."""
        most = self.node_gpus.get(gpu_type, 0)
        if gpus < 1 or most < 1:
            return None
        if self.uneven and job.nodes is None:
            full, rest = divmod(gpus, most)
            return (most,) * full + ((rest,) if rest else ())
        return next(((per_node,) * nodes for nodes, per_node in job.spreads(gpus) if per_node <= most), None)

    def speed(self, job: Job, gpu_type: str, gpus: int) -> float | None:
        """Steps per second on so many GPUs of a type; None where it is not known."""
        spread = self.spread(job, gpu_type, gpus)
        return None if job.speed is None or spread is None else job.speed.steps_per_second(gpu_type, spread)

    def remaining_seconds(self, job: Job) -> float | None:
        """At what it asked for, on the type on which it is fastest; None where its speed or work is not known.

        Where nothing is known of the speed there, it counts as what was measured where the job runs now.
        """
        steps = job.remaining_steps
        if steps is None:
            return None
        kinds = [kind for kind in self.node_gpus if not job.gpu_types or kind in job.gpu_types]
        speed = max((self.speed(job, kind, job.gpus) or 0.0 for kind in kinds), default=0.0) or job.steps_per_second
        return steps / speed if speed else None
