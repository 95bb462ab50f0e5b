"""Why a job runs or waits, as sentences made from the published status. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from metasched.core.finish_time_fairness import LIVE_DEFINITIONS
from metasched.core.reason_words import counted
from metasched.presentation.formatting import (
    duration,
    instant_text,
    listed,
    planned_text,
    remaining_seconds,
    size,
    where,
    world_sizes_text,
)
from metasched.shared_dir.published_status import JobStatus, PlanStatus, Status

if TYPE_CHECKING:  # importing it imports the database
    from metasched.store.fairness import FairnessRecord
    from metasched.store.time_use import TimeUse

STALE_SECONDS = 30.0
SHOWN_DEFINITION = LIVE_DEFINITIONS[0]
"""The definition of the rho that a job's status has."""
_WAITING = ("held", "queued")


def is_stale(status: Status, now: float) -> bool:
    """Whether the published status is older than the daemon's longest poll."""
    return now - status.published > max(STALE_SECONDS, 3 * status.poll_seconds)


def explanation(job: JobStatus, status: Status, now: float) -> list[str]:
    """Return sentences on the job's state, the reason for it, and the resources that the job waits for."""
    lines = [f"Job {job.slurm_job_id} ({job.name}, of {job.user}) {_state(job, now)}."]
    if job.error is not None:
        return [*lines, f"Its tag cannot be used: {job.error}. Cancel it and submit it again with the tag corrected."]
    if job.finished is not None:
        return [*lines, f"Why: {job.reason.rstrip('.')}."] if job.reason_also else lines
    if job.reason:
        lines.append(f"Why: {job.reason.rstrip('.')}.")
    lines += [
        *_place_lines(job),
        *_stopped_lines(job, status),
        *_planned_lines(job, now),
        *_forecast_lines(job, status, now),
    ]
    if job.status in _WAITING and not job.blocked:
        lines += _waits_for(job, status)
    lines += [
        *_failed_size_lines(job),
        *_app_lines(job, status),
        *_batch_lines(job),
        *_co_runner_lines(job),
        *_deadline_lines(job, now),
    ]
    if is_stale(status, now):
        lines.append(
            f"But the daemon published nothing for {duration(now - status.published)}: "
            "no round is decided until it is back."
        )
    elif status.slurm != "ok":
        lines.append(f"But the daemon cannot reach Slurm ({status.slurm}): nothing changes until it can.")
    elif status.next_round is None and status.store != "ok":
        lines.append(f"But the daemon cannot write its database ({status.store}): nothing changes until it can.")
    elif status.next_round is not None:
        lines.append(f"Policy {status.policy} decides again in {duration(max(status.next_round - now, 0))}.")
    return lines


def history(job: JobStatus, now: float) -> list[str]:
    """Return sentences on the job's past runs and its progress."""
    ran = f"ran {duration(job.ran_seconds)} in {counted(job.runs, 'run')}"
    preempted = f"preempted {counted(job.preemptions, 'time')}"
    waited = f"waited {duration(job.waited_seconds)}"
    lines = [f"Submitted {duration(now - job.submitted)} ago; {waited}, {ran}, {preempted}."]
    if job.attained_service:
        unit = "GPU-seconds" if job.max_gpus else "node-seconds"
        lines.append(f"It has received {job.attained_service:.0f} {unit}.")
    if len(job.world_sizes) > 1:
        lines.append(f"World sizes of its runs: {world_sizes_text(job.world_sizes)}.")
    if job.progress_steps is not None:
        total = f" of {job.total_steps}" if job.total_steps else ""
        parts = [f"It has done {int(job.progress_steps)}{total} steps"]
        if job.steps_per_second is not None and job.status == "running":
            parts.append(f"{job.steps_per_second:.3g} steps/s")
        if (left := remaining_seconds(job)) is not None:
            parts.append(f"about {duration(left)} left")
        if job.loss is not None:
            parts.append(f"loss {job.loss:.4g}")
        lines.append(f"{', '.join(parts)}.")
    if job.rho is not None:
        takes = "is estimated to take" if job.finished is None else "took"
        lines.append(
            f"From submission to end it {takes} {job.rho:.2f} times the time that would be fair "
            "(finish-time fairness, rho)."
        )
    return lines


