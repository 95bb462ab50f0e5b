"""Readers of Slurm's job records: the JSON of squeue, or in Slurm 22.05, whose JSON has all jobs or none, text."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import chain, groupby, pairwise
from operator import attrgetter
from typing import Protocol

from metasched.slurm import job_text, json_parser
from metasched.slurm.client import SlurmJob
from metasched.slurm.command_runner import Buffer
from metasched.slurm.errors import NoSuchJobError
from metasched.slurm.json_parser import Parsed

MOST_NAMED = 1000
"""Records up to which squeue is given their ids; beyond, it prints all jobs."""
MOST_SINGLE = 8
"""Records up to which each is read by a scontrol of its own, in 6 ms; the text of all of 10,000 jobs takes 250 ms."""
MOST_PARSED = 500
"""Texts that are parsed in one call, of a read in the background; one takes 0.15 ms."""
SQUEUE = ("squeue", "-a", "-t", "all")
_SCONTROL = ("scontrol", "-a", "-d", "show", "job")
_ID_WIDTH, _ADMIN_COMMENT_WIDTH = 20, 300  # characters; a longer AdminComment is read from JSON


@dataclass(frozen=True, slots=True)
class Reading:
    """What one read found.

    Attributes:
        parsed: the jobs, and one error for each record that cannot be read.
        answered: the ids of the records that were read; those of them that Slurm does not know have no jobs.
    """

    parsed: Parsed[SlurmJob]
    answered: Collection[str]


class JobReader(Protocol):
    """Reads the jobs of some records; an unchanged job is the same object as in the read before."""

    reads_in_parts: bool
    """Whether each record costs Slurm's time, so that few at a time are asked for."""

    def read(self, urgent: Collection[str], others: Mapping[str, str]) -> Reading:
        """Read records; jobs of further ones may be found, too.

        Args:
            urgent: the ids of records that are read in this call.
            others: the lines of squeue about records that a later call may answer, by their ids.

        Raises:
            SlurmError: Slurm does not answer, or its answer cannot be read.
        """

    def forget_all_but(self, records: Mapping[str, Sequence[SlurmJob]]) -> None:
        """Forget the jobs of all records but these, which are given by their ids."""


class JsonReader:
    """Reads the JSON of squeue.

    Args:
        run_for_json: runs a command, and returns its output, which may be large.
    """

    reads_in_parts = True

    def __init__(self, run_for_json: Callable[[Sequence[str]], Buffer]) -> None:
        self._run = run_for_json
        self._parser = json_parser.JobsParser()

    def read(self, urgent: Collection[str], others: Mapping[str, str]) -> Reading:
        """See JobReader."""
        asked = dict.fromkeys([*urgent, *others])
        return Reading(self._parse(asked), asked)

    def _parse(self, record_ids: Collection[str]) -> Parsed[SlurmJob]:
        if not record_ids:
            return Parsed((), ())
        if len(record_ids) > MOST_NAMED:
            return self._parser.parse(self._run([*SQUEUE, "--json"]))
        try:
            document = self._run([*SQUEUE, "--json", "-j", ",".join(record_ids)])
        except NoSuchJobError:  # the only one has gone
            return Parsed((), ())
        return self._parser.parse(document, whole=False)

    def forget_all_but(self, records: Mapping[str, Sequence[SlurmJob]]) -> None:
        """See JobReader."""
        self._parser.forget_all_but(chain.from_iterable(records.values()))


@dataclass(frozen=True, slots=True)
class _Texts:
    """What scontrol prints of records.

    Attributes:
        changed: the texts that differ from those of the last read, by the ids of the records.
        same: the ids of the records whose texts do not.
        doubtful: the ids of the records whose texts a user's text may have made or ended.
        tasks: the ids of records of array tasks that have no line of squeue's, by their arrays.
        admin_comments: what squeue prints of all records, by their ids; None for texts of one record.
    """

    changed: Mapping[str, str]
    same: Collection[str]
    doubtful: Collection[str]
    tasks: Mapping[str, Sequence[str]]
    admin_comments: Mapping[str, str] | None


@dataclass(frozen=True, slots=True)
class _BackgroundRead:
    """A read of all texts in a thread.

    Attributes:
        texts: its result.
        lines: the lines of the records that it is to answer, as they were when it began.
        later: the ids of the records that were read since.
    """

    texts: Future[_Texts]
    lines: Mapping[str, str]
    later: set[str]

    def answerable(self, lines: Mapping[str, str]) -> list[str]:
        """Return the ids of records that it answers, with at most ``MOST_PARSED`` changed texts.

        Args:
            lines: the present lines of the records that are asked for.
        """
        same = self.texts.result().same
        found = [one for one, line in lines.items() if self.lines.get(one) == line and one not in self.later]
        changed = [one for one in found if one not in same]
        left = set(changed[MOST_PARSED:])
        return [one for one in found if one not in left]


