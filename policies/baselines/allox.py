"""AlloX: the order with the least average JCT, by a matching of jobs to positions.

Source: Le et al., EuroSys 2020, section 4. A job that is the k-th from the last on a machine delays itself and the k-1
jobs after it, so it adds k times its processing time there to the sum of all completion times. The least sum is a
min-cost matching of jobs with positions (machine, k). The first job of each machine starts now.

Waiting jobs are matched with all machines whenever jobs come or go. A busy machine's positions begin when its present
job ends: a job there waits that long in addition. A job starts if it is the first on a machine that is free, and runs
to its end. All other jobs wait for GPUs that are better for them than the free ones. A matching with the free machines
alone would have no choice where one machine at a time gets free: each job would run to its end on whatever type was
free first, however slow. In the interim, waiting jobs are backfilled: they run on GPUs that no started job has, and are
preempted when a job starts there.

The time until a busy machine is free counts ``wait_factor`` times: jobs that arrive later and are shorter overtake the
jobs that wait, so a planned wait gets longer.

Machines of one GPU type that are free are alike, and busy ones nearly so if their times until free differ by at most
a factor of four: they are one group, with the mean of these times. No optimum has more than ceil(jobs / machines) jobs
on a machine of a group: the first of them, moved to the front of a machine with fewer jobs, would delay fewer jobs. The
matching is therefore on about (jobs x jobs) costs for each group, not on (jobs x machines x jobs). With one type it is
a sort.

A gang delays the jobs after it in proportion to its width, its number of GPUs. A machine then stands for the GPUs of a
job of average width, and a job of w times that width adds 1 + (k-1) w times its processing time. With jobs of one GPU
that is the paper's rule. In the order of a type's positions, gangs start whole, and no job starts before the first that
does not fit.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from pydantic import Field
from scipy.optimize import linear_sum_assignment

from metasched.capacity.quota_budget import QuotaBudget
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

BACKFILL_MATCHED, BACKFILL_PER_GPU = 256, 4
"""Most waiting jobs that are matched with free GPUs for backfilling, and the same for each free GPU; the larger counts.

