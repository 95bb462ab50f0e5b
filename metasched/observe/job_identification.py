"""Identification of metasched's jobs, with their uids, among the jobs that Slurm lists."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

import structlog

from metasched.configuration.config import Intake
from metasched.core.reuse import patched
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

    ours: dict[str, SlurmJob]
    others: Sequence[SlurmJob]
    by_stamps: bool


class JobIdentifier:
    """Identifies the jobs of successive lists, by ``identify``; where the stamps tell all, only what has changed.

    Args:
        reuses: whether results of earlier lists are used at all.
    """

    def __init__(self, *, reuses: bool = True) -> None:
        self._reuses = reuses
        self._intake: Intake | None = None
        self._listed: Sequence[SlurmJob] = ()
        self._objects: Mapping[int, SlurmJob] = {}  # those listed, by identity
        self._latest: IdentifiedJobs | None = None  # None where not the stamps alone told the uids

    def identify(
        self, listed: Sequence[SlurmJob], records: Mapping[str, JobRecord], intake: Intake, now: float
    ) -> IdentifiedJobs:
        """Return what the function ``identify`` returns; the same object where list and configuration are the same."""
        before = self._latest if self._reuses and intake is self._intake else None
        if before is not None and listed is self._listed:
            return before
        objects = dict(zip(map(id, listed), listed, strict=True))
        found = None
        if before is not None:
            came = [job for one, job in objects.items() if one not in self._objects]
            went = [job for one, job in self._objects.items() if one not in objects]
            found = _updated(before, came, went)
        if found is None:
            found = identify(listed, records, intake, now)
        self._intake, self._listed, self._objects = intake, listed, objects
        # Without all stamps, the records count as well, and a new uid is made only once.
        self._latest = found if found.by_stamps else None
        return found


def _updated(before: IdentifiedJobs, came: Sequence[SlurmJob], went: Sequence[SlurmJob]) -> IdentifiedJobs | None:
    """Return the jobs after some have come and gone; None where one has no stamp of its own, or the order may change.

    Tasks of an array may share a record and its job id. They change together, as Slurm has one text for them.

    Args:
        before: the jobs before.
        came: the listed objects that are new, in the order listed.
        went: the listed objects that are gone, in the order in which they were listed.
    """
    gone, new = (_by_stamp(jobs) for jobs in (went, came))
    if gone is None or new is None or any(before.ours.get(uid) is not job for uid, job in gone.items()):
        return None
    last = before.ours[next(reversed(before.ours))].job_id if before.ours else 0
    for uid, job in new.items():
        place = gone[uid].job_id if uid in gone else None
        if job.job_id != place and (uid in before.ours or job.job_id <= last):
            return None
    # Tasks of one record have equal ids; sorted() keeps them in the order in which they are listed.
    in_order = sorted(new, key=lambda uid: new[uid].job_id)
    changed = {uid: new[uid] for uid in in_order if uid in gone}
    if list(changed) != sorted((uid for uid in gone if uid in new), key=lambda uid: gone[uid].job_id):
        return None
    added = {uid: new[uid] for uid in in_order if uid not in gone}
    return replace(before, ours=patched(before.ours, gone, changed) | added)


def _by_stamp(jobs: Sequence[SlurmJob]) -> dict[str, SlurmJob] | None:
    """Return the jobs by the uids that their stamps tell; None where one has no stamp, or two have the same."""
    stamps = [Stamp.read(job.admin_comment) for job in jobs]
    found = {_uid(stamp.uid, job): job for stamp, job in zip(stamps, jobs, strict=True) if stamp is not None}
    return found if len(found) == len(jobs) else None


def _uid(base: str, job: SlurmJob) -> str:
    return base if job.array_task_id is None else f"{base}_{job.array_task_id}"


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
    for job in sorted(listed, key=attrgetter("job_id")):
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
            base = new_uids.setdefault(job.submission_id, known or new_uid(now, len(new_uids)))
        uid = _uid(base, job)
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
