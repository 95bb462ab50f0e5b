"""Moves of running jobs to fewer nodes, where they gain more time than the restart costs.

A job that was placed on several nodes, because no node had enough free GPUs, would otherwise stay there until its end.
"""

from __future__ import annotations

from metasched.core.model import Grant, Job, Placement
from metasched.core.retention import is_stoppable_at
from metasched.placement.assignments import Assignments
from metasched.placement.search import NodeSearch

GAIN_OVER_RESTART = 2.0
"""A move must gain this many times the seconds of the restart: work to come and speeds are estimates."""

ASSUMED_RESTART_SECONDS = 60.0
"""Seconds of a restart of a job of which none was measured."""


def consolidate(grant: Grant, job: Job, assignments: Assignments, search: NodeSearch) -> None:
    """Move a job that is assigned its present placement to fewer nodes, if these are free and the move pays."""
    place = assignments.placed[job.uid]
    fewer = [(nodes, gpus) for nodes, gpus in job.spreads(place.gpus) if nodes < len(place.nodes)]
    paying = [spread for spread in fewer if _pays(job, place, spread)]
    if not paying or not is_stoppable_at(job, place):
        return
    before, infeasible = assignments.release(job.uid), search.clear_infeasible()
    same_type = Grant(job.uid, grant.gpus, grant.reason, gpu_type=place.gpu_type)
    if not search.place_first(same_type, job, paying):
        assignments.assign(job, before)
        search.known_infeasible = infeasible


def _pays(job: Job, place: Placement, spread: tuple[int, int]) -> bool:
    """Whether the time that the job gains on (nodes, GPUs per node) exceeds the cost of its restart clearly.

    A job whose remaining work is not known is expected to run as long again as it has run.
    """
    if job.speed is None or place.gpu_type is None:
        return False
    nodes, gpus = spread
    present = job.speed.steps_per_second(place.gpu_type, tuple(sorted((g for _, g in place.node_gpus), reverse=True)))
    other = job.speed.steps_per_second(place.gpu_type, (gpus,) * nodes)
    if not present or not other:
        return False
    left = job.remaining_steps
    seconds = job.ran_seconds if left is None else left / present
    restart = ASSUMED_RESTART_SECONDS if job.restart_seconds is None else job.restart_seconds
    return seconds * (1.0 - present / other) > GAIN_OVER_RESTART * restart
