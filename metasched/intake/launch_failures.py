"""Runs that ended before their trainer had started: recognised, counted and put off. Pure.

Slurm could not launch the batch script, or srun could not create the step. The job itself is seldom to blame.
"""

from __future__ import annotations

from collections.abc import Sequence

from metasched.slurm.backoff import FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS
from metasched.slurm.client import JobState, SlurmJob
from metasched.store import EndCause, JobRecord, RunRecord

LAUNCH_SECONDS = 60.0
"""A run that lasted longer counts as launched, whether a trainer has reported or not."""
LAST_WAIT_SECONDS = 3600.0
"""The wait before each further run of a job whose launches have failed too often, and that Slurm has held."""
_SLURM_REQUEUED = "launch failed requeued held"


def failed_launch(run: RunRecord) -> bool:
    """Whether a run ended soon and unasked, and no trainer had reported from it."""
    if run.cause is not EndCause.LOST or run.started is None or run.ended is None or run.generation is not None:
        return False
    return run.ended - run.started < LAUNCH_SECONDS


def failed_launches(runs: Sequence[RunRecord]) -> int:
    """The number of a job's latest runs in a row that failed to launch; releases that were withdrawn do not count."""
    count = 0
    for run in reversed(runs):
        if failed_launch(run):
            count += 1
        elif run.ended is not None and run.cause is not EndCause.WITHDRAWN:
            break
    return count


def seconds_to_next_launch(failures: int, tries: int) -> float:
    """Seconds to wait after so many failed launches in a row, of which a job has ``tries``."""
    if failures >= tries:
        return LAST_WAIT_SECONDS
    return float(min(FIRST_WAIT_SECONDS * 2 ** min(failures - 1, 10), LONGEST_WAIT_SECONDS))


def failed_to_launch(run: RunRecord, slurm: SlurmJob) -> bool:
    """Whether the open run of a job that Slurm lists as failed has ended because its batch script did not start.

    Slurm gives the same reason to a batch script that a signal has ended.
    """
    if slurm.state is not JobState.FAILED or slurm.reason != "JobLaunchFailure" or run.generation is not None:
        return False
    return slurm.started is None or slurm.ended is None or slurm.ended - slurm.started < LAUNCH_SECONDS


def failed_unplanned(record: JobRecord, slurm: SlurmJob) -> bool:
    """Whether a job has failed soon in a run that Slurm began by itself, after a run that a plan had asked for.

    A slurmctld that was killed after a start may have forgotten it. It then starts the job once more, while the node
    still ends what it takes for that job.
    """
    unplanned = record.current is None and record.run > 0 and slurm.slurm_state == "FAILED"
    return unplanned and lasted_less_than(slurm, LAUNCH_SECONDS)


def lasted_less_than(slurm: SlurmJob, seconds: float) -> bool:
    """Whether the run with which a job has ended is known to have been shorter."""
    return slurm.started is not None and slurm.ended is not None and slurm.ended - slurm.started < seconds


def began_unseen(run: RunRecord, slurm: SlurmJob, restarts: int | None) -> bool:
    """Whether a released run has begun and ended between two polls, as Slurm has requeued the job meanwhile.

    Args:
        run: the open run.
        slurm: the job, held again.
        restarts: Slurm's restart count in the poll before; None where there was none.
    """
    if run.started is not None:
        return False
    return slurm.reason == _SLURM_REQUEUED or (restarts is not None and slurm.restarts > restarts)
