"""Which jobs retain their allocations: every predicate that scheduling asks about it, each with a name of its own.

The predicates differ in few cases, and the differences are deliberate: ``tests/unit/core/test_retention.py`` is the
truth table. A job *holds* an allocation while it is active (running, suspended or stopping). Suspension never frees
GPUs or memory; a suspension by the daemon frees CPUs. A new rule about which jobs keep an allocation belongs in
``is_pinned``; the other predicates follow from it or ask a narrower question.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from metasched.core.model import Preempt, Status

if TYPE_CHECKING:
    from metasched.core.model import Job, Node, Placement

# -- allocations that are not taken away ----------------------------------------------------------------------------


def is_pinned(job: Job) -> bool:
    """Whether the job holds an allocation that scheduling must not take away, in this round or later.

    The tag says so (``preempt=no``), or the tag says ``preempt=suspend`` and the job has GPUs: suspension frees
    neither its GPUs nor its memory, so preempting it would help no other job. The engine, the placement and the
    simulated cluster ask it.
    """
    if not job.active:
        return False
    return job.preempt is Preempt.NO or (job.preempt is Preempt.SUSPEND and job.gpus > 0)


def may_be_retained(job: Job) -> bool:
    """Whether the job is one of the few to which ``is_pinned`` or a suspension may apply: a cheap first test.

    The predicate is true for every job for which ``is_pinned``, ``is_immovable`` or ``is_non_preemptible`` is. The
    placement and the check of a policy's decision ask it, of every job in every round.
    """
    return job.preempt is not Preempt.CHECKPOINT or job.status is Status.SUSPENDED


# -- what Slurm and the daemon have done to a run -------------------------------------------------------------------


def suspended_by_daemon(job: Job) -> bool:
    """Whether the daemon suspended the job's run, and so may resume it and assign its CPUs to others."""
    return job.status is Status.SUSPENDED and job.suspended_by_us


def suspended_by_others(job: Job) -> bool:
    """Whether an admin suspended the job's run: only they may resume it, at any moment, so its CPUs stay reserved."""
    return job.status is Status.SUSPENDED and not job.suspended_by_us


def waits_for_time_slice(job: Job) -> bool:
    """Whether the daemon suspended a GPU job, which it does only for the time slice of a co-runner."""
    return job.gpus > 0 and suspended_by_daemon(job)


def is_vacating(job: Job) -> bool:
    """Whether the job's run is ending, or has been asked to end. A request to stop is never withdrawn."""
    return job.stop_requested is not None or job.status is Status.STOPPING


def holds_without_stop(job: Job) -> bool:
    """Whether the job runs or is suspended, and has not been asked to stop.

    GPU sharing asks it of a job that a co-runner is to join.
    """
    return job.status in (Status.RUNNING, Status.SUSPENDED) and job.stop_requested is None


def holds_without_effective_stop(job: Job) -> bool:
    """Whether the job runs or is suspended, and no stop that it could answer has been requested.

    The predicate differs from ``holds_without_stop`` for a job that an admin suspended after the daemon had asked it to
    stop: a suspended trainer cannot answer. What-if forecasts begin with the allocations of these jobs.
    """
    return suspended_by_others(job) or holds_without_stop(job)


# -- what scheduling may decide about a job -------------------------------------------------------------------------


def is_blocked_from_start(job: Job) -> bool:
    """Whether the job holds nothing and must not start. What forbids a start does not end a run."""
    return job.blocked is not None and not job.active


def continues_without_policy(job: Job) -> bool:
    """Whether a job that is hidden from the policy (blocked, or suspended by an admin) is to keep its allocation.

    The predicate is true for a run that has not been asked to stop, and for a run that an admin suspended. It is false
    for a run that the daemon suspended: while the job is blocked, it is not resumed. The engine asks it.
    """
    return (job.status is Status.RUNNING and job.stop_requested is None) or suspended_by_others(job)


def is_immovable(job: Job) -> bool:
    """Whether the job can run only on the allocation that it holds now: it is pinned or suspended.

    The predicate differs from ``is_non_preemptible`` for a suspended job without GPUs: it may be left waiting, but it
    cannot move. The check of a policy's decision asks it.
    """
    return job.status is Status.SUSPENDED or is_pinned(job)


def is_non_preemptible(job: Job) -> bool:
    """Whether the job's allocation is non-preemptible in this round: pinned, or suspended while it holds GPUs.

    Capacity pools and policies ask it, to count such allocations first.
    """
    return may_be_retained(job) and (is_pinned(job) or (job.status is Status.SUSPENDED and job.gpus > 0))


def consumes_quota_under_any_decision(job: Job) -> bool:
    """Whether the job uses up quotas in this round under every decision of the policy.

    The predicate differs from ``is_non_preemptible`` in three cases. It is true for a suspended job without GPUs
    (limits on the *number* of jobs count it), and for a blocked run (the policy is not asked). It is false for a run
    that is stopping. Quota enforcement asks it.
    """
    if job.status is Status.RUNNING:
        return job.blocked is not None or is_pinned(job)
    return job.status is Status.SUSPENDED


def holds_or_is_released(job: Job) -> bool:
    """Whether the job holds an allocation, or is queued for one that the daemon released it for.

    Policies that never preempt ask it.
    """
    return job.active or job.released is not None


def is_stoppable_at(job: Job, target: Placement | None) -> bool:
    """Whether the job holds its target, and the daemon could ask it to stop now.

    The job runs, or is suspended by the daemon (and is resumed first); it has not been asked to stop; it can
    checkpoint. GPU sharing asks it before a job is to restart for the sake of a pair.

    Args:
        job: any job.
        target: the placement that the job should have; None where it should not run.
    """
    if job.placement is None or job.placement != target:
        return False
    holds = job.status is Status.RUNNING or suspended_by_daemon(job)
    return holds and job.stop_requested is None and job.preempt is Preempt.CHECKPOINT


def continues_undisturbed(job: Job, target: Placement | None, *, has_co_runner: bool) -> bool:
    """Whether a round changes nothing for a running job, so that its allocation is renewed.

    A job that is to have a co-runner is undisturbed only if it holds half GPUs: on whole GPUs it has to restart.

    Args:
        job: any job.
        target: the placement that the round decided for the job; None where it should not run.
        has_co_runner: whether the round decided that another job is to run on the same GPUs.
    """
    fits = target == job.placement and (job.half_gpus or not has_co_runner)
    return job.status is Status.RUNNING and job.stop_requested is None and fits


# -- allocations on nodes that would not be assigned again ----------------------------------------------------------


def holds_unassignable_nodes(job: Job, nodes: Mapping[str, Node]) -> bool:
    """Whether the job holds a node on which it could not start now: gone, closed to new jobs, or unsuitable.

    Policies ask it: such an allocation is lost once it is given up.

    Args:
        job: any job.
        nodes: the nodes of the snapshot, by name.
    """
    if job.placement is None or not job.active:
        return False
    held = [nodes.get(name) for name in job.placement.nodes]
    return not all(node is not None and node.accepts and job.matches(node) for node in held)


def runs_on_closed_nodes_only(job: Job, open_nodes: Mapping[str, Node]) -> bool:
    """Whether the job runs with GPUs, and all its nodes are closed to new jobs.

    No other job could use what it holds, so inputs of time shares leave such jobs out.

    Args:
        job: any job.
        open_nodes: the nodes that accept new jobs, by name.
    """
    place = job.placement if job.status is Status.RUNNING else None
    return place is not None and place.gpus > 0 and open_nodes.keys().isdisjoint(place.nodes)
