"""Records of the store's rows, for all of metasched: frozen, plain data.

Units: instants are unix seconds, durations seconds, attained service GPU-seconds (CPU-only: node-seconds under "").
"Not known" is ``None``.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypedDict

from metasched.core.batching import Batching, BatchPlan, GradientNoise
from metasched.core.model import Placement
from metasched.core.reasons import Reason


class EndCause(enum.StrEnum):
    """The cause of a run's end, as stored."""

    PREEMPTED = "preempted"  # the daemon stopped it, for other jobs
    RESIZED = "resized"  # the daemon stopped it, to restart it elsewhere or at another size
    UNRESPONSIVE = "deaf"  # it did not answer a stop request, and was ended from outside
    FINISHED = "finished"  # it was done
    FAILED = "failed"  # it ended for good without being done (failed, cancelled, out of time)
    LOST = "lost"  # it ended without a stop request and the job lives on (a node lost, requeued by its owner)
    WITHDRAWN = "withdrawn"  # it was released and held again before it started
    SIZE_FAILED = "size_failed"  # its script failed on a number of GPUs that was new to it; the job was put back


FIRST_STEPS = 5
"""Optimizer steps from which a run counts as trained on its number of GPUs."""

OURS = frozenset({EndCause.PREEMPTED, EndCause.RESIZED, EndCause.UNRESPONSIVE})
"""Causes that count as a preemption."""


IMPORTED = "sacct:"
"""Prefix of the uids of jobs that were imported from Slurm's accounting and not scheduled by metasched."""


