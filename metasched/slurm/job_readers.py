"""Readers of Slurm's job records: the JSON of squeue, or in Slurm 22.05, whose JSON has all jobs or none, text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import chain, groupby
from operator import attrgetter
from typing import Protocol

from metasched.slurm import job_text, json_parser
from metasched.slurm.client import SlurmJob
from metasched.slurm.command_runner import Buffer
from metasched.slurm.errors import MalformedOutputError, NoSuchJobError
from metasched.slurm.json_parser import Parsed

MOST_NAMED = 1000
"""Records up to which squeue is given their ids; beyond, it prints all jobs."""
MOST_SINGLE = 8
"""Records up to which each is read by a scontrol of its own, in 6 ms; the text of all of 10,000 jobs takes 250 ms."""
MOST_PARSED = 150
"""Texts that are parsed in one call, of a read in the background; one takes 0.15 ms."""
SQUEUE = ("squeue", "-a", "-t", "all")
_SCONTROL = ("scontrol", "-a", "-d", "show", "job")
_ID_WIDTH, _ADMIN_COMMENT_WIDTH = 20, 300  # bytes; a record with a longer AdminComment is read from JSON

Records = Mapping[str, tuple[SlurmJob, ...]]
"""The jobs of records, by the ids of the records; the tasks of an array that are not split off share one."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What one read found.

    Attributes:
        records: the jobs of the records that were read, and of others that Slurm printed with them.
        answered: the ids of the records that were read; those of them that Slurm does not know have no jobs.
        errors: one error for each record that cannot be read.
    """

    records: Records
    answered: Collection[str] = ()
    errors: tuple[MalformedOutputError, ...] = ()

    def __add__(self, later: Reading) -> Reading:
        """Return both; of a record that both have, the jobs of the later one."""
        records = {**self.records, **later.records}
        return Reading(records, [*self.answered, *later.answered], self.errors + later.errors)


class JobReader(Protocol):
    """Reads the jobs of some records; an unchanged job is the same object as in the read before."""

    reads_in_parts: bool
    """Whether each record costs Slurm's time, so that few at a time are asked for."""

    def read(self, urgent: Collection[str], others: Collection[str], lines: Callable[[], Mapping[str, str]]) -> Reading:
        """Read records.

        Args:
            urgent: the ids of records that are read in this call.
            others: the ids of records that a later call may answer.
            lines: returns squeue's lines about all records, by their ids, read before this call.

        Raises:
            SlurmError: Slurm does not answer, or its answer cannot be read.
        """

    def forget_all_but(self, records: Records) -> None:
        """Forget the jobs of all records but these."""


class JsonReader:
    """Reads the JSON of squeue.

    Args:
        run_for_json: runs a command, and returns its output, which may be large.
    """

    reads_in_parts = True

    def __init__(self, run_for_json: Callable[[Sequence[str]], Buffer]) -> None:
        self._run = run_for_json
        self._parser = json_parser.JobsParser()

    def read(self, urgent: Collection[str], others: Collection[str], lines: Callable[[], Mapping[str, str]]) -> Reading:
        """Return the jobs of all records that are asked for; raises SlurmError. The lines are not needed."""
        del lines
        asked = dict.fromkeys([*urgent, *others])
        parsed = self._parse(asked)
        return Reading(_by_record(parsed.records), asked, parsed.errors)

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

    def forget_all_but(self, records: Records) -> None:
        """Forget the parsed JSON of all records but these."""
        self._parser.forget_all_but(chain.from_iterable(records.values()))


@dataclass(frozen=True, slots=True)
class _Text:
    """The text of one record.

    Attributes:
        text: what scontrol prints.
        digest: the hash of what lasts of it. Python keys the hash with a secret of the process, so that no user finds
            two texts alike.
    """

    text: str
    digest: int


@dataclass(frozen=True, slots=True)
class _Texts:
    """What scontrol prints of records; the texts of those that were answered are taken out.

    Attributes:
        changed: the texts that differ from those of the last read, by the ids of the records.
        unchanged: the ids of the records whose texts do not.
        doubtful: the ids of the records whose texts a user's text may have made or ended.
        undecided: the ids of records that may be doubtful, because others came while they were read.
        more: the ids of further records that Slurm prints with one, such as the tasks of an array.
        admin_comments: what squeue prints of all records, by their ids; None for texts of one record.
    """

    changed: dict[str, _Text]
    unchanged: Collection[str]
    doubtful: Collection[str]
    undecided: Collection[str]
    more: Mapping[str, Sequence[str]]
    admin_comments: Mapping[str, str] | None