class TextReader:
    """Reads the text of scontrol, and the JSON of all jobs for records whose text cannot be read or trusted.

    Few records are read one by one, many urgent ones with all others, and many others by a read in a thread, so that
    the caller does not wait for it. That answers a record whose line is still the one that it had when the read began.

    Args:
        run: runs a command, and returns its output; called in a thread, too.
        run_for_large: the same, for large outputs.
        start: starts a call in a thread.
    """

    reads_in_parts = False

    def __init__(
        self,
        run: Callable[[Sequence[str]], str],
        run_for_large: Callable[[Sequence[str]], Buffer],
        start: Callable[[Callable[[], _Texts]], Future[_Texts]],
    ) -> None:
        self._run, self._run_for_large, self._start = run, run_for_large, start
        # By the id of the record, with the hash of the lasting text, where that tells all of the jobs. Python keys the
        # hash with a secret of the process, so that no user finds two texts alike.
        self._known: dict[str, tuple[int, tuple[SlurmJob, ...]]] = {}
        self._background: _BackgroundRead | None = None

    def read(self, urgent: Collection[str], others: Mapping[str, str]) -> Reading:
        """See JobReader."""
        asked = dict.fromkeys([*urgent, *others])
        if len(urgent) > MOST_SINGLE:
            self._background = None
            return Reading(self._take(self._read_all(), asked), asked)
        if len(asked) > MOST_SINGLE:
            asked = dict.fromkeys(urgent)
        found: list[Parsed[SlurmJob]] = []
        for record_id in asked:
            with contextlib.suppress(NoSuchJobError):
                found.append(self._take(self._read_one(record_id), [record_id]))
        answered, parsed = self._read_in_background(asked, {one: others[one] for one in others if one not in asked})
        found.append(parsed)
        records, errors = (one.records for one in found), (one.errors for one in found)
        whole = Parsed(tuple(chain.from_iterable(records)), tuple(chain.from_iterable(errors)))
        return Reading(whole, [*asked, *answered])

    def forget_all_but(self, records: Mapping[str, Sequence[SlurmJob]]) -> None:
        """See JobReader."""
        self._known = {record_id: known for record_id, known in self._known.items() if record_id in records}

    def _read_in_background(
        self, read_now: Collection[str], others: Mapping[str, str]
    ) -> tuple[Collection[str], Parsed[SlurmJob]]:
        """Return what a read in the background answers of the other records; begin one where there is none.

        Raises:
            SlurmError: it has failed.
        """
        answered: list[str] = []
        parsed: Parsed[SlurmJob] = Parsed((), ())
        background, self._background = self._background, None
        if background is not None:
            background.later.update(read_now)
            if background.texts.done():
                texts = background.texts.result()
                answered = background.answerable(others)
                parsed = self._take(texts, answered, background.later)
                background.later.update(answered)
        if background is not None and (answered or not background.texts.done()):
            self._background = background
        elif others:
            self._background = _BackgroundRead(self._start(self._read_all), dict(others), set())
        return answered, parsed

    def _read_all(self) -> _Texts:
        printed = self._run_for_large(_SCONTROL)
        comments = self._admin_comments()
        return self._sorted(printed, comments, comments)

    def _read_one(self, record_id: str) -> _Texts:
        return self._sorted(self._run_for_large([*_SCONTROL, record_id]), [record_id], None)

    def _sorted(self, printed: Buffer, listed: Collection[str], comments: Mapping[str, str] | None) -> _Texts:
        """Sort what scontrol prints; ``listed`` are the ids of the records that exist, but for some tasks of arrays."""
        records = list(job_text.records(printed))
        arrays = {one.array_id for one in records if one.job_id not in listed and one.array_id in listed}
        existing = {*listed, *self._tasks_of(arrays)}
        times = Counter(one.job_id for one in records)
        doubtful: set[str] = set()
        for before, one in pairwise([None, *records]):
            # The text of the record before may have made this one.
            if one is not None and (one.job_id not in existing or times[one.job_id] > 1):
                doubtful |= {one.job_id, *([before.job_id] if before else [])}
        changed: dict[str, str] = {}
        same: set[str] = set()
        tasks: dict[str, list[str]] = {}
        for one in records:
            if one.job_id not in existing:
                continue
            if one.job_id not in listed:
                tasks.setdefault(one.array_id, []).append(one.job_id)
            text, known = one.text(printed), self._known.get(one.job_id)
            if known is not None and known[0] == hash(job_text.lasting(text)) and one.job_id not in doubtful:
                same.add(one.job_id)
            else:
                changed[one.job_id] = text
        return _Texts(changed, same, doubtful & existing, tasks, comments)

    def _take(self, texts: _Texts, record_ids: Collection[str], later: Collection[str] = ()) -> Parsed[SlurmJob]:
        """Parse the texts of records, and those of tasks without a line of squeue's that were not read later."""
        found: list[SlurmJob] = []
        left: set[str] = set()  # to be read from JSON
        tasks = (task for record_id in record_ids for task in texts.tasks.get(record_id, ()) if task not in later)
        for record_id in dict.fromkeys([*record_ids, *tasks]):
            known, text = self._known.get(record_id), texts.changed.get(record_id)
            jobs: tuple[SlurmJob, ...] = ()
            if record_id not in texts.doubtful and text is not None:
                jobs = _parse(record_id, text)
                if jobs and self._is_confirmed(jobs[0], texts):
                    self._known[record_id] = hash(job_text.lasting(text)), jobs
                else:
                    jobs = ()
            elif record_id in texts.same and known is not None:
                jobs = known[1]
            found += jobs
            if not jobs and (text is not None or record_id in texts.same):
                left.add(record_id)
        by_json: Parsed[SlurmJob] = self._read_json(left) if left else Parsed((), ())
        for record_id, jobs in by_record(by_json.records).items():
            text = None if record_id in texts.doubtful else texts.changed.get(record_id)
            if text is not None and not job_text.hides_hold(text):
                self._known[record_id] = hash(job_text.lasting(text)), jobs
        return Parsed((*found, *by_json.records), by_json.errors)

    def _tasks_of(self, arrays: Collection[str]) -> list[str]:
        """Return the ids of the records of arrays."""
        if not arrays:
            return []
        try:
            return self._run([*SQUEUE, "-h", "-r", "-o", "%A", "-j", ",".join(sorted(arrays))]).split()
        except NoSuchJobError:
            return []

    def _is_confirmed(self, job: SlurmJob, texts: _Texts) -> bool:
        """Whether squeue prints a job's AdminComment, or the job had it before."""
        record_id = str(job.job_id)
        known = self._known.get(record_id)
        if job.admin_comment == ("" if known is None else known[1][0].admin_comment):
            return True
        printed = texts.admin_comments
        if printed is None or record_id not in printed:
            printed = self._admin_comments(record_id)
        return printed.get(record_id) == job.admin_comment.rstrip()

    def _admin_comments(self, record_id: str | None = None) -> dict[str, str]:
        """Return the beginnings of AdminComments by the ids of the records, of one record or all."""
        form = f"JobID:{_ID_WIDTH},admin_comment:{_ADMIN_COMMENT_WIDTH}"
        try:
            printed = self._run_for_large([*SQUEUE, "-h", "-O", form, *(["-j", record_id] if record_id else [])])
        except NoSuchJobError:
            return {}
        found: dict[str, str] = {}
        begin = 0
        while (end := printed.find(b"\n", begin)) >= 0:
            line = bytes(printed[begin:end]).decode(errors="replace")
            comment = line[_ID_WIDTH:].rstrip()
            found[line[:_ID_WIDTH].strip()] = "" if comment == "(null)" else comment
            begin = end + 1
        return found

    def _read_json(self, record_ids: Collection[str]) -> Parsed[SlurmJob]:
        document, parser = self._run_for_large([*SQUEUE, "--json"]), json_parser.JobsParser()
        if (picked := parser.pick(document, record_ids)) is not None:
            return Parsed(picked, ())
        parsed = parser.parse(document)
        asked = (job for job in parsed.records if not {str(job.job_id), str(job.array_job_id)}.isdisjoint(record_ids))
        return Parsed(tuple(asked), parsed.errors)


def by_record(jobs: Iterable[SlurmJob]) -> dict[str, tuple[SlurmJob, ...]]:
    """Return jobs by the ids of their records, in their order; tasks of an array may share a record."""
    return {str(job_id): tuple(tasks) for job_id, tasks in groupby(jobs, attrgetter("job_id"))}


def _parse(record_id: str, text: str) -> tuple[SlurmJob, ...]:
    """Return the jobs of a record; none where its text cannot be read or trusted."""
    try:
        parsed = json_parser.parse_job_record(job_text.fields(text))
    except ValueError:
        return ()
    return () if parsed.errors or any(str(job.job_id) != record_id for job in parsed.records) else parsed.records
