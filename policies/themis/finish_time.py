"""Finish-time fairness of one app: rho, the app's time in the shared cluster over that in a cluster of its own.

The app's work is a row of phases, each with jobs (training runs) that all have to end before the next phase begins. An
app with a single job has one phase (Themis, NSDI 2020, Eq. 1); successive halving has one for each halving (Eq. 2); an
app that is stopped by performance curves has one, whose jobs run to the end that the most optimistic curve forecasts.
"""

from __future__ import annotations

import heapq
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from metasched.core.distance import Level

Slowdown = Callable[[Level], float]
"""By what factor a gang is slower than on GPUs without any distance, at least 1, by the distance of its GPUs (S);
infinite where it cannot run."""

REMEMBERED_RATES = 4096
"""Rows of rates that are remembered."""

_ASSUMED_SLOWDOWNS = {Level.SLOT: 1.0, Level.NODE: 1.0, Level.RACK: 1.1, Level.CLUSTER: 1.3}


def assumed_slowdown(level: Level) -> float:
    """The slowdown of a job that has not been measured at this level (section 4.3.1, footnote 3)."""
    return _ASSUMED_SLOWDOWNS[level]


class AppJob(NamedTuple):
    """One job of an app.

    Attributes:
        iterations_left: iterations until the job's end, or until that of its phase.
        seconds_per_iteration: seconds of an iteration on one GPU of speed 1.
        most_gpus: the GPUs that the job can use at most.
        least_gpus: the fewest GPUs on which the job runs.
        slowdown: the job's slowdown by the distance of its GPUs.
        sizes: the numbers of GPUs on which it runs; empty for all between the fewest and the most.
    """

    iterations_left: float
    seconds_per_iteration: float
    most_gpus: int = 1
    least_gpus: int = 1
    slowdown: Slowdown = assumed_slowdown
    sizes: frozenset[int] = frozenset()

    @property
    def work(self) -> float:
        """The work left: seconds on one GPU of speed 1."""
        return self.iterations_left * self.seconds_per_iteration


Phase = tuple[AppJob, ...]
"""The jobs of one phase."""


class LaterPhase(NamedTuple):
    """A phase that has not begun.

    Attributes:
        iterations: iterations of each of its jobs.
        jobs: their number; None for half as many as in the phase before.
        most_gpus: the GPUs that one of them can use at most; None for as many as before.
    """

    iterations: float
    jobs: int | None = None
    most_gpus: int | None = None


