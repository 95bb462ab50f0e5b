"""Grants rounded to the numbers of GPUs on which their jobs can run. Pure.

Some training scripts fail at some world sizes. Policies know the fewest and the most GPUs of a job only, so what they
grant is rounded here, in one place for all of them: down to an allowed number, if possible one that the nodes can hold;
up to the fewest where there is none below. Placement then gives no other number, not even where a grant lets it give
fewer GPUs.
"""

from __future__ import annotations

from dataclasses import replace

from metasched.capacity.shapes import ClusterShapes
from metasched.core.model import Decision, Grant, Job, Snapshot
from metasched.core.reasons import Code, Reason
from metasched.core.retention import is_immovable


def round_to_allowed_sizes(snapshot: Snapshot, decision: Decision) -> Decision:
    """Return the decision with every grant of a job with ``sizes`` rounded to one of them.

    A job that cannot be moved keeps what it holds. A grant of the GPUs of another job is withdrawn where the two jobs
    would get different numbers.
    """
    if not any(job.sizes for job in snapshot.jobs):
        return decision
    shapes = ClusterShapes(snapshot.nodes, snapshot.jobs, uneven=snapshot.uneven)
    grants, fallback = list[Grant](), list[Grant]()
    waits, granted = dict(decision.waits), dict[str, int]()
    paired = {grant.co_runner for grant in (*decision.grants, *decision.fallback)} - {None}
    for found, asked in ((grants, decision.grants), (fallback, decision.fallback)):
        for grant in asked:
            rounded = _rounded(snapshot.job[grant.uid], grant, shapes, paired=grant.uid in paired)
            if grant.co_runner is not None and granted.get(grant.co_runner) != rounded.gpus:
                waits[grant.uid] = rounded.reason
                continue
            granted[grant.uid] = rounded.gpus
            found.append(rounded)
    return replace(decision, grants=tuple(grants), fallback=tuple(fallback), waits=waits)


def _rounded(job: Job, grant: Grant, shapes: ClusterShapes, *, paired: bool) -> Grant:
    """The grant with an allowed number of GPUs."""
    if not job.sizes or is_immovable(job):
        return grant
    gpus = _at_most(job, grant.gpus, shapes)
    low = None
    if grant.at_least is not None and grant.co_runner is None and not paired:
        low = min((size for size in job.sizes if grant.at_least <= size <= gpus), default=gpus)
    if gpus == grant.gpus:
        return replace(grant, at_least=low, sizes=job.sizes)
    why = Reason.of(Code.SIZE_NOT_ALLOWED, gpus=grant.gpus, rounded=gpus, sizes=job.sizes)
    return replace(
        grant, gpus=gpus, at_least=low, exact=None, batch=None, sizes=job.sizes, reason=grant.reason.and_also(why)
    )


def _at_most(job: Job, gpus: int, shapes: ClusterShapes) -> int:
    """The most allowed GPUs up to a number that the nodes can hold, as if nothing else ran there.

    Where they can hold none of these, the most up to the number; where there is none, the fewest allowed.
    """
    if gpus in job.sizes:
        return gpus
    below = [size for size in job.sizes if size <= gpus]
    shape = shapes.of(job)
    held = (size for size in reversed(below) if any(shape.consolidated(kind, size) for kind in shape.units))
    return next(held, max(below, default=min(job.sizes)))
