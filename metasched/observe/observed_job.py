"""One live job from every side: what Slurm shows of it, what the store remembers, what it asked for."""

from __future__ import annotations

from dataclasses import dataclass

from metasched.core.model import Hold, Job, Placement, Status
from metasched.core.reasons import Code, Reason
from metasched.observe.node_inventory import NodeInventory, is_part, observed_placement
from metasched.observe.reservations import Reservations
from metasched.slurm.client import JobState, SlurmJob
from metasched.slurm.job_requirements import Requirements, Stamp
from metasched.store import JobRecord, RunRecord

ENDED = frozenset({JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED, JobState.TIMEOUT})
NOT_STARTED = "not_started"
"""The event that tells why a release did not start a job."""


@dataclass(frozen=True, slots=True)
class ObservedJob:
    """One live job from every side: as scheduling, Slurm, the store and its own request see it."""

    job: Job
    slurm: SlurmJob
    record: JobRecord
    needed: Requirements


def job_of(  # noqa: PLR0917  one fact from each side
    record: JobRecord, needed: Requirements, seen: SlurmJob, status: Status, hardware: NodeInventory, now: float
) -> Job:
    """The job as scheduling sees it."""
    run = record.current
    started = run is not None and run.started is not None
    return Job(
        uid=record.uid,
        slurm_job_id=record.slurm_job_id,
        name=record.name,
        user=record.user,
        account=record.account,
        partition=record.partition,
        submitted=record.submitted,
        gpus=needed.gpus,
        min_gpus=needed.min_gpus,
        max_gpus=needed.max_gpus,
        nodes=needed.nodes,
        max_nodes=needed.max_nodes,
        gpu_types=needed.gpu_types,
        cpus_per_unit=needed.cpus_per_unit,
        memory_per_unit=needed.memory_per_unit,
        features=needed.features,
        only_nodes=needed.only_nodes,
        excluded_nodes=needed.excluded_nodes | (hardware.unshared if needed.shards else frozenset()),
        weight=needed.weight,
        preempt=needed.preempt,
        status=status,
        hold=_hold(record, seen, status),
        placement=_placement(run, seen, status, hardware),
        last_placement=record.last_placement,
        last_ended=record.last_ended,
        released=run.released if run is not None and not started else None,
        released_at=run.released_at if run is not None and not started else None,
        run=record.run,
        run_started=run.started if run is not None else None,
        trainer_ready=run is not None and run.ready_at is not None,
        stop_requested=run.stop_requested if run is not None else None,
        suspended_by_us=run is not None and run.suspended_by_us,
        attained=record.attained_at(now),
        ran_seconds=record.ran_at(now),
        preemptions=record.preemptions,
        blocked=_blocked(record, seen, status, hardware.reservations, now),
        progress_steps=record.progress_steps,
        total_steps=record.total_steps,
        steps_per_second=run.steps_per_second if run is not None else None,
        learns_speed=True,
        profiled=needed.trials,
        slo_seconds=needed.slo_seconds,
        time_limit_seconds=seen.time_limit,
        co_runner=None if hardware.seats is None else hardware.seats.couples.get(record.uid),
        whole_gpus=not (needed.shards and hardware.shards),
        half_gpus=needed.shards and is_part(seen, hardware.shards),
        suspended_at=run.suspended_at if run is not None else None,
        reservation=hardware.reservations.asked_by(seen),
        open_seconds=hardware.reservations.open_seconds(seen.time_limit),
    )


def status_of(seen: SlurmJob) -> Status:
    """What it does, in our words."""
    match seen.state:
        case JobState.PENDING:
            return Status.QUEUED if seen.hold is Hold.NONE and not seen.dependency else Status.HELD
        case JobState.RUNNING:
            return Status.RUNNING
        case JobState.SUSPENDED:
            return Status.SUSPENDED
        case JobState.COMPLETING:
            return Status.STOPPING
        case _:
            return Status.FINISHED


def kept_back(record: JobRecord, seen: SlurmJob) -> bool:
    """Whether its owner, who submitted it with ``--hold``, has not released it yet."""
    if seen.state is not JobState.PENDING or seen.hold is not Hold.USER or record.run or seen.restarts:
        return False
    stamp = Stamp.read(seen.admin_comment)
    return stamp is not None and stamp.held


def subject_of(seen: ObservedJob) -> str:
    """Whose speed a job's is: that of all jobs of its user which name the same model, or its own."""
    return seen.job.uid if seen.needed.model is None else f"{seen.job.user}/{seen.needed.model}"


def is_odd(seen: ObservedJob) -> bool:
    """Whether it holds what no plan can ask for again, so that a restart would not help.

    Uneven numbers of GPUs, or more of them than it asked for (whole nodes, by its own wish or its partition's).
    """
    job = seen.job
    if not job.active or seen.record.error is not None:
        return job.active and job.placement is None
    return job.placement is None or not job.min_gpus <= job.placement.gpus <= job.max_gpus


def _blocked(
    record: JobRecord, seen: SlurmJob, status: Status, reservations: Reservations, now: float
) -> Reason | None:
    if record.error is not None:
        return Reason.of(Code.BAD_TAG, error=record.error)
    if seen.state is JobState.PENDING and Stamp.read(seen.admin_comment) is None:
        return Reason(Code.UNSTAMPED)
    if kept_back(record, seen):
        return Reason(Code.HELD_BY_OWNER)
    if seen.dependency:
        return Reason.of(Code.DEPENDENCY, dependency=seen.dependency)
    waits = status is Status.HELD or not record.run  # else it was started, whatever Slurm answered
    if waits and record.not_before is not None and record.not_before > now:
        return Reason(Code.START_DEFERRED if record.run else Code.BEGIN_TIME)
    return reservations.why_waits(seen) if seen.state is JobState.PENDING else None


def _hold(record: JobRecord, seen: SlurmJob, status: Status) -> Hold:
    """Who can release it. Of a job that is kept back, its owner's word starts nothing: job_submit.lua sees to that."""
    if status is not Status.HELD:
        return Hold.NONE
    return Hold.ADMIN if kept_back(record, seen) else seen.hold


def _placement(run: RunRecord | None, seen: SlurmJob, status: Status, hardware: NodeInventory) -> Placement | None:
    if status in (Status.HELD, Status.QUEUED):
        return None
    if status is Status.STOPPING and run is not None and run.placement is not None:
        return run.placement  # Slurm no longer tells a completing job's GPUs
    return observed_placement(seen, hardware.gpu_type)
