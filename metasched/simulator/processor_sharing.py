"""Completions of jobs under generalised processor sharing, on clusters with several GPU types.

At every instant each live job has its part of the GPUs that it can use, by max-min fairness (``max_min``), in
arbitrarily small fractions and at linear speed. A part may consist of GPUs of several types; the job then progresses at
the mean speed of the part. Where several divisions of a bottleneck's types give all its jobs their parts, the types are
mixed as evenly as possible (the division of maximum entropy, by iterative proportional fitting). With one GPU type,
all live jobs have the same number of GPUs (Liu et al., "Ares", 2025, section 3.2).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from metasched.capacity.max_min import max_min_bottlenecks
from metasched.capacity.shapes import NodeSet

FITTING_STEPS = 100
FITTING_TOLERANCE = 1e-9
SPEED_DIGITS = 9  # of relative speeds: jobs that agree in these digits share a virtual clock


@dataclass(frozen=True, slots=True)
class SharedJob:
    """A job in the reference system.

    Attributes:
        uid: the job's uid.
        arrival: seconds on the simulation's clock.
        gpus: GPUs that the job asks for.
        seconds: the job's duration on these GPUs, by each GPU type that it can use; not empty.
    """

    uid: str
    arrival: float
    gpus: int
    seconds: Mapping[str, float]


class ProcessorSharing:
    """The reference system. Jobs with the same types and relative speeds share a virtual clock.

    The virtual time of a clock is the GPU-seconds on the jobs' fastest type, or as much work, that each of them would
    have received so far. A job ends when virtual time has grown by its own work since its arrival.

    Args:
        gpus: the cluster's GPUs by type.
    """

    def __init__(self, gpus: Mapping[str, int]) -> None:
        self._types = tuple(gpus)
        self._gpus = {1 << i: float(count) for i, count in enumerate(gpus.values())}
        self._now = 0.0
        self._live: dict[NodeSet, int] = {}  # live jobs by the types that they can use, also where there are none
        self._parts: dict[tuple[tuple[NodeSet, int], ...], NDArray[np.float64]] = {}
        self._clock: dict[tuple[float, ...], int] = {}  # index of each clock with live jobs, by relative speeds
        self._idle: list[int] = []  # indices of clocks without live jobs
        self._usable: list[NodeSet] = []  # by clock: the types that its jobs can use
        self._row = np.zeros(0, dtype=np.intp)  # by clock: the position of these types in ``_live``
        self._ends: list[list[tuple[float, str]]] = []  # by clock: heap of (virtual finish time, uid)
        self._speeds = np.zeros((0, len(self._types)))  # by clock and type, relative to the fastest type
        self._virtual = np.zeros(0)  # by clock: virtual time
        self._next = np.zeros(0)  # by clock: the least virtual finish time; infinite without live jobs
        self._rates: NDArray[np.float64] | None = None  # by clock: virtual seconds a second; None after a change

    def completions(self, jobs: Iterable[SharedJob]) -> dict[str, float]:
        """Return the completion of each job, in seconds on the simulation's clock, by uid.

        Args:
            jobs: in the order of their arrivals.
        """
        ends: dict[str, float] = {}
        for job in jobs:
            self._advance(job.arrival, ends)
            self._arrive(job)
        self._advance(math.inf, ends)
        return ends

    def _arrive(self, job: SharedJob) -> None:
        fastest = min(job.seconds.values())
        speeds = tuple(_relative_speed(fastest, job.seconds.get(gpu_type)) for gpu_type in self._types)
        if speeds not in self._clock:
            self._clock[speeds] = self._begin_clock(speeds)
        clock = self._clock[speeds]
        heapq.heappush(self._ends[clock], (self._virtual[clock] + fastest * job.gpus, job.uid))
        self._next[clock] = self._ends[clock][0][0]
        self._count(self._usable[clock], +1)

    def _begin_clock(self, speeds: tuple[float, ...]) -> int:
        """Return the index of a clock at virtual time 0."""
        if not self._idle:
            self._idle.append(len(self._ends))
            self._ends.append([])
            self._usable.append(0)
            self._speeds = np.vstack((self._speeds, np.zeros((1, len(self._types)))))
            self._virtual, self._next = np.append(self._virtual, 0.0), np.append(self._next, math.inf)
            self._row = np.append(self._row, 0)
        clock = self._idle.pop()
        usable = sum(1 << i for i, speed in enumerate(speeds) if speed)
        self._live.setdefault(usable, 0)
        self._usable[clock], self._row[clock] = usable, list(self._live).index(usable)
        self._speeds[clock] = speeds
        self._virtual[clock] = 0.0
        return clock

    def _advance(self, until: float, ends: dict[str, float]) -> None:
        """Advance the system to an instant, and add the jobs that end by then."""
        while self._clock:
            rates = self._present_rates()
            left = (self._next - self._virtual) / rates
            first = int(left.argmin())
            seconds = max(float(left[first]), 0.0)
            if self._now + seconds > until:
                self._virtual += rates * (until - self._now)
                break
            self._virtual += rates * seconds
            self._now += seconds
            _, uid = heapq.heappop(self._ends[first])
            ends[uid] = self._now
            self._count(self._usable[first], -1)
            if self._ends[first]:
                self._next[first] = self._ends[first][0][0]
            else:
                self._next[first] = math.inf
                self._idle.append(first)
                del self._clock[tuple(self._speeds[first].tolist())]
        self._now = until if until < math.inf else self._now

    def _count(self, usable: NodeSet, change: int) -> None:
        """Change the number of live jobs that can use these types."""
        self._live[usable] += change
        self._rates = None

    def _present_rates(self) -> NDArray[np.float64]:
        """The growth of each clock's virtual time in a second; any positive number for clocks without live jobs."""
        if self._rates is None:
            key = tuple(self._live.items())
            if key not in self._parts:
                parts = parts_of_jobs({usable: count for usable, count in key if count}, self._gpus)
                self._parts[key] = np.array(
                    [[parts.get(usable, {}).get(i, 0.0) for i in self._gpus] for usable, _ in key]
                )
            rates = (self._parts[key][self._row] * self._speeds).sum(axis=1)
            rates[rates == 0] = 1.0
            self._rates = rates
        return self._rates


