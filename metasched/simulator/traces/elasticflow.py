"""ElasticFlow's workloads and measurements (Gu et al., ASPLOS 2023).

A workload is a CSV of jobs with job_id, submit_time, iteration, model_name, ddl (the deadline as an instant),
batch_size and num_gpu; its measurements are one CSV for each model: global_batch_size, and a column of iterations per
second for each number of GPUs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from metasched.simulator.records import Submission, Workload, trace_job
from metasched.simulator.traces.errors import TraceError
from metasched.simulator.traces.rows import Row, named_rows
from metasched.throughput.scaling_curve import Curve, ScalingTraining

WORKLOAD = ("job_id", "submit_time", "iteration", "model_name", "ddl", "batch_size", "num_gpu")
BATCH = "global_batch_size"
GPUS = re.compile("[1-9][0-9]{0,5}")

Curves = Mapping[tuple[str, int], Curve]
"""Scaling curves by (model, global batch size)."""


def read_curves(folder: Path) -> Curves:
    """The measured curves of a folder, in iterations per second; an empty field or ``nan`` was not measured.

    Raises:
        TraceError: the folder has no curve, or a file cannot be used as it is.
    """
    found = {}
    for path in sorted(folder.glob("*.csv")):
        for row in named_rows(path, (BATCH,)):
            sizes = {column: column.strip() for column in row.values if column != BATCH}
            for column, size in sizes.items():
                if not GPUS.fullmatch(size):
                    raise row.refusal(column, "is not a number of GPUs", "name the column by a number")
            points = {int(size): speed for column, size in sizes.items() if (speed := _speed(row, column)) is not None}
            if not points:
                raise row.refusal(None, "has no speed", "give at least one")
            found[path.stem, row.whole(BATCH, least=1)] = Curve(tuple(sorted(points.items())))
    if not found:
        raise TraceError(folder, None, None, "holds no measurements", "give a folder with MODEL.csv files")
    return found


def read_elasticflow(path: Path, curves: Curves, *, gpu_type: str = "", most_gpus: int | None = None) -> Workload:
    """The jobs of a workload, elastic over the sizes at which they can run; the clock begins at the first arrival.

    Args:
        path: the CSV file.
        curves: the speeds of its models.
        gpu_type: the GPU type of the curves; empty for any type.
        most_gpus: the most GPUs that one job can have; None for no limit.

    Raises:
        TraceError: the workload cannot be used as it is.
    """
    rows = sorted(named_rows(path, WORKLOAD), key=lambda row: row.number("submit_time"))
    models = {model for model, _ in curves}
    digits = len(str(max((row.line for row in rows), default=1)))
    first = rows[0].number("submit_time") if rows else 0.0
    submissions = []
    for row in rows:
        model, batch = row.one_of("model_name", models), row.whole("batch_size", least=1)
        curve = curves.get((model, batch))
        if curve is None:
            known = ", ".join(str(size) for name, size in sorted(curves) if name == model)
            raise row.refusal("batch_size", f"no speed is known of {model!r} at {batch}", f"known: {known}")
        gpus = row.gpus("num_gpu", most_gpus)
        if not curve.at(gpus):
            raise row.refusal(
                "num_gpu", f"no speed is known of {model!r} at {batch} on {gpus} GPUs", "extend the table"
            )
        sizes = [size for size, speed in curve.points if speed]
        submitted, deadline = row.number("submit_time"), row.number("ddl")
        if deadline < submitted:
            raise row.refusal("ddl", "is before submit_time", "give a later deadline")
        uid, name = f"{row.line:0{digits}}", f"{model}-{row.text('job_id')}"
        job = trace_job(uid, name, submitted - first, gpus, min_gpus=min(sizes), max_gpus=max(sizes))
        job = job.evolve(gpu_types=(gpu_type,) if gpu_type else (), slo_seconds=deadline - submitted)
        training = ScalingTraining(row.whole("iteration", least=1), {gpu_type: curve})
        submissions.append(Submission(job, training))
    return Workload(path.name, tuple(submissions))


def _speed(row: Row, column: str) -> float | None:
    text = row.values[column].strip()
    if not text or text.lower() == "nan":
        return None
    return row.number(column)
