"""Identification of metasched's jobs, with their uids, among the jobs that Slurm lists."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import structlog

from metasched.configuration.config import Intake
from metasched.observe.observed_job import ENDED
from metasched.slurm.admin_comment import Stamp
from metasched.slurm.client import SlurmJob
from metasched.slurm.job_requirements import is_managed
from metasched.store import JobRecord

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class IdentifiedJobs:
    """The jobs that Slurm lists in one poll, split into metasched's and others.

    Attributes:
        ours: metasched's jobs by uid, ordered by Slurm's job id.
        others: the other jobs.
        by_stamps: whether the stamps alone tell the uids: no job lacks one, and no two have the same. Then the result
            depends on nothing but Slurm's list and the configuration.
    """

    ours: Mapping[str, SlurmJob]
    others: Sequence[SlurmJob]
    by_stamps: bool


def identify(
    listed: Iterable[SlurmJob], records: Mapping[str, JobRecord], intake: Intake, now: float
) -> IdentifiedJobs:
    """Split the jobs that Slurm lists into metasched's and others.

    A job of metasched that carries no stamp yet gets a new uid here, which intake records and writes to Slurm.

    Args:
        listed: every job that Slurm lists.
        records: the store's live jobs, by uid.
        intake: the partitions and QOS whose jobs are metasched's without a tag.
        now: unix seconds.
    """
    ours: dict[str, SlurmJob] = {}
    others: list[SlurmJob] = []
    new_uids: dict[int, str] = {}
    by_slurm_job_id: dict[tuple[str, float], str] | None = None
    by_stamps = True
    for job in sorted(listed, key=lambda job: job.job_id):
        stamp = Stamp.read(job.admin_comment)
        if stamp is not None:
            base = stamp.uid
        elif not is_managed(job, intake.partitions, intake.qos):
            others.append(job)
            continue
        elif job.state in ENDED:
            continue
        else:
            by_stamps = False
            if by_slurm_job_id is None:
                by_slurm_job_id = {(record.slurm_job_id, record.submitted): record.uid for record in records.values()}
            # The daemon died between the job's record and its stamp, or slurmctld crashed and forgot the stamp.
            known = by_slurm_job_id.get((job.slurm_job_id, job.submitted), "").partition("_")[0]
            base = new_uids.setdefault(job.array_job_id or job.job_id, known or new_uid(now, len(new_uids)))
        uid = base if job.array_task_id is None else f"{base}_{job.array_task_id}"
        rival = ours.get(uid)
        if rival is not None:  # an operator copied a stamp: the job with the store's Slurm job id keeps the uid
            by_stamps = False
            known_slurm_job_id = records[uid].slurm_job_id if uid in records else None
            loser, winner = (rival, job) if job.slurm_job_id == known_slurm_job_id else (job, rival)
            log.warning("duplicate_stamp", uid=uid, slurm_job_id=loser.slurm_job_id)
            others.append(loser)
            job = winner  # noqa: PLW2901  the winner is the job of this uid
        ours[uid] = job
    return IdentifiedJobs(ours, others, by_stamps)


def new_uid(now: float, sequence: int) -> str:
    """Make the uid of a new job: 16 hex digits, random in the last 5.

    Uids sort in the order of intake, since many jobs share one second of submission.

    Args:
        now: unix seconds.
        sequence: number of the job among those that are new in this poll.
    """
    return f"{int(now) % 2**32:08x}{sequence % 2**12:03x}{secrets.randbits(20):05x}"