def fairness_words(record: FairnessRecord) -> list[str]:
    """Return a sentence on rho by the other definitions, of a job that has completed; none where there is none."""
    others = [f"{value:.2f} by {name}" for name, value in record.rho.items() if name != SHOWN_DEFINITION]
    return [f"Its rho is {', '.join(others)} (docs/researcher/METRICS.md)."] if others else []


def time_use_words(use: TimeUse) -> list[str]:
    """Return sentences on how the job used the time on its resources; none before its trainers reported steps."""
    if use.trained is None:
        return []
    parts = [f"starts took {duration(use.starting)}"]
    if use.data is not None:
        parts.append(f"waits for data {duration(use.data)}")
    if use.sync is not None:
        parts.append(f"waits for other ranks {duration(use.sync)}")
    if use.stalled is not None:
        parts.append(f"checkpoints stopped training for {duration(use.stalled)}")
    lines = [f"Of {duration(use.held)} on its resources it trained {duration(use.trained)}; {', '.join(parts)}."]
    if use.peak_bytes is not None:
        lines.append(f"Its rank 0 used at most {size(use.peak_bytes)} of memory.")
    return lines


def _state(job: JobStatus, now: float) -> str:
    count = sum(job.nodes.values())
    place = f"{counted(count, 'GPU')} ({where(job.nodes)})" if count else where(job.nodes)
    since = "" if job.run_started is None else f" since {duration(now - job.run_started)}"
    if job.finished is not None:
        return f"ended {duration(now - job.finished)} ago ({job.status})"
    states = {
        "held": "waits" if job.blocked else "waits, held until a round starts it",
        "queued": "is released: Slurm starts it as soon as its resources are free",
        "running": f"runs on {place}{since}",
        "suspended": f"is suspended on {place}",
        "stopping": f"is being stopped on {place}: it writes a checkpoint and gives its resources back",
    }
    return states.get(job.status, f"is {job.status}")


def _place_lines(job: JobStatus) -> list[str]:
    """Return a sentence on the job's place among those that wait, where it has one."""
    if job.place is None:
        return []
    return [f"Its place is {job.place} among the jobs that wait{', the next to start' if job.place == 1 else ''}."]


def _stopped_lines(job: JobStatus, status: Status) -> list[str]:
    """Return a sentence on the jobs that got the GPUs of the job's last run, of those that the reader may see."""
    if job.status not in (*_WAITING, "stopping") or not (job.stopped_for or job.stopped_for_others):
        return []
    known = {one.uid: one for one in (*status.finished, *status.jobs)}
    named = [f"{one.slurm_job_id} of {one.user}" for uid in job.stopped_for if (one := known.get(uid)) is not None]
    others = len(job.stopped_for) - len(named) + job.stopped_for_others
    if not named:
        return [f"It was stopped for {counted(others, 'other job')}."]
    more = f" and {counted(others, 'other job')}" if others else ""
    return [f"It was stopped for {listed(named)}{more}."]


def _planned_lines(job: JobStatus, now: float) -> list[str]:
    """Return a sentence on when the job is to run next, where that is planned."""
    if job.planned is None or not (text := planned_text(job.planned, now)):
        return []
    return [f"It is planned {'to run ' if job.planned.begins <= now else 'for '}{text}."]


def _forecast_lines(job: JobStatus, status: Status, now: float) -> list[str]:
    """Return sentences on when the job is expected to start and to end, and on what that assumes."""
    found = job.forecast
    if found is None or (found.start is None and found.end is None):
        return []
    parts = []
    if found.start is not None:
        parts.append(f"start {instant_text(found.start, now)} (median {duration(found.start.median - now)})")
    if found.end is not None:
        parts.append(f"end {instant_text(found.end, now)} (median {duration(found.end.median - now)})")
    work = f"; its work is known from: {found.work_from}" if found.work_from else ""
    lines = [f"With 80 % probability it will {' and '.join(parts)}{work}."]
    if status.forecast is not None and status.forecast.assumptions:
        age = duration(max(now - found.at, 0.0))
        lines.append(f"The forecast is {age} old and assumes: {' '.join(status.forecast.assumptions)}")
    return lines


