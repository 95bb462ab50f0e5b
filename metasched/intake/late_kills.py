"""Runs that were killed by what is left of an earlier run: recognised by exit codes, times and counts. Pure.

The srun of an earlier run ends its step by a number that the present run's step has as well, or slurmctld ends by the
job's id what it takes for the earlier run.
"""

from __future__ import annotations

import itertools
import signal
from collections import Counter
from collections.abc import Sequence

from metasched.intake.launch_failures import failed_to_launch, lasted_less_than
from metasched.slurm.client import SlurmJob
from metasched.store import EndCause, EventRecord, RunRecord

KILLED_BY_OLD_RUN = "killed_by_old_run"
"""Kind of the event of a run that the srun of an earlier run, lost with its host, has killed."""
KILLED_BY_PREVIOUS_RUN = "killed_by_previous_run"
"""Kind of the event of a run that the srun of the run before has killed."""
YOUNG_SECONDS = 30.0
"""Age up to which Slurm's late SIGTERM for an old run meets the present one."""
OLD_SRUN_SECONDS = 60.0
"""Time for which the srun of a run may outlive it: Slurm's KillWait (30 s by default), and some more."""
KILLS_IN_A_ROW = 2
"""Runs in a row that an srun may have killed; one more is killed by the job itself."""
_TERMINATED, _KILLED = 128 + signal.SIGTERM, 128 + signal.SIGKILL


def may_be_killed(slurm: SlurmJob) -> bool:
    """Whether the exit code of a job's batch script is one after Slurm or an srun has ended its step."""
    return slurm.exit_code in (_TERMINATED, _KILLED)


def killed_by_previous_run(
    runs: Sequence[RunRecord], events: Sequence[EventRecord], current: RunRecord | None, slurm: SlurmJob
) -> bool:
    """Whether the srun of the run before may have killed the present run of a job that ``may_be_killed``.

    Where nobody told that srun of its step's end (slurmctld had been restarted, a slurmstepd or the wrapper had been
    killed), it waits in vain, and then ends a step of the same number. Where a node was down for a moment, slurmctld
    ends what it takes for the run before. A run that was killed so may leave an srun that kills the next one.

    Args:
        runs: of the job, in order.
        events: of the job.
        current: its open run; None for none.
        slurm: the job, which has failed.
    """
    if current is not None and failed_to_launch(current, slurm):
        return False
    ended = [(run.started, run.ended) for run in runs if run.started is not None and run.ended is not None]
    if not ended or (slurm.ended is not None and slurm.ended - ended[-1][1] >= OLD_SRUN_SECONDS):
        return False
    kills = [event.at for event in events if event.kind in (KILLED_BY_PREVIOUS_RUN, KILLED_BY_OLD_RUN)]
    in_a_row = itertools.takewhile(lambda run: any(run[0] <= at <= run[1] for at in kills), reversed(ended))
    return sum(1 for _ in in_a_row) < KILLS_IN_A_ROW


def killed_by_old_run(runs: Sequence[RunRecord], events: Sequence[EventRecord], slurm: SlurmJob) -> bool:
    """Whether the srun of an earlier run, lost with its host, may have killed the present run that ``may_be_killed``.

    When such a host comes back, its srun ends a step of the same number, and Slurm ends what it takes for the old run
    (SIGTERM) when a run is seconds old. Each lost run explains one kill; a run that was lost to such a kill explains
    none.

    Args:
        runs: of the job.
        events: of the job.
        slurm: the job, which has failed.
    """
    if slurm.exit_code == _TERMINATED and not lasted_less_than(slurm, YOUNG_SECONDS):
        return False
    lost = sum(run.cause is EndCause.LOST for run in runs)
    kinds = Counter(event.kind for event in events)
    return 2 * kinds[KILLED_BY_OLD_RUN] < lost - kinds[KILLED_BY_PREVIOUS_RUN]
