"""The outcome of each of the demo's jobs, and the events that the demo should show and did not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from metasched.store import EndCause, JobRecord, RunRecord, Store


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one job, times in seconds; ``world_sizes`` and ``ends`` have an entry for each started run."""

    name: str
    slurm_job_id: str
    state: str
    exit_code: int | None
    waited_seconds: float
    ran_seconds: float
    world_sizes: tuple[int, ...]
    ends: tuple[EndCause, ...]
    loss: float | None

    @property
    def preemptions(self) -> int:
        """The number of runs that were stopped for other jobs."""
        return self.ends.count(EndCause.PREEMPTED)

    @property
    def resizes(self) -> int:
        """The number of runs whose world size differs from that of the run before."""
        return sum(before != after for before, after in pairwise(self.world_sizes))


def outcomes(store: Store, slurm_job_ids: Sequence[str]) -> list[Outcome]:
    """Return the outcomes of all jobs that the store knows."""
    records = [job for asked in slurm_job_ids for job in store.find_jobs(asked) if job.slurm_job_id == asked]
    return [outcome(record, store.runs(record.uid)) for record in records]


def outcome(job: JobRecord, runs: Sequence[RunRecord]) -> Outcome:
    """Return the outcome of one job, from its record and its runs."""
    started = [run for run in runs if run.placement is not None and run.started is not None]
    ended = job.submitted if job.finished is None else job.finished
    return Outcome(
        name=job.name,
        slurm_job_id=job.slurm_job_id,
        state=job.end_state or job.status,
        exit_code=job.exit_code,
        waited_seconds=max(ended - job.submitted - job.ran_seconds, 0.0),
        ran_seconds=job.ran_seconds,
        world_sizes=tuple(run.placement.gpus for run in started if run.placement is not None),
        ends=tuple(run.cause for run in started if run.cause is not None),
        loss=job.loss,
    )


def problems(found: Sequence[Outcome], jobs: int, *, moves: bool = True) -> list[str]:
    """Return the events that the demo should show and did not, in words.

    Args:
        found: the outcomes of its jobs.
        jobs: how many jobs the demo has.
        moves: whether the policy is one under which the jobs preempt and resize each other.
    """
    missing = [
        f"job {each.name} ended as {each.state} with code {each.exit_code}"
        for each in found
        if each.state != "COMPLETED" or each.exit_code != 0
    ]
    if len(found) != jobs:
        missing.append(f"only {len(found)} of {jobs} jobs are in the database")
    if moves and not any(each.preemptions for each in found):
        missing.append("no job was preempted")
    if moves and not any(each.resizes for each in found):
        missing.append("no job was resized")
    missing += [f"job {each.name} reported no loss" for each in found if each.loss is None]
    return missing
