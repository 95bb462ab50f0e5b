"""The run tracking step of a poll: each job's runs and reports in the store follow Slurm's lists and the trainers.

The new reports of a job are read first, because they tell how a run ended. Then its run is opened, suspended, resumed
or closed as Slurm lists the job. A job whose run failed for no fault of its own is requeued. A job that has ended for
good is finished in the store once its last reports are read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import structlog

from metasched.core.model import Placement, Status
from metasched.core.reasons import Code, Reason, to_text
from metasched.core.reuse import Latest, differing, in_order_of, patched, reuses_results
from metasched.intake.job_intake import RecordedJob
from metasched.intake.late_kills import (
    KILLED_BY_OLD_RUN,
    KILLED_BY_PREVIOUS_RUN,
    killed_by_old_run,
    killed_by_previous_run,
    may_be_killed,
)
from metasched.intake.launch_failures import (
    began_unseen,
    failed_launch,
    failed_launches,
    failed_to_launch,
    failed_unplanned,
    seconds_to_next_launch,
)
from metasched.intake.report_reading import ReportReader
from metasched.intake.size_failures import SizeFailures
from metasched.intake.throttled_writes import ThrottledWrites
from metasched.observe.node_inventory import NodeInventory, observed_placement
from metasched.observe.observed_job import ENDED, NOT_STARTED, status_of
from metasched.observe.observer import Observation
from metasched.shared_dir.mailbox import Mailbox, MailboxError
from metasched.slurm.client import JobState, SlurmClient, SlurmJob
from metasched.store import EndCause, JobRecord, RunRecord, Store

SUSPEND_SECONDS = 10.0
"""Time after which a suspension by the daemon that Slurm does not show counts as never carried out."""
MISSING_SECONDS = 30.0
"""Time after which a job that Slurm does not list counts as gone."""
MISSING, LISTED_AGAIN = "missing", "listed_again"
"""Kinds of the events of a job that Slurm does not list, and that it lists again."""
RECOVERED_SECONDS = 30.0
"""Time in which Slurm may find out by itself that no node has the run that a restarted controller has recovered."""
NEVER_STARTABLE = "BadConstraints"
"""Slurm's pending reason of a released job that it holds, since it could never start the job."""
LAUNCH_FAILED = "launch_failed"
"""Kind of the event of a run whose batch script Slurm could not start."""
TRAINED = "; its trainer had saved the final checkpoint, so it counts as completed"
FIRST_OF_SIGNALS = 128
"""Exit codes from here on tell that a signal ended the job's script."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class TrackedJob:
    """A live job whose runs are recorded as Slurm lists them, with its status for scheduling."""

    record: JobRecord
    slurm: SlurmJob
    status: Status

    def is_same(self, before: TrackedJob) -> bool:
        """Whether the records and the status are those of an earlier poll."""
        return self.record is before.record and self.slurm is before.slurm and self.status is before.status


@dataclass(frozen=True, slots=True)
class Retries:
    """How often runs are repeated that Slurm did not start.

    Attributes:
        seconds: time until the next release of a job that Slurm could never start.
        launch_tries: runs in a row that may end before their trainer has started.
    """

    seconds: float
    launch_tries: int


@dataclass(frozen=True, slots=True)
class TrackedRuns:
    """The outcome of run tracking in one poll.

    Attributes:
        live: the jobs that have not ended, by uid.
        ended: number of jobs that were finished in the store in this poll.
    """

    live: Mapping[str, TrackedJob]
    ended: int


class RunTracking:
    """Keeps the store's runs as Slurm lists them.

    Args:
        client: to Slurm.
        store: of the daemon.
        mailbox: of the shared directory.
        writes: to Slurm, shared with intake.
        reports: reads the trainers' reports.
        forget: called with the uid of each job that is finished in the store, right after that.
    """

    def __init__(  # noqa: PLR0917  its collaborators
        self,
        client: SlurmClient,
        store: Store,
        mailbox: Mailbox,
        writes: ThrottledWrites,
        reports: ReportReader,
        forget: Callable[[str], None],
    ) -> None:
        self._client = client
        self._store = store
        self._mailbox = mailbox
        self._writes = writes
        self._reports = reports
        self._forget = forget
        self._size_failures = SizeFailures(store, mailbox, reports)
        self._missing_since: dict[str, float] = {}  # by uid
        self._recovered_since: dict[str, float] = {}  # by uid
        self._reuses = reuses_results()
        # of the last poll: the jobs given, and where results are reused, the live ones and those that only wait
        self._tracked_from: Mapping[str, RecordedJob] = {}
        self._live: Mapping[str, TrackedJob] = {}
        self._others = Latest[Mapping[str, RecordedJob]](reuses=self._reuses)  # the jobs that do more than wait
        self._waiting: frozenset[str] = frozenset()  # uids

    def track(self, observation: Observation, jobs: Mapping[str, RecordedJob], retries: Retries) -> TrackedRuns:
        """Bring the runs of all jobs up to what Slurm lists, and finish the jobs that have ended. Repeatable.

        Args:
            observation: of this poll.
            jobs: metasched's jobs after intake, by uid.
            retries: of the configuration in force.

        Raises:
            SlurmUnavailableError: Slurm does not answer.
        """
        now = observation.now
        live: dict[str, TrackedJob] = {}
        over: dict[str, RecordedJob] = {}
        changed = differing(self._tracked_from, jobs)
        waiting = self._waiting - changed if changed else self._waiting
        others = self._others.of(lambda: {uid: job for uid, job in jobs.items() if uid not in waiting}, jobs, waiting)
        turns = self._reports.in_turn(job.record for job in others.values())
        runs = (record for record in turns if record.current is not None and record.current.started is not None)
        read = {
            record.uid: self._reports.read(record, now) for record in runs if jobs[record.uid].slurm.state not in ENDED
        }
        for uid, job in others.items():
            if job.slurm.state not in ENDED:
                record = read.get(uid, job.record)
                live[uid] = self._track(record, job.slurm, observation.inventory, now, retries)
            elif self._rescued(job.record, job.slurm, now, retries):
                live[uid] = TrackedJob(job.record, job.slurm, Status.STOPPING)
            else:
                over[uid] = job
        tracked = self._live
        if changed or over or not all(map(_is_same, live.values(), map(tracked.get, live))):
            found = patched(tracked, {*changed, *over}, live)
            tracked = in_order_of([uid for uid in jobs if uid in found], found)
        if self._reuses:
            came = {uid for uid, job in live.items() if _only_waits(job)}
            self._waiting = waiting | came if came else waiting
            self._live = tracked
        self._tracked_from = jobs
        self._recovered_since = {uid: since for uid, since in self._recovered_since.items() if uid in jobs}
        # Last reports come last: those of one ended job may be as long as all others together.
        finished = sum(self._finish(record, over[record.uid].slurm, now) for record in turns if record.uid in over)
        return TrackedRuns(tracked, finished + self._finish_vanished(observation.missing, now))

    def _track(
        self, record: JobRecord, slurm: SlurmJob, inventory: NodeInventory, now: float, retries: Retries
    ) -> TrackedJob:
        status = status_of(slurm)
        if self._follow(record, slurm, status, inventory, now, retries):
            record = self._store.require_job(record.uid)
        return TrackedJob(record, slurm, status)

    def _follow(  # noqa: PLR0917  one fact from each side
        self,
        record: JobRecord,
        slurm: SlurmJob,
        status: Status,
        inventory: NodeInventory,
        now: float,
        retries: Retries,
    ) -> bool:
        """Open, close, suspend or resume the record's run as Slurm lists the job; return whether anything changed.

        Raises:
            SlurmUnavailableError: Slurm does not answer.
        """
        run = record.current
        if status in (Status.HELD, Status.QUEUED):
            self._recovered_since.pop(record.uid, None)
            return run is not None and self._follow_waiting(record, run, slurm, status, now, retries)
        placement = observed_placement(slurm, inventory.gpu_type)
        if status is Status.STOPPING or slurm.started is None or placement is None:
            return False
        if run is not None and run.started is not None and slurm.started > run.started + 1:
            self._close_run(record, run, slurm.started)  # it ended and began again between two polls
            run = None
        if self._is_recovered(record, run, slurm, placement):
            return self._requeue_recovered(record, slurm, now)
        self._recovered_since.pop(record.uid, None)
        if run is None:
            text = "Slurm started it though no plan asked for it"
            self._store.event("started_without_us", text, uid=record.uid, at=now)
        if run is None or run.started is None:
            number = record.run + 1 if run is None else run.run
            news = self._store.run_started(record.uid, number, slurm.started, placement)
            # Held while it runs, it comes back held if its owner requeues it or its node is lost.
            self._writes.once(slurm.slurm_job_id, "hold", lambda: self._client.hold(slurm.slurm_job_id))
            return self._clear_not_before(record) or news
        return self._follow_suspension(run, status, now)

    def _is_recovered(self, record: JobRecord, run: RunRecord | None, slurm: SlurmJob, placement: Placement) -> bool:
        """Whether the run that Slurm lists is one that has ended: a controller that crashed has forgotten the end.

        A later run that is open has another start and other nodes; on the same nodes, its processes are what Slurm has
        recovered.
        """
        if slurm.started is None:
            return False
        if run is not None and run.started is not None:
            return slurm.started < run.started - 1 and run.placement is not None and placement != run.placement
        starts = [run.started for run in self._store.runs(record.uid) if run.started is not None]
        return bool(starts) and slurm.started <= starts[-1] + 1

    def _requeue_recovered(self, record: JobRecord, slurm: SlurmJob, now: float) -> bool:
        """Requeue a job that no node runs, where Slurm does not find that out by itself within ``RECOVERED_SECONDS``.

        Returns:
            Whether the record has changed: a release that came to nothing is withdrawn, and a later run is lost.

        Raises:
            SlurmUnavailableError: Slurm does not answer.
        """
        since = min(self._recovered_since.setdefault(record.uid, now), now)  # the clock may have been set back
        if now - since < RECOVERED_SECONDS or not self._writes.once(
            slurm.slurm_job_id, "requeue_hold", lambda: self._client.requeue_hold(slurm.slurm_job_id)
        ):
            return False
        text = "Slurm listed a run as running that had ended; put back"
        self._store.event("recovered_run", text, uid=record.uid, at=now)
        if (run := record.current) is None:
            return False
        if run.started is None:
            self._store.run_ended(record.uid, run.run, now, EndCause.WITHDRAWN)
        else:
            self._close_run(record, run, now)
        return True

    def _rescued(self, record: JobRecord, slurm: SlurmJob, now: float, retries: Retries) -> bool:
        """Requeue a job whose run ended as failed, where the job itself is not to blame.

        Returns:
            Whether the job was requeued, or will be as soon as Slurm answers.

        Raises:
            SlurmUnavailableError: Slurm does not answer.
        """
        if slurm.state not in (JobState.FAILED, JobState.TIMEOUT) or record.end_reason is not None:
            return False  # a job that was ended for good is never requeued
        if (why := self._why_put_back(record, slurm, retries, now)) is None:
            return False
        kind, cause = why
        if self._writes.is_put_off(slurm.slurm_job_id, "requeue_hold"):
            return True  # the job counts as live until the requeue can be tried again
        if not self._writes.once(
            slurm.slurm_job_id, "requeue_hold", lambda: self._client.requeue_hold(slurm.slurm_job_id)
        ):
            return False
        self._store.event(kind, f"ended as {slurm.slurm_state} {cause}; put back", uid=record.uid, at=now)
        self._record_unseen_start(record, slurm.started if slurm.started is not None else now)
        return True

    def _why_put_back(self, record: JobRecord, slurm: SlurmJob, retries: Retries, now: float) -> tuple[str, str] | None:
        """Why a job that failed is requeued: the kind of the event, and words; None where it is not."""
        stopped = record.current is not None and record.current.stop_requested is not None
        # A late kill counts also where the training was done: the next run only finds that, and then the job has
        # completed for Slurm, too.
        if not stopped and (killed := self._late_kill(record, slurm)) is not None:
            return killed
        if self._had_finished(record, slurm):
            return None
        if stopped:
            return "rescued", "when asked to stop"  # a stop must not make the job fail
        return self._why_run_again(record, slurm, retries, now)

    def _late_kill(self, record: JobRecord, slurm: SlurmJob) -> tuple[str, str] | None:
        """Which earlier run's srun may have killed the job's run, as ``_why_put_back`` tells it."""
        if not may_be_killed(slurm):
            return None
        runs, events = self._store.runs(record.uid), self._store.recent_events(10_000, record.uid)
        if killed_by_previous_run(runs, events, record.current, slurm):
            return KILLED_BY_PREVIOUS_RUN, "soon after the run before, whose srun may have killed it"
        if killed_by_old_run(runs, events, slurm):
            return KILLED_BY_OLD_RUN, "when a host that was lost came back"
        return None

    def _why_run_again(
        self, record: JobRecord, slurm: SlurmJob, retries: Retries, now: float
    ) -> tuple[str, str] | None:
        """Why a job that failed before its training was done, and that nobody stopped, is requeued."""
        if self._may_launch_again(record, slurm, retries):
            return LAUNCH_FAILED, "before its batch script had started"
        if self._size_failures.has_failed(record, slurm, now):
            return "rescued", "on a number of GPUs that was new to it"
        if failed_unplanned(record, slurm):
            return "rescued", "in a run that no plan had asked for"
        return None

    def _may_launch_again(self, record: JobRecord, slurm: SlurmJob, retries: Retries) -> bool:
        """Whether the job's run failed to launch, and may be repeated."""
        if record.current is None or not failed_to_launch(record.current, slurm):
            return False
        return failed_launches(self._store.runs(record.uid)) + 1 < retries.launch_tries

    def _record_unseen_start(self, record: JobRecord, at: float) -> None:
        """Record that the open run has started, where it started and ended between two polls."""
        run = record.current
        if run is not None and run.started is None and run.released is not None:
            self._store.run_started(record.uid, run.run, at, run.released)

    def _had_finished(self, record: JobRecord, slurm: SlurmJob) -> bool:
        """Whether a job that Slurm lists as failed had finished its training, and its script did not fail after that.

        A controller that has crashed may have lost the job's end. An exit code below 128 is the script's own.
        """
        by_slurm = slurm.state is JobState.FAILED and not (slurm.exit_code and slurm.exit_code < FIRST_OF_SIGNALS)
        return by_slurm and self._store.has_final_checkpoint(record.uid)

    def _finish(self, record: JobRecord, slurm: SlurmJob, now: float) -> bool:
        """Finish a job that has ended; return False where the next poll has to read more of its last reports."""
        at = slurm.ended if slurm.ended is not None else now
        run = record.current
        if run is not None:
            if slurm.started is not None and _has_run(slurm, at):
                self._record_unseen_start(record, slurm.started)
            if not self._reports.read_to_end(record, now):
                return False
        finished = self._had_finished(record, slurm)
        state = JobState.COMPLETED if finished else slurm.state
        self._clear_mailbox(record)
        self._store.finish_job(record.uid, at, state.value, 0 if finished else slurm.exit_code)
        words = f"ended as {slurm.slurm_state}{TRAINED if finished else ''}"
        self._store.event("finished", words, uid=record.uid, at=now)
        self._forget(record.uid)
        return True

    def _finish_vanished(self, missing: Sequence[JobRecord], now: float) -> int:
        """Finish the jobs that Slurm has not listed for ``MISSING_SECONDS``, and return their number.

        Such a job ended while no daemon ran, or slurmctld crashed and forgot it. One poll is no proof: Slurm's record
        of the job may have been unreadable.
        """
        self._note_missing(missing, now)
        self._missing_since = {uid: min(since, now) for uid, since in self._missing_since.items()}
        lost = [record for record in missing if now - self._missing_since[record.uid] >= MISSING_SECONDS]
        gone = [record for record in lost if self._reports.read_to_end(record, now)]
        for record in gone:
            finished = self._store.has_final_checkpoint(record.uid)
            self._clear_mailbox(record)
            self._store.finish_job(record.uid, now, JobState.COMPLETED.value if finished else "GONE", None)
            words = f"Slurm no longer knows it{TRAINED if finished else ''}"
            self._store.event("gone", words, uid=record.uid, at=now)
            del self._missing_since[record.uid]
            self._forget(record.uid)
        return len(gone)

    def _note_missing(self, missing: Sequence[JobRecord], now: float) -> None:
        """Note since when Slurm has not listed jobs: now at the latest, as the clock may have been set back.

        The events tell a later daemon, so that the time of a job that is gone does not begin anew with each start.
        """
        uids = {record.uid for record in missing}
        if uids == self._missing_since.keys():
            return
        with self._store.transaction():
            for uid in self._missing_since.keys() - uids:
                self._store.event(LISTED_AGAIN, "Slurm lists it again", uid=uid, at=now)
            since = {uid: at for uid, at in self._missing_since.items() if uid in uids}
            for uid in uids - since.keys():
                told = (event for event in self._store.recent_events(20, uid) if event.kind in (MISSING, LISTED_AGAIN))
                if (latest := next(told, None)) is not None and latest.kind == MISSING:
                    since[uid] = latest.at
                else:
                    since[uid] = now
                    self._store.event(MISSING, "Slurm does not list it", uid=uid, at=now)
        self._missing_since = since

    def _follow_waiting(  # noqa: PLR0917  as above
        self, record: JobRecord, run: RunRecord, slurm: SlurmJob, status: Status, now: float, retries: Retries
    ) -> bool:
        began = run.started is not None
        before = self._tracked_from.get(record.uid)
        restarts = None if before is None else before.slurm.restarts
        if not began and status is Status.HELD and began_unseen(run, slurm, restarts):
            self._record_unseen_start(record, now)
            began = True
        if began:
            self._close_run(record, run, now)
            self._put_off_next_launch(record.uid, now, retries.launch_tries)
            return True
        if status is Status.QUEUED:
            return self._clear_not_before(record)
        # Held again before a poll saw it start; its run may have begun and ended between two polls.
        self._store.run_ended(record.uid, run.run, now, EndCause.WITHDRAWN)
        if slurm.reason == NEVER_STARTABLE:
            self._store.update_job(record.uid, not_before=now + retries.seconds)
            why = Reason.of(Code.SLURM_REASON, reason=slurm.reason)
            self._store.event(NOT_STARTED, to_text(why), uid=record.uid, at=now)
        return True

    def _clear_not_before(self, record: JobRecord) -> bool:
        """Clear the time before which the job is not released again: its release took effect after all.

        Returns:
            Whether there was such a time.
        """
        if record.not_before is None:
            return False
        self._store.update_job(record.uid, not_before=None)
        return True

    def _follow_suspension(self, run: RunRecord, status: Status, now: float) -> bool:
        if status is Status.SUSPENDED and run.suspended_at is None:
            return self._store.run_suspended(run.uid, run.run, now, by_us=False)
        if status is Status.RUNNING and run.suspended_at is not None:
            # The daemon records its own suspension before it asks Slurm: until then Slurm shows the job as running.
            if run.suspended_by_us and now - run.suspended_at < SUSPEND_SECONDS:
                return False
            return self._store.run_resumed(run.uid, run.run, now)
        return False

    def _close_run(self, record: JobRecord, run: RunRecord, at: float) -> None:
        if self._size_failures.record_end(record, run, at):
            cause = EndCause.SIZE_FAILED
        elif run.stop_requested is None:
            cause = EndCause.LOST
            self._store.event(
                "lost", "its run ended without a stop request; the job is queued again", uid=record.uid, at=at
            )
        elif run.ready_at is not None and run.stop_noticed is None:
            cause = EndCause.UNRESPONSIVE
        elif record.uid in self._store.targets():
            cause = EndCause.RESIZED
            self._store.event(cause.value, "stopped, to continue on other resources", uid=record.uid, at=at)
        else:
            cause = EndCause.PREEMPTED
            self._store.event(cause.value, "stopped for other jobs; the job waits again", uid=record.uid, at=at)
        self._store.run_ended(record.uid, run.run, at, cause)

    def _put_off_next_launch(self, uid: str, now: float, tries: int) -> None:
        """Put off the next run of a job whose latest run failed to launch, longer after each failure in a row."""
        runs = self._store.runs(uid)
        if not failed_launch(runs[-1]):
            return
        failures = failed_launches(runs)
        self._store.update_job(uid, not_before=now + seconds_to_next_launch(failures, tries))
        self._store.event(NOT_STARTED, to_text(Reason.of(Code.NOT_LAUNCHED, runs=failures)), uid=uid, at=now)

    def _clear_mailbox(self, record: JobRecord) -> None:
        """Remove the mailbox files of a job that has ended, before the store has it as ended.

        A daemon that is killed in between finishes the job again. In the other order, the files of a job that nobody
        follows any more would remain, and its checkpoint directory would belong to it for ever.
        """
        try:
            self._mailbox.clear(record.uid)
            self._mailbox.unindex_job(record.slurm_job_id, record.uid)
        except MailboxError as error:
            log.warning("mailbox_not_cleared", job=record.slurm_job_id, error=str(error))


def _only_waits(job: TrackedJob) -> bool:
    """Whether the job is in Slurm's queue without an open run, so that nothing is to be tracked until it changes."""
    return job.record.current is None and job.status in (Status.HELD, Status.QUEUED)


def _is_same(job: TrackedJob, before: TrackedJob | None) -> bool:
    return before is not None and job.is_same(before)


def _has_run(slurm: SlurmJob, ended: float) -> bool:
    """Whether a job that has ended ever ran.

    Slurm gives a start also to a job that ends in the queue, equal to its end; it counts whole seconds.
    """
    may_end_in_queue = slurm.slurm_state in ("CANCELLED", "DEADLINE", "BOOT_FAIL")
    return not may_end_in_queue or (slurm.started is not None and slurm.started < ended)
