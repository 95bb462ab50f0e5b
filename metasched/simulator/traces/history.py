"""The past jobs of a daemon's database."""

from __future__ import annotations

from pathlib import Path

from metasched.core.model import Job, Preempt
from metasched.simulator.recorded_trainings import ALL, recorded_training
from metasched.simulator.records import Submission, Workload
from metasched.simulator.traces.errors import TraceError
from metasched.store import JobRecord, Store


def read_history(path: Path, *, most_gpus: int | None = None, speed_up: float = 1.0) -> Workload:
    """The jobs that have run, with the work that they did, at the speeds that they reported.

    Jobs whose batch size could change have their fitted goodput instead, with the noise that was reported last.

    The clock begins at the first submission. Requests for nodes, partitions and features are dropped, so that the jobs
    fit other clusters too; GPU types and the keys of tags are kept. The database does not tell which jobs were
    co-located: speeds count as those of jobs without a co-runner.

    Args:
        path: the database.
        most_gpus: the most GPUs that one job can have; None for no limit.
        speed_up: the exponent of speed over the number of GPUs, beyond the measured sizes.

    Raises:
        TraceError: a job's stored request is malformed, or needs more GPUs than ``most_gpus``.
        StoreError: the file is not a daemon's database.
    """
    with Store.open(path, read_only=True) as store:
        ran = [record for record in store.recent_jobs(ALL) if record.ran_seconds]
        ended = sorted(ran, key=lambda record: (record.submitted, record.uid))
        first = ended[0].submitted if ended else 0.0
        found = []
        for record in ended:
            job = past_job(path, record, first, most_gpus)
            work = recorded_training(store, record, job, speed_up)
            if work is not None:
                found.append(Submission(job, work))
    return Workload(path.name, tuple(found))


def past_job(path: Path, record: JobRecord, first: float, most_gpus: int | None) -> Job:
    """A past job as it would be submitted again.

    Args:
        path: the database, for errors.
        record: the job.
        first: the instant at which the clock begins, unix seconds.
        most_gpus: the most GPUs that one job can have; None for no limit.

    Raises:
        TraceError: the stored request is malformed, or needs more GPUs than ``most_gpus``.
    """
    request = record.requirements
    try:
        gpus, least, most = int(request["gpus"]), int(request["min_gpus"]), int(request["max_gpus"])
        types, weight = tuple(map(str, request.get("gpu_types", ()))), float(request.get("weight", 1.0))
        preempt = Preempt(request.get("preempt", Preempt.CHECKPOINT))
        slo = request.get("slo_seconds")
        slo_seconds = None if slo is None else float(slo)
    except (KeyError, TypeError, ValueError) as error:
        raise TraceError(path, None, "jobs.requirements", f"job {record.uid}: {error!r}", "repair the row") from error
    if most_gpus is not None and least > most_gpus:
        fault = f"job {record.uid} needs {least} GPUs at least, and the cluster can give one job {most_gpus}"
        raise TraceError(path, None, "jobs.requirements", fault, "use a larger cluster")
    return Job(
        uid=record.uid,
        slurm_job_id=record.slurm_job_id,
        name=record.name,
        user=record.user,
        account=record.account,
        submitted=record.submitted - first,
        gpus=gpus if most_gpus is None else min(gpus, most_gpus),
        min_gpus=least,
        max_gpus=most,
        gpu_types=types,
        weight=weight,
        preempt=preempt,
        slo_seconds=slo_seconds,
        adaptive_batch=request.get("adaptive_batch") is True,
        cpus_per_unit=0,
    )
