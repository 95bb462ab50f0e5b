"""AlloX: the order with the least average JCT, by a matching of jobs to positions.

Source: Le et al., EuroSys 2020, section 4. A job that is the k-th from the last on a machine delays itself and the k-1
jobs after it, so it adds k times its processing time there to the sum of all completion times. The least sum is a
min-cost matching of jobs with positions (machine, k). The first job of each machine starts now.

All jobs are matched with all machines whenever jobs come or go, started jobs with what remains of them. A started job
is never stopped to wait, but moves to the GPU type of its position when GPUs are free there and it ends earlier in
spite of its restart. A matching of waiting jobs with the machines that are free would have no choice where one machine
at a time gets free: each job would run to its end on whatever type was free first, however slow. GPUs that no job can
take by this matching go to waiting jobs by a second matching, with the free machines alone, so that none is idle.

Machines of one GPU type are alike, so no optimum has more than ceil(jobs / machines) jobs on one of them: the first of
them, moved to the front of a machine with fewer jobs, would delay fewer jobs. The matching is therefore on about
(jobs x jobs) costs for each type, not on (jobs x machines x jobs). With one type it is a sort.

A gang delays the jobs after it in proportion to its width, its number of GPUs. A machine then stands for the GPUs of a
job of average width, and a job of w times that width adds 1 + (k-1) w times its processing time. With jobs of one GPU
that is the paper's rule. In the order of a type's positions, gangs start whole, and no job overtakes the first that
does not fit.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from pydantic import Field
from scipy.optimize import linear_sum_assignment

from metasched.core.model import Job
from metasched.time_shares.allocation_inputs import AllocationInputs
from metasched.time_shares.policy_base import TimeShareParameters, TimeSharePolicy
from metasched.time_shares.round_mechanism import TimeShares, as_single_combinations

Floats = npt.NDArray[np.float64]

CLOSE = 1e-12
"""Relative difference of costs below which the difference is rounding."""

IMPOSSIBLE = 1e12
"""Seconds of a job on a GPU type that it cannot use: longer than any job runs, so any other type is matched first."""

DEFAULT_RESTART_SECONDS = 60.0
"""Seconds that a restart is taken to cost where none was measured."""


class AlloXParameters(TimeShareParameters):
    """Parameters of AlloX.

    Attributes:
        alpha: fraction of the waiting jobs, in the order of submission, that is matched; never fewer jobs than
            machines. 1.0 has the least average JCT; less keeps long jobs from starving (section 4.3).
        as_published: whether a gang of k GPUs takes one machine like every other job, has 1/k of the time, and is
            matched again at every change, with ties broken by scipy's solver, as in the public code.
    """

    alpha: float = Field(default=1.0, gt=0, le=1)
    as_published: bool = False


class AlloX(TimeSharePolicy):
    """Starts jobs in the order with the least average JCT; a started job runs to its end, at first on a slow type."""

    name: ClassVar[str] = "allox"
    Parameters: ClassVar[type[AlloXParameters]] = AlloXParameters
    parameters: AlloXParameters

    def time_shares(self, inputs: AllocationInputs, memory: Mapping[str, Any]) -> tuple[TimeShares, Mapping[str, Any]]:
        """All of the time for started jobs; the memory has the GPU type of each started job, by uid."""
        before = memory.get("started", {})
        jobs = [job for job in inputs.jobs if inputs.gpus_per_node[job.uid]]
        started: dict[str, str] = {
            job.uid: before[job.uid] for job in jobs if before.get(job.uid) in inputs.gpus_per_node[job.uid]
        }
        as_published = self.parameters.as_published
        if as_published:
            self._start_as_published(inputs, jobs, started)
        else:
            self._start_and_move(inputs, jobs, started)
        shares = {
            job.uid: {started[job.uid]: 1.0 / job.gpus if as_published else 1.0} for job in jobs if job.uid in started
        }
        return as_single_combinations(shares), {"started": started}

    def _start_and_move(self, inputs: AllocationInputs, jobs: Sequence[Job], started: dict[str, str]) -> None:
        """Start waiting jobs and move started ones: by a matching with all GPUs, then by one with the free GPUs."""
        free = dict(inputs.capacity)
        for job in jobs:
            if job.uid in started:
                free[started[job.uid]] -= job.gpus
        if not any(gpus > 0 for gpus in free.values()):
            return  # no job can start or move
        waiting = self._first_submitted([job for job in jobs if job.uid not in started], free)
        matched = started.keys() | {job.uid for job in waiting}
        _assign(inputs, [job for job in jobs if job.uid in matched], inputs.capacity, started, free)
        _assign(inputs, [job for job in waiting if job.uid not in started], dict(free), started, free)

    def _start_as_published(self, inputs: AllocationInputs, jobs: Sequence[Job], started: dict[str, str]) -> None:
        """Start waiting jobs, and match gangs again, as in the public code (``as_published``)."""
        free = dict(inputs.capacity)
        waiting = []
        for job in jobs:
            if job.uid in started and job.gpus == 1:
                free[started[job.uid]] -= 1
            else:
                waiting.append(job)
        types = sorted(gpu_type for gpu_type, gpus in free.items() if gpus > 0)
        if not types or not waiting:
            return
        waiting = waiting[: max(int(self.parameters.alpha * len(waiting)), sum(free[gpu_type] for gpu_type in types))]
        seconds = _estimated(_known_seconds(inputs, waiting, types))
        for i, j in _first_on_machines(seconds, [free[gpu_type] for gpu_type in types]):
            if seconds[i, j] < IMPOSSIBLE:
                started[waiting[i].uid] = types[j]

    def _first_submitted(self, waiting: Sequence[Job], free: Mapping[str, int]) -> Sequence[Job]:
        """The fraction ``alpha`` of the waiting jobs, at least as many as free machines, in the order of submission."""
        if not waiting:
            return waiting
        machines = sum(_machines([gpus for gpus in free.values() if gpus > 0], fmean(job.gpus for job in waiting)))
        return waiting[: max(int(self.parameters.alpha * len(waiting)), machines)]


def _machines(gpus: Sequence[int], width: float) -> list[int]:
    """The number of machines of ``width`` GPUs in each of these numbers of GPUs, at least one."""
    return [max(int(count / width), 1) for count in gpus]


def _assign(
    inputs: AllocationInputs,
    jobs: Sequence[Job],
    gpus: Mapping[str, int],
    started: dict[str, str],
    free: dict[str, int],
) -> None:
    """Give jobs the GPU types of their matching, first positions first, as far as GPUs are free.

    A waiting job starts. A started job moves if it then ends earlier in spite of its restart; otherwise it continues
    where it runs, and delays no waiting job.

    Args:
        inputs: allocation inputs of the round.
        jobs: the jobs to match, by submission, each of which can be placed on some GPU type.
        gpus: GPUs to match them with, by GPU type.
        started: GPU type of each started job, by uid; changed.
        free: free GPUs by GPU type; changed.
    """
    wishes = _wishes(inputs, jobs, gpus, started)
    changed = True
    while changed:  # a move may free GPUs for a job of an earlier position; each job changes its type at most once
        changed, full = False, set()
        for job, gpu_type in wishes:
            before = started.get(job.uid)
            if before == gpu_type:
                continue
            if gpu_type in full or job.gpus > free[gpu_type]:
                if before is None:
                    full.add(gpu_type)
                continue
            if before is not None:
                free[before] += job.gpus
            free[gpu_type] -= job.gpus
            started[job.uid] = gpu_type
            changed = True


def _wishes(
    inputs: AllocationInputs, jobs: Sequence[Job], gpus: Mapping[str, int], started: Mapping[str, str]
) -> list[tuple[Job, str]]:
    """Jobs that are to start or to move, with their GPU types, in the order of their positions in the matching.

    For the parameters see ``_assign``.
    """
    types = sorted(gpu_type for gpu_type, count in gpus.items() if count > 0)
    if not types or not jobs:
        return []
    known = _known_seconds(inputs, jobs, types)
    for i, job in enumerate(jobs):
        if (present := started.get(job.uid)) is not None:
            restart = DEFAULT_RESTART_SECONDS if job.restart_seconds is None else job.restart_seconds
            known[i] += [0.0 if gpu_type == present else restart for gpu_type in types]
    seconds, width = _estimated(known), fmean(job.gpus for job in jobs)
    widths = np.array([job.gpus / width for job in jobs])
    positions = match(seconds, widths, _machines([gpus[gpu_type] for gpu_type in types], width))
    wishes = []
    for i in sorted(range(len(jobs)), key=lambda i: (-positions[i][1], seconds[i, positions[i][0]], i)):
        job, j, present = jobs[i], positions[i][0], started.get(jobs[i].uid)
        gains = present is None or (present in types and known[i, j] < known[i, types.index(present)])
        if gains and seconds[i, j] < IMPOSSIBLE:
            wishes.append((job, types[j]))
    return wishes


def match(seconds: Floats, widths: Floats, machines: Sequence[int]) -> list[tuple[int, int]]:
    """The position of each job in the matching with the least sum of JCTs: GPU type, and k counted from the last.

    Args:
        seconds: remaining seconds of each job on each type, shape (M, J).
        widths: GPUs of each job over those of a machine, shape (M,).
        machines: machines of each type, at least one, shape (J,).
    """
    jobs = len(seconds)
    if len(machines) == 1:
        found = [(0, 0)] * jobs
        for rank, i in enumerate(np.argsort(-seconds[:, 0] * widths, kind="stable")):
            found[i] = (0, rank // machines[0] + 1)
        return found
    matching = _Matching(seconds, widths, machines)
    for i in np.argsort(-seconds.min(axis=1), kind="stable"):  # long jobs first: short ones then move few others
        matching.insert(int(i))
    return [(matching.types[slot], matching.ks[slot]) for slot in matching.slot]


class _Matching:
    """A least-cost matching that grows job by job, by shortest augmenting paths over slots.

    A slot is one k of one type; it takes as many jobs as the type has machines. Only from a full slot is a job moved to
    another one. A type's next slot is opened when its last one is full.
    """

    def __init__(self, seconds: Floats, widths: Floats, machines: Sequence[int]) -> None:
        known = seconds < IMPOSSIBLE
        # More than all jobs together can take: less than IMPOSSIBLE where possible, of which the rounding is a second.
        most = np.max(seconds, where=known, initial=1.0) * len(seconds) * (1.0 + len(seconds) * widths.max(initial=0.0))
        self.seconds = np.where(known, seconds, most)
        self.rounding = CLOSE * most
        self.widths = widths
        self.machines = machines
        self.types: list[int] = []
        self.ks: list[int] = []
        self.members: list[list[int]] = []
        self.slot = [-1] * len(seconds)
        self.move_costs = np.zeros((0, 0))  # least cost of moving a job from a slot (row) to another
        self.cheapest = np.zeros((0, 0), dtype=np.int64)  # the job of that cost
        for j in range(len(machines)):
            self._open(j, 1)

    def insert(self, i: int) -> None:
        """Match a further job, and move others where that lowers the sum."""
        distance = self._costs([i])[0]
        came_from = np.full(len(distance), -1)
        full = np.array([len(jobs) == self.machines[j] for j, jobs in zip(self.types, self.members, strict=True)])
        sources = np.nonzero(full)[0]
        for _ in distance:  # each time, paths of one more move
            if not len(sources):
                break
            via = distance[sources, None] + self.move_costs[sources]
            best = via.argmin(axis=0)
            found = via[best, np.arange(len(distance))]
            better = found < distance - self.rounding
            distance = np.where(better, found, distance)
            came_from = np.where(better, sources[best], came_from)
            sources = np.nonzero(better & full)[0]
        at = int(np.where(full, np.inf, distance).argmin())
        changed = [at]
        while came_from[at] >= 0 and came_from[at] not in changed:  # rounding can make a circle of equal costs
            at = int(came_from[at])
            changed.append(at)
        if came_from[at] >= 0:
            at = int(np.where(full, np.inf, self._costs([i])[0]).argmin())
            changed = [at]
        for target, source in itertools.pairwise(changed):
            moved = int(self.cheapest[source, target])
            self.members[source].remove(moved)
            self._put(moved, target)
        self._put(i, at)
        for slot in changed:
            self._update_costs(slot)
        last = changed[0]
        if len(self.members[last]) == self.machines[self.types[last]]:
            self._open(self.types[last], self.ks[last] + 1)

    def _put(self, i: int, slot: int) -> None:
        self.members[slot].append(i)
        self.slot[i] = slot

    def _open(self, j: int, k: int) -> None:
        self.types.append(j)
        self.ks.append(k)
        self.members.append([])
        self.move_costs = np.full((len(self.ks), len(self.ks)), np.inf)
        self.cheapest = np.zeros(self.move_costs.shape, dtype=np.int64)
        for slot in range(len(self.ks)):
            self._update_costs(slot)

    def _update_costs(self, slot: int) -> None:
        """Recompute the least cost of moving a job from a slot to each other slot."""
        jobs = self.members[slot]
        if jobs:
            costs = self._costs(jobs)
            more = costs - costs[:, slot, None]
            cheapest = more.argmin(axis=0)
            self.move_costs[slot] = more[cheapest, np.arange(len(cheapest))]
            self.cheapest[slot] = np.array(jobs)[cheapest]

    def _costs(self, jobs: Sequence[int]) -> Floats:
        """Costs in seconds of jobs in all open slots, shape (jobs, slots)."""
        rows = np.asarray(jobs)
        costs: Floats = self.seconds[rows][:, self.types] * (1.0 + (np.array(self.ks) - 1) * self.widths[rows, None])
        return costs


def _first_on_machines(seconds: Floats, machines: Sequence[int]) -> list[tuple[int, int]]:
    """The first job of each machine and the machine's type, where every machine has positions of its own.

    Ties are broken by scipy, and by the rounding of a subtraction of the least cost, as in scipy until version 1.8.
    """
    jobs = len(seconds)
    types = np.repeat(np.arange(len(machines)), machines)
    costs = np.concatenate([seconds[:, types] * k for k in range(1, jobs + 1)], axis=1)
    rows, columns = linear_sum_assignment(costs - costs.min())
    first: dict[int, tuple[int, int]] = {}
    for i, column in zip(rows, columns, strict=True):
        k, machine = divmod(int(column), len(types))
        if machine not in first or k > first[machine][0]:
            first[machine] = (k, int(i))
    return [(i, int(types[machine])) for machine, (_, i) in sorted(first.items())]


def _known_seconds(inputs: AllocationInputs, jobs: Sequence[Job], types: Sequence[str]) -> Floats:
    """Remaining seconds of each job on each GPU type, shape (M, J); NaN where they are not known."""
    found = np.full((len(jobs), len(types)), np.nan)
    for i, job in enumerate(jobs):
        for j, gpu_type in enumerate(types):
            if gpu_type not in inputs.gpus_per_node[job.uid]:
                found[i, j] = IMPOSSIBLE
            elif job.remaining_steps is not None and (speed := inputs.speed(job, gpu_type)):
                found[i, j] = job.remaining_steps / speed
    return found


def _estimated(seconds: Floats) -> Floats:
    """The seconds, with the mean of the known ones in place of NaN; 1 where none is known."""
    known = seconds[seconds < IMPOSSIBLE]
    return np.where(np.isnan(seconds), known.mean() if len(known) else 1.0, seconds)
