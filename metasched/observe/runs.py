"""The runs of jobs that are ours: begun, suspended, lost, ended, and what their trainers reported meanwhile."""

from __future__ import annotations

import pwd
import signal
from collections.abc import Sequence
from functools import cache

import structlog

from metasched.core.model import Status
from metasched.core.reasons import Code, Reason, to_text
from metasched.daemon.systemd_notify import tell
from metasched.intake.throttled_writes import ThrottledWrites
from metasched.observe.node_inventory import NodeInventory, observed_placement
from metasched.observe.observed_job import NOT_STARTED
from metasched.shared_dir.mailbox import Mailbox, MailboxError
from metasched.shared_dir.reports import TrialReport
from metasched.slurm.client import JobState, SlurmClient, SlurmJob
from metasched.store import EndCause, JobRecord, RunRecord, Store
from metasched.store.report_ingest import IngestResult, ingest

# A suspension of ours that Slurm still does not show after this long was never carried out.
SUSPEND_SECONDS = 10.0
# A job that Slurm does not show for so long is gone.
MISSING_SECONDS = 30.0
# Slurm's reason where it holds a released job itself, since it could never start it.
NEVER = "BadConstraints"
KILLED_BY_OLD_RUN = "killed_by_old_run"  # an event
# What jobs that have ended may still be read of, in budgets: in one poll of all of them together, the next one going
# on from there, and in all of each of them. A file can be made endless.
LAST_READS = 128

log = structlog.get_logger()


