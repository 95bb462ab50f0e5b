"""Limits of ``[[intake.limits]]`` on the GPUs that a user's non-preemptible jobs hold. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from metasched.configuration.config import Intake
from metasched.core.model import Job, Preempt, Quota
from metasched.core.reasons import Code, Reason
from metasched.slurm.client import SlurmJob


def within_limit(job: Job, slurm: SlurmJob, intake: Intake) -> Job:
    """Return the job, blocked where it is non-preemptible and needs more GPUs than its user may hold so."""
    most = _most(job, slurm, intake)
    if most is None or job.active or job.blocked is not None or job.min_gpus <= most:
        return job
    return job.evolve(blocked=Reason.of(Code.QUOTA_TOO_SMALL, gpus=job.min_gpus, quota=_name(job.user, most)))


def non_preemptible_quotas(jobs: Iterable[tuple[Job, SlurmJob]], intake: Intake) -> tuple[Quota, ...]:
    """Return a quota for each user whose non-preemptible jobs could hold more GPUs than the user's limit.

    Args:
        jobs: metasched's live jobs.
        intake: the limits.
    """
    members: dict[tuple[str, int], list[Job]] = {}
    for job, slurm in jobs:
        most = _most(job, slurm, intake)
        if most is not None:
            members.setdefault((job.user, most), []).append(job)
    return tuple(
        Quota(_name(user, most), frozenset(job.uid for job in found), most)
        for (user, most), found in sorted(members.items())
        if sum(job.max_gpus for job in found) > most
    )


def _most(job: Job, slurm: SlurmJob, intake: Intake) -> int | None:
    """Return the limit on the GPUs of the user's non-preemptible jobs; None where none counts this job."""
    if job.preempt is not Preempt.NO or not job.max_gpus:
        return None
    return intake.non_preemptible_gpus_of(job.user, slurm.account, slurm.qos)


def _name(user: str, most: int) -> str:
    return f"[intake] non_preemptible_gpus={most} for {user}"
