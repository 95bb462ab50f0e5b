"""What the published status says of a live job for an estimate of its finish-time fairness. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from metasched.core.batching import BatchControl
from metasched.core.model import Job, Node, Snapshot, Status
from metasched.store.load_rows import ClusterLoad


def most_gpus_of_a_node(nodes: Iterable[Node]) -> Mapping[str, int]:
    """The GPUs of the largest node of each GPU type."""
    most: dict[str, int] = {}
    for node in nodes:
        if node.gpu_type is not None and node.gpus:
            most[node.gpu_type] = max(most.get(node.gpu_type, 0), node.gpus)
    return most


def alone_and_left(job: Job, most_gpus: Mapping[str, int]) -> tuple[float, float] | None:
    """The estimated duration of a job's training alone, and the estimated rest of its training, in seconds.

    Alone means: on the GPUs that the job requests, on as few nodes as possible, of the type where it is fastest. The
    rest is at the present speed where the job runs, and at the speed alone where it waits.

    Args:
        job: as observed.
        most_gpus: GPUs of the largest node of each type.

    Returns:
        None where the job's steps or its speed are not known, or its batch size changes, so that steps are not alike.
    """
    batching = job.batching
    changes = batching is not None and (batching.control is not BatchControl.FIXED or batching.has_changed)
    if job.speed is None or not job.total_steps or not job.gpus or changes:
        return None
    speeds = [
        speed
        for gpu_type, most in most_gpus.items()
        if not job.gpu_types or gpu_type in job.gpu_types
        for spread in [next((one for one in job.spreads(job.gpus) if one[1] <= most), None)]
        if spread is not None and (speed := job.speed.steps_per_second(gpu_type, (spread[1],) * spread[0]))
    ]
    if not speeds:
        return None
    present = job.steps_per_second if job.status is Status.RUNNING else None
    return job.total_steps / max(speeds), (job.remaining_steps or 0.0) / (present or max(speeds))


def cluster_load(snapshot: Snapshot) -> ClusterLoad:
    """The load of the cluster: live jobs that may run or start, their apps, and the GPUs that they request."""
    live = [job for job in snapshot.jobs if job.blocked is None or job.placement is not None]
    return ClusterLoad(
        jobs=len(live),
        apps=len({job.app or job.uid for job in live}),
        requested=sum(job.gpus for job in live),
        capacity=dict(snapshot.capacity),
    )
