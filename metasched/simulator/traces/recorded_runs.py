"""Jobs of traces that record only how long a job ran, and on how many GPUs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from metasched.simulator.records import Submission, Workload, trace_job
from metasched.throughput.scaling_curve import training_of_run


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """One job of such a trace.

    Attributes:
        name: the job's id in the trace.
        submitted: the arrival, in seconds on any clock.
        gpus: the number of its GPUs, at least 1.
        seconds: its duration.
        user: its owner.
        account: the group or virtual cluster that it was submitted to, if any.
    """

    name: str
    submitted: float
    gpus: int
    seconds: float
    user: str = "trace"
    account: str | None = None


def workload_of_runs(source: str, runs: Iterable[RecordedRun], speed_up: float | None) -> Workload:
    """The runs as jobs, by arrival; the clock begins at the first arrival.

    Args:
        source: the source of the workload, in words.
        runs: the runs in any order; runs with the same arrival stay in this order.
        speed_up: the exponent of speed over the number of GPUs, with which jobs are elastic from one GPU to twice as
            many as they had; None for rigid jobs.
    """
    ordered = sorted(runs, key=lambda run: run.submitted)
    first = ordered[0].submitted if ordered else 0.0
    digits = len(str(len(ordered)))
    submissions = []
    for position, run in enumerate(ordered, start=1):
        least, most = (run.gpus, run.gpus) if speed_up is None else (1, 2 * run.gpus)
        submitted = run.submitted - first
        job = trace_job(f"{position:0{digits}}", run.name, submitted, run.gpus, min_gpus=least, max_gpus=most)
        job = job.evolve(user=run.user, account=run.account)
        submissions.append(Submission(job, training_of_run(run.seconds, run.gpus, speed_up)))
    return Workload(source, tuple(submissions))
