"""The jobs that squeue lists, of which each poll reads again only those that have changed.

The JSON of a job costs Slurm some ten times as much as a line of text about it (of 10,000 jobs: seconds), so that a
poll reads one line for each job, and the JSON of the jobs whose lines differ from the poll before:

    urgent: jobs that this client has written since, and changed jobs that are not pending; all in one poll
    pending: changed and new pending jobs, in the order of their changes; a limited number in each poll
    refresh: once a minute every job, for changes that its line does not show (an edited comment); some in each poll

Slurm 22.05 prints the JSON of all jobs or of none. There a poll picks what has changed from that, all of it at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import chain, groupby, islice
from operator import attrgetter

from metasched.slurm import json_parser
from metasched.slurm.client import SlurmJob
from metasched.slurm.command_runner import Buffer
from metasched.slurm.errors import MalformedOutputError, SlurmError, SlurmUnavailableError

# %A is the id of the record itself: tasks of an array that are not split off yet share a record. All fields are
# Slurm's own: a user's text could hold anything. A line that equals the previous poll's means the same job: a requeue
# rewrites the submit time, a start and an end the state.
_FINGERPRINT = "%A|%i|%T|%r|%V|%Q|%N|%D|%C|%m|%l|%P|%S"
_SQUEUE = ("squeue", "-a", "-t", "all")
MOST_READS = 500
"""Urgent and pending records that one poll reads, at most, but for a full read; the JSON of one costs squeue 0.4 ms."""
MOST_PICKED = 200
"""Changed records up to which only these are parsed in the JSON of all."""
REFRESH_SECONDS = 60.0
REFRESH_READS, REFRESH_POLLS = 250, 30
"""A refresh reads that many records in each poll, or as many as let it end after that many polls."""


class JobList:
    """Slurm's jobs; an unchanged job is the same object as in the poll before.

    Args:
        run: runs a command, and returns its output.
        run_for_json: the same, for large outputs.
        warn: called with the records that cannot be read, which are left out.
    """

    def __init__(
        self,
        run: Callable[[Sequence[str]], str],
        run_for_json: Callable[[Sequence[str]], Buffer],
        warn: Callable[[Sequence[MalformedOutputError]], None],
    ) -> None:
        self._run, self._run_for_json, self._warn = run, run_for_json, warn
        self._parser = json_parser.JobsParser()
        self._text: str | None = None  # the lines of the last poll; None: read all
        self._records: dict[str, tuple[SlurmJob, ...]] = {}  # the jobs of each record, by its id
        self._jobs: tuple[SlurmJob, ...] = ()
        self._written: set[str] = set()  # ids of the jobs that were written since the last poll
        self._urgent: dict[str, None] = {}  # ids of the records to read in the next poll
        self._pending: dict[str, None] = {}  # ids of the records to read as far as they are not too many
        self._refresh: list[str] = []  # ids of the records that are still to be refreshed, the next one last
        self._refreshed = 0.0  # when the last refresh began
        self._reads_single = True  # whether squeue prints the JSON of single jobs, as far as its output has told

    def note_write(self, slurm_job_id: str) -> None:
        """Read a job again in the next poll, because what was read before is out of date."""
        self._written.add(slurm_job_id)

    def read(self) -> tuple[SlurmJob, ...]:
        """Read what has changed.

        Raises:
            SlurmError: Slurm does not answer, or its answer cannot be read; the next call reads what this one did not.
        """
        # The lines are read first: a change between the two reads shows in the next poll.
        text = self._run([*_SQUEUE, "-h", "-o", _FINGERPRINT])
        if self._text is None:
            self._read_all()
        else:
            self._note_changes(self._text, text)
            self._note_written()
        self._text = text
        if self._reads_single:
            self._read_some()
        elif self._urgent or self._pending or time.monotonic() - self._refreshed >= REFRESH_SECONDS:
            self._pick_changed()
        return self._jobs

    def _note_changes(self, before: str, after: str) -> None:
        if before == after:
            return
        changed, gone = _differences(before, after)
        for record_id in gone:
            self._urgent.pop(record_id, None)
            self._pending.pop(record_id, None)
            self._records.pop(record_id, None)
        for record_id, line in changed.items():
            (self._pending if "|PENDING|" in line else self._urgent)[record_id] = None
        if gone:
            self._update_jobs()

    def _note_written(self) -> None:
        written, self._written = self._written, set()
        if any(not slurm_job_id.isdecimal() for slurm_job_id in written):  # tasks of arrays
            record_ids = {job.slurm_job_id: str(job.job_id) for job in self._jobs}
            written = {record_ids.get(slurm_job_id, slurm_job_id) for slurm_job_id in written}
        listed = (one for one in sorted(written) if one in self._records or one in self._pending)
        self._urgent.update(dict.fromkeys(listed))

    def _update_jobs(self) -> None:
        self._jobs = tuple(chain.from_iterable(self._records.values()))

    # -- squeue prints the JSON of single jobs ---------------------------------------------------------------------

    def _read_some(self) -> None:
        """Read the urgent records, some of the pending ones, and some of those to refresh."""
        if len(self._urgent) > MOST_READS:
            self._read_all()
            return
        pending = (record_id for record_id in self._pending if record_id not in self._urgent)
        wanted = [*self._urgent, *islice(pending, MOST_READS - len(self._urgent))]
        refreshed = self._next_to_refresh()
        asked = dict.fromkeys([*wanted, *refreshed])
        if not asked:
            return
        started = time.monotonic()
        try:
            document = self._run_for_json([*_SQUEUE, "--json", "-j", ",".join(asked)])
        except SlurmUnavailableError:
            raise
        except SlurmError:  # the only one of the jobs has gone meanwhile
            self._read_all()
            return
        parsed = self._parser.parse(document, whole=False)
        found = _by_record(parsed.records)
        if self._has_unasked(found, asked) and self._records.keys() <= found.keys() | asked.keys():
            self._reads_single = False  # 22.05
            self._take_all(parsed, started)
            return
        self._warn(parsed.errors)
        self._replace(asked, found)
        del self._refresh[len(self._refresh) - len(refreshed) :]
        if refreshed and not self._refresh:
            self._parser.forget_all_but(self._jobs)

    def _has_unasked(self, found: Mapping[str, tuple[SlurmJob, ...]], asked: Collection[str]) -> bool:
        """Whether squeue printed records that were not asked for, tasks of an asked array and het components apart."""
        more = [found[one][0] for one in found.keys() - asked]
        arrays = {jobs[0].array_job_id for one in asked if (jobs := found.get(one))} - {None} if more else ()
        return any(not job.het and job.array_job_id not in arrays for job in more)

    def _next_to_refresh(self) -> list[str]:
        """The next records to refresh: all that have a line, also one that an earlier read did not have."""
        now = time.monotonic()
        due = not self._refresh and now - self._refreshed >= REFRESH_SECONDS
        if not (due or self._refresh):
            return []
        listed = dict.fromkeys(line.partition("|")[0] for line in (self._text or "").splitlines())
        if due:
            self._refresh, self._refreshed = list(reversed(listed)), now
        self._refresh = [one for one in self._refresh if one in listed]
        return self._refresh[-max(REFRESH_READS, -(-len(listed) // REFRESH_POLLS)) :]

    def _replace(self, asked: Iterable[str], found: Mapping[str, tuple[SlurmJob, ...]]) -> None:
        """Take the found records for those that were asked for; a known one keeps its place."""
        for record_id in asked:
            self._urgent.pop(record_id, None)
            self._pending.pop(record_id, None)
            if record_id not in found:
                self._records.pop(record_id, None)
        self._records.update(found)
        self._update_jobs()

    # -- squeue prints the JSON of all jobs -------------------------------------------------------------------------

    def _pick_changed(self) -> None:
        """Read the JSON of all jobs, and parse what has changed, or once a minute all of it."""
        started, document = time.monotonic(), self._run_for_json([*_SQUEUE, "--json"])
        asked = self._urgent | self._pending
        picked = None
        if started - self._refreshed < REFRESH_SECONDS and len(asked) <= MOST_PICKED:
            picked = self._parser.pick(document, asked)
        if picked is None:
            self._parse_all(document, started)
        else:
            self._replace(asked, _by_record(picked))

    def _read_all(self) -> None:
        started = time.monotonic()
        self._parse_all(self._run_for_json([*_SQUEUE, "--json"]), started)

    def _parse_all(self, document: Buffer, started: float) -> None:
        self._take_all(self._parser.parse(document), started)

    def _take_all(self, parsed: json_parser.Parsed[SlurmJob], started: float) -> None:
        self._warn(parsed.errors)
        self._records, self._refreshed = _by_record(parsed.records), started
        self._refresh, self._urgent, self._pending = [], {}, {}
        self._update_jobs()


def _by_record(jobs: Iterable[SlurmJob]) -> dict[str, tuple[SlurmJob, ...]]:
    """Return jobs by the ids of their records, in their order; tasks of an array may share a record."""
    return {str(job_id): tuple(tasks) for job_id, tasks in groupby(jobs, attrgetter("job_id"))}


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
    """Return lines without forecasts, by the id of the record."""
    return {
        line.partition("|")[0]: line.rpartition("|")[0] if "|PENDING|" in line and "|BeginTime|" not in line else line
        for line in lines
    }
