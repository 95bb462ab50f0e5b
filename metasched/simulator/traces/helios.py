"""SenseTime's Helios traces (Hu et al., SC 2021; ``cluster_log.csv``).

Columns: job_id, user, vc, gpu_num, cpu_num, node_num, state, submit_time, start_time, end_time, duration, queue; times
as ``YYYY-MM-DD HH:MM:SS``, durations in seconds. A job counts as its duration on its GPUs, however it ended.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from metasched.simulator.records import Workload
from metasched.simulator.traces.recorded_runs import RecordedRun, workload_of_runs
from metasched.simulator.traces.rows import Row, named_rows

COLUMNS = ("job_id", "user", "vc", "gpu_num", "submit_time", "duration")


def read_helios(path: Path, *, most_gpus: int | None = None, speed_up: float | None = None) -> Workload:
    """The GPU jobs of a trace; see ``workload_of_runs`` for ``speed_up``.

    Jobs without GPUs, and those that never ran, are left out.

    Raises:
        TraceError: the trace cannot be used as it is.
    """
    return workload_of_runs(path.name, _runs(path, most_gpus), speed_up)


def _runs(path: Path, most_gpus: int | None) -> Iterator[RecordedRun]:
    for row in named_rows(path, COLUMNS):
        seconds = row.number("duration")
        if row.whole("gpu_num") and seconds:
            yield RecordedRun(
                name=row.text("job_id"),
                submitted=_instant(row, "submit_time"),
                gpus=row.gpus("gpu_num", most_gpus),
                seconds=seconds,
                user=row.text("user"),
                account=row.text("vc"),
            )


def _instant(row: Row, column: str) -> float:
    text = row.text(column)
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
    except ValueError:
        raise row.refusal(column, f"{text!r} is not a time", "give YYYY-MM-DD HH:MM:SS") from None
