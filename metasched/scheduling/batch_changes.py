"""The actions of a plan by which trainers take up batch plans: at a start, or while a run continues. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from metasched.core.batching import BatchPlan
from metasched.core.model import Action, Job, Placement, Retune, Snapshot, Start, Status
from metasched.core.reasons import Code, Reason


def with_batch_plans(
    actions: Collection[Action],
    snapshot: Snapshot,
    targets: Mapping[str, Placement],
    batches: Mapping[str, BatchPlan],
) -> tuple[Action, ...]:
    """The actions of a plan, each start with its batch plan, and the requests to running jobs to take up another one.

    Args:
        actions: of ``scheduling.plan``.
        snapshot: jobs as observed.
        targets: by uid, the placement that each job should have now.
        batches: by uid, the batch plan that the trainer of a target should take up.
    """
    if not batches:
        return tuple(actions)
    found = [replace(one, batch=batches.get(one.uid)) if isinstance(one, Start) else one for one in actions]
    concerned = {one.uid for one in actions}
    for uid, batch in batches.items():
        job = snapshot.job.get(uid)
        if (
            job is not None
            and uid not in concerned
            and _continues(job, targets.get(uid))
            and batch != job.requested_batch
        ):
            found.append(Retune(uid, _reason(job, batch), batch))
    return tuple(found)


def _continues(job: Job, target: Placement | None) -> bool:
    """Whether the job's run continues on its target, with a trainer that reads its lease."""
    running = job.status is Status.RUNNING and job.trainer_ready and job.stop_requested is None
    return running and job.placement == target


def _reason(job: Job, batch: BatchPlan) -> Reason:
    total = None if job.placement is None else batch.global_batch(job.placement.gpus)
    return Reason.of(Code.BATCH_CHANGES, per_gpu=batch.per_gpu, accumulation=batch.accumulation, global_batch=total)