The others take longer, and few free GPUs have no place for them: the first job of a machine is among its shortest."""

GROUP_RATIO = 4.0
"""Ratio of the longest to the shortest time until free of the busy machines in a group."""


class AlloXParameters(TimeShareParameters):
    """Parameters of the policy AlloX."""

    alpha: float = Field(default=1.0, gt=0, le=1)
    """Fraction of the waiting jobs, in the order of submission, that is matched; never fewer jobs than machines. 1.0
    has the least average JCT; less keeps long jobs from starving (section 4.3).
    """
    wait_factor: float = Field(default=3.0, ge=1)
    """Factor on the time until a busy machine is free. 1.0 has the least average JCT if no job arrives any more; more
    prefers free machines to busy ones.
    """
    as_published: bool = False
    """Whether a gang of k GPUs takes one machine like every other job, has 1/k of the time, and is matched again at
    every change, with ties broken by scipy's solver, as in the public code.
    """


@dataclass(frozen=True, slots=True)
class MachineGroup:
    """Machines of one GPU type that count as alike.

    Attributes:
        gpu_type: the GPU type.
        machines: their number.
        wait: mean seconds until they are free; 0.0 if they are free.
    """

    gpu_type: str
    machines: int
    wait: float


class AlloX(TimeSharePolicy):
    """Starts jobs in the order with the least average JCT; a started job is never stopped to wait."""

    name: ClassVar[str] = "allox"
    Parameters: ClassVar[type[AlloXParameters]] = AlloXParameters
    parameters: AlloXParameters

    def time_shares(self, inputs: AllocationInputs, memory: Mapping[str, Any]) -> tuple[TimeShares, Mapping[str, Any]]:
        """All of the time for started and backfilled jobs.

        The memory has the GPU types of both, by uid, and the uids of jobs with declared steps. A job whose declared
        steps are contradicted meanwhile has started by a wrong time: it waits again.
        """
        inputs = _within_quotas(inputs, memory.get("backfilled", {}), memory.get("started", {}))
        jobs = [job for job in inputs.jobs if inputs.gpus_per_node[job.uid]]
        declared = {job.uid for job in jobs if job.remaining_steps is not None}
        believed = [job for job in jobs if job.uid in declared or job.uid not in memory.get("declared", ())]
        started = _remembered(inputs, believed, memory.get("started", {}))
        backfilled = _remembered(inputs, believed, memory.get("backfilled", {}))
        as_published = self.parameters.as_published
        if as_published:
            self._start_as_published(inputs, jobs, started)
        else:
            self._start(inputs, jobs, started, backfilled)
            backfilled = _backfilled(inputs, jobs, started, backfilled)
            _move(inputs, jobs, started, backfilled)
        running = backfilled | started
        shares = {
            job.uid: {running[job.uid]: 1.0 / job.gpus if as_published else 1.0} for job in jobs if job.uid in running
        }
        later = {"started": started, "backfilled": backfilled, "declared": sorted(declared)}
        return as_single_combinations(shares), later

    def _start(
        self, inputs: AllocationInputs, jobs: Sequence[Job], started: dict[str, str], backfilled: Mapping[str, str]
    ) -> None:
        """Start the waiting jobs that are first on a free machine, in the matching with all machines.

        Args:
            inputs: allocation inputs of the round.
            jobs: the jobs that can be placed on some GPU type, by submission.
            started: GPU type of each started job, by uid; changed.
            backfilled: GPU type of each backfilled job, by uid.
        """
        free = _free(inputs, jobs, started)
        waiting = self._first_submitted([job for job in jobs if job.uid not in started], free)
        if not waiting or not any(gpus > 0 for gpus in free.values()):
            return
        types = sorted(gpu_type for gpu_type, gpus in inputs.capacity.items() if gpus > 0)
        present = [job for job in jobs if job.uid in started]
        seconds, width = _seconds(inputs, [*waiting, *present], types), fmean(job.gpus for job in waiting)
        for i, job in enumerate(waiting):
            seconds[i] += _restart_costs(job, types, backfilled.get(job.uid))
        left = [
            (started[job.uid], job.gpus, float(row[types.index(started[job.uid])]))
            for job, row in zip(present, seconds[len(waiting) :], strict=True)
            if started[job.uid] in types
        ]
        groups = _machine_groups({gpu_type: free[gpu_type] for gpu_type in types}, left, width)
        columns = [types.index(group.gpu_type) for group in groups]
        positions = match(
            seconds[: len(waiting), columns],
            np.array([job.gpus / width for job in waiting]),
            [group.machines for group in groups],
            np.array([group.wait * self.parameters.wait_factor for group in groups]),
        )
        full = set()
        for i, column in _first_on_free_machines(seconds, positions, columns, [group.wait for group in groups]):
            gpu_type = types[column]
            if waiting[i].gpus > free[gpu_type]:
                full.add(gpu_type)
            if gpu_type not in full and seconds[i, column] < IMPOSSIBLE:
                started[waiting[i].uid] = gpu_type
                free[gpu_type] -= waiting[i].gpus

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
        seconds = _seconds(inputs, waiting, types)
        for i, j in _first_on_machines(seconds, [free[gpu_type] for gpu_type in types]):
            if seconds[i, j] < IMPOSSIBLE:
                started[waiting[i].uid] = types[j]

    def _first_submitted(self, waiting: Sequence[Job], free: Mapping[str, int]) -> Sequence[Job]:
        """The fraction ``alpha`` of the waiting jobs, at least as many as free machines, in the order of submission."""
        if not waiting:
            return waiting
        machines = sum(_machines([gpus for gpus in free.values() if gpus > 0], fmean(job.gpus for job in waiting)))
        return waiting[: max(int(self.parameters.alpha * len(waiting)), machines)]


def _within_quotas(
    inputs: AllocationInputs, backfilled: Mapping[str, str], started: Mapping[str, str]
) -> AllocationInputs:
    """The allocation inputs, without GPU types on which a job could exceed a quota: started jobs first, then shortest.

    A job counts against the quotas of every GPU type that it may get: which one it gets is decided later.

    Args:
        inputs: allocation inputs of the round.
        backfilled: GPU type of each backfilled job, by uid.
        started: GPU type of each started job, by uid.
    """
    if not inputs.quotas or not inputs.capacity:
        return inputs
    types, budget = sorted(inputs.capacity), QuotaBudget(inputs.quotas)
    shortest = dict(zip(inputs.gpus_per_node, _seconds(inputs, inputs.jobs, types).min(axis=1).tolist(), strict=True))
    order = sorted(inputs.jobs, key=lambda job: (job.uid not in started, job.uid not in backfilled, shortest[job.uid]))
    allowed = {}
    for job in order:
        found = inputs.gpus_per_node[job.uid]
        allowed[job.uid] = {t: spread for t, spread in found.items() if budget.allows([job.uid], job.gpus, t)}
        budget.charge([job.uid], job.gpus, tuple(allowed[job.uid]))
    return replace(inputs, gpus_per_node={job.uid: allowed[job.uid] for job in inputs.jobs})


def _machines(gpus: Sequence[int], width: float) -> list[int]:
    """The number of machines of ``width`` GPUs in each of these numbers of GPUs, at least one."""
    return [max(int(count / width), 1) for count in gpus]


def _remembered(inputs: AllocationInputs, jobs: Sequence[Job], types: Mapping[str, str]) -> dict[str, str]:
    """The GPU types of an earlier decision, by uid, of the jobs that can still be placed there."""
    return {job.uid: types[job.uid] for job in jobs if types.get(job.uid) in inputs.gpus_per_node[job.uid]}


def _free(inputs: AllocationInputs, jobs: Sequence[Job], *running: Mapping[str, str]) -> dict[str, int]:
    """GPUs by GPU type that running jobs leave, negative where GPUs were removed; ``running`` has types by uid."""
    free = dict(inputs.capacity)
    for job in jobs:
        for types in running:
            if job.uid in types:
                free[types[job.uid]] = free.get(types[job.uid], 0) - job.gpus
    return free


def _restart_costs(job: Job, types: Sequence[str], present: str | None) -> list[float]:
    """Seconds of a restart on each GPU type, 0.0 on the present one and for a job that has never run."""
    if not job.attained and present is None:
        return [0.0] * len(types)
    restart = DEFAULT_RESTART_SECONDS if job.restart_seconds is None else job.restart_seconds
    return [0.0 if gpu_type == present else restart for gpu_type in types]


def _machine_groups(
    free: Mapping[str, int], running: Sequence[tuple[str, int, float]], width: float
) -> list[MachineGroup]:
    """Machines of ``width`` GPUs, in groups by GPU type and time until free; with one GPU type, as if all were free.

    Args:
        free: free GPUs by GPU type.
        running: GPU type, GPUs and remaining seconds of each started job.
        width: GPUs of a machine.
    """
    groups = []
    for gpu_type, gpus in free.items():
        waits = [0.0] * max(gpus, 0)
        for used, count, seconds in running:
            if used == gpu_type:
                waits += [seconds if len(free) > 1 else 0.0] * count
        waits.sort()
        (machines,) = _machines([len(waits)], width)
        until_free = [waits[min(int((number + 1) * width), len(waits)) - 1] for number in range(machines)]
        while until_free:
            count = bisect_right(until_free, GROUP_RATIO * until_free[0])
            groups.append(MachineGroup(gpu_type, count, fmean(until_free[:count])))
            until_free = until_free[count:]
    return groups


def _first_on_free_machines(
    seconds: Floats, positions: Sequence[tuple[int, int]], columns: Sequence[int], waits: Sequence[float]
) -> list[tuple[int, int]]:
    """Jobs on free machines and their GPU types, as row and column of ``seconds``, in the order of their positions.

    The sum is the same whichever of a type's k-th jobs from the last has which machine: the first submitted ones have
    the machines that are free first.

    Args:
        seconds: seconds of each job on each GPU type, jobs by submission.
        positions: machine group and k of each job.
        columns: the GPU type of each group, as a column of ``seconds``.
        waits: seconds until each group is free.
    """
    alike: dict[tuple[int, int], list[int]] = {}
    for i, (group, k) in enumerate(positions):
        alike.setdefault((columns[group], k), []).append(i)
    found = []
    for (column, k), jobs in alike.items():
        free = sum(waits[positions[i][0]] <= 0 for i in jobs)
        found += [(-k, float(seconds[i, column]), i, column) for i in jobs[:free]]
    return [(i, column) for _, _, i, column in sorted(found)]


def _backfilled(
    inputs: AllocationInputs, jobs: Sequence[Job], started: Mapping[str, str], before: Mapping[str, str]
) -> dict[str, str]:
    """GPU types by uid of the waiting jobs that are backfilled: those of before, and by a matching with free GPUs.

    Args:
        inputs: allocation inputs of the round.
        jobs: the jobs that can be placed on some GPU type, by submission.
        started: GPU type of each started job, by uid.
        before: GPU type of each job that was backfilled before, by uid.
    """
    free, backfilled, others = _free(inputs, jobs, started), dict[str, str](), []
    for job in jobs:
        gpu_type = before.get(job.uid)
        if job.uid in started:
            continue
        if gpu_type is not None and job.gpus <= free[gpu_type]:
            backfilled[job.uid] = gpu_type
            free[gpu_type] -= job.gpus
        else:
            others.append(job)
    types = sorted(gpu_type for gpu_type, gpus in free.items() if gpus > 0)
    if not types or not others:
        return backfilled
    seconds = _seconds(inputs, others, types)
    if len(others) > (most := max(BACKFILL_MATCHED, BACKFILL_PER_GPU * sum(free[gpu_type] for gpu_type in types))):
        fits = np.array([[job.gpus <= free[gpu_type] for gpu_type in types] for job in others])
        chosen = np.sort(np.argsort(np.where(fits, seconds, IMPOSSIBLE).min(axis=1), kind="stable")[:most])
        others, seconds = [others[i] for i in chosen], seconds[chosen]
    width = fmean(job.gpus for job in others)
    machines = _machines([free[gpu_type] for gpu_type in types], width)
    positions = match(seconds, np.array([job.gpus / width for job in others]), machines)
    for i in sorted(range(len(others)), key=lambda i: (-positions[i][1], seconds[i, positions[i][0]], i)):
        job, j = others[i], positions[i][0]
        if job.gpus <= free[types[j]] and seconds[i, j] < IMPOSSIBLE:
            backfilled[job.uid] = types[j]
            free[types[j]] -= job.gpus
    return backfilled


def _move(inputs: AllocationInputs, jobs: Sequence[Job], started: dict[str, str], backfilled: dict[str, str]) -> None:
    """Move running jobs to idle GPUs of other types, while one ends earlier there in spite of its restart.

    Args:
        inputs: allocation inputs of the round.
        jobs: the jobs that can be placed on some GPU type, by submission.
        started: GPU type of each started job, by uid; changed.
        backfilled: GPU type of each backfilled job, by uid; changed.
    """
    free = _free(inputs, jobs, started, backfilled)
    while gains := list(_gains(inputs, jobs, backfilled | started, free)):
        _, job, gpu_type = max(gains, key=lambda gain: gain[0])
        running = started if job.uid in started else backfilled
        free[running[job.uid]] += job.gpus
        free[gpu_type] -= job.gpus
        running[job.uid] = gpu_type


def _gains(
    inputs: AllocationInputs, jobs: Sequence[Job], running: Mapping[str, str], free: Mapping[str, int]
) -> Iterator[tuple[float, Job, str]]:
    """Seconds by which a running job ends earlier on idle GPUs, the job, and the GPU type; only where known."""
    types = sorted(gpu_type for gpu_type, gpus in free.items() if gpus > 0)
    for job in jobs if types else ():
        present = running.get(job.uid)
        if present is None:
            continue
        (known,) = _known_seconds(inputs, [job], [present, *types])
        costs = _restart_costs(job, types, present)
        for gpu_type, seconds, cost in zip(types, known[1:], costs, strict=True):
            if job.gpus <= free[gpu_type] and known[0] - seconds - cost > 0:  # never for NaN, an unknown time
                yield float(known[0] - seconds - cost), job, gpu_type


def match(
    seconds: Floats, widths: Floats, machines: Sequence[int], waits: Floats | None = None
) -> list[tuple[int, int]]:
    """The position of each job in the matching with the least sum of JCTs: machine group, and k counted from the last.

    Args:
        seconds: remaining seconds of each job on each group of like machines, shape (M, J).
        widths: GPUs of each job over those of a machine, shape (M,).
        machines: machines of each group, at least one, shape (J,).
        waits: seconds until the machines of each group are free, shape (J,); None: all are free.
    """
    jobs = len(seconds)
    if len(machines) == 1:
        found = [(0, 0)] * jobs
        for rank, i in enumerate(np.argsort(-seconds[:, 0] * widths, kind="stable")):
            found[i] = (0, rank // machines[0] + 1)
        return found
    matching = _Matching(seconds, widths, machines, np.zeros(len(machines)) if waits is None else waits)
    for i in np.argsort(-seconds.min(axis=1), kind="stable"):  # long jobs first: short ones then move few others
        matching.insert(int(i))
    return [(matching.groups[slot], matching.ks[slot]) for slot in matching.slot]


class _Matching:
    """A least-cost matching that grows job by job, by shortest augmenting paths over slots.

    A slot is one k of one machine group; it takes as many jobs as the group has machines. Only from a full slot is a
    job moved to another one. A group's next slot is opened when its last one is full.
    """

    def __init__(self, seconds: Floats, widths: Floats, machines: Sequence[int], waits: Floats) -> None:
        known = seconds < IMPOSSIBLE
        # More than all jobs together can take: less than IMPOSSIBLE where possible, of which the rounding is a second.
        most = np.max(seconds, where=known, initial=1.0) * len(seconds) * (1.0 + len(seconds) * widths.max(initial=0.0))
        most += waits.max(initial=0.0)
        self.seconds = np.where(known, seconds, most)
        self.rounding = CLOSE * most
        self.widths = widths
        self.machines = machines
        self.waits = waits
        self.groups: list[int] = []
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
        full = np.array([len(jobs) == self.machines[j] for j, jobs in zip(self.groups, self.members, strict=True)])
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
        if len(self.members[last]) == self.machines[self.groups[last]]:
            self._open(self.groups[last], self.ks[last] + 1)

    def _put(self, i: int, slot: int) -> None:
        self.members[slot].append(i)
        self.slot[i] = slot

    def _open(self, j: int, k: int) -> None:
        """Open a group's slot, and add the costs of moving a job from each slot to it."""
        self.groups.append(j)
        self.ks.append(k)
        self.members.append([])
        opened = len(self.ks) - 1
        self.move_costs = np.pad(self.move_costs, (0, 1), constant_values=np.inf)
        self.cheapest = np.pad(self.cheapest, (0, 1))
        for slot, jobs in enumerate(self.members):
            if jobs:
                more = self._costs(jobs, [opened])[:, 0] - self._costs(jobs, [slot])[:, 0]
                cheapest = int(more.argmin())
                self.move_costs[slot, opened], self.cheapest[slot, opened] = more[cheapest], jobs[cheapest]

    def _update_costs(self, slot: int) -> None:
        """Recompute the least cost of moving a job from a slot to each other slot."""
        jobs = self.members[slot]
        if jobs:
            costs = self._costs(jobs)
            more = costs - costs[:, slot, None]
            cheapest = more.argmin(axis=0)
            self.move_costs[slot] = more[cheapest, np.arange(len(cheapest))]
            self.cheapest[slot] = np.array(jobs)[cheapest]

    def _costs(self, jobs: Sequence[int], slots: Sequence[int] | None = None) -> Floats:
        """Costs in seconds of jobs in slots, all open ones by default, shape (jobs, slots)."""
        rows = np.asarray(jobs)
        groups = self.groups if slots is None else [self.groups[slot] for slot in slots]
        ks = self.ks if slots is None else [self.ks[slot] for slot in slots]
        later = (np.array(ks) - 1) * self.widths[rows, None]
        costs: Floats = self.seconds[rows][:, groups] * (1.0 + later) + self.waits[groups]
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
            elif job.remaining_steps is not None:
                found[i, j] = job.remaining_steps / _speed(inputs, job, gpu_type)
    return found


