"""The demo's result: a row for each job, and what the demo should show and did not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from metasched.store import EndCause, JobRecord, RunRecord, Store


@dataclass(frozen=True, slots=True)
class Outcome:
    """One job at the end, times in seconds; ``world_sizes`` and ``ends`` have an entry for each run that started."""

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
        """Number of runs that were stopped for other jobs."""
        return self.ends.count(EndCause.PREEMPTED)

    @property
    def resizes(self) -> int:
        """Number of runs whose world size differs from that of the run before."""
        return sum(a != b for a, b in zip(self.world_sizes, self.world_sizes[1:], strict=False))


def outcomes(store: Store, addresses: Sequence[str]) -> list[Outcome]:
    """The outcomes of all jobs, from the store."""
    records = [
        job for slurm_job_id in addresses for job in store.find_jobs(slurm_job_id) if job.slurm_job_id == slurm_job_id
    ]
    return [outcome(record, store.runs(record.uid)) for record in records]


def outcome(job: JobRecord, runs: Sequence[RunRecord]) -> Outcome:
    """The outcome of one job, from its record and its runs."""
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


def problems(found: Sequence[Outcome], jobs: int) -> list[str]:
    """What the demo should show and did not, in words."""
    said = [
        f"job {each.name} ended as {each.state} with code {each.exit_code}"
        for each in found
        if each.state != "COMPLETED" or each.exit_code != 0
    ]
    if len(found) != jobs:
        said.append(f"only {len(found)} of {jobs} jobs took part")
    if not any(each.preemptions for each in found):
        said.append("no job was preempted")
    if not any(each.resizes for each in found):
        said.append("no job was resized")
    said += [f"job {each.name} reported no loss" for each in found if each.loss is None]
    return said
