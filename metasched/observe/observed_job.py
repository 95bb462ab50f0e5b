"""A live job as Slurm, the store and its own request describe it, and as scheduling sees it. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from metasched.apps.membership import app_uid
from metasched.core.batching import BatchControl, Batching
from metasched.core.model import Hold, Job, Placement, Status
from metasched.core.reasons import Code, Reason
from metasched.observe.known_good_size import known_good_size
from metasched.observe.node_inventory import NodeInventory, has_part_of_gpu, observed_placement
from metasched.observe.reservations import Reservations
from metasched.slurm.admin_comment import Stamp
from metasched.slurm.client import JobState, SlurmJob
from metasched.slurm.job_requirements import Requirements
from metasched.store import JobRecord, RunRecord

ENDED = frozenset({JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED, JobState.TIMEOUT})
NOT_STARTED = "not_started"
"""The kind of the event that says why Slurm did not start a released job."""


@dataclass(frozen=True, slots=True)
class ObservedJob:
    """One live job in four descriptions.

    Attributes:
        job: the job as policies and the plan see it.
        slurm: the job as Slurm lists it.
        record: the job as the store has it.
        requirements: what the job asked for when it was submitted.
    """

    job: Job
    slurm: SlurmJob
    record: JobRecord
    requirements: Requirements


def job_of(  # noqa: PLR0917  one fact from each side
    record: JobRecord, needed: Requirements, slurm: SlurmJob, status: Status, inventory: NodeInventory, now: float
) -> Job:
    """Build the job as policies and the plan see it, without what is learnt of its speed and service.

    Args:
        record: the job as the store has it.
        needed: what the job asked for when it was submitted.
        slurm: the job as Slurm lists it.
        status: the job's status for scheduling.
        inventory: of the cluster's nodes.
        now: unix seconds.
    """
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
        sizes=_sizes(record, needed),
        nodes=needed.nodes,
        max_nodes=needed.max_nodes,
        gpu_types=needed.gpu_types,
        cpus_per_unit=needed.cpus_per_unit,
        memory_per_unit=needed.memory_per_unit,
        features=needed.features,
        only_nodes=needed.only_nodes,
        excluded_nodes=needed.excluded_nodes | (inventory.unshared if needed.shards else frozenset()),
        weight=needed.weight,
        preempt=needed.preempt,
        status=status,
        hold=_hold(record, slurm, status),
        placement=_placement(run, slurm, status, inventory),
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
        blocked=_blocked(record, slurm, status, inventory.reservations, now),
        progress_steps=record.progress_steps,
        most_gpus=record.most_gpus,
        batching=_batching(record, needed),
        noise=record.noise,
        adaptive_batch=needed.adaptive_batch,
        requested_batch=run.batch if run is not None else None,
        total_steps=record.total_steps,
        steps_per_second=run.steps_per_second if run is not None else None,
        learns_speed=True,
        profiled=needed.trials,
        slo_seconds=needed.slo_seconds,
        time_limit_seconds=slurm.time_limit,
        co_runner=None if inventory.gpu_shards is None else inventory.gpu_shards.co_runners.get(record.uid),
        app=app_uid(record.uid, record.user, needed.app),
        tuner=needed.tuner,
        whole_gpus=not (needed.shards and inventory.shards),
        half_gpus=needed.shards and has_part_of_gpu(slurm, inventory.shards),
        suspended_at=run.suspended_at if run is not None else None,
        reservation=inventory.reservations.asked_by(slurm),
        open_seconds=inventory.reservations.open_seconds(slurm.time_limit),
    )


def status_of(slurm: SlurmJob) -> Status:
    """Return the status for scheduling of a job that Slurm lists."""
    match slurm.state:
        case JobState.PENDING:
            return Status.QUEUED if slurm.hold is Hold.NONE and not slurm.dependency else Status.HELD
        case JobState.RUNNING:
            return Status.RUNNING
        case JobState.SUSPENDED:
            return Status.SUSPENDED
        case JobState.COMPLETING:
            return Status.STOPPING
        case _:
            return Status.FINISHED


def awaits_owner_release(record: JobRecord, slurm: SlurmJob) -> bool:
    """Whether the owner submitted the job with ``--hold`` and has not released it yet."""
    if slurm.state is not JobState.PENDING or slurm.hold is not Hold.USER or record.run or slurm.restarts:
        return False
    stamp = Stamp.read(slurm.admin_comment)
    return stamp is not None and stamp.held


def holds_unplannable_allocation(observed: ObservedJob) -> bool:
    """Whether the job's allocation is one that no plan can ask for, so that a restart would not restore it.

    Such an allocation has uneven numbers of GPUs, GPUs of several types, or more GPUs than the job asked for (whole
    nodes, by the job's own request or by its partition).
    """
    job = observed.job
    if not job.active or observed.record.error is not None:
        return job.active and job.placement is None
    return job.placement is None or not job.min_gpus <= job.placement.gpus <= job.max_gpus


def start_deferral(job: Job) -> Reason | None:
    """The reason that blocks a job which Slurm did not start when it was released; None for every other job."""
    return job.blocked if job.blocked is not None and job.blocked.code == Code.START_DEFERRED else None


def _sizes(record: JobRecord, needed: Requirements) -> tuple[int, ...]:
    """The numbers of GPUs on which the job can run; empty for all from min_gpus to max_gpus.

    Numbers on which its script failed are left out. After such a failure there is one number only, the known good one,
    until the script has trained on it again.
    """
    allowed = _declared_sizes(record, needed)
    if not record.failed_sizes:
        return allowed
    good, run = known_good_size(record), record.current
    if record.put_back and good is not None and not (run is not None and run.has_trained):
        return (good,)
    step = needed.nodes or 1  # as many GPUs on each node
    full = allowed or tuple(size for size in range(needed.min_gpus, needed.max_gpus + 1) if size % step == 0)
    return tuple(size for size in full if size not in record.failed_sizes) or allowed


def _declared_sizes(record: JobRecord, needed: Requirements) -> tuple[int, ...]:
    """The numbers of GPUs on which the job can run, by tag and script; empty for all from min_gpus to max_gpus.

    A script that leaves nothing of the tag's range is not believed.
    """
    reported = () if record.batching is None else record.batching.sizes
    if not reported or needed.gpus == 0:
        return needed.sizes
    allowed = needed.sizes or tuple(size for size in reported if needed.min_gpus <= size <= needed.max_gpus)
    return tuple(size for size in allowed if size in reported) or needed.sizes


def _batching(record: JobRecord, needed: Requirements) -> Batching | None:
    """The job's batch size; metasched changes it only where tag and script consent.

    What the script declares of its own rule comes before what the tag says.
    """
    found = record.batching
    if found is None:
        return None
    control = found.control
    if control is BatchControl.SCHEDULER and not needed.adaptive_batch:
        control = BatchControl.SCRIPT if found.has_changed else BatchControl.FIXED
    if control is BatchControl.FIXED and needed.own_batch:
        control = BatchControl.SCRIPT
    adapts, most_regimes = found.adapts or needed.adapts, found.most_regimes or needed.regimes
    if (control, adapts, most_regimes) == (found.control, found.adapts, found.most_regimes):
        return found
    return replace(found, control=control, adapts=adapts, most_regimes=most_regimes)


def _blocked(
    record: JobRecord, slurm: SlurmJob, status: Status, reservations: Reservations, now: float
) -> Reason | None:
    if record.error is not None:
        return Reason.of(Code.BAD_TAG, error=record.error)
    if slurm.state is JobState.PENDING and Stamp.read(slurm.admin_comment) is None:
        return Reason(Code.UNSTAMPED)
    if awaits_owner_release(record, slurm):
        return Reason(Code.HELD_BY_OWNER)
    if slurm.dependency:
        return Reason.of(Code.DEPENDENCY, dependency=slurm.dependency)
    waits = status is Status.HELD or not record.run  # else it was started, whether Slurm said so or not
    if waits and record.not_before is not None and record.not_before > now:
        return Reason(Code.START_DEFERRED if record.run else Code.BEGIN_TIME)
    return reservations.why_waits(slurm) if slurm.state is JobState.PENDING else None


def _hold(record: JobRecord, slurm: SlurmJob, status: Status) -> Hold:
    """Return who can release the job.

    Its owner's release of a job that was submitted with ``--hold`` starts nothing: job_submit.lua sees to that.
    """
    if status is not Status.HELD:
        return Hold.NONE
    return Hold.ADMIN if awaits_owner_release(record, slurm) else slurm.hold


def _placement(run: RunRecord | None, slurm: SlurmJob, status: Status, inventory: NodeInventory) -> Placement | None:
    if status in (Status.HELD, Status.QUEUED):
        return None
    if status is Status.STOPPING and run is not None and run.placement is not None:
        return run.placement  # Slurm no longer lists a completing job's GPUs
    return observed_placement(slurm, inventory.gpu_type)
