"""What the page Job shows of one job to one viewer: the published status and the history, cut to what may be seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from metasched.core.apps import LossPoint
from metasched.core.reason_words import words
from metasched.presentation.job_explanation import explanation, history, time_use_words
from metasched.shared_dir.published_status import JobStatus, Status
from metasched.store import (
    ActionRecord,
    DecisionRecord,
    EventRecord,
    ForecastRecord,
    JobRecord,
    RunRecord,
    Store,
    StoreError,
)
from metasched.store.job_queries import BatchChange, CheckpointRecord, ThroughputPoint
from metasched.store.time_use import TimeUse, time_use
from metasched.web.access import Viewer
from metasched.web.database import DatabaseReader
from metasched.web.published import Publication

MOST_RUNS = 200
MOST_POINTS = 300
MOST_DECISIONS = 30
MOST_ACTIONS = 20
MOST_EVENTS = 30
MOST_BATCHES = 20
MOST_CHECKPOINTS = 10


@dataclass(frozen=True, slots=True)
class JobPast:
    """A job in the database, as of one instant.

    Attributes:
        record: the job.
        runs: the latest runs, in their order.
        decisions: the latest decisions, newest first, as are actions, events and checkpoints.
        actions: the latest actions.
        events: the latest events.
        forecasts: the first and the latest forecast of its start and its end, with what came.
        points: reported speeds and losses; empty where the viewer may not see them, as are the next three.
        losses: losses by progress, thinned by the store.
        batches: the first batch, and its changes.
        checkpoints: the latest checkpoints.
    """

    record: JobRecord
    runs: Sequence[RunRecord] = ()
    decisions: Sequence[DecisionRecord] = ()
    actions: Sequence[ActionRecord] = ()
    events: Sequence[EventRecord] = ()
    forecasts: Sequence[ForecastRecord] = ()
    points: Sequence[ThroughputPoint] = ()
    losses: Sequence[LossPoint] = ()
    batches: Sequence[BatchChange] = ()
    checkpoints: Sequence[CheckpointRecord] = ()


@dataclass(frozen=True, slots=True)
class JobDetails:
    """One job as a viewer may see it.

    Attributes:
        job: the published status; made from the database for a job that ended long ago.
        past: the history; None where the database cannot be read.
        is_detailed: whether the viewer may see loss, speed, progress and the use of time.
        words: why the job runs or waits, in sentences.
        story: its runs and progress so far, in sentences.
        use: seconds by use; None where not known or not to be seen.
        use_words: the same in sentences.
    """

    job: JobStatus
    past: JobPast | None
    is_detailed: bool
    words: Sequence[str] = ()
    story: Sequence[str] = ()
    use: TimeUse | None = None
    use_words: Sequence[str] = field(default=())


def find_job(
    uid: str, viewer: Viewer, publication: Publication, database: DatabaseReader, now: float
) -> JobDetails | None:
    """The job of a uid or of a Slurm job id of the status; None for one that does not exist or may not be seen.

    Raises:
        StoreError: the database cannot be read, and the status does not have the job.
    """
    uid = publication.uids.get(uid, uid)
    job = publication.jobs.get(uid)
    past: JobPast | None = None
    try:
        past = read_past(uid, viewer, database)
    except StoreError:
        if job is None:
            raise
    if job is None and past is not None:
        job = status_of(past.record, now)
    if job is None or not viewer.may_see(job):
        return None
    shown = seen_by(viewer, job)
    detailed = viewer.may_see_details(shown)
    status = publication.status
    use = time_use(past.runs, now) if past and detailed else None
    return JobDetails(
        job=shown,
        past=past,
        is_detailed=detailed,
        words=_words(shown, status, viewer, now),
        story=history(shown, now),
        use=use if use and use.held > 0 else None,
        use_words=time_use_words(use) if use else (),
    )


def read_past(uid: str, viewer: Viewer, database: DatabaseReader) -> JobPast | None:
    """The history of a job, in one short transaction; None for one that the viewer may not see.

    Raises:
        StoreError: the database cannot be read.
    """
    with database.reading() as store:
        record = store.job(uid)
        if record is None or not viewer.may_see(record):
            return None
        past = JobPast(
            record=record,
            runs=store.latest_runs(uid, MOST_RUNS),
            decisions=store.recent_decisions(uid, MOST_DECISIONS),
            actions=store.recent_actions(MOST_ACTIONS, uid),
            events=store.recent_events(MOST_EVENTS, uid),
            forecasts=sorted(store.forecasts(uid), key=lambda one: (one.kind != "start", one.latest)),
        )
        return _with_reports(past, store) if viewer.may_see_details(record) else past


def _with_reports(past: JobPast, store: Store) -> JobPast:
    uid = past.record.uid
    return replace(
        past,
        points=store.throughput_points(uid, MOST_POINTS),
        losses=store.losses([uid]).get(uid, ()),
        batches=store.batch_changes(uid, MOST_BATCHES),
        checkpoints=store.latest_checkpoints(uid, MOST_CHECKPOINTS),
    )


def seen_by(viewer: Viewer, job: JobStatus) -> JobStatus:
    """The status of a job without what the viewer may not see."""
    if viewer.may_see_details(job):
        return job
    return replace(job, loss=None, steps_per_second=None, progress_steps=None, batch=None)


def status_of(record: JobRecord, now: float) -> JobStatus:
    """The status of a job that the published status has no longer, from the database."""
    placement = record.current.placement if record.current else None
    ran = record.ran_at(now)
    until = now if record.finished is None else record.finished
    return JobStatus(
        uid=record.uid,
        slurm_job_id=record.slurm_job_id,
        name=record.name,
        user=record.user,
        account=record.account,
        status=record.end_state or record.status,
        gpus=record.most_gpus,
        min_gpus=record.most_gpus,
        max_gpus=record.most_gpus,
        preempt="",
        reason="" if record.end_reason is None else words(record.end_reason),
        nodes={} if placement is None else dict(placement.node_gpus),
        gpu_type=record.last_placement.gpu_type if record.last_placement else None,
        submitted=record.submitted,
        run_started=record.current.started if record.current else None,
        runs=record.run,
        preemptions=record.preemptions,
        attained_service=sum(record.attained_at(now).values()),
        ran_seconds=ran,
        waited_seconds=max(0.0, until - record.submitted - ran),
        progress_steps=record.progress_steps,
        total_steps=record.total_steps,
        steps_per_second=None,
        loss=record.loss,
        world_sizes=(),
        finished=record.finished,
        error=record.error,
    )


def _words(job: JobStatus, status: Status | None, viewer: Viewer, now: float) -> list[str]:
    """Sentences on the job's state, which name no job that the viewer may not see."""
    if status is None:
        return []
    seen = {other.slurm_job_id for other in status.jobs if viewer.may_see(other)}
    visible = replace(status, jobs=tuple(other for other in status.jobs if other.slurm_job_id in seen))
    if job.co_runner is not None and job.co_runner not in seen:
        job = replace(job, co_runner=None)
    return explanation(job, visible, now)
