"""The restart cost of a job: seconds in which it holds GPUs without training when it is stopped and started again.

A restart is measured from the runs that the store records. Its two parts are the time from the stop request to the end
of the run, and the time from the start of the next run to that run's first step.

A *cut start* is a start that a stop request ended before the first step. It tells how long a start takes at least where
no restart can be measured because every start is cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import fmean
from typing import NamedTuple

from metasched.store import JobRecord, RunRecord, Store

RECENT = 5
"""Restarts that count, the latest first."""
EARLIER_JOBS = 20
"""Preempted jobs of the same user that are read for a job without a restart, the latest first."""
RECENT_RUNS = 100
"""Runs of all users whose jobs are read for the restarts of the site, the latest first."""


def measured_restarts(runs: Iterable[RunRecord]) -> list[float]:
    """Return the seconds of each measured restart of one job, in the order of its runs.

    A restart counts where the daemon stopped the run before it and the trainer of the run after it was ready.

    Args:
        runs: of the job, in the order of their numbers. Runs that never started are ignored.
    """
    started = [run for run in runs if run.started is not None]
    found = []
    for before, after in pairwise(started):
        if (stop := _stop_seconds(before)) is not None and (start := _start_seconds(after)) is not None:
            found.append(stop + start)
    return found


def longest_cut_start(runs: Iterable[RunRecord]) -> float | None:
    """Return the seconds of the job's longest cut start after its last run with a first step.

    A job without the shim reports no step, so that each of its stopped runs is a cut start.

    Args:
        runs: of one job, in the order of their numbers.

    Returns:
        None where there is no such start.
    """
    cut = list[float]()
    for run in runs:
        if run.first_step_at is not None:
            cut.clear()
        elif run.started is not None and run.stop_requested is not None:
            cut.append(run.stop_requested - run.started - run.suspended_seconds)
    return max((seconds for seconds in cut if seconds > 0), default=None)


def restarts_of_site(store: Store) -> list[float]:
    """Return the seconds of each measured restart of the jobs of all users that ran last, job by job."""
    uids = dict.fromkeys(run.uid for run in store.recent_runs(RECENT_RUNS))
    return [seconds for uid in uids for seconds in measured_restarts(store.runs(uid))]


def _stop_seconds(run: RunRecord) -> float | None:
    if run.stop_requested is None or run.ended is None:
        return None
    return max(run.ended - run.stop_requested, 0.0)


def _start_seconds(run: RunRecord) -> float | None:
    """Return the seconds to the first step, or until the trainer was ready where no step was reported."""
    trains_from = run.ready_at if run.first_step_at is None else run.first_step_at
    if trains_from is None or run.started is None:
        return None
    return max(trains_from - run.started, 0.0)  # the trainer's clock may be behind Slurm's


def mean_of_latest(restarts: Sequence[float]) -> float | None:
    """Return the mean of the last ``RECENT`` values, which are in the order of time; None where there is none."""
    return fmean(restarts[-RECENT:]) if restarts else None


class RestartCost(NamedTuple):
    """The cost of a job's restarts as far as it is known: the fields of ``JobKnowledge`` of the same names."""

    restart_seconds: float | None
    cut_start_seconds: float | None


class RestartCosts:
    """Measures the restart cost of each live job.

    A job without a measured restart has the cost of its user's other jobs: of those that name the same model if any of
    them was restarted, else of all. The cost is read from the store when the job is first asked about, and after each
    change of its present run.

    Args:
        store: holds the runs.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._cost: dict[str, tuple[object, RestartCost]] = {}  # by uid: the state of the run, and the job's cost
        self._cost_of_user: dict[tuple[str, str | None], float | None] = {}  # by user and model

    def begin_poll(self) -> None:
        """Read the earlier jobs of each user again for jobs that come in this poll."""
        self._cost_of_user.clear()

    def cost(self, record: JobRecord, model: str | None) -> RestartCost:
        """Return the cost of the job's restarts, as far as it is known.

        Args:
            record: the job as the store has it.
            model: the model that the job's tag names; None for none.
        """
        run = record.current
        state = (record.run, None if run is None else (run.started, run.ready_at, run.first_step_at))
        if record.uid not in self._cost or self._cost[record.uid][0] != state:
            runs = self._store.runs(record.uid) if record.preemptions else []
            own = mean_of_latest(measured_restarts(runs))
            measured = self._of_user(record.user, model) if own is None else own
            self._cost[record.uid] = state, RestartCost(measured, longest_cut_start(runs))
        return self._cost[record.uid][1]

    def forget(self, uid: str) -> None:
        """Drop the cost of a job that has ended; the store has its runs."""
        self._cost.pop(uid, None)

    def _of_user(self, user: str, model: str | None) -> float | None:
        key = user, model
        if key not in self._cost_of_user:
            of_model, of_all = [], []
            for job in reversed(self._store.preempted_jobs(user, EARLIER_JOBS)):  # the latest last
                restarts = measured_restarts(self._store.runs(job.uid))
                of_all += restarts
                if model is not None and job.requirements.get("model") == model:
                    of_model += restarts
            self._cost_of_user[key] = mean_of_latest(of_model or of_all)
        return self._cost_of_user[key]