@dataclass(frozen=True, slots=True)
class _BackgroundRead:
    """A read of all texts in a thread.

    Attributes:
        texts: its result.
        lines: squeue's lines before it began, by the ids of the records.
        read_since: the ids of the records that were read since.
    """

    texts: Future[_Texts]
    lines: Mapping[str, str]
    read_since: set[str]

    def answerable(self, asked: Iterable[str], lines: Mapping[str, str]) -> list[str]:
        """Return which of some records it answers, with at most ``MOST_PARSED`` changed texts.

        Args:
            asked: the ids of the records.
            lines: squeue's present lines about all records, by their ids.
        """
        texts = self.texts.result()
        left_out = self.read_since.union(texts.undecided)
        found = [one for one in asked if self.lines.get(one) == lines.get(one) and one not in left_out]
        late = set([one for one in found if one not in texts.unchanged][MOST_PARSED:])
        return [one for one in found if one not in late]

    def note_answered(self, record_ids: Collection[str]) -> None:
        """Note that records were answered, so that their texts are needed no more."""
        self.read_since.update(record_ids)
        changed = self.texts.result().changed
        for record_id in record_ids:
            changed.pop(record_id, None)


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
        self._parser = json_parser.JobsParser()
        # By the id of the record, with the digest of its text, where the text tells all of the jobs.
        self._known: dict[str, tuple[int, tuple[SlurmJob, ...]]] = {}
        self._background: _BackgroundRead | None = None

    def read(self, urgent: Collection[str], others: Collection[str], lines: Callable[[], Mapping[str, str]]) -> Reading:
        """Return the jobs of the urgent records, and those of the others that a read in the background answers.

        Raises:
            SlurmError: Slurm does not answer, now or when the read in the background was made.
        """
        asked = dict.fromkeys([*urgent, *others])
        if len(urgent) > MOST_SINGLE:
            self._background = None
            texts = self._read_all({*lines(), *self._known})
            sure = [record_id for record_id in asked if record_id not in texts.undecided]
            rest = [record_id for record_id in asked if record_id in texts.undecided]
            return self._take(texts, sure) + self._read_singly(rest)
        now = list(asked if len(asked) <= MOST_SINGLE else dict.fromkeys(urgent))
        found = self._read_singly(now)
        read_now = {*now, *found.records}
        return self._answer_in_background([one for one in asked if one not in read_now], lines, read_now) + found

    def forget_all_but(self, records: Records) -> None:
        """Forget the texts and the parsed JSON of all records but these."""
        self._parser.forget_all_but(chain.from_iterable(records.values()))
        self._known = {record_id: known for record_id, known in self._known.items() if record_id in records}

    def _read_singly(self, record_ids: Iterable[str]) -> Reading:
        found = Reading({})
        for record_id in record_ids:
            try:
                printed = self._run_for_large([*_SCONTROL, record_id])
            except NoSuchJobError:
                found += Reading({}, [record_id])
            else:
                found += self._take(self._sorted(printed, None, {record_id}, None), [record_id])
        return found

    def _answer_in_background(
        self, asked: Collection[str], lines: Callable[[], Mapping[str, str]], read_now: Collection[str]
    ) -> Reading:
        """Return what a read in the background answers of some records; begin one where there is none.

        Undecided records are read singly.

        Raises:
            SlurmError: the read in the background has failed.
        """
        found = Reading({})
        background, self._background = self._background, None
        if background is not None:
            background.read_since.update(read_now)
            if not background.texts.done():
                self._background = background
                return found
            texts = background.texts.result()
            found = self._take(texts, background.answerable(asked, lines()), background.read_since)
            undecided = [one for one in asked if one in texts.undecided and one not in background.read_since]
            found += self._read_singly(undecided[:MOST_SINGLE])
            background.note_answered(found.answered)
        if not set(asked) <= set(found.answered):
            if background is None or not found.answered:
                before = {*lines(), *self._known}
                background = _BackgroundRead(self._start(lambda: self._read_all(before)), lines(), set())
            self._background = background
        return found

    def _read_all(self, before: Collection[str]) -> _Texts:
        printed = self._run_for_large(_SCONTROL)
        comments = self._admin_comments()
        return self._sorted(printed, before, comments.keys(), comments)

    def _sorted(
        self,
        printed: Buffer,
        before: Collection[str] | None,
        after: Collection[str],
        comments: Mapping[str, str] | None,
    ) -> _Texts:
        """Tell the records in an output apart: doubtful, undecided, changed and unchanged ones.

        Args:
            printed: the output.
            before: the ids of records that existed before it; None for the output about one record.
            after: the ids of records that squeue lists after it, which may leave out some of a group.
            comments: what squeue prints of all records, by their ids; None for the output about one record.
        """
        records = list(job_text.records(printed))
        groups = {one.group_id for one in records if one.job_id not in after and one.group_id in after}
        existing = {*after, *self._members_of(groups)}
        times = Counter(one.job_id for one in records)
        forged = {one.job_id for one in records if one.job_id not in existing or times[one.job_id] > 1}
        new = set() if before is None else existing.difference(before, forged)
        doubtful = _with_previous(records, forged)
        undecided = _with_previous(records, new) | {one.group_id for one in records if one.job_id in new}
        changed: dict[str, _Text] = {}
        unchanged: set[str] = set()
        more: dict[str, list[str]] = {}
        for one in records:
            if one.job_id not in existing or one.job_id in doubtful:
                continue
            if one.job_id not in after:
                more.setdefault(one.group_id, []).append(one.job_id)
            text, known = one.text(printed), self._known.get(one.job_id)
            digest = hash(job_text.lasting(text))
            if known is not None and known[0] == digest:
                unchanged.add(one.job_id)
            else:
                changed[one.job_id] = _Text(text, digest)
        return _Texts(changed, unchanged, doubtful & existing, undecided - doubtful, more, comments)

    def _take(self, texts: _Texts, record_ids: Collection[str], read_since: Collection[str] = ()) -> Reading:
        """Parse the texts of records, and those of more that Slurm prints with them and that were not read since."""
        found: dict[str, tuple[SlurmJob, ...]] = {}
        left: set[str] = set()  # to be read from JSON
        left_out = {*read_since, *texts.undecided}
        more = (one for record_id in record_ids for one in texts.more.get(record_id, ()) if one not in left_out)
        for record_id in dict.fromkeys([*record_ids, *more]):
            known, text = self._known.get(record_id), texts.changed.get(record_id)
            jobs: tuple[SlurmJob, ...] = ()
            if text is not None:
                jobs = _parse(record_id, text.text)
                if jobs and self._is_confirmed(jobs[0], texts):
                    self._known[record_id] = text.digest, jobs
                else:
                    jobs = ()
            elif record_id in texts.unchanged and known is not None:
                jobs = known[1]
            if jobs:
                found[record_id] = jobs
            elif text is not None or record_id in texts.unchanged or record_id in texts.doubtful:
                left.add(record_id)
        if not left:
            return Reading(found, record_ids)
        by_json = self._read_json(left)
        records = _by_record(by_json.records)
        for record_id, jobs in records.items():
            text = texts.changed.get(record_id)
            if text is not None and not job_text.hides_hold(text.text):
                self._known[record_id] = text.digest, jobs
        return Reading({**found, **records}, record_ids, by_json.errors)

    def _members_of(self, groups: Collection[str]) -> list[str]:
        """Return the ids of the records of arrays and of heterogeneous jobs."""
        if not groups:
            return []
        named = ["-j", ",".join(sorted(groups))] if len(groups) <= MOST_NAMED else []
        try:
            return self._run([*SQUEUE, "-h", "-r", "-o", "%A", *named]).split()
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
        """Return the beginnings of AdminComments by the ids of the records, of one record or all.

        A record with an AdminComment that has a line break is left out.
        """
        form = f"JobID:{_ID_WIDTH},admin_comment:{_ADMIN_COMMENT_WIDTH}"
        try:
            printed = self._run_for_large([*SQUEUE, "-h", "-O", form, *(["-j", record_id] if record_id else [])])
        except NoSuchJobError:
            return {}
        found: dict[str, str] = {}
        begin = 0
        while (end := printed.find(b"\n", begin)) >= 0:
            line = bytes(printed[begin:end])
            comment = line[_ID_WIDTH:].decode(errors="replace").rstrip()
            if len(line) == _ID_WIDTH + _ADMIN_COMMENT_WIDTH:
                found[line[:_ID_WIDTH].decode(errors="replace").strip()] = "" if comment == "(null)" else comment
            begin = end + 1
        return found

    def _read_json(self, record_ids: Collection[str]) -> Parsed[SlurmJob]:
        document = self._run_for_large([*SQUEUE, "--json"])
        if (picked := self._parser.pick(document, record_ids)) is not None:
            return Parsed(picked, ())
        parsed = self._parser.parse(document)
        asked = (job for job in parsed.records if not {str(job.job_id), str(job.array_job_id)}.isdisjoint(record_ids))
        return Parsed(tuple(asked), parsed.errors)


def _with_previous(records: Sequence[job_text.Record], job_ids: Collection[str]) -> set[str]:
    """Return ids of records, and those of the records printed just before them, whose texts may have made them."""
    pairs = zip([None, *records], records, strict=False)
    return {one.job_id for pair in pairs if pair[1].job_id in job_ids for one in pair if one is not None}


def _by_record(jobs: Iterable[SlurmJob]) -> dict[str, tuple[SlurmJob, ...]]:
    """Return jobs, which stand by record, by the ids of their records."""
    return {str(job_id): tuple(tasks) for job_id, tasks in groupby(jobs, attrgetter("job_id"))}


def _parse(record_id: str, text: str) -> tuple[SlurmJob, ...]:
    """Return the jobs of a record; none where its text cannot be read or trusted."""
    try:
        jobs = json_parser.parse_job_record(job_text.fields(text))
    except (ValueError, MalformedOutputError):
        return ()
    return () if any(str(job.job_id) != record_id for job in jobs) else jobs
