"""Ingest of report files from the shared directory into the store, each line exactly once.

The files belong to users: a path may be a symlink, a pipe, somebody else's file, or change while it is read. Nothing
here follows a link, blocks, reads more than its budget, or trusts a line.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from metasched.shared_dir.owned_files import RefusedFileError, owned_directory, owned_file
from metasched.shared_dir.reports import (
    MAX_LINE_BYTES,
    ProfilingReport,
    RefusedLineError,
    Report,
    StartReport,
    parse_line,
)
from metasched.store.report_rows import MAX_FILES, ReportFile
from metasched.store.reported_batching import has_implausible_noise
from metasched.store.store import Store

POLL_BYTES = 1024 * 1024
"""Most bytes read of one job in one call."""
POLL_LINES = 2_000
"""Most lines read of one job in one call; a trainer writes about one a second."""
MAX_REFUSED = 1_000
"""Number of refused lines from which a file is read no further."""
MAX_ENTRIES = 10_000
"""A directory with more entries is not read."""

_FILE_NAME = re.compile(r"incarnation-([1-9][0-9]{0,8})\.jsonl")


@dataclass(slots=True)
class _Budget:
    """Bytes and lines that one call may still read."""

    bytes: int = POLL_BYTES
    lines: int = POLL_LINES

    @property
    def is_spent(self) -> bool:
        """Whether no further line may be read, because it could be of ``MAX_LINE_BYTES``."""
        return self.bytes <= MAX_LINE_BYTES or self.lines == 0


@dataclass(frozen=True, slots=True)
class _Read:
    """The bytes after a file's reading position, the file's size, and whether the file ends within a line."""

    data: bytes
    size: int
    torn: bool = False


@dataclass(frozen=True, slots=True)
class IngestResult:
    """The result of one call of ``ingest``.

    Attributes:
        lines: number of accepted lines.
        more: whether the budget ended before the files did: call again.
        profiling_reports: reports of profiling runs before the run.
    """

    lines: int = 0
    more: bool = False
    profiling_reports: tuple[ProfilingReport, ...] = ()


def ingest(store: Store, reports: Path, uid: str, owner: int, now: float) -> IngestResult:
    """Read the new lines of a job's report files and commit them.

    Every file's rows and its new reading position are one transaction, so a line is ingested exactly once wherever the
    daemon is killed. Only whole lines are read. Refused lines are counted; the first of a job is an event, and a file
    with too many is read no further. A file that is shorter than its reading position was truncated or replaced: its
    present content is skipped, since a line lost is better than a line counted twice, and lines that are appended later
    are read. Of many files those of the latest generations are read.

    Args:
        store: open for writing.
        reports: the ``reports`` directory of the shared tree.
        uid: the job.
        owner: numeric user id of the job's owner; directory and files must be theirs.
        now: unix seconds.

    Returns:
        The lines read, none for a job without a directory. A directory or file that cannot be read is no error, but an
        event of the job: one for each kind of failure.

    Raises:
        StoreError: the store could not be written; what it has not committed is read again by the next call.
    """
    total = IngestResult()
    try:
        with owned_directory(reports, uid, owner) as directory:
            known = store.report_files(uid)
            generations = _generations(directory, known)
            newest = max((*known, *generations), default=0)
            budget = _Budget()
            for generation in generations:
                file = known.get(generation, ReportFile(uid, generation))
                try:
                    if file.refused >= MAX_REFUSED or _size(directory, generation) == file.offset:
                        continue
                    if budget.is_spent:
                        return replace(total, more=True)
                    read = _read(directory, file, owner, budget.bytes)
                except FileNotFoundError:
                    continue  # somebody has removed it meanwhile
                except RefusedFileError as error:
                    store.event_once("reports-file-refused", f"{_name(generation)}: {error}", uid, at=now)
                    continue
                except OSError as error:
                    store.event_once("reports-unreadable", f"{_name(generation)}: {error.strerror}", uid, at=now)
                    continue
                budget.bytes -= len(read.data)
                total = _added(total, _commit(store, file, read, now, budget, latest=generation == newest))
    except FileNotFoundError:
        pass  # no trainer has written yet
    except RefusedFileError as error:
        store.event_once("reports-refused", f"reports/{uid}: {error}", uid, at=now)
    except OSError as error:
        store.event_once("reports-unreadable", f"reports/{uid}: {error.strerror}", uid, at=now)
    return total


def _name(generation: int) -> str:
    return f"incarnation-{generation}.jsonl"


def _generations(directory: int, known: Collection[int]) -> list[int]:
    """The latest generations whose files are there, in order; none from before those that the store remembers."""
    with os.scandir(directory) as entries:
        names = [entry.name for entry in islice(entries, MAX_ENTRIES + 1)]
    if len(names) > MAX_ENTRIES:
        raise RefusedFileError(f"more than {MAX_ENTRIES} files")
    found = sorted(int(match[1]) for name in names if (match := _FILE_NAME.fullmatch(name)))
    first = sorted(known)[-MAX_FILES] if len(known) >= MAX_FILES else 0
    return [generation for generation in found[-MAX_FILES:] if generation >= first]


def _size(directory: int, generation: int) -> int:
    return os.stat(_name(generation), dir_fd=directory, follow_symlinks=False).st_size


def _read(directory: int, file: ReportFile, owner: int, budget: int) -> _Read:
    """Read at most ``budget`` bytes after the reading position."""
    with owned_file(_name(file.generation), directory, owner) as (descriptor, facts):
        if facts.st_size < file.offset:
            torn = facts.st_size > 0 and os.pread(descriptor, 1, facts.st_size - 1) != b"\n"
            return _Read(b"", facts.st_size, torn=torn)
        return _Read(os.pread(descriptor, budget, file.offset), facts.st_size)


def _commit(store: Store, file: ReportFile, read: _Read, now: float, budget: _Budget, *, latest: bool) -> IngestResult:
    """Parse the bytes that were read, within the budget of lines, and commit the reports with the new position."""
    name = _name(file.generation)
    if read.size < file.offset:
        with store.transaction():
            text = f"{name}: became shorter than what was read of it; what it held then is skipped"
            store.event_once("reports-truncated", text, file.uid, at=now)
            # continue at the beginning of a line: the rest of a torn line is skipped, too
            store.commit_reports(replace(file, offset=read.size, skipping=read.torn), (), latest=False)
        return IngestResult()
    after, reports = _parse(file, read.data, now, budget)
    given_up = after.refused >= MAX_REFUSED
    if after != file:
        with store.transaction():
            store.commit_reports(after, reports, latest=latest)
            if after.refused > file.refused:
                text = f"{name}: lines that are not what the protocol says were refused"
                store.event_once("reports-lines-refused", text, file.uid, at=now)
            if any(map(has_implausible_noise, reports)):
                text = f"{name}: gradient noise that is negative or huge was clamped"
                store.event_once("reports-noise-clamped", text, file.uid, at=now)
            if given_up:
                text = f"{name}: {after.refused} lines were refused; no more is read of it"
                store.event_once("reports-given-up", text, file.uid, at=now)
    unread = file.offset + len(read.data) < read.size or (budget.lines == 0 and after.offset < read.size)
    profiling_reports = tuple(report for report in reports if isinstance(report, ProfilingReport))
    return IngestResult(len(reports), unread and not given_up, profiling_reports)


def _parse(file: ReportFile, data: bytes, now: float, budget: _Budget) -> tuple[ReportFile, list[Report]]:
    """The new reading position, and the reports of the whole lines in ``data`` up to it, within the budget."""
    begin = 0
    refused = file.refused
    skipping = file.skipping
    reports: list[Report] = []
    while budget.lines > 0 and refused < MAX_REFUSED:
        end = data.find(b"\n", begin)
        if end < 0:
            if not skipping and len(data) - begin > MAX_LINE_BYTES:
                skipping = True
                refused += 1
            if skipping:
                begin = len(data)
            break
        line = data[begin:end]
        begin = end + 1
        budget.lines -= 1
        if skipping:
            skipping = False
            continue
        try:
            report = _report(line, file, now)
        except RefusedLineError:
            refused += 1
            continue
        if report is not None:
            reports.append(report)
    return replace(file, offset=file.offset + begin, skipping=skipping, refused=refused), reports


def _report(line: bytes, file: ReportFile, now: float) -> Report | None:
    report = parse_line(line, now)
    if isinstance(report, StartReport) and report.generation != file.generation:
        raise RefusedLineError("key 'incarnation' is not that of the file's name")
    return report


def _added(first: IngestResult, second: IngestResult) -> IngestResult:
    return IngestResult(
        first.lines + second.lines, first.more or second.more, first.profiling_reports + second.profiling_reports
    )