def _seconds(inputs: AllocationInputs, jobs: Sequence[Job], types: Sequence[str]) -> Floats:
    """Remaining seconds of each job on each GPU type, shape (M, J), estimated where they are not known.

    A job of unknown steps takes as long on its fastest type as is predicted from similar jobs, or else as the jobs of
    known steps take on average on theirs, and longer on its other types by their speeds. Where its speed is not known,
    the time is the mean of all known times.
    """
    seconds = _known_seconds(inputs, jobs, types)
    known = np.where(seconds < IMPOSSIBLE, seconds, np.nan)
    has_time = ~np.isnan(known).all(axis=1)
    mean, typical = 1.0, 1.0  # where no time is known
    if has_time.any():
        mean, typical = float(np.nanmean(known)), float(np.nanmin(known[has_time], axis=1).mean())
    for i, job in enumerate(jobs):
        if job.remaining_steps is not None:
            continue
        speeds = np.array([_speed(inputs, job, gpu_type) for gpu_type in types])
        if not np.isnan(speeds).all():
            shortest = typical if (predicted := job.predicted_service_left) is None else predicted / job.gpus
            seconds[i] = np.where(np.isnan(seconds[i]), shortest * np.nanmax(speeds) / speeds, seconds[i])
    return np.where(np.isnan(seconds), mean, seconds)


def _speed(inputs: AllocationInputs, job: Job, gpu_type: str) -> float:
    """The job's speed on a GPU type; NaN where it is not known, or where the job cannot run."""
    return (inputs.speed(job, gpu_type) if gpu_type in inputs.gpus_per_node[job.uid] else None) or math.nan
