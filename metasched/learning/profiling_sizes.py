"""World sizes at which a job is profiled before a run: powers of two, on part of the run's own GPUs.

Source: Liu et al., "Ares", 2025, section 4: a pre-run of each degree of parallelism. Pure.
"""

from __future__ import annotations

from metasched.core.model import Job, Placement


def gpus_by_node(placement: Placement, world_size: int) -> tuple[int, ...] | None:
    """Return the GPUs on each node of a profiling run that fills the placement node by node.

    None where the last node would be filled in part, or the placement is too small.
    """
    each = placement.gpus_per_node
    if world_size <= each:
        return (world_size,)
    return (each,) * (world_size // each) if world_size % each == 0 and world_size <= placement.gpus else None


def world_sizes_to_profile(job: Job, placement: Placement) -> tuple[int, ...]:
    """Return the world sizes to profile before a run, ascending: those that the job allows and whose speed is unknown.

    Args:
        job: with its ``speed``; without one nothing is profiled.
        placement: of the run that follows; larger world sizes are left to the run itself.
    """
    if job.speed is None or placement.gpu_type is None or placement.uneven:
        return ()
    found, world_size = [], 1
    while world_size < placement.gpus:
        spread = gpus_by_node(placement, world_size)
        known = spread is None or job.speed.steps_per_second(placement.gpu_type, spread) is not None
        allowed = world_size in job.sizes if job.sizes else world_size >= job.min_gpus
        if allowed and not known:
            found.append(world_size)
        world_size *= 2
    return tuple(found)