class Runs:
    """Keeps the store's runs as Slurm shows them.

    Attributes:
        reported: uids of which there were new reports since ``begin``.
        trials: by uid, what trials reported since then.
    """

    def __init__(self, client: SlurmClient, store: Store, mailbox: Mailbox, writes: ThrottledWrites) -> None:
        self.reported: set[str] = set()
        self.trials: dict[str, tuple[TrialReport, ...]] = {}
        self._client = client
        self._store = store
        self._mailbox = mailbox
        self._writes = writes
        self._missing: dict[str, float] = {}  # by uid, since when
        self._last_reads = LAST_READS  # that are left in this poll
        self._reads: dict[str, int] = {}  # of jobs that have ended and are not read to the end yet, by uid

    def begin(self) -> None:
        """A new poll: nothing has been reported yet."""
        self.reported.clear()
        self.trials.clear()
        self._last_reads = LAST_READS

    def ingest(self, record: JobRecord, now: float) -> JobRecord:
        """Read new reports, one budget of them."""
        return self._store.known_job(record.uid) if self._read(record, now).lines else record

    def follow(  # noqa: PLR0917  one fact from each side
        self,
        record: JobRecord,
        seen: SlurmJob,
        status: Status,
        hardware: NodeInventory,
        now: float,
        retry_seconds: float,
    ) -> bool:
        """Open, close, suspend or resume the record's run as Slurm shows it; whether anything changed.

        Args:
            record: of the job.
            seen: what Slurm shows of it.
            status: that in our words.
            hardware: of the cluster.
            now: unix seconds.
            retry_seconds: after a release that Slurm could not carry out, until the next one.

        Raises:
            SlurmUnavailableError: Slurm does not answer.
        """
        run = record.current
        if status in (Status.HELD, Status.QUEUED):
            return run is not None and self._follow_waiting(record, run, seen, status, now, retry_seconds)
        placement = observed_placement(seen, hardware.gpu_type)
        if status is Status.STOPPING or seen.started is None or placement is None:
            return False
        if run is not None and run.started is not None and seen.started > run.started + 1:
            self._close_run(record, run, seen.started)  # it ended and began again between two polls
            run = None
        if run is None:
            text = "Slurm started it though no plan asked for it"
            self._store.event("started_without_us", text, uid=record.uid, at=now)
        if run is None or run.started is None:
            number = record.run + 1 if run is None else run.run
            news = self._store.run_started(record.uid, number, seen.started, placement)
            # Held while it runs, it comes back held if its owner requeues it or its node is lost.
            self._writes.once(seen.slurm_job_id, "hold", lambda: self._client.hold(seen.slurm_job_id))
            return self._put_off_no_longer(record) or news
        return self._follow_suspension(run, status, now)

    def rescued(self, record: JobRecord, seen: SlurmJob, now: float) -> bool:
        """Put a run back that ended as failed, if what ended it was not the job's own failure.

        Returns:
            Whether that was done, or will be as soon as Slurm answers.

        Raises:
            SlurmUnavailableError: Slurm does not answer.
        """
        if seen.state not in (JobState.FAILED, JobState.TIMEOUT):
            return False
        if record.current is not None and record.current.stop_requested is not None:
            kind, cause = "rescued", "when asked to stop"  # the stop must not cost the job its life
        elif self._killed_by_old_run(record, seen):
            kind, cause = KILLED_BY_OLD_RUN, "when a host that was lost came back"
        else:
            return False
        if self._writes.rests(seen.slurm_job_id, "requeue_hold"):
            return True  # it has not ended before it could be tried
        if not self._writes.once(
            seen.slurm_job_id, "requeue_hold", lambda: self._client.requeue_hold(seen.slurm_job_id)
        ):
            return False
        self._store.event(kind, f"ended as {seen.slurm_state} {cause}; put back", uid=record.uid, at=now)
        return True

    def finish(self, record: JobRecord, seen: SlurmJob, now: float) -> bool:
        """The job has ended for good; False where the next poll has to go on with reading its last reports."""
        at = seen.ended if seen.ended is not None else now
        run = record.current
        if run is not None:
            if run.started is None and run.released is not None and seen.started is not None and _ran(seen, at):
                self._store.run_started(record.uid, run.run, seen.started, run.released)  # all of it between two looks
            if not self._read_out(record, now):
                return False
        self._store.finish_job(record.uid, at, seen.state.value, seen.exit_code)
        self._store.event("finished", f"ended as {seen.slurm_state}", uid=record.uid, at=now)
        self._clear(record)
        return True

    def vanished(self, missing: Sequence[JobRecord], now: float) -> list[JobRecord]:
        """End what Slurm has not shown for a while; which those are.

        It ended while nobody looked, or a crashed controller forgot it. One look is no proof: its record may have been
        unreadable.
        """
        # Since now at the latest: the clock may have been set back.
        self._missing = {record.uid: min(self._missing.get(record.uid, now), now) for record in missing}
        lost = [record for record in missing if now - self._missing[record.uid] >= MISSING_SECONDS]
        gone = [record for record in lost if self._read_out(record, now)]
        for record in gone:
            self._store.finish_job(record.uid, now, "GONE", None)
            self._store.event("gone", "Slurm no longer knows it", uid=record.uid, at=now)
            self._clear(record)
        return gone

    def _follow_waiting(  # noqa: PLR0917  as above
        self, record: JobRecord, run: RunRecord, seen: SlurmJob, status: Status, now: float, retry_seconds: float
    ) -> bool:
        if run.started is not None:
            self._close_run(record, run, now)
            return True
        if status is Status.QUEUED:
            return self._put_off_no_longer(record)
        # Held again before we saw it start (it may have come and gone between two polls).
        self._store.run_ended(record.uid, run.run, now, EndCause.WITHDRAWN)
        if seen.reason == NEVER:
            self._store.update_job(record.uid, not_before=now + retry_seconds)
            why = Reason.of(Code.SLURM_REASON, reason=seen.reason)
            self._store.event(NOT_STARTED, to_text(why), uid=record.uid, at=now)
        return True

    def _put_off_no_longer(self, record: JobRecord) -> bool:
        """Our release took effect, though its answer may have been lost; whether the job was put off."""
        if record.not_before is None:
            return False
        self._store.update_job(record.uid, not_before=None)
        return True

    def _follow_suspension(self, run: RunRecord, status: Status, now: float) -> bool:
        if status is Status.SUSPENDED and run.suspended_at is None:
            return self._store.run_suspended(run.uid, run.run, now, by_us=False)
        if status is Status.RUNNING and run.suspended_at is not None:
            # Ours is recorded before Slurm is asked; seeing it run just means that the request is still to be sent.
            if run.suspended_by_us and now - run.suspended_at < SUSPEND_SECONDS:
                return False
            return self._store.run_resumed(run.uid, run.run, now)
        return False

    def _close_run(self, record: JobRecord, run: RunRecord, at: float) -> None:
        if run.stop_requested is None:
            cause = EndCause.LOST
            self._store.event("lost", "its run ended without our asking; it goes on", uid=record.uid, at=at)
        elif run.ready_at is not None and run.stop_noticed is None:
            cause = EndCause.DEAF
        elif record.uid in self._store.targets():
            cause = EndCause.RESIZED
        else:
            cause = EndCause.PREEMPTED
        self._store.run_ended(record.uid, run.run, at, cause)

    def _killed_by_old_run(self, record: JobRecord, seen: SlurmJob) -> bool:
        """Whether the srun of a run that was lost with its host may have killed this one.

        When such a host wakes up, that srun ends its step, by a number that the present run's step has as well. This is
        taken for the cause once for each lost run, and of those not for the ones that were put back for it.
        """
        if seen.exit_code != 128 + signal.SIGKILL:
            return False
        lost = sum(run.cause is EndCause.LOST for run in self._store.runs(record.uid))
        rescues = sum(event.kind == KILLED_BY_OLD_RUN for event in self._store.recent_events(10_000, record.uid))
        return 2 * rescues < lost

    def _read(self, record: JobRecord, now: float) -> IngestResult:
        """Read one budget of new reports.

        No job can make this long, but many can: a service manager hears between them that we live.
        """
        tell()
        try:
            owner = _user_number(record.user)
        except KeyError:
            self._store.event_once("unknown_user", f"no user {record.user} is known here", record.uid, at=now)
            return IngestResult()
        self._free_reports(record, owner, now)
        result = ingest(self._store, self._mailbox.reports, record.uid, owner, now)
        if result.trials:
            self.trials[record.uid] = result.trials
        if result.lines:
            self.reported.add(record.uid)
        return result

    def _read_out(self, record: JobRecord, now: float) -> bool:
        """Read what a job that has ended left, as far as this poll's budgets go; whether that is over."""
        while self._read(record, now).more:
            self._reads[record.uid] = self._reads.get(record.uid, 0) + 1
            if self._reads[record.uid] >= LAST_READS:
                text = "it left more reports than are read of a job that has ended; the rest is not read"
                self._store.event("reports-unread", text, uid=record.uid, at=now)
                break
            if not self._last_reads:
                return False
            self._last_reads -= 1
        self._reads.pop(record.uid, None)
        return True

    def _free_reports(self, record: JobRecord, owner: int, now: float) -> None:
        """Let a job's owner report, where somebody else was quicker to make the directory."""
        try:
            other = self._mailbox.free_reports(record.uid, owner)
        except MailboxError as error:
            self._store.event_once("reports-not-freed", str(error), record.uid, at=now)
            return
        if other is not None:
            text = f"user {other} had made reports/{record.uid}, which was moved aside"
            self._store.event_once("reports-taken", text, record.uid, at=now)

    def _clear(self, record: JobRecord) -> None:
        """Empty the mailbox of a job that has ended."""
        try:
            self._mailbox.clear(record.uid)
            self._mailbox.remove_address(record.slurm_job_id, record.uid)
        except MailboxError as error:
            log.warning("mailbox_not_cleared", job=record.slurm_job_id, error=str(error))


def _ran(seen: SlurmJob, ended: float) -> bool:
    """Whether a job that has ended ever ran: Slurm counts whole seconds, and one that ends in line has a start, too."""
    in_line = seen.slurm_state in ("CANCELLED", "DEADLINE", "BOOT_FAIL")
    return not in_line or (seen.started is not None and seen.started < ended)


@cache
def _user_number(user: str) -> int:
    """Raises KeyError for a user who is not known (now), which is not remembered."""
    return pwd.getpwnam(user).pw_uid