def service(placement: Placement | None, seconds: float) -> dict[str, float]:
    """Service of a placement held for ``seconds``: GPU-seconds by type, or node-seconds under "" without GPUs."""
    if placement is None or seconds <= 0:
        return {}
    if placement.gpus == 0:
        return {"": len(placement.nodes) * seconds}
    return {placement.gpu_type or "": placement.gpus * seconds}


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One run of a job, from its release to its end.

    Attributes:
        uid: the job.
        run: its number, from 1.
        released: the placement that the daemon released the job for; None if somebody else started the run.
        released_at: when the daemon released it.
        placement: the actual allocation; None until the start.
        started: when Slurm started it.
        stop_requested: when the daemon asked the run to stop.
        suspended_at: start of the present suspension; None while the run is not suspended.
        suspended_seconds: total of the run's earlier suspensions.
        suspended_by_us: whether the daemon made the present suspension, and may end it.
        ended: when it ended; None while it is open.
        cause: why it ended.
        generation: number of the run's latest trainer, as reported.
        ready_at: when that trainer was ready.
        init_seconds: seconds from that trainer's process start to ready.
        stop_noticed: when that trainer noticed the stop request.
        checkpointed: whether that trainer wrote a checkpoint after the request.
        first_step_at: when that trainer began its first reported steps.
        steps_per_second: latest reported speed.
        renewals: rounds in which the run's allocation was renewed, after the round of its release.
        batch: the batch plan that the daemon asked for; None where it leaves the batch size to the trainer.
        batch_number: number of that plan among all plans of the job, from 1; 0 for none.
        step_seconds: total of the steps' durations that its trainers reported; None before the first steps.
        data_seconds: the part of ``step_seconds`` in which the trainers waited for data; None where not measured.
        sync_seconds: the part of ``step_seconds`` in which ranks waited for other ranks; None where not measured.
        stall_seconds: total seconds for which training stood still for checkpoints; None where not measured.
        peak_bytes: largest memory that rank 0 used, in bytes; None where not reported.
        stopped_for: uids of the jobs that got GPUs which the run was asked to give back, the most important first.
        steps: optimizer steps that its trainers reported; None before the first.
        size_exit_code: exit code with which its script failed on a number of GPUs that was new to it; None where it did
            not.
    """

    uid: str
    run: int
    released: Placement | None = None
    released_at: float | None = None
    placement: Placement | None = None
    started: float | None = None
    stop_requested: float | None = None
    suspended_at: float | None = None
    suspended_seconds: float = 0.0
    suspended_by_us: bool = False
    ended: float | None = None
    cause: EndCause | None = None
    generation: int | None = None
    ready_at: float | None = None
    init_seconds: float | None = None
    stop_noticed: float | None = None
    checkpointed: bool | None = None
    first_step_at: float | None = None
    steps_per_second: float | None = None
    renewals: int = 0
    batch: BatchPlan | None = None
    batch_number: int = 0
    step_seconds: float | None = None
    data_seconds: float | None = None
    sync_seconds: float | None = None
    stall_seconds: float | None = None
    peak_bytes: int | None = None
    stopped_for: tuple[str, ...] = ()
    steps: int | None = None
    size_exit_code: int | None = None

    @property
    def has_trained(self) -> bool:
        """Whether its trainers reported at least ``FIRST_STEPS`` steps."""
        return self.steps is not None and self.steps >= FIRST_STEPS

    def seconds_at(self, now: float) -> float:
        """Seconds that the run lasted until its end, or until ``now`` while open, without suspensions."""
        if self.started is None:
            return 0.0
        until = now if self.ended is None else self.ended
        if self.suspended_at is not None:
            until = min(until, self.suspended_at)
        return max(0.0, until - self.started - self.suspended_seconds)


@dataclass(frozen=True, slots=True)
class JobRecord:
    """One job: fields that intake sets, then those that the store derives from runs and reports.

    Attributes:
        uid: identity for life.
        slurm_job_id: Slurm's job id now, or ``array_task``.
        name: the job's name as the user wrote it (hostile text).
        user: name of the job's owner.
        submitted: first submission.
        account: Slurm's account; None where accounting is off.
        partition: where it was submitted.
        requirements: parsed tag and request; JSON-compatible, opaque to the store.
        not_before: the user's own begin time.
        status: the last recorded status, for people.
        error: why the tag is invalid; None for a valid one.
        total_steps: optimizer steps that it needs (its tag's, or the trainer's latest declaration).
        progress_steps: optimizer steps done, as the latest generation reports; in steps at the first batch where the
            batch size changes.
        loss: the latest reported loss.
        run: number of the latest run; 0 before the first release.
        preemptions: runs that the daemon ended before the job was done.
        attained: service of closed runs, by GPU type.
        ran_seconds: wall time of closed runs, without suspensions.
        last_placement: allocation of the latest closed run that started.
        last_ended: when that run ended.
        finished: when it ended for good; None while it lives.
        end_state: Slurm's state at the end.
        exit_code: its exit code at the end.
        script: the hash of its batch script; None where Slurm did not tell.
        batching: its batch size, as its trainers report; None before the first report. ``control`` is the script's
            word alone.
        noise: its gradient noise, as reported last; None where that is not known.
        most_gpus: most GPUs that a run had.
        end_reason: why the daemon ended it for good; None for a job that it did not end. It is never requeued.
        known_good_gpus: number of GPUs of the latest closed run that trained; None before the first.
        failed_sizes: numbers of GPUs on which its script failed and the job was put back, in the order of the failures.
        put_back: whether the script has failed on such a number since the latest closed run that trained.
        current: the open run (released or running), if there is one.
    """

    uid: str
    slurm_job_id: str
    name: str
    user: str
    submitted: float
    account: str | None = None
    partition: str = ""
    requirements: Mapping[str, Any] = field(default_factory=dict)
    not_before: float | None = None
    status: str = "held"
    error: str | None = None
    total_steps: int | None = None
    progress_steps: float | None = None
    loss: float | None = None
    run: int = 0
    preemptions: int = 0
    attained: Mapping[str, float] = field(default_factory=dict)
    ran_seconds: float = 0.0
    last_placement: Placement | None = None
    last_ended: float | None = None
    finished: float | None = None
    end_state: str | None = None
    exit_code: int | None = None
    script: str | None = None
    batching: Batching | None = None
    noise: GradientNoise | None = None
    most_gpus: int = 0
    end_reason: Reason | None = None
    known_good_gpus: int | None = None
    failed_sizes: tuple[int, ...] = ()
    put_back: bool = False
    current: RunRecord | None = None

    def attained_at(self, now: float) -> Mapping[str, float]:
        """Service received until ``now`` by GPU type, the open run included."""
        if self.current is None:
            return self.attained
        total = dict(self.attained)
        for gpu_type, amount in service(self.current.placement, self.current.seconds_at(now)).items():
            total[gpu_type] = total.get(gpu_type, 0.0) + amount
        return total

    def ran_at(self, now: float) -> float:
        """Seconds that the job ran until ``now``, the open run included, without suspensions."""
        return self.ran_seconds + (0.0 if self.current is None else self.current.seconds_at(now))


class JobChanges(TypedDict, total=False):
    """The fields that ``Store.update_job`` may change."""

    slurm_job_id: str
    name: str
    account: str | None
    partition: str
    requirements: Mapping[str, Any]
    not_before: float | None
    status: str
    error: str | None
    total_steps: int | None
    script: str | None


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """One round.

    Attributes:
        round: its number.
        at: when it was decided.
        policy: by name.
        parameters: of the policy.
        decide_seconds: how long the policy took.
        summary: of the snapshot, JSON-compatible.
    """

    round: int
    at: float
    policy: str
    parameters: Mapping[str, Any]
    decide_seconds: float
    summary: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class DecisionRecord:
    """The decision about one job, equal in consecutive rounds.

    Attributes:
        uid: the job.
        first_round: the round since which it holds.
        last_round: the last round for which it held; None while it holds.
        granted: where it should run; None if it waits.
        reason: why the job runs or waits.
        batch: the batch plan that its trainer should take up; None where the round leaves the batch as it is.
    """

    uid: str
    first_round: int
    last_round: int | None
    granted: Placement | None
    reason: Reason
    batch: BatchPlan | None = None


@dataclass(frozen=True, slots=True)
class ActionRecord:
    """One action on a job.

    Attributes:
        id: of the row.
        round: for which it was done.
        at: when it was begun.
        uid: the job.
        kind: name of the action: hold, start, stop, requeue, suspend or resume.
        detail: JSON-compatible; ``reason`` is the action's reason as of ``metasched.core.reasons.to_json``.
        outcome: ``ok``, or the error; None if the daemon died before the action ended.
        latency_seconds: how long it took.
    """

    id: int
    round: int
    at: float
    uid: str
    kind: str
    detail: Mapping[str, Any]
    outcome: str | None
    latency_seconds: float | None


@dataclass(frozen=True, slots=True)
class EventRecord:
    """One event of a job, or of the cluster (``uid`` is None); ``text`` is words or a stored reason."""

    id: int
    at: float
    uid: str | None
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class JobEventRecord:
    """An event with what identifies its job; all of that is None for an event of the cluster."""

    event: EventRecord
    slurm_job_id: str | None
    name: str | None
    user: str | None
    account: str | None
    end_state: str | None


@dataclass(frozen=True, slots=True)
class GpuUseRecord:
    """How much a job used its GPUs in a window of time, as another monitor saw it.

    Attributes:
        uid: the job's.
        at: beginning of the window, unix seconds.
        gpu_seconds: GPU-seconds that were seen.
        busy_gpu_seconds: the same, each by the GPU's utilisation.
        idle_gpu_seconds: GPU-seconds in which a GPU did nothing.
    """

    uid: str
    at: float
    gpu_seconds: float
    busy_gpu_seconds: float
    idle_gpu_seconds: float


@dataclass(frozen=True, slots=True)
class ThroughputRecord:
    """One ``steps`` report; ``at`` is the trainer's clock, the other fields as in the protocol."""

    uid: str
    run: int | None
    generation: int
    at: float
    step: int
    steps: int
    samples: int
    seconds: float
    loss: float | None
    world_size: int
    global_batch: int
    per_gpu_batch: int
    accumulation: int
    progress: float | None = None
    grad_square: float | None = None
    grad_variance: float | None = None
    plan: int = 0
    data_seconds: float | None = None
    sync_seconds: float | None = None
    peak_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class SpeedRecord:
    """One measured speed, in optimizer steps per second.

    Attributes:
        subject: a job's uid, or ``user/model`` for all jobs of a user that name that model.
        gpu_type: type of the GPUs.
        spread: GPUs on each node, descending.
        co_runner: the subject that ran on the same GPUs; None for no co-runner.
        steps_per_second: the mean of the reports, in which newer ones count more.
        at: unix seconds of the latest.
        batch: samples of one optimizer step; 0 where they were not recorded.
    """

    subject: str
    gpu_type: str
    spread: tuple[int, ...]
    co_runner: str | None
    steps_per_second: float
    at: float
    batch: int = 0


