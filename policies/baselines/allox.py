"""AlloX: the order with the least average JCT, by a matching of jobs to positions.

Source: Le et al., EuroSys 2020, section 4. A job that is the k-th from the last on a machine delays itself and the k-1
jobs after it, so it adds k times its processing time there to the sum of all completion times. The least sum is a
min-cost matching of jobs with positions (machine, k). The first job of each machine starts now.

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
    """Starts jobs in the order with the least average JCT; a started job runs to its end."""

    name: ClassVar[str] = "allox"
    Parameters: ClassVar[type[AlloXParameters]] = AlloXParameters
    parameters: AlloXParameters

    def time_shares(self, inputs: AllocationInputs, memory: Mapping[str, Any]) -> tuple[TimeShares, Mapping[str, Any]]:
        """All of the time for started jobs; the memory has the GPU type of each started job, by uid."""
        as_published = self.parameters.as_published
        started: dict[str, str] = {
            job.uid: gpu_type
            for job in inputs.jobs
            if (gpu_type := memory.get("started", {}).get(job.uid)) in inputs.gpus_per_node[job.uid]
        }
        free = dict(inputs.capacity)
        waiting = []
        for job in inputs.jobs:
            if job.uid in started and not (as_published and job.gpus > 1):
                free[started[job.uid]] -= job.gpus
            elif inputs.gpus_per_node[job.uid]:
                waiting.append(job)
        started |= self._start(inputs, waiting, {gpu_type: count for gpu_type, count in free.items() if count > 0})
        shares = {
            job.uid: {started[job.uid]: 1.0 / job.gpus if as_published else 1.0}
            for job in inputs.jobs
            if job.uid in started
        }
        return as_single_combinations(shares), {"started": started}

    def _start(self, inputs: AllocationInputs, waiting: Sequence[Job], free: Mapping[str, int]) -> dict[str, str]:
        """By uid, the GPU type of the jobs that start now."""
        types = sorted(free)
        if not types or not waiting:
            return {}
        width = 1.0 if self.parameters.as_published else fmean(job.gpus for job in waiting)
        machines = [max(int(free[gpu_type] / width), 1) for gpu_type in types]
        waiting = waiting[: max(int(self.parameters.alpha * len(waiting)), sum(machines))]
        seconds = _seconds(inputs, waiting, types)
        if self.parameters.as_published:
            first = _first_on_machines(seconds, machines)
            return {waiting[i].uid: types[j] for i, j in first if seconds[i, j] < IMPOSSIBLE}
        positions = match(seconds, np.array([job.gpus / width for job in waiting]), machines)
        order = sorted(range(len(waiting)), key=lambda i: (-positions[i][1], seconds[i, positions[i][0]], i))
        started, left, full = {}, [free[gpu_type] for gpu_type in types], set()
        for i in order:
            j, job = positions[i][0], waiting[i]
            if job.gpus > left[j]:
                full.add(j)
            if j not in full and seconds[i, j] < IMPOSSIBLE:
                left[j] -= job.gpus
                started[job.uid] = types[j]
        return started


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


def _seconds(inputs: AllocationInputs, jobs: Sequence[Job], types: Sequence[str]) -> Floats:
    """Remaining seconds of each job on each GPU type, shape (M, J); the mean where they are not known."""
    found = np.full((len(jobs), len(types)), np.nan)
    for i, job in enumerate(jobs):
        for j, gpu_type in enumerate(types):
            if gpu_type not in inputs.gpus_per_node[job.uid]:
                found[i, j] = IMPOSSIBLE
            elif job.remaining_steps is not None and (speed := inputs.speed(job, gpu_type)):
                found[i, j] = job.remaining_steps / speed
    known = found[found < IMPOSSIBLE]
    found[np.isnan(found)] = known.mean() if len(known) else 1.0
    return found
