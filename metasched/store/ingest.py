"""Reports from the shared tree into the store, exactly once.

The tree belongs to users: a path may be a symlink, a pipe, somebody else's file, or change while it is read. Nothing
here follows a link, blocks, reads more than its budget, or trusts a line.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from metasched.reports import (
    MAX_LINE_BYTES,
    RefusedLineError,
    Report,
    StartReport,
    StepsReport,
    TrialReport,
    parse_line,
)
from metasched.store.report_rows import ReportFile
from metasched.store.store import Store

POLL_BYTES = 1024 * 1024
"""Most bytes read of one job in one call."""
MAX_ENTRIES = 10_000
"""Most directory entries looked at in one call."""

_FILE_NAME = re.compile(r"incarnation-([1-9][0-9]{0,8})\.jsonl")
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # non-blocking: opening a pipe must not wait


@dataclass(frozen=True, slots=True)
class _Read:
    """What a file held behind the reading position, its size, and whether that is in the middle of a line."""

    data: bytes
    size: int
    torn: bool = False


@dataclass(frozen=True, slots=True)
class IngestResult:
    """What one call brought.

    Attributes:
        lines: lines that were taken.
        refused: lines that were refused.
        newest_step: the trainer's time of the newest ``steps`` line; None if there was none.
        more: whether the budget ended before the files did: call again.
        trials: what was measured before the run.
    """

    lines: int = 0
    refused: int = 0
    newest_step: float | None = None
    more: bool = False
    trials: tuple[TrialReport, ...] = ()


class _RefusedFileError(Exception):
    """A directory or file that will not be read; the message says why."""


def ingest(store: Store, reports: Path, uid: str, owner: int, now: float) -> IngestResult:
    """Read what is new in a job's report files and commit it.

    Every file's rows and its new reading position are one transaction, so a line is ingested exactly once wherever the
    daemon is killed. Only whole lines are taken. Refused lines are counted, and one event per file says so. A
    file that became shorter than what was read of it was truncated or replaced: what it holds now is skipped, since a
    line lost is better than a line counted twice, and reading goes on with what is appended.

    Args:
        store: open for writing.
        reports: the ``reports`` directory of the shared tree.
        uid: the job.
        owner: numeric user id of the job's owner; directory and files must be theirs.
        now: unix seconds.

    Returns:
        What was read; a job without a directory has an empty result. What cannot be read is an event, no error.

    Raises:
        StoreError: the store could not be written; what it has not committed is read again by the next call.
    """
    total = IngestResult()
    try:
        with _directory(reports, uid, owner) as directory:
            known = store.report_files(uid)
            sizes = _sizes(directory)
            newest = max((*known, *sizes), default=0)
            budget = POLL_BYTES
            for incarnation in sorted(sizes):
                file = known.get(incarnation, ReportFile(uid, incarnation))
                if sizes[incarnation] == file.offset:
                    continue
                if budget <= MAX_LINE_BYTES:
                    return replace(total, more=True)
                try:
                    read = _read(directory, file, owner, budget)
                except _RefusedFileError as error:
                    store.event_once("reports-refused", f"{_name(incarnation)}: {error}", uid, at=now)
                    continue
                budget -= len(read.data)
                total = _added(total, _commit(store, file, read, now, latest=incarnation == newest))
    except FileNotFoundError:
        pass  # no trainer has written yet, or somebody removes the files right now
    except (_RefusedFileError, OSError) as error:
        store.event_once("reports-refused", f"reports/{uid}: {error}", uid, at=now)
    return total


def _name(incarnation: int) -> str:
    return f"incarnation-{incarnation}.jsonl"


@contextmanager
def _directory(reports: Path, uid: str, owner: int) -> Iterator[int]:
    """The job's directory as an open descriptor."""
    root = os.open(reports, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        directory = _open(uid, root, os.O_DIRECTORY)
    finally:
        os.close(root)
    try:
        if os.fstat(directory).st_uid != owner:
            raise _RefusedFileError("not a directory of the job's owner")
        yield directory
    finally:
        os.close(directory)


def _open(name: str, directory: int, flags: int = 0) -> int:
    try:
        return os.open(name, _OPEN | flags, dir_fd=directory)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise _RefusedFileError("a symbolic link, or not what it should be") from None
        if error.errno == errno.ENOENT:
            raise
        raise _RefusedFileError(os.strerror(error.errno or 0)) from None


def _sizes(directory: int) -> dict[int, int]:
    """Bytes of each report file, by incarnation."""
    sizes: dict[int, int] = {}
    with os.scandir(directory) as entries:
        for count, entry in enumerate(entries):
            if count == MAX_ENTRIES:
                break
            match = _FILE_NAME.fullmatch(entry.name)
            if match is not None:
                sizes[int(match[1])] = entry.stat(follow_symlinks=False).st_size
    return sizes


def _read(directory: int, file: ReportFile, owner: int, budget: int) -> _Read:
    """What follows the reading position, ``budget`` bytes at most."""
    descriptor = _open(_name(file.incarnation), directory)
    try:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode) or facts.st_uid != owner:
            raise _RefusedFileError("not a file of the job's owner")
        if facts.st_size < file.offset:
            torn = facts.st_size > 0 and os.pread(descriptor, 1, facts.st_size - 1) != b"\n"
            return _Read(b"", facts.st_size, torn=torn)
        return _Read(os.pread(descriptor, budget, file.offset), facts.st_size)
    except OSError as error:
        raise _RefusedFileError(os.strerror(error.errno or 0)) from None
    finally:
        os.close(descriptor)