@dataclass(frozen=True, slots=True)
class IterationRecord:
    """The measured mean duration of a subject's optimizer steps in one configuration, without a co-runner.

    Attributes:
        subject: a job's uid, or ``user/model`` for all jobs of a user that name that model.
        gpu_type: type of the GPUs.
        gpus: number of GPUs.
        multi_node: whether they were on several nodes.
        per_gpu: samples that a GPU processed at once.
        accumulation: micro-batches of an optimizer step.
        seconds: seconds of an optimizer step, the mean of the reports, in which newer ones count more.
        at: unix seconds of the latest report.
    """

    subject: str
    gpu_type: str
    gpus: int
    multi_node: bool
    per_gpu: int
    accumulation: int
    seconds: float
    at: float


@dataclass(frozen=True, slots=True)
class ForecastRecord:
    """The 80 % range of an instant of a job, as one round's forecast had it, and the instant that came.

    Attributes:
        uid: the job.
        kind: ``start`` of its next run, or ``end``, its completion.
        round: the round from which the forecast began.
        at: the instant of that round.
        low: the 10th percentile.
        median: the 50th percentile.
        high: the 90th percentile; None where it lay beyond the forecast's horizon.
        halfway: whether it is the job's first forecast that was made halfway to the median of the first one, or later;
            else it is the first one.
        truth: the instant that came; None where it has not come, or never will.
        closed: whether nothing will come any more.
    """

    uid: str
    kind: str
    round: int
    at: float
    low: float
    median: float
    high: float | None
    halfway: bool = False
    truth: float | None = None
    closed: bool = False

    @property
    def covered(self) -> bool | None:
        """Whether the range held the truth; None where no truth has come."""
        if self.truth is None:
            return None
        return self.low <= self.truth and (self.high is None or self.truth <= self.high)


@dataclass(frozen=True, slots=True)
class ShadowRecord:
    """What a shadow policy would have decided in a round, beside the live policy.

    Attributes:
        round: the round.
        at: its instant.
        policy: the shadow policy's name.
        live: the live policy's name.
        gpus: GPUs that it gives to jobs that have them not in the live decision; None after an error.
        would_run: uids of jobs that it runs and the live policy does not, at most ``MOST_SHADOW_JOBS``.
        would_not_run: uids of jobs that the live policy runs and it does not, likewise.
        jct: the mean job completion time of the live jobs under it, by simulation, in seconds; None if not known.
        worst_rho: their worst finish-time fairness, likewise.
        live_jct: ``jct`` under the live policy.
        live_worst_rho: ``worst_rho`` under the live policy.
        seconds: CPU seconds of its decision and its simulation.
        error: why it has not decided, in words; None where it has.
    """

    round: int
    at: float
    policy: str
    live: str
    gpus: int | None = None
    would_run: tuple[str, ...] = ()
    would_not_run: tuple[str, ...] = ()
    jct: float | None = None
    worst_rho: float | None = None
    live_jct: float | None = None
    live_worst_rho: float | None = None
    seconds: float = 0.0
    error: str | None = None