def _failed_size_lines(job: JobStatus) -> list[str]:
    """Return a sentence on numbers of GPUs on which the job's script failed where it had trained on another."""
    if not job.failed_sizes:
        return []
    *others, last = (str(size) for size in job.failed_sizes)
    sizes = f"{', '.join(others)} and {last}" if others else last
    unit = "GPU" if sizes == "1" else "GPUs"
    lines = [f"Its script failed in its first steps on {sizes} {unit}, so it no longer gets that number."]
    if job.put_back_to is not None:
        lines.append(f"It is put back to {counted(job.put_back_to, 'GPU')}, where it trained last.")
    return lines


def _app_lines(job: JobStatus, status: Status) -> list[str]:
    """Return sentences on the job's app, where a tuner compares its trials."""
    app = next((app for app in status.apps if app.uid == job.app), None)
    if app is None or not app.tuner:
        return [] if app is None or not app.problem else [_sentence(app.problem)]
    phases = "".join(f", phase {phase} of {phases}" for phase, phases in app.phases[:1])
    ended = f"{app.live} of its jobs live, {counted(app.ended, 'trial')} ended so far"
    told = f"Its app {app.name} has the tuner {app.tuner}{phases}: {ended}."
    return [told, _sentence(app.problem)] if app.problem else [told]


def _sentence(words: str) -> str:
    """Return words of a reason as a sentence."""
    return f"{words[0].upper()}{words[1:].rstrip('.')}."


def _batch_lines(job: JobStatus) -> list[str]:
    """Return sentences on a batch size that changes: the batch in force, the batch that is wanted, and why it waits."""
    batch = job.batch
    if batch is None:
        return []
    lines = []
    if batch.present is not None:
        line = f"Its batch is {_plan_text(batch.present)}"
        if batch.efficiency is not None:
            line += f", with {batch.efficiency:.0%} of the efficiency of its first batch, {batch.first_batch}"
        if batch.noise_scale is not None:
            line += f" (gradient noise scale {batch.noise_scale:.3g} samples)"
        lines.append(f"{line}.")
    if batch.wanted is not None:
        lines.append(f"It is to have a batch of {_plan_text(batch.wanted)}; {batch.note}.")
    elif batch.note:
        lines.append(f"Its batch: {batch.note}.")
    return lines


def _plan_text(plan: PlanStatus) -> str:
    passes = "" if plan.accumulation == 1 else f" in {plan.accumulation} micro-batches"
    return f"{plan.global_batch} samples ({plan.per_gpu} on each GPU{passes})"


def _co_runner_lines(job: JobStatus) -> list[str]:
    """Return sentences on the co-runner, and on the rounds through which the job kept its allocation."""
    lines = []
    if job.co_runner is not None and job.time_slicing:
        other = job.co_runner
        lines.append(f"It takes turns with job {other} on the same GPUs: one is suspended while the other runs.")
    elif job.co_runner is not None:
        lines.append(f"Job {job.co_runner} runs on the same GPUs.")
    if job.renewals:
        lines.append(f"It kept its allocation through {counted(job.renewals, 'round')}: nothing was restarted.")
    return lines


def _deadline_lines(job: JobStatus, now: float) -> list[str]:
    """Return a sentence on the job's deadline, if its tag has one."""
    if job.slo_seconds is None:
        return []
    left = job.submitted + job.slo_seconds - now
    when = f"{duration(left)} from now" if left >= 0 else f"{duration(-left)} ago"
    return [f"It should be done {duration(job.slo_seconds)} after its submission, which is {when}."]


def _waits_for(job: JobStatus, status: Status) -> list[str]:
    if job.max_gpus == 0:
        return []
    free = {node.name: node.gpus - node.gpus_used for node in status.nodes if node.accepts}
    spare = {name: count for name, count in free.items() if count > 0}
    need = counted(job.min_gpus, "GPU")
    holders = [
        f"{other.slurm_job_id} ({sum(other.nodes.values())})"
        for other in status.jobs
        if other.status not in _WAITING and any(other.nodes.values())
    ]
    seen = f"{sum(spare.values())} free now" + (f" ({where(spare)})" if spare else "")
    taken = f"; the others are held by {'job' if len(holders) == 1 else 'jobs'} {listed(holders)}" if holders else ""
    return [f"It needs {'at least ' if job.min_gpus != job.max_gpus else ''}{need}; {seen}{taken}."]
