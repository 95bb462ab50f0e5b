"""The reasons of grants without a placement, and of jobs that a coming reservation keeps from nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from metasched.core.model import Job, Node, Placement
from metasched.core.reasons import Code, Reason
from metasched.placement.free_resources import FreeResources, Resources


def exact(free: FreeResources, job: Job, place: Placement) -> Reason:
    """The reason for a job whose placement is prescribed: the first node that does not suit the job, and why."""
    for name, gpus in place.node_gpus:
        i, load = free.number.get(name), Resources.of(job, gpus)
        if i is None:
            return Reason.of(Code.PLACE_NOT_IN_CLUSTER, node=name)
        node = free.nodes[i]
        if not node.accepts:
            return Reason.of(Code.PLACE_CLOSED, node=name)
        if not job.matches(node) or (gpus and node.gpu_type != place.gpu_type):
            return Reason.of(Code.PLACE_UNSUITABLE, node=name)
        if free.gpus[i] < gpus:
            return Reason.of(Code.PLACE_LACKS_GPUS, node=name, gpus=gpus, free=max(free.gpus[i], 0))
        if not free.fits(i, load):
            return Reason.of(Code.PLACE_LACKS_CPUS, node=name)
    return Reason(Code.PLACE_TAKEN)


def search(free: FreeResources, job: Job, gpus: int, types: Sequence[str | None], *, uneven: bool) -> Reason:
    """The reason for a job whose nodes were searched: the request, the free resources, and which of them is too few.

    Args:
        free: the free resources when the search ended.
        job: the job.
        gpus: the fewest GPUs that would satisfy the grant.
        types: the GPU types that the grant accepts; None for a CPU-only job.
        uneven: whether the cluster can realise uneven placements.
    """
    groups = [group for group in free.matching(job) if not job.gpus or group.gpu_type in types]
    if not groups:
        return Reason.of(
            Code.NO_NODE_ACCEPTS,
            gpus=gpus,
            gpu_types=job.gpu_types,
            features=tuple(sorted(job.features)),
            partition=job.partition,
            reservations=tuple(name for name in job.reservation.split(",") if name),
        )
    numbers = [i for group in groups for i in group.numbers]
    if not job.gpus:
        return Reason.of(
            Code.WAITS_FOR_CPUS,
            nodes=job.nodes or 1,
            cpus=job.node_cpus(0),
            memory=job.node_memory(0),
            cpus_free=sum(max(free.cpus[i], 0) for i in numbers),
        )
    spreads = job.spreads(gpus)
    if not spreads and not uneven:
        return Reason.of(Code.UNEVEN_SPREAD, gpus=gpus, nodes=job.nodes, max_nodes=job.max_nodes)
    gpu_types = tuple(name for name in types if name) if job.gpu_types or len(types) == 1 else ()
    left = sum(max(free.gpus[i], 0) for i in numbers)
    if left < gpus:
        return Reason.of(Code.WAITS_FOR_GPUS, gpus=gpus, gpu_types=gpu_types, free=left)
    if not spreads or any(sum(free.gpus[i] >= g for i in numbers) >= k for k, g in spreads):
        return Reason.of(Code.GPUS_WITHOUT_CPUS, free=left, gpu_types=gpu_types)
    return Reason.of(Code.GPUS_FRAGMENTED, free=left, gpu_types=gpu_types, shapes=spreads[:3])


def closing(jobs: Iterable[Job], nodes: Sequence[Node]) -> Mapping[str, Reason]:
    """By uid, the reason for each job whose time limit keeps it from nodes that will be reserved."""
    closed: dict[object, int] = {}  # number of such nodes, by the jobs' constraints
    reasons = {}
    for job in jobs:
        if not job.open_seconds:
            continue
        key = (job.gpus > 0, job.constraints)
        if key not in closed:
            unlimited = job.evolve(open_seconds=0.0)
            closed[key] = sum(node.accepts and unlimited.matches(node) and not job.matches(node) for node in nodes)
        if closed[key]:
            reasons[job.uid] = Reason.of(Code.RESERVATION_AHEAD, nodes=closed[key])
    return reasons
