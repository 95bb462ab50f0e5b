"""The market of one window of rounds: jobs with budgets buy rounds on resources (Shockwave, NSDI 2023, Eq. 7-11).

The welfare is the mean of the logarithms of the jobs' progress, weighted by budgets. A regulariser penalises the bound
of the makespan that the window leaves (Eq. 10). Budgets sum to 1, and the bound is relative to the bound before the
window: so that the objective has the same meaning for every cluster, time unit and step.

A job runs in one *mode* for the whole window: a size and a GPU type. A mode needs amounts of resources in each round in
which the job runs. Resources are GPUs by type (j in Appendix C), or whatever else has a limit, such as CPUs or the GPUs
of an account.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import NDArray

from policies.shockwave.progress_curve import ProgressCurve

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Mode:
    """One way to run a job.

    Attributes:
        gpus: GPUs of the job.
        needs: amounts of each resource in a round.
        curve: the steps to come, by seconds of training.
        running: whether the job runs in this mode now.
        restart_seconds: seconds without progress at each start in this mode.
    """

    gpus: int
    needs: tuple[float, ...]
    curve: ProgressCurve
    running: bool = False
    restart_seconds: float = 0.0

    def fault(self, capacity: Sequence[float]) -> str | None:
        """Why the job cannot be planned in this mode, in words; None where it can."""
        seconds, steps = self.curve
        numbers = (*seconds, *steps, *self.needs, self.restart_seconds)
        ascending = len(seconds) == len(steps) and all(list(axis) == sorted(axis) for axis in self.curve)
        checks = {
            "a number is negative or not finite": self.gpus < 1
            or not all(math.isfinite(n) and n >= 0 for n in numbers),
            f"it names {len(self.needs)} resources of {len(capacity)}": len(self.needs) != len(capacity),
            "it needs no resource": not any(self.needs),
            "its progress does not ascend with the seconds": not ascending,
            "no work is left": not (seconds and steps and seconds[-1] > 0 and steps[-1] > 0),
            "it needs more than the cluster has": any(n > most for n, most in zip(self.needs, capacity, strict=False)),
        }
        return next((words for words, violated in checks.items() if violated), None)


@dataclass(frozen=True, slots=True)
class MarketJob:
    """A job that is planned.

    Attributes:
        key: a unique name.
        done: steps done.
        modes: ways to run the job; the first one is as requested.
        budget: its purchasing power relative to that of the other jobs, above 0.
        pinned: whether it runs in every round, in its first mode, until its work is done.
    """

    key: str
    done: float
    modes: tuple[Mode, ...]
    budget: float = 1.0
    pinned: bool = False


@dataclass(frozen=True, slots=True)
class Window:
    """The rounds that are planned, and the weight of the makespan.

    Attributes:
        rounds: the number of rounds, at least 1 (T).
        round_seconds: the length of a round (D).
        regularisation: what lowering the bound of the makespan by 1 % counts for, in percent of the mean progress, at
            least 0 (lambda).
        head_start: the part of the whole job that counts as done besides what is done, above 0, so that the logarithm
            is finite for jobs that have done nothing. With 1, the last part of a job counts for half as much as the
            first; with less, jobs are begun rather than ended.
        elastic: whether jobs choose among all their modes, rather than among those with the requested GPUs.
    """

    rounds: int = 20
    round_seconds: float = 120.0
    regularisation: float = 1.0
    head_start: float = 1.0
    elastic: bool = False

    def __post_init__(self) -> None:
        if self.rounds < 1 or not (math.isfinite(self.round_seconds) and self.round_seconds > 0):
            raise ValueError(f"{self.rounds} rounds of {self.round_seconds} s; plan 1 or more, of more than 0 s")
        if not (math.isfinite(self.regularisation) and self.regularisation >= 0):
            raise ValueError(f"regularisation is {self.regularisation}; give a number from 0, such as 1")
        if not self.head_start > 0:
            raise ValueError(f"head_start is {self.head_start}; give a part of the job above 0, such as 1")


@dataclass(frozen=True, eq=False)
class Market:
    """One window as arrays. Their axes are jobs (J), rows (modes of all jobs, job by job), and resources (R).

    Attributes:
        window: the rounds and the regularisation.
        keys: J names.
        budgets: J, their sum is 1.
        pinned: J, whether the job runs in every round.
        done: J, progress before the window with the head start, in parts of the whole job.
        capacity: R amounts in each round.
        gpus: the cluster's GPUs (M).
        job: for each row, the index of its job.
        mode: for each row, the index of its mode among those of the job that was given.
        row_gpus: for each row, GPUs.
        needs: rows x R amounts in each round.
        running: for each row, whether the job runs in this mode now.
        restart_seconds: for each row, seconds without progress at each start.
        corner_seconds: rows x corners, the progress curves' seconds.
        corner_progress: rows x corners, the progress curves' steps in parts of the whole job.
        refused: jobs that cannot be planned, with the reason in words.
    """

    window: Window
    keys: tuple[str, ...]
    budgets: Floats
    pinned: Bools
    done: Floats
    capacity: Floats
    gpus: float
    job: Ints
    mode: Ints
    row_gpus: Ints
    needs: Floats
    running: Bools
    restart_seconds: Floats
    corner_seconds: Floats
    corner_progress: Floats
    refused: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, jobs: Sequence[MarketJob], capacity: Sequence[float], gpus: float, window: Window) -> Self:
        """The market of some jobs.

        Args:
            jobs: the jobs. One that cannot be planned is refused, and does not affect the others.
            capacity: amounts of each resource.
            gpus: the cluster's GPUs.
            window: the rounds.

        Raises:
            ValueError: two jobs have the same key.
        """
        if len({job.key for job in jobs}) != len(jobs):
            raise ValueError("two jobs have the same key; give each job another one")
        kept: list[MarketJob] = []
        rows: list[tuple[int, int, Mode]] = []
        refused: dict[str, str] = {}
        for job in jobs:
            possible, fault = _possible_modes(job, capacity, elastic=window.elastic)
            if fault is not None:
                refused[job.key] = fault
                continue
            rows += [(len(kept), number, job.modes[number]) for number in possible]
            kept.append(job)
        total = np.array([job.done + job.modes[0].curve.steps[-1] for job in kept])
        number = np.array([row[0] for row in rows], dtype=np.int64)
        modes = [row[2] for row in rows]
        corner_seconds, corner_steps = (
            _padded([m.curve.seconds for m in modes]),
            _padded([m.curve.steps for m in modes]),
        )
        progress = corner_steps / total[number][:, None]
        budgets = np.array([job.budget for job in kept])
        return cls(
            window=window,
            keys=tuple(job.key for job in kept),
            budgets=budgets / budgets.sum() if kept else budgets,
            pinned=np.array([job.pinned for job in kept], dtype=bool),
            done=np.array([job.done for job in kept]) / total + window.head_start,
            capacity=np.array(capacity, dtype=float),
            gpus=float(gpus),
            job=number,
            mode=np.array([row[1] for row in rows], dtype=np.int64),
            row_gpus=np.array([mode.gpus for mode in modes], dtype=np.int64),
            needs=np.array([mode.needs for mode in modes], dtype=float).reshape(len(rows), len(capacity)),
            running=np.array([mode.running for mode in modes], dtype=bool),
            restart_seconds=np.array([mode.restart_seconds for mode in modes]),
            corner_seconds=corner_seconds,
            corner_progress=progress,
            refused=refused,
        )

    @cached_property
    def first_row(self) -> Ints:
        """For each job, its first row: the mode in which its remaining run time is counted."""
        return np.asarray(np.flatnonzero(np.diff(self.job, prepend=-1)))

    @cached_property
    def makespan_now(self) -> float:
        """The bound of the makespan if nothing ran in the window, in seconds (H of Eq. 10)."""
        return self.makespan(np.zeros(len(self.keys)))

    @property
    def makespan_weight(self) -> float:
        """What a second of the bound of the makespan counts for in the objective."""
        return self.window.regularisation / self.makespan_now if self.makespan_now > 0 else 0.0

    def progress(self, rows: Ints, seconds: Floats) -> Floats:
        """Progress in parts of the whole job, in the shape of ``seconds`` (rows x anything)."""
        return _interpolate(seconds, self.corner_seconds[rows], self.corner_progress[rows])

    def welfare(self, jobs: Ints, progress: Floats) -> Floats:
        """What jobs contribute to the welfare by their progress in the window (jobs x anything)."""
        return np.asarray(self.budgets[jobs][:, None] * np.log(self.done[jobs][:, None] + progress))

    def remaining(self, jobs: Ints, progress: Floats) -> Floats:
        """Seconds of run time that remain in the first mode after some progress (jobs x anything)."""
        rows = self.first_row[jobs]
        curves = self.corner_progress[rows], self.corner_seconds[rows]
        return np.maximum(self.corner_seconds[rows, -1:] - _interpolate(progress, *curves), 0.0)

    def work_seconds(self, jobs: Ints, remaining: Floats) -> Floats:
        """The jobs' parts of the cluster's time for the remaining work, in seconds (jobs x anything)."""
        return np.asarray(self.row_gpus[self.first_row[jobs]][:, None] * remaining / self.gpus)

    def makespan(self, progress: Floats) -> float:
        """The bound of the makespan after the window, in seconds (Eq. 10, weighted by GPUs).

        The larger one of the remaining GPU time over the cluster's GPUs, and the longest remaining run time.
        """
        jobs = np.arange(len(self.keys))
        remaining = self.remaining(jobs, progress[:, None])
        return float(max(self.work_seconds(jobs, remaining).sum(), remaining.max(initial=0.0)))

    def objective(self, progress: Floats) -> float:
        """The objective (Eq. 11) of the jobs' progress in the window."""
        welfare = self.welfare(np.arange(len(self.keys)), progress[:, None])
        return float(welfare.sum() - self.makespan_weight * self.makespan(progress))


