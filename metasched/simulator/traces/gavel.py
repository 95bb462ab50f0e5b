"""Gavel's traces (Narayanan et al., OSDI 2020; the public simulator's ``*.trace``): tab-separated, without a header."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from metasched.core.model import Job
from metasched.simulator.records import Submission, Workload, trace_job
from metasched.simulator.traces.rows import Row, plain_rows
from metasched.throughput.throughput_table import TableTraining, ThroughputTable

COLUMNS = (
    "job_type",
    "command",
    "working_directory",
    "num_steps_argument",
    "needs_data_directory",
    "total_steps",
    "scale_factor",
    "priority_weight",
    "slo",
    "arrival_seconds",
)


def read_gavel(
    path: Path, table: ThroughputTable, *, most_gpus: int | None = None, reference: str = "v100"
) -> Workload:
    """The jobs of a trace.

    Uids are line numbers. The largest priority weight of the trace becomes weight 1. An SLO is a factor on the job's
    isolated duration on the reference type, as in the public simulator; -1 means none.

    Args:
        path: the trace.
        table: the speed of its job types.
        most_gpus: the most GPUs that one job can have; None for no limit.
        reference: the GPU type that SLOs are relative to.

    Raises:
        TraceError: the trace cannot be used as it is.
    """
    submissions = []
    for row, job, steps in table_jobs(path, COLUMNS, table, most_gpus):
        slo = _slo_seconds(row, steps, table.speed(job.name, reference, (job.gpus,)))
        submissions.append(Submission(job.evolve(slo_seconds=slo), TableTraining(table, job.name, steps)))
    return Workload(path.name, tuple(submissions))


def table_jobs(
    path: Path, columns: Sequence[str], table: ThroughputTable, most_gpus: int | None
) -> Iterator[tuple[Row, Job, int]]:
    """(row, job, steps) for each line of a trace in Gavel's form or a derived one; the job's name is its model.

    Raises:
        TraceError: a line cannot be used as it is.
    """
    rows = list(plain_rows(path, columns))
    digits = len(str(rows[-1].line)) if rows else 1
    heaviest = max((row.number("priority_weight") for row in rows), default=1.0)
    before = 0.0
    for row in rows:
        submitted = row.number("arrival_seconds")
        if submitted < before:
            raise row.refusal("arrival_seconds", f"{submitted:g} is before the line above", "sort by arrival")
        before = submitted
        model = row.one_of("job_type", table.models)
        gpus = row.gpus("scale_factor", most_gpus)
        if (model, gpus) not in table.job_types:
            raise row.refusal("scale_factor", f"no speed is known of {model!r} on {gpus} GPUs", "extend the table")
        steps = row.whole("total_steps", least=1)
        job = trace_job(f"{row.line:0{digits}}", model, submitted, gpus)
        yield row, job.evolve(weight=row.number("priority_weight", least=1e-9) / heaviest), steps


def _slo_seconds(row: Row, steps: int, speed: float | None) -> float | None:
    """The job's SLO in seconds after its arrival; None for no SLO."""
    factor = row.number("slo", least=-1.0)
    if factor < 0:
        return None
    if not speed:
        raise row.refusal("slo", "the job does not run on the reference type of SLOs", "name another type")
    return factor * steps / speed
