"""The jobs that squeue lists, of which each poll reads again only those that have changed.

The record of a job costs Slurm some ten times as much as a line of text about it (of 10,000 jobs: seconds as JSON), so
that a poll reads one line for each job, and the records whose lines differ from the poll before:

    urgent: jobs that this client has written since, and changed jobs that are not pending; all in one poll
    pending: changed and new pending jobs, in the order of their changes; a limited number in each poll
    refresh: once a minute every job, for changes that its line does not show (an edited comment)

``job_readers`` reads the records in the form that this release of Slurm prints.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import chain, islice

from metasched.slurm.client import SlurmJob
from metasched.slurm.errors import MalformedOutputError
from metasched.slurm.job_readers import SQUEUE, JobReader, Reading

# %A is the id of the record itself: tasks of an array that are not split off yet share a record. All fields are
# Slurm's own: a user's text could hold anything. A line that equals the previous poll's means the same job: a requeue
# rewrites the submit time, a start and an end the state.
_FINGERPRINT = "%A|%i|%T|%r|%V|%Q|%N|%D|%C|%m|%l|%P|%S"
MOST_READS = 300
"""Records that one poll reads, pending ones at most up to this number; one costs squeue 0.4 ms as JSON."""
REFRESH_SECONDS = 60.0
REFRESH_READS, REFRESH_POLLS = 250, 30
"""A refresh in parts reads that many records in each poll, or as many as let it end after that many polls."""


class JobList:
    """Slurm's jobs; an unchanged job is the same object as in the poll before.

    Args:
        run: runs a command, and returns its output.
        new_reader: called once, in the first read; makes the reader of records.
        warn: called with the records that cannot be read, which are left out.
    """

    def __init__(
        self,
        run: Callable[[Sequence[str]], str],
        new_reader: Callable[[], JobReader],
        warn: Callable[[Sequence[MalformedOutputError]], None],
    ) -> None:
        self._run, self._new_reader, self._warn = run, new_reader, warn
        self._reader: JobReader | None = None
        self._text = ""  # the lines of the last poll
        self._records: dict[str, tuple[SlurmJob, ...]] = {}  # the jobs of each record, by its id
        self._jobs: tuple[SlurmJob, ...] = ()
        self._written: set[str] = set()  # ids of the jobs that were written since the last poll
        self._urgent: dict[str, None] = {}  # ids of the records to read in the next poll
        self._pending: dict[str, None] = {}  # ids of the records to read as far as they are not too many
        self._refresh: dict[str, None] = {}  # ids of the records that are still to be refreshed
        self._refreshed = 0.0  # when the last refresh began

    def note_write(self, slurm_job_id: str) -> None:
        """Read a job again in the next poll, because what was read before is out of date."""
        self._written.add(slurm_job_id)

    def read(self) -> tuple[SlurmJob, ...]:
        """Read what has changed; the first call reads all jobs.

        Raises:
            SlurmError: Slurm does not answer, or its answer cannot be read; the next call reads what this one did not.
        """
        # The lines are read first: a change between the two reads shows in the next poll.
        text = self._run([*SQUEUE, "-h", "-o", _FINGERPRINT])
        if self._reader is None:
            reader, lines = self._new_reader(), _lines(text.splitlines())
            self._take(reader.read(lines, (), lambda: lines))
            self._reader, self._text, self._refreshed = reader, text, time.monotonic()
        else:
            self._note_changes(self._text, text)
            self._text = text
            self._note_written()
            self._read_changed(self._reader)
        return self._jobs

    def _note_changes(self, before: str, after: str) -> None:
        if before == after:
            return
        changed, gone = _differences(before, after)
        for record_id in gone:
            self._ask_no_more(record_id)
            self._records.pop(record_id, None)
        for record_id in sorted(changed, key=int):  # squeue may list the latest jobs first
            (self._pending if "|PENDING|" in changed[record_id] else self._urgent)[record_id] = None
        if gone:
            self._update_jobs()

    def _note_written(self) -> None:
        written, self._written = self._written, set()
        if any(not slurm_job_id.isdecimal() for slurm_job_id in written):  # tasks of arrays
            record_ids = {job.slurm_job_id: str(job.job_id) for job in self._jobs}
            written = {record_ids.get(slurm_job_id, slurm_job_id) for slurm_job_id in written}
        listed = (one for one in sorted(written) if one in self._records or one in self._pending)
        self._urgent.update(dict.fromkeys(listed))

    def _read_changed(self, reader: JobReader) -> None:
        """Read the urgent records, and others as far as the reader has them."""
        now = time.monotonic()
        is_due = not self._refresh and now - self._refreshed >= REFRESH_SECONDS
        if not (self._urgent or self._pending or self._refresh or is_due):
            return
        lines = cache(lambda: _lines(self._text.splitlines()))
        if is_due:  # all that have a line, also one that an earlier read did not have
            self._refresh, self._refreshed = dict.fromkeys(lines()), now
        is_refreshing = bool(self._refresh)
        pending: Iterable[str] = (one for one in self._pending if one not in self._urgent)
        refreshed: Iterable[str] = self._refresh
        if reader.reads_in_parts:
            pending = islice(pending, max(MOST_READS - len(self._urgent), 0))
            if self._refresh:
                refreshed = islice(self._refresh, max(REFRESH_READS, -(-len(lines()) // REFRESH_POLLS)))
        others = [one for one in dict.fromkeys(chain(pending, refreshed)) if one not in self._urgent]
        self._take(reader.read(list(self._urgent), others, lines))
        if is_refreshing and not self._refresh:
            reader.forget_all_but(self._records)

    def _take(self, reading: Reading) -> None:
        """Take the jobs that were found for the records that were read; a known record keeps its place."""
        self._warn(reading.errors)
        for record_id in reading.answered:
            self._ask_no_more(record_id)
            if record_id not in reading.records:
                self._records.pop(record_id, None)
        self._records.update(reading.records)
        self._update_jobs()

    def _ask_no_more(self, record_id: str) -> None:
        """Ask for no read of a record, which was read or has gone."""
        for asked in (self._urgent, self._pending, self._refresh):
            asked.pop(record_id, None)

    def _update_jobs(self) -> None:
        self._jobs = tuple(chain.from_iterable(self._records.values()))


def _differences(before: str, after: str) -> tuple[dict[str, str], set[str]]:
    """Return the records whose lines differ between two lists or are new, with their lines, and the ids of those gone.

    Slurm's start forecasts of waiting jobs are left out: they change all the time.
    """
    earlier, later = before.splitlines(), after.splitlines()
    in_both = set(earlier).intersection(later)
    old = _lines(line for line in earlier if line not in in_both)
    new = _lines(line for line in later if line not in in_both)
    return {one: line for one, line in new.items() if old.get(one) != line}, old.keys() - new.keys()


def _lines(lines: Iterable[str]) -> dict[str, str]:
    """Return lines without forecasts, by the id of the record; what is no line of a record is left out."""
    return {
        record_id: line.rpartition("|")[0] if "|PENDING|" in line and "|BeginTime|" not in line else line
        for line in lines
        if (record_id := line.partition("|")[0]).isdecimal()
    }
