"""Which new jobs a poll takes in: a few at a time, in turns between users, and within the limits of ``[intake]``. Pure.

Of one user's jobs, those come first that fit the free GPUs, so that a round could start them now. A job that is not
taken in yet stays in Slurm's queue, held. No policy sees it, and it costs a poll almost nothing.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from functools import cache
from typing import NamedTuple

from metasched.configuration.config import Intake
from metasched.core.reasons import Code, Reason
from metasched.observe.observed_job import ENDED
from metasched.observe.observer import Observation
from metasched.slurm.client import JobState, SlurmJob

NEW_JOBS = 1000
"""Most new jobs that one poll takes in, however fast: each is described and published in the same poll, too."""


class Admission(NamedTuple):
    """The new jobs of one poll: uids of those that may be taken in, first to last, and the others with the reason."""

    admitted: Sequence[str]
    deferred: Mapping[str, Reason]


NO_NEW_JOBS = Admission((), {})
INTAKE_CONTINUES = Reason(Code.INTAKE_CONTINUES)


def admission(observation: Observation, intake: Intake) -> Admission:
    """Return the new jobs that this poll may take in, and those that it defers, by uid, each with the reason.

    Only a pending job can be deferred: a job with an allocation is recorded at once.

    Args:
        observation: of this poll.
        intake: the limits.
    """
    ours, records, new = observation.ours, observation.records, observation.new
    users, new_arrays = {job.user for job in new.values()}, {job.array_job_id for job in new.values()} - {None}
    live = Counter(
        [job.user for uid, job in ours.items() if job.user in users and uid in records and job.state not in ENDED]
    )
    arrays = Counter(
        [job.array_job_id for job in ours.values() if job.array_job_id in new_arrays and job.state not in ENDED]
        if new_arrays
        else ()
    )
    waiting: dict[str, deque[str]] = {}
    admitted: list[str] = []
    for uid in _in_order(observation):
        job = new[uid]
        if job.state is JobState.PENDING:
            waiting.setdefault(job.user, deque()).append(uid)
        else:
            live[job.user] += 1
            admitted.append(uid)

    @cache
    def limits_of(user: str, account: str, qos: str) -> tuple[int | None, int, Reason]:
        """Return the most tasks of an array, the most live jobs, and why a job over the latter is deferred."""
        most_live = intake.live_jobs_of(user, account, qos)
        too_many = Reason.of(Code.TOO_MANY_LIVE_JOBS, user=user, most=most_live)
        return intake.array_tasks_of(user, account, qos), most_live, too_many

    found: dict[str, Reason] = {}
    left = NEW_JOBS
    while waiting:
        for user in list(waiting):  # one job of each user in turn: nobody waits for another user's thousands
            uid = waiting[user].popleft()
            job = new[uid]
            most_tasks, most_live, too_many = limits_of(job.user, job.account, job.qos)
            tasks = 0 if job.array_job_id is None else arrays[job.array_job_id]
            if most_tasks is not None and tasks > most_tasks:
                found[uid] = Reason.of(Code.ARRAY_TOO_LARGE, tasks=tasks, most=most_tasks)
            elif live[user] >= most_live:
                found[uid] = too_many
            elif left == 0:
                found[uid] = INTAKE_CONTINUES
            else:
                left -= 1
                live[user] += 1
                admitted.append(uid)
            if not waiting[user]:
                del waiting[user]
    return Admission(admitted, found)


def _in_order(observation: Observation) -> list[str]:
    """Return the uids of the new jobs, those with an allocation first, then those that fit the free GPUs.

    Jobs that are alike in this come as Slurm numbered them. Whether a job fits is decided by the number of its GPUs
    alone: no policy is asked.
    """
    free = sum(
        max(sum(node.gpus.values()) - (node.gpus_allocated or 0), 0) for node in observation.nodes if node.accepts
    )
    new = observation.new
    return sorted(new, key=lambda uid: (new[uid].state is JobState.PENDING, _requested_gpus(new[uid]) > free))


def _requested_gpus(job: SlurmJob) -> int:
    return job.gpus_total or (job.gpus_per_node or 0) * job.nodes_requested or (job.gpus_per_task or 0) * job.tasks
