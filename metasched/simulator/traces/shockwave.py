"""Shockwave's traces (Zheng et al., NSDI 2023; the public simulator's ``*.trace``): Gavel's columns and two more."""

from __future__ import annotations

from pathlib import Path

from metasched.model import Job
from metasched.simulator.records import Submission, Workload
from metasched.simulator.traces.rows import plain_rows
from metasched.throughput.regimes import Mode, RegimeTraining, UnknownFamilyError
from metasched.throughput.table import Table

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


def read_shockwave(path: Path, table: Table, *, most_gpus: int | None = None) -> Workload:
    """The jobs of a trace.

    Uids are line numbers. The largest priority weight of the trace becomes weight 1. Durations are nominal, and SLOs
    are not used by the artifact: neither is read.

    Args:
        path: the trace.
        table: the speed of its job types, at all batch sizes that they adapt to.
        most_gpus: the most GPUs that one job can have; None for no limit.

    Raises:
        TraceError: the trace cannot be used as it is.
    """
    rows = list(plain_rows(path, COLUMNS))
    digits = len(str(rows[-1].line)) if rows else 1
    heaviest = max((row.number("priority_weight") for row in rows), default=1.0)
    modes = [mode.value for mode in Mode]
    before = 0.0
    submissions = []
    for row in rows:
        submitted = row.number("arrival_seconds")
        if submitted < before:
            raise row.refusal("arrival_seconds", f"{submitted:g} is before the line above", "sort by arrival")
        before = submitted
        model = row.one_of("job_type", table.models)
        gpus = row.gpus("scale_factor", most_gpus)
        if (model, gpus) not in table.kinds:
            raise row.refusal("scale_factor", f"no speed is known of {model!r} on {gpus} GPUs", "extend the table")
        steps = row.whole("total_steps", least=1)
        mode = Mode(row.one_of("mode", modes))
        try:
            training = RegimeTraining.of(table, mode, model, gpus, steps)
        except UnknownFamilyError as error:
            raise row.refusal("job_type", str(error), "name one of them") from None
        job = Job(
            uid=f"{row.line:0{digits}}",
            address=str(row.line),
            name=f"{model}, {mode.value}",
            user="trace",
            submitted=submitted,
            gpus=gpus,
            min_gpus=gpus,
            max_gpus=gpus,
            cpus_per_unit=0,
            weight=row.number("priority_weight", least=1e-9) / heaviest,
        )
        submissions.append(Submission(job, training))
    return Workload(path.name, tuple(submissions))