def halving_phases(jobs: Sequence[AppJob], later: Iterable[LaterPhase]) -> tuple[Phase, ...]:
    """The phases of successive halving: which jobs survive is not known, so the median job stands for each (4.3.2).

    Args:
        jobs: the jobs of the present phase, with their iterations until its end.
        later: the later phases.
    """
    phases: list[Phase] = [tuple(jobs)]
    survivor = sorted(jobs, key=lambda job: job.seconds_per_iteration)[len(jobs) // 2]
    for phase in later:
        most = survivor.most_gpus if phase.most_gpus is None else max(phase.most_gpus, survivor.least_gpus)
        survivor = survivor._replace(iterations_left=phase.iterations, most_gpus=most)
        phases.append((survivor,) * (max(len(phases[-1]) // 2, 1) if phase.jobs is None else phase.jobs))
    return tuple(phases)


def curve_phase(jobs: Sequence[AppJob], forecasts: Sequence[Sequence[float]]) -> Phase:
    """The one phase of an app whose jobs are stopped by performance curves.

    Args:
        jobs: the jobs that run.
        forecasts: for each job, the iterations left that each of its possible curves forecasts. The most optimistic
            curve is that of the latest end (4.3.2). A job without forecasts has its own ``iterations_left``.
    """
    return tuple(
        job._replace(iterations_left=max(ends, default=job.iterations_left))
        for job, ends in zip(jobs, forecasts, strict=True)
    )


class GangPlaces(NamedTuple):
    """The GPUs that an app divides among its jobs, and how far they are from each other.

    Attributes:
        parts: GPUs that lie together, descending.
        level: the distance of so many GPUs of one part.
        across: the distance of GPUs of several parts.
        speed: the GPUs' speed.
    """

    parts: tuple[int, ...]
    level: Callable[[int], Level]
    across: Level
    speed: float = 1.0


def phase_seconds(jobs: Phase, places: GangPlaces) -> float:
    """The seconds until the last job of a phase ends; infinity where no GPUs are enough for a gang.

    Where the GPUs are enough, all jobs run at once, on equally many GPUs as far as they can use them; GPUs that are
    left over go to the longest jobs. Otherwise the jobs run one after the other, the longest first, on as many gangs of
    the least size as fit.
    """
    gpus = sum(places.parts)
    works = [job.work for job in jobs]
    if not any(works):
        return 0.0
    least = [job.least_gpus for job in jobs]
    if sum(least) > gpus:
        return _serial_seconds(jobs, places)
    most = [max(job.most_gpus, job.least_gpus) for job in jobs]
    widest = min(max(most), gpus)
    local = tuple(places.level(count) for count in range(1, min(places.parts[0], widest) + 1))
    kinds = [(job.least_gpus, min(limit, gpus), job.slowdown, job.sizes) for job, limit in zip(jobs, most, strict=True)]
    rows = {kind: _rates(*kind, local, places.across) for kind in {*kinds}}
    counts = even_counts(works, least, most, gpus)
    return _placed_seconds(jobs, works, counts, [rows[kind] for kind in kinds], places)


def even_counts(works: Sequence[float], least: Sequence[int], most: Sequence[int], gpus: int) -> list[int]:
    """GPUs for each job: as even as the jobs' limits allow, and what is left over one by one to the longest jobs."""
    limits = list(zip(least, most, strict=True))
    low, high = 1, min(max(most), gpus)
    while low < high:
        middle = (low + high + 1) // 2
        if sum([min(max(middle, fewest), largest) for fewest, largest in limits]) <= gpus:
            low = middle
        else:
            high = middle - 1
    counts = [min(max(low, fewest), largest) for fewest, largest in limits]
    left = gpus - sum(counts)
    if left:
        longer = [job for job in range(len(works)) if counts[job] == low < most[job]]
        for job in sorted(longer, key=lambda job: -works[job])[:left]:
            counts[job] += 1
    return counts


@lru_cache(maxsize=REMEMBERED_RATES)
def _rates(  # noqa: PLR0917  a key of the memory
    least: int, most: int, slowdown: Slowdown, sizes: frozenset[int], local: tuple[Level, ...], across: Level
) -> tuple[float, ...]:
    """By the number of GPUs (from 1), a job's best rate with so many or fewer, over that on one; 0 for none.

    Args:
        least: the fewest GPUs on which the job runs.
        most: the most that it can use.
        slowdown: the job's slowdown.
        sizes: the numbers of GPUs on which it runs; empty for all.
        local: the distance of the GPUs of a gang on one part, by their number.
        across: the distance of the GPUs of a larger gang.
    """
    found = [0.0] * most
    for count in range(least, most + 1):
        runs = not sizes or count in sizes
        rate = count / slowdown(local[count - 1] if count <= len(local) else across) if runs else 0.0
        found[count - 1] = max(rate, found[count - 2] if count > 1 else 0.0)
    return tuple(found)


def _placed_seconds(
    jobs: Phase, works: list[float], counts: list[int], rates: list[tuple[float, ...]], places: GangPlaces
) -> float:
    """The seconds of the longest job, once the gangs are placed: the largest first, each on the smallest part."""
    free, longest = list(places.parts), 0.0
    for index in sorted(range(len(jobs)), key=counts.__getitem__, reverse=True):
        count = counts[index]
        fitting = [part for part in free if part >= count]
        if not fitting and math.isinf(jobs[index].slowdown(places.across)):  # the job cannot use several parts
            count = max(free)
            fitting = [count] if count >= jobs[index].least_gpus else []
        if fitting:
            free.remove(best := min(fitting))
            free.append(best - count)
            rate = rates[index][count - 1]
        else:
            needed = count
            while needed:
                free.remove(best := max(free))
                free.append(best - min(best, needed))
                needed -= min(best, needed)
            rate = count / jobs[index].slowdown(places.across)
        longest = max(longest, works[index] / rate if rate > 0.0 else math.inf)
    return longest / places.speed


def _serial_seconds(jobs: Phase, places: GangPlaces) -> float:
    size = max(job.least_gpus for job in jobs)
    gangs, level = sum(part // size for part in places.parts), places.level(size)
    if not gangs:
        gangs, level = sum(places.parts) // size, places.across
    if not gangs:
        return math.inf
    ends = [0.0] * gangs
    for seconds in sorted((job.work / size * job.slowdown(level) for job in jobs if job.work), reverse=True):
        heapq.heapreplace(ends, ends[0] + seconds)
    return max(ends) / places.speed


@dataclass(frozen=True)
class AppWork:
    """What an app has done, and has to do.

    Attributes:
        phases: the phases that are left, the present one first.
        elapsed: seconds since the app's submission, waiting included.
        budget: the work of the app's whole life: seconds on one GPU of speed 1 (B; ``iter_total * iter_serial_time``
            of a single job).
        apps: the number of apps that shared the cluster, averaged over the app's life so far (N_avg), at least 1.
        most_gpus: the GPUs that the app could use at most in its life; None for those of the phases that are left.
    """

    phases: tuple[Phase, ...]
    elapsed: float
    budget: float
    apps: float
    most_gpus: int | None = None

    @property
    def demand(self) -> int:
        """The GPUs that the phases that are left can use at most."""
        return max((sum(job.most_gpus for job in phase) for phase in self.phases), default=0)

    def shared_seconds(self, places: GangPlaces) -> float:
        """T_sh: from the submission to the end, if the app has these GPUs until its end."""
        if not places.parts:
            return math.inf if any(job.work for phase in self.phases for job in phase) else self.elapsed
        return self.elapsed + math.fsum(phase_seconds(phase, places) for phase in self.phases)

    def independent_seconds(self, cluster: Mapping[str, int], speeds: Mapping[str, float]) -> float:
        """T_id: the time in a cluster of its own with 1/N of the GPUs, with linear speed-up and without slowdown.

        Args:
            cluster: the GPUs of the whole cluster by type.
            speeds: the speed of a GPU by type; 1 where a type is not named.
        """
        most = self.demand if self.most_gpus is None else self.most_gpus
        rate, left = 0.0, most
        for gpu_type in sorted(cluster, key=lambda one: -speeds.get(one, 1.0)):
            used = min(cluster[gpu_type], left)
            rate, left = rate + used * speeds.get(gpu_type, 1.0), left - used
        return self.budget / rate * self.apps if rate else math.inf


class MeasuredRange(NamedTuple):
    """The range in which a measured quantity can lie.

    Attributes:
        low: the lowest credible value.
        high: the highest.
    """

    low: float
    high: float

    @staticmethod
    def of(samples: Sequence[float], deviations: float = 2.0) -> MeasuredRange:
        """The range of a mean, so many standard errors to both sides; of at least one sample."""
        mean = statistics.fmean(samples)
        error = statistics.stdev(samples) / math.sqrt(len(samples)) * deviations if len(samples) > 1 else 0.0
        return MeasuredRange(mean - error, mean + error)

    def clamp(self, declared: float) -> float:
        """What a user declares, limited to the range; the middle of it where no number is declared."""
        if math.isnan(declared):
            return (self.low + self.high) / 2
        return min(max(declared, self.low), self.high)


def clamped_slowdown(declared: Mapping[Level, float], measured: Mapping[Level, MeasuredRange]) -> ClampedSlowdown:
    """The slowdown that a user declares, limited to what was measured, at least 1, and never less at a larger distance.

    Args:
        declared: the declared factor by level; the assumed one where a level is missing.
        measured: the measured range by level; levels that were not measured yet are missing.
    """
    factors, least = [], 1.0
    for level in Level:
        factor = declared.get(level, assumed_slowdown(level))
        factor = measured[level].clamp(factor) if level in measured else factor
        least = max(factor if math.isfinite(factor) else assumed_slowdown(level), least)
        factors.append(least)
    return ClampedSlowdown(tuple(factors))


@dataclass(frozen=True)
class ClampedSlowdown:
    """A slowdown as a table; equal tables are equal functions.

    Attributes:
        factors: the factor of each level.
    """

    factors: tuple[float, ...] = field(default=tuple(_ASSUMED_SLOWDOWNS.values()))

    def __call__(self, level: Level) -> float:
        """The factor at a level."""
        return self.factors[level]
