"""Scripts that fail on a number of GPUs that is new to them: the job is put back once to the last one that trained."""

from __future__ import annotations

from metasched.core.reasons import Code, Reason, to_text
from metasched.intake.report_reading import ReportReader, user_id
from metasched.observe.known_good_size import known_good_size, may_be_put_back
from metasched.shared_dir.failed_run import read_failed_run
from metasched.shared_dir.mailbox import Mailbox
from metasched.slurm.client import JobState, SlurmJob
from metasched.store import EndCause, JobRecord, RunRecord, Store

SIZE_FAILED = EndCause.SIZE_FAILED.value
"""Kind of the event of a job that is put back to its known good number of GPUs."""


class SizeFailures:
    """Recognises and records such failures.

    The wrapper puts the job back by itself, as the lease allows, and leaves a word of it beside the reports. Where a
    batch script does not call the wrapper, Slurm lists the job as failed, and the daemon puts it back.
    """

    def __init__(self, store: Store, mailbox: Mailbox, reports: ReportReader) -> None:
        self._store = store
        self._mailbox = mailbox
        self._reports = reports

    def has_failed(self, record: JobRecord, slurm: SlurmJob, now: float) -> bool:
        """Whether a job that Slurm lists as failed is to be put back; the failure is recorded before that.

        A job whose last reports are not read to their end is not put back: how far it trained is not known.
        """
        run = record.current
        if slurm.state is not JobState.FAILED or run is None or not slurm.exit_code or not may_be_put_back(record, run):
            return False
        if run.size_exit_code is not None:
            return True
        if not self._reports.read_to_end(record, now):
            return False
        run = self._store.require_job(record.uid).current
        if run is None or not may_be_put_back(record, run):
            return False
        self._store.size_failed(record.uid, run.run, slurm.exit_code)
        return True

    def record_end(self, record: JobRecord, run: RunRecord, at: float) -> bool:
        """Record why a run has ended, if its script failed on a number of GPUs that was new to it.

        Returns:
            Whether it did, by the daemon's own record or by the wrapper's word.
        """
        if not may_be_put_back(record, run):
            return False
        exit_code = run.size_exit_code if run.size_exit_code is not None else self._told(record, run)
        if exit_code is None:
            return False
        self._store.size_failed(record.uid, run.run, exit_code)
        placement, good = run.placement or run.released, known_good_size(record)
        assert placement is not None  # noqa: S101  may_be_put_back
        assert good is not None  # noqa: S101  may_be_put_back
        why = Reason.of(Code.SIZE_FAILED, exit_code=exit_code, gpus=placement.gpus, known_good=good)
        self._store.event(SIZE_FAILED, to_text(why), uid=record.uid, at=at)
        return True

    def _told(self, record: JobRecord, run: RunRecord) -> int | None:
        """The exit code that the wrapper has left for this run; None for none."""
        try:
            owner = user_id(record.user)
        except KeyError:
            return None
        found = read_failed_run(self._mailbox.reports, record.uid, owner)
        return None if found is None or found.run != run.run else found.exit_code
