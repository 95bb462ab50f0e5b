"""The published batch size of a job: the batch in force, its gain, and the batch that the trainer is still to take up.

Pure.
"""

from __future__ import annotations

from metasched.core.batching import BatchControl, Batching, BatchPlan, GradientNoise
from metasched.core.model import Job, Placement, Status
from metasched.core.reason_words import words
from metasched.core.reasons import Code, Reason
from metasched.shared_dir.published_status import NO_GAIN, BatchStatus, PlanStatus
from metasched.store import JobRecord


def batch_status(job: Job, record: JobRecord, target: Placement | None, plan: BatchPlan | None) -> BatchStatus | None:
    """The batch size of a live job; None where nothing lets it change.

    Args:
        job: the job as observed.
        record: the job as the store has it; it knows the script's consent, whatever the tag says.
        target: the placement that the job should have by the latest round; None where it should not run.
        plan: the batch plan that the round wants there; None where it leaves the batch to the trainer.
    """
    consents = record.batching is not None and record.batching.control is BatchControl.SCHEDULER
    if not (consents or job.adaptive_batch):
        return _batch_of_script(job)
    batching, adaptive = job.batching, consents and job.adaptive_batch
    note, wanted = _obstacle(job, consents=consents), None
    if adaptive and target is not None and plan is not None and (why := _pending(job, record, target, plan)):
        note, wanted = why, _plan_status(plan, target.gpus)
    return BatchStatus(
        adaptive=adaptive,
        first_batch=None if batching is None else batching.first_batch,
        present=_present(batching),
        efficiency=_efficiency(job),
        noise_scale=None if job.noise is None else job.noise.scale,
        wanted=wanted,
        note="" if note is None else words(note),
        note_code="" if note is None else note.code,
    )


def step_gain(job: Job) -> float:
    """How many steps at the job's first batch one of its steps is worth now."""
    batching = job.batching
    if batching is not None and batching.control is BatchControl.SCRIPT and batching.global_batch is not None:
        return batching.global_batch / batching.first_batch  # it trains the same number of epochs at every batch
    found = _batch_and_noise(job)
    if found is None or found[0].control is not BatchControl.SCHEDULER:
        return NO_GAIN
    batching, batch, noise = found
    return noise.gain(batching.first_batch, batch)


def _batch_of_script(job: Job) -> BatchStatus | None:
    """The batch size of a job whose script changes it by itself; None for another job."""
    batching = job.batching
    if batching is None or batching.control is not BatchControl.SCRIPT or not batching.regimes:
        return None
    rule = None if batching.adapts is None else batching.adapts.value
    note = Reason.of(Code.BATCH_OF_SCRIPT, rule=rule, count=len(batching.regimes), most=batching.most_regimes)
    return BatchStatus(
        adaptive=False,
        first_batch=batching.first_batch,
        present=_present(batching),
        noise_scale=None if job.noise is None else job.noise.scale,
        note=words(note),
        note_code=note.code,
    )


def _obstacle(job: Job, *, consents: bool) -> Reason | None:
    """Why the batch size cannot change, or cannot grow; None where it can."""
    if not job.adaptive_batch:
        return Reason(Code.BATCH_WITHOUT_TAG)
    if job.batching is None:
        return Reason(Code.BATCH_NOT_DECLARED)
    if not consents:
        return Reason(Code.BATCH_WITHOUT_CONSENT)
    return Reason(Code.BATCH_WITHOUT_NOISE) if job.noise is None else None


def _pending(job: Job, record: JobRecord, target: Placement, plan: BatchPlan) -> Reason | None:
    """Why the wanted batch plan is not in force yet; None where it is, or was until the trainer chose a better one."""
    if job.placement != target or job.stop_requested is not None:
        return Reason(Code.BATCH_OF_NEXT_RUN)
    if job.status is not Status.RUNNING or not job.trainer_ready:
        return Reason(Code.BATCH_AWAITS_TRAINER)
    run, taken = record.current, 0 if job.batching is None else job.batching.taken_plan
    if run is not None and run.batch == plan and 0 < run.batch_number <= taken:
        return None
    return Reason(Code.BATCH_AWAITS_BOUNDARY)


def _present(batching: Batching | None) -> PlanStatus | None:
    if batching is None or batching.plan is None or batching.global_batch is None:
        return None
    return PlanStatus(batching.plan.per_gpu, batching.plan.accumulation, batching.global_batch)


def _plan_status(plan: BatchPlan, gpus: int) -> PlanStatus:
    return PlanStatus(plan.per_gpu, plan.accumulation, plan.global_batch(gpus))


def _efficiency(job: Job) -> float | None:
    found = _batch_and_noise(job)
    if found is None:
        return None
    batching, batch, noise = found
    return noise.efficiency(batching.first_batch, batch)


def _batch_and_noise(job: Job) -> tuple[Batching, int, GradientNoise] | None:
    """The job's batch limits, its batch in force and its gradient noise; None where one of them is not known."""
    batching, noise = job.batching, job.noise
    if batching is None or noise is None or batching.global_batch is None:
        return None
    return batching, batching.global_batch, noise
