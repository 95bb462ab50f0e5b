"""Shockwave's traces (Zheng et al., NSDI 2023; the public simulator's ``*.trace``): Gavel's columns and two more."""

from __future__ import annotations

from pathlib import Path

from metasched.simulator.records import Submission, Workload
from metasched.simulator.traces.gavel import table_jobs
from metasched.throughput.batch_size_regimes import Mode, RegimeTraining, UnknownFamilyError
from metasched.throughput.throughput_table import ThroughputTable

COLUMNS = (
    "job_type",
    "command",
    "working_directory",
    "num_steps_argument",
    "needs_data_directory",
    "total_steps",
    "scale_factor",
    "mode",
    "priority_weight",
    "slo",
    "duration_seconds",
    "arrival_seconds",
)


def read_shockwave(path: Path, table: ThroughputTable, *, most_gpus: int | None = None) -> Workload:
    """The jobs of a trace.

    Uids are line numbers. The largest priority weight of the trace becomes weight 1. Durations are nominal, and the
    artifact does not use SLOs: the reader ignores both.

    Args:
        path: the trace.
        table: the speed of its job types, at all batch sizes that they adapt to.
        most_gpus: the most GPUs that one job can have; None for no limit.

    Raises:
        TraceError: the trace cannot be used as it is.
    """
    modes = [mode.value for mode in Mode]
    submissions = []
    for row, job, steps in table_jobs(path, COLUMNS, table, most_gpus):
        mode = Mode(row.one_of("mode", modes))
        try:
            training = RegimeTraining.of(table, mode, job.name, job.gpus, steps)
        except UnknownFamilyError as error:
            raise row.refusal("job_type", str(error), "name one of them") from None
        submissions.append(Submission(job.evolve(name=f"{job.name}, {mode.value}"), training))
    return Workload(path.name, tuple(submissions))
