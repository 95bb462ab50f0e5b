"""Slurm's own accounting: the output of ``sacct --parsable2``, with at least the fields below.

``sacct -a -X -P -S 2025-01-01 --format=JobID,JobName,User,Account,Submit,ElapsedRaw,AllocTRES > jobs.txt``
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from metasched.simulator.records import Workload
from metasched.simulator.traces.plain import Run, workload
from metasched.simulator.traces.rows import Row, named_rows

COLUMNS = ("JobID", "JobName", "User", "Account", "Submit", "ElapsedRaw", "AllocTRES")

_GPUS = re.compile(r"(?:^|,)gres/gpu=([^,]*)")


def read_sacct(path: Path, *, most_gpus: int | None = None, speed_up: float | None = None) -> Workload:
    """The GPU jobs that ran; see ``plain.workload`` for ``speed_up``. Steps, and jobs that never ran, are left out.

    Args:
        path: of the output.
        most_gpus: the most GPUs that one job can have; None for no limit.
        speed_up: an exponent, or None.

    Raises:
        TraceError: the file cannot be used as it is.
    """
    return workload(path.name, _runs(path, most_gpus), speed_up)


def _runs(path: Path, most_gpus: int | None) -> Iterator[Run]:
    for row in named_rows(path, COLUMNS, delimiter="|"):
        name = row.text("JobID")
        if "." in name:  # a step
            continue
        seconds = row.number("ElapsedRaw")
        gpus = _gpus(row, most_gpus)
        if seconds > 0 and gpus > 0:
            user, account = row.values["User"].strip(), row.values["Account"].strip()
            yield Run(name, _instant(row), gpus, seconds, user or "unknown", account or None)


def _gpus(row: Row, most_gpus: int | None) -> int:
    found = _GPUS.search(row.values["AllocTRES"])
    if found is None:
        return 0
    if not found[1].isdecimal():
        raise row.refusal("AllocTRES", f"gres/gpu={found[1]} is not a number of GPUs", "give a whole number")
    gpus = int(found[1])
    if most_gpus is not None and gpus > most_gpus:
        fault = f"had {gpus} GPUs, and the cluster can give one job {most_gpus}"
        raise row.refusal("AllocTRES", fault, "use a larger cluster, or leave the job out")
    return gpus


def _instant(row: Row) -> float:
    """Seconds on Slurm's wall clock, which the file does not say the zone of."""
    text = row.text("Submit")
    try:
        return datetime.fromisoformat(f"{text}+00:00").timestamp()
    except ValueError:
        raise row.refusal("Submit", f"{text!r} is no time", "give YYYY-MM-DDTHH:MM:SS") from None