def _possible_modes(job: MarketJob, capacity: Sequence[float], *, elastic: bool) -> tuple[list[int], str | None]:
    """The indices of the modes among which a job chooses, or why there are none."""
    if not (math.isfinite(job.budget) and job.budget > 0 and math.isfinite(job.done) and job.done >= 0):
        return [], "its budget or progress is negative or not finite"
    if not job.modes:
        return [], "it has no mode"
    faults = [mode.fault(capacity) for mode in job.modes]
    wanted = [number for number, mode in enumerate(job.modes) if elastic or mode.gpus == job.modes[0].gpus]
    if job.pinned:
        wanted = wanted[:1]
    possible = [number for number in wanted if faults[number] is None]
    return possible, None if possible else faults[wanted[0]]


def _padded(lists: Sequence[Sequence[float]]) -> Floats:
    """Lists as rows of one array; short ones end with repetitions of their last number."""
    corners = max(map(len, lists), default=1)
    return np.array([[*each, *[each[-1]] * (corners - len(each))] for each in lists]).reshape(len(lists), corners)


def _interpolate(values: Floats, corners: Floats, heights: Floats) -> Floats:
    """Row by row, the polyline through ``corners`` and ``heights`` at ``values``; constant after its last corner."""
    found = np.broadcast_to(heights[:, :1], values.shape).copy()
    for begin, width, rise in zip(corners[:, :-1].T, np.diff(corners).T, np.diff(heights).T, strict=True):
        slope = np.divide(rise, width, out=np.zeros_like(rise), where=width > 0)
        found += np.clip(values - begin[:, None], 0.0, width[:, None]) * slope[:, None]
    return found