def _relative_speed(fastest: float, seconds: float | None) -> float:
    """The speed on a type, relative to the fastest one; 0 where the job cannot use the type."""
    if seconds is None:
        return 0.0
    return round(fastest / seconds, SPEED_DIGITS) if seconds else 1.0


def parts_of_jobs(
    jobs: Mapping[NodeSet, int], gpus: Mapping[NodeSet, float]
) -> Mapping[NodeSet, Mapping[NodeSet, float]]:
    """Return the GPUs of each type that one job has, by the types that it can use.

    Args:
        jobs: number of live jobs, by the types that they can use; above 0.
        gpus: the cluster's GPUs, by type, which is a node set of one bit.
    """
    bottlenecks = max_min_bottlenecks(jobs, gpus)
    members: dict[int, list[NodeSet]] = {}
    for types, bottleneck in bottlenecks.items():
        members.setdefault(id(bottleneck), []).append(types)
    found: dict[NodeSet, Mapping[NodeSet, float]] = {}
    free = dict(gpus)
    for same in members.values():  # the tightest first: the others have none of its types
        wanted = {types: bottlenecks[types].part(jobs[types]) for types in same}
        usable = {one: amount for one, amount in free.items() if any(one & types for types in same)}
        for types, amounts in _evenly_mixed(wanted, usable).items():
            found[types] = {one: amount / jobs[types] for one, amount in amounts.items()}
        free = {one: amount for one, amount in free.items() if one not in usable}
    return found


def _evenly_mixed(
    wanted: Mapping[NodeSet, float], gpus: Mapping[NodeSet, float]
) -> dict[NodeSet, dict[NodeSet, float]]:
    """Divide all GPUs of some types such that each set of types has as many as it wants, by maximum entropy."""
    parts = {types: {one: amount for one, amount in gpus.items() if one & types} for types in wanted}
    for _ in range(FITTING_STEPS):
        for types, amounts in parts.items():
            scale = wanted[types] / sum(amounts.values())
            parts[types] = {one: amount * scale for one, amount in amounts.items()}
        error = 0.0
        for one, amount in gpus.items():
            scale = amount / sum(amounts.get(one, 0.0) for amounts in parts.values())
            error = max(error, abs(scale - 1.0))
            for amounts in parts.values():
                if one in amounts:
                    amounts[one] *= scale
        if error < FITTING_TOLERANCE:
            break
    return parts
