"""AlloX: the order with the least average JCT, by a matching of jobs to positions.

Source: Le et al., EuroSys 2020, section 4. A job that is the k-th from the last on a machine delays itself and the k-1
behind it, so it adds k times its processing time there to the sum of all completion times. The least sum is a min-cost
matching of jobs with positions (machine, k). Who starts now is who comes first on a machine.

Machines of one GPU type are alike, so no optimum puts more than ceil(jobs / machines) on one of them, or somebody would
move up: the matching is on about (jobs x jobs) costs for each type, not on (jobs x machines x jobs). With one type it
is a sort.

A gang delays those behind it in proportion to its width. A machine is then GPUs for a job of average width, and a job
of w times that width adds 1 + (k-1) w times its processing time. With jobs of one GPU that is the paper's rule. In the
order of a type's positions, gangs start whole, and none overtakes the first that does not fit.
"""

from __future__ import annotations

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
from metasched.time_shares.round_mechanism import TimeShares, alone

Floats = npt.NDArray[np.float64]

CLOSE = 1e-12
"""Relative: differences below are rounding."""

IMPOSSIBLE = 1e12
"""Seconds: longer than anything runs, so that a type that a job cannot use is never matched while there is another."""


class AlloXParameters(TimeShareParameters):
    """Parameters of AlloX.

    Attributes:
        alpha: fraction of the waiting jobs, in the order of submission, that is matched; never fewer jobs than
            machines. 1.0 has the least average JCT; less keeps long jobs from starving (section 4.3).
        as_published: whether a gang takes one machine like every other job, has 1/k of the time, and is matched anew at
            every change, with ties left to scipy's solver, as in the public code.
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
        started: dict[str, str] = {
            job.uid: kind
            for job in inputs.jobs
            if (kind := memory.get("started", {}).get(job.uid)) in inputs.gpus_per_node[job.uid]
        }
        free = dict(inputs.capacity)
        bound = [job for job in inputs.jobs if job.uid in started and not self._anew(job)]
        for job in bound:
            free[started[job.uid]] -= job.gpus
        kept = {job.uid for job in bound}
        waiting = [job for job in inputs.jobs if inputs.gpus_per_node[job.uid] and job.uid not in kept]
        started |= self._begin(inputs, waiting, {kind: count for kind, count in free.items() if count > 0})
        gpus = {job.uid: job.gpus for job in inputs.jobs}
        part = {uid: 1.0 / gpus[uid] if self.parameters.as_published else 1.0 for uid in started}
        ordered = [job.uid for job in inputs.jobs if job.uid in started]
        return alone({uid: {started[uid]: part[uid]} for uid in ordered}), {"started": started}

    def _anew(self, job: Job) -> bool:
        """Whether a started job is matched again (``as_published``)."""
        return self.parameters.as_published and job.gpus > 1

    def _begin(self, inputs: AllocationInputs, waiting: Sequence[Job], free: Mapping[str, int]) -> dict[str, str]:
        """By uid, the GPU type of the jobs that start now."""
        kinds = sorted(free)
        if not kinds or not waiting:
            return {}
        width = 1.0 if self.parameters.as_published else fmean(job.gpus for job in waiting)
        machines = [max(int(free[kind] / width), 1) for kind in kinds]
        waiting = waiting[: max(int(self.parameters.alpha * len(waiting)), sum(machines))]
        seconds = _seconds(inputs, waiting, kinds)
        if self.parameters.as_published:
            first = _first_on_machines(seconds, machines)
            return {waiting[i].uid: kinds[j] for i, j in first if seconds[i, j] < IMPOSSIBLE}
        positions = match(seconds, np.array([job.gpus / width for job in waiting]), machines)
        order = sorted(range(len(waiting)), key=lambda i: (-positions[i][1], seconds[i, positions[i][0]], i))
        begin, left, full = {}, [free[kind] for kind in kinds], set()
        for i in order:
            j, job = positions[i][0], waiting[i]
            if job.gpus > left[j]:
                full.add(j)
            if j not in full and seconds[i, j] < IMPOSSIBLE:
                left[j] -= job.gpus
                begin[job.uid] = kinds[j]
        return begin


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
        for place, i in enumerate(np.argsort(-seconds[:, 0] * widths, kind="stable")):
            found[i] = (0, place // machines[0] + 1)
        return found
    matching = _Matching(seconds, widths, machines)
    for i in np.argsort(-seconds.min(axis=1), kind="stable"):  # short jobs last: they come first, and displace few
        matching.insert(int(i))
    return [(matching.types[slot], matching.ks[slot]) for slot in matching.slot]


class _Matching:
    """A least-cost matching that grows job by job, by shortest augmenting paths over slots.

    A slot is one k of one type; it takes as many jobs as there are machines. Only a full slot sends a job on to
    another; a type's next slot is opened when its last one is full.
    """

    def __init__(self, seconds: Floats, widths: Floats, machines: Sequence[int]) -> None:
        self.seconds = seconds
        self.widths = widths
        self.machines = machines
        self.types: list[int] = []
        self.ks: list[int] = []
        self.members: list[list[int]] = []
        self.slot = [-1] * len(seconds)
        self.sends = np.zeros((0, 0))  # least cost of sending a job from a slot to another
        self.sent = np.zeros((0, 0), dtype=np.int64)  # the job
        for j in range(len(machines)):
            self._open(j, 1)

    def insert(self, i: int) -> None:
        """Match a further job, and move others where that lowers the sum."""
        distance = self._costs([i])[0]
        came_from = np.full(len(distance), -1)
        full = np.array([len(jobs) == self.machines[j] for j, jobs in zip(self.types, self.members, strict=True)])
        sources = np.nonzero(full)[0]
        while len(sources):
            via = distance[sources, None] + self.sends[sources]
            best = via.argmin(axis=0)
            found = via[best, np.arange(len(distance))]
            better = found < distance - CLOSE * np.abs(distance)
            distance = np.where(better, found, distance)
            came_from = np.where(better, sources[best], came_from)
            sources = np.nonzero(better & full)[0]
        at = int(np.where(full, np.inf, distance).argmin())
        changed = [at]
        while came_from[at] >= 0:
            source = int(came_from[at])
            moved = int(self.sent[source, at])
            self.members[source].remove(moved)
            self._put(moved, at)
            at = source
            changed.append(at)
        self._put(i, at)
        for slot in changed:
            self._reckon(slot)
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
        self.sends = np.full((len(self.ks), len(self.ks)), np.inf)
        self.sent = np.zeros(self.sends.shape, dtype=np.int64)
        for slot in range(len(self.ks)):
            self._reckon(slot)

    def _reckon(self, slot: int) -> None:
        """Recompute the least cost of moving a job from a slot to each other slot."""
        jobs = self.members[slot]
        if jobs:
            costs = self._costs(jobs)
            more = costs - costs[:, slot, None]
            cheapest = more.argmin(axis=0)
            self.sends[slot] = more[cheapest, np.arange(len(cheapest))]
            self.sent[slot] = np.array(jobs)[cheapest]

    def _costs(self, jobs: Sequence[int]) -> Floats:
        """Costs in seconds of jobs in all open slots, shape (jobs, slots)."""
        rows = np.asarray(jobs)
        costs: Floats = self.seconds[rows][:, self.types] * (1.0 + (np.array(self.ks) - 1) * self.widths[rows, None])
        return costs


def _first_on_machines(seconds: Floats, machines: Sequence[int]) -> list[tuple[int, int]]:
    """Jobs that come first on a machine, with the type, where every machine is matched by itself.

    Ties are broken by scipy, and by the rounding of its subtraction of the least cost, as it was until version 1.8.
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


def _seconds(inputs: AllocationInputs, jobs: Sequence[Job], kinds: Sequence[str]) -> Floats:
    """Remaining seconds of each job on each GPU type, shape (M, J); the mean where they are not known."""
    found = np.full((len(jobs), len(kinds)), np.nan)
    for i, job in enumerate(jobs):
        for j, kind in enumerate(kinds):
            if kind not in inputs.gpus_per_node[job.uid]:
                found[i, j] = IMPOSSIBLE
            elif job.remaining_steps is not None and (speed := inputs.speed(job, kind)):
                found[i, j] = job.remaining_steps / speed
    known = found[found < IMPOSSIBLE]
    found[np.isnan(found)] = known.mean() if len(known) else 1.0
    return found
