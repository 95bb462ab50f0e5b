"""Microsoft's traces (microsoft/elasticflow-traces): a CSV of job_id, submission_time, duration and num_gpu."""

from __future__ import annotations

from pathlib import Path

from metasched.simulator.records import Workload
from metasched.simulator.traces.recorded_runs import RecordedRun, workload_of_runs
from metasched.simulator.traces.rows import named_rows

COLUMNS = ("job_id", "submission_time", "duration", "num_gpu")


def read_microsoft(path: Path, *, most_gpus: int | None = None, speed_up: float | None = None) -> Workload:
    """The jobs of a trace, whose times are in seconds; see ``workload_of_runs`` for ``speed_up``.

    Raises:
        TraceError: the trace cannot be used as it is.
    """
    runs = [
        RecordedRun(
            name=row.text("job_id"),
            submitted=row.number("submission_time"),
            gpus=row.gpus("num_gpu", most_gpus),
            seconds=row.number("duration", least=1.0),
        )
        for row in named_rows(path, COLUMNS)
    ]
    return workload_of_runs(path.name, runs, speed_up)
