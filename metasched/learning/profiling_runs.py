"""Which sizes a job is tried at before a run, to learn how it scales: powers of two, on part of the run's own GPUs.

Source: Liu et al., "Ares", 2025, section 4: a pre-run of each degree of parallelism. Pure.
"""

from __future__ import annotations

from metasched.core.model import Job, Placement


def part(place: Placement, gpus: int) -> tuple[int, ...] | None:
    """GPUs on each node of the first ``gpus`` of a place, node by node; None where a node would be left in part."""
    each = place.gpus_per_node
    if gpus <= each:
        return (gpus,)
    return (each,) * (gpus // each) if gpus % each == 0 and gpus <= place.gpus else None


def sizes(job: Job, place: Placement) -> tuple[int, ...]:
    """The numbers of GPUs to try before a run at a place: what the job can have, and of which no speed is known yet."""
    if job.speed is None or place.gpu_type is None or place.uneven:
        return ()
    found, gpus = [], 1
    while gpus < place.gpus:
        spread = part(place, gpus)
        known = spread is None or job.speed.steps_per_second(place.gpu_type, spread) is not None
        if gpus >= job.min_gpus and not known:
            found.append(gpus)
        gpus *= 2
    return tuple(found)
