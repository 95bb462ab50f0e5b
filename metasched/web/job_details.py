"""What the page Job shows of one job to one viewer: the published status and the history, cut to what may be seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from metasched.core.apps import LossPoint
from metasched.core.reason_words import words
from metasched.core.reasons import from_text, to_text
from metasched.presentation.job_explanation import explanation, history, time_use_words
from metasched.shared_dir.published_status import JobStatus
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
from metasched.web.database import DatabaseReader
from metasched.web.site import View

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
        forecasts: the first forecasts of its start and its end and those halfway, with what came.
        actions: the latest actions; empty where the viewer may not see the job whole, as are all that follow.
        events: the latest events.
        points: reported speeds and losses.
        losses: losses by progress, thinned by the store.
        batches: the first batch, and its changes.
        checkpoints: the latest checkpoints.
    """

    record: JobRecord
    runs: Sequence[RunRecord] = ()
    decisions: Sequence[DecisionRecord] = ()
    forecasts: Sequence[ForecastRecord] = ()
    actions: Sequence[ActionRecord] = ()
    events: Sequence[EventRecord] = ()
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


def find_job(uid: str, view: View, database: DatabaseReader) -> JobDetails | None:
    """The job of a uid or of a Slurm job id of the status; None for one that does not exist or may not be seen.

    A job that may not be seen takes the way of one that does not exist, also without a database.

    Raises:
        StoreError: the database cannot be read, and the status does not have the job.
    """
    viewer, publication, now = view.viewer, view.publication, view.now
    uid = publication.uids.get(uid, uid)
    job = publication.jobs.get(uid)
    if job is not None and not viewer.may_see(job):
        job = None
    past: JobPast | None = None
    try:
        past = read_past(uid, view, database)
    except StoreError:
        if job is None:
            raise
    if job is None and past is not None:
        job = status_of(past.record, now)
    if job is None:
        return None
    shown = view.jobs.seen(job)
    detailed = viewer.may_see_details(shown)
    use = time_use(past.runs, now) if past and detailed else None
    return JobDetails(
        job=shown,
        past=past,
        is_detailed=detailed,
        words=_words(shown, view),
        story=history(shown, now),
        use=use if use and use.held > 0 else None,
        use_words=time_use_words(use) if use else (),
    )


def read_past(uid: str, view: View, database: DatabaseReader) -> JobPast | None:
    """The history of a job, in one short transaction; None for one that the viewer may not see.

    Raises:
        StoreError: the database cannot be read.
    """
    with database.reading() as store:
        record = store.job(uid)
        if record is None or not view.viewer.may_see(record):
            return None
        past = JobPast(
            record=record,
            runs=store.latest_runs(uid, MOST_RUNS),
            decisions=[
                replace(one, reason=view.jobs.reason(one.reason, record))
                for one in store.recent_decisions(uid, MOST_DECISIONS)
            ],
            forecasts=sorted(store.forecasts(uid), key=lambda one: (one.kind != "start", one.halfway)),
        )
        return _with_records(past, store, view) if view.viewer.may_see_details(record) else past


def _with_records(past: JobPast, store: Store, view: View) -> JobPast:
    """The history with what is the owner's."""
    uid = past.record.uid
    events = store.recent_events(MOST_EVENTS, uid)
    return replace(
        past,
        actions=store.recent_actions(MOST_ACTIONS, uid),
        events=[replace(one, text=_text_for(one.text, past.record, view)) for one in events],
        points=store.throughput_points(uid, MOST_POINTS),
        losses=store.losses([uid]).get(uid, ()),
        batches=store.batch_changes(uid, MOST_BATCHES),
        checkpoints=store.latest_checkpoints(uid, MOST_CHECKPOINTS),
    )


def _text_for(text: str, record: JobRecord, view: View) -> str:
    """An event's text, which is a reason or words, without names of jobs that are hidden."""
    reason = from_text(text)
    told = view.jobs.reason(reason, record)
    return text if told == reason else to_text(told)


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


def _words(job: JobStatus, view: View) -> list[str]:
    """Sentences on the job's state, which name no job that the viewer may not see."""
    if view.status is None:
        return []
    visible = replace(view.status, jobs=tuple(view.jobs.live), finished=tuple(view.jobs.finished))
    return explanation(job, visible, view.now)