def _commit(store: Store, file: ReportFile, read: _Read, now: float, *, latest: bool) -> IngestResult:
    """Parse what was read, and commit it with the position behind it."""
    name = _name(file.incarnation)
    if read.size < file.offset:
        with store.transaction():
            text = f"{name}: became shorter than what was read of it; what it held then is skipped"
            store.event_once("reports-truncated", text, file.uid, at=now)
            # go on at a line's beginning: the rest of a torn line is skipped too
            store.commit_reports(replace(file, offset=read.size, skipping=read.torn), (), latest=False)
        return IngestResult()
    after, reports = _parse(file, read.data, now)
    refused = after.refused - file.refused
    if after != file:
        with store.transaction():
            store.commit_reports(after, reports, latest=latest)
            if refused:
                text = f"{name}: lines that are not what the protocol says were refused"
                store.event_once("reports-refused", text, file.uid, at=now)
    steps = [report.at for report in reports if isinstance(report, StepsReport)]
    more = file.offset + len(read.data) < read.size
    trials = tuple(report for report in reports if isinstance(report, TrialReport))
    return IngestResult(len(reports), refused, max(steps, default=None), more, trials)


def _parse(file: ReportFile, data: bytes, now: float) -> tuple[ReportFile, list[Report]]:
    """The reports of the whole lines in ``data``, and the position behind them."""
    begin = 0
    refused = file.refused
    skipping = file.skipping
    reports: list[Report] = []
    while (end := data.find(b"\n", begin)) >= 0:
        line = data[begin:end]
        begin = end + 1
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
    if skipping:
        begin = len(data)
    elif len(data) - begin > MAX_LINE_BYTES:
        begin = len(data)
        skipping = True
        refused += 1
    return replace(file, offset=file.offset + begin, skipping=skipping, refused=refused), reports


def _report(line: bytes, file: ReportFile, now: float) -> Report | None:
    report = parse_line(line, now)
    if isinstance(report, StartReport) and report.incarnation != file.incarnation:
        raise RefusedLineError("key 'incarnation' is not that of the file's name")
    return report


def _added(first: IngestResult, second: IngestResult) -> IngestResult:
    steps = [at for at in (first.newest_step, second.newest_step) if at is not None]
    return IngestResult(
        first.lines + second.lines,
        first.refused + second.refused,
        max(steps, default=None),
        first.more or second.more,
        first.trials + second.trials,
    )
