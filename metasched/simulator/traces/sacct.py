"""Slurm's own accounting: the output of ``sacct --parsable2``, with at least the fields below.

``sacct -a -X -P -S 2025-01-01 --format=JobID,JobName,User,Account,Submit,ElapsedRaw,AllocTRES > jobs.txt``
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, tzinfo
from pathlib import Path

from metasched.simulator.records import Workload
from metasched.simulator.traces.errors import TraceError
from metasched.simulator.traces.recorded_runs import RecordedRun, workload_of_runs
from metasched.simulator.traces.rows import Row

COLUMNS = ("JobID", "JobName", "User", "Account", "Submit", "ElapsedRaw", "AllocTRES")

_GPUS = re.compile(r"(?:^|,)gres/gpu=([^,]*)")
_TYPED = re.compile(r"(?:^|,)gres/gpu:([^=,]+)=([^,]*)")


def read_sacct(path: Path, *, most_gpus: int | None = None, speed_up: float | None = None) -> Workload:
    """The GPU jobs that ran; see ``workload_of_runs`` for ``speed_up``. Steps, and jobs that never ran, are left out.

    Raises:
        TraceError: the file cannot be used as it is.
    """
    found = workload_of_runs(path.name, _runs(path, most_gpus), speed_up)
    if not found.submissions:
        raise _no_jobs(path)
    return found


def _no_jobs(path: Path) -> TraceError:
    """The error for an output without a job that can be simulated."""
    counts = [gpus_of(row) for row in records(path) if isinstance(row, Row)]
    if not counts:
        return TraceError(path, None, None, "has no jobs", "ask sacct with -a and -S, from when on")
    if any(counts):
        return TraceError(path, None, "ElapsedRaw", "no job with GPUs ran", "ask sacct for an earlier time, by -S")
    fault = f"none of {len(counts)} jobs has GPUs"
    fix = "AccountingStorageTRES of slurm.conf has to name gres/gpu while jobs run"
    return TraceError(path, None, "AllocTRES", fault, fix)


def records(path: Path, columns: Sequence[str] = COLUMNS, delimiter: str = "|") -> Iterator[Row | TraceError]:
    """The records of jobs, without those of steps; an error for each line that is not a record.

    Sacct does not quote names: a name that contains the delimiter makes its line unreadable. With a delimiter of
    several characters that users cannot guess, and the name as the last column, all names can be read: a line without
    any delimiter is the rest of a name with a line break.

    Args:
        path: the output of sacct.
        columns: the required columns; the output may have more.
        delimiter: the delimiter between columns.

    Raises:
        TraceError: the file cannot be read, or lacks one of the columns.
    """
    try:
        with path.open(encoding="utf-8", errors="replace", newline="\n") as file:
            header = file.readline().rstrip("\r\n").split(delimiter)
            for column in columns:
                if column not in header:
                    raise TraceError(path, 1, column, "the column is missing", f"give {', '.join(columns)}")
            for line, text in enumerate(file, start=2):
                fields = text.rstrip("\r\n").split(delimiter)
                if len(fields) == len(header):
                    row = Row(path, line, dict(zip(header, fields, strict=True)))
                    if "." not in row.values["JobID"]:  # else a step
                        yield row
                elif text.strip() and not (len(fields) == 1 and len(delimiter) > 1):
                    fault = f"the line has {len(fields)} fields, not {len(header)}"
                    yield TraceError(path, line, None, fault, "give one field for each column")
    except OSError as error:
        raise TraceError(path, None, None, f"cannot be read ({error.strerror})", "give a file that can") from error


def gpus_of(row: Row, most_gpus: int | None = None) -> int:
    """The GPUs of a job: of all types, or, where accounting has counts of single types only, the sum of these.

    Raises:
        TraceError: the count is not a number, or is above ``most_gpus``.
    """
    allocated = row.values["AllocTRES"]
    counts = _GPUS.findall(allocated)[:1] or [count for _, count in _TYPED.findall(allocated)]
    for count in counts:
        if not re.fullmatch("[0-9]{1,9}", count):
            raise row.refusal("AllocTRES", f"gres/gpu={count} is not a number of GPUs", "give a whole number")
    gpus = sum(map(int, counts))
    if most_gpus is not None and gpus > most_gpus:
        fault = f"had {gpus} GPUs, and the cluster can give one job {most_gpus}"
        raise row.refusal("AllocTRES", fault, "use a larger cluster, or leave the job out")
    return gpus


def gpu_type_of(row: Row) -> str | None:
    """The type of a job's GPUs; None where accounting names no type, or several."""
    types = {gpu_type for gpu_type, _ in _TYPED.findall(row.values["AllocTRES"])}
    return types.pop() if len(types) == 1 else None


def instant(row: Row, column: str, zone: tzinfo | None = None) -> float:
    """A time in unix seconds.

    Args:
        row: the record.
        column: the column, in unix seconds (``SLURM_TIME_FORMAT=%s``) or as local times without a zone.
        zone: the zone of local times; None for this machine's.

    Raises:
        TraceError: the field is not a time.
    """
    text = row.text(column)
    try:
        if text.isascii() and text.isdecimal():
            return float(text)
        return datetime.fromisoformat(text).replace(tzinfo=zone).timestamp()
    except (ValueError, OverflowError):
        raise row.refusal(column, f"{text!r} is not a time", "give YYYY-MM-DDTHH:MM:SS") from None


def _runs(path: Path, most_gpus: int | None) -> Iterator[RecordedRun]:
    for row in records(path):
        if isinstance(row, TraceError):
            raise row
        seconds, gpus = row.number("ElapsedRaw"), gpus_of(row, most_gpus)
        if seconds > 0 and gpus > 0:
            user, account = row.values["User"].strip(), row.values["Account"].strip()
            submitted = instant(row, "Submit", UTC)
            yield RecordedRun(row.text("JobID"), submitted, gpus, seconds, user or "unknown", account or None)
