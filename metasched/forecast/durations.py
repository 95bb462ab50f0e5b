"""How long jobs of unknown work take, drawn from the durations of earlier jobs.

Users submit bursts: jobs of one size, one after the other, which train one thing and take the same time. So a burst is
one observation, however many jobs it has, and in one simulation the jobs of a burst share one drawn duration. How many
jobs resemble their burst is learned from the bursts themselves. Pure, but for the random numbers.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from metasched.core.model import Job

BURST_SECONDS = 60.0
"""A longer pause between submissions of one user, of one number of GPUs, ends a burst."""
ALIKE = 1.3
"""Jobs of a burst are alike where the ratio of their durations is at most this number."""
ALIKE_ERROR = 0.1
"""The standard deviation of the logarithm of the ratio of two alike durations."""
ASSUMED_ERROR = 1.0
"""The standard deviation of the logarithm of true over assumed work, where nothing is known of a job."""
TAIL_EXPONENT = 1.5
"""The exponent of the tail of durations, for jobs that have outlasted all earlier ones."""

_Level = tuple[str | int, ...]
"""What the jobs of a group have in common."""


@dataclass(frozen=True, slots=True)
class EarlierJob:
    """A job of the last days.

    Attributes:
        job: the job, as it would be submitted again; ``submitted`` is its submission in unix seconds.
        seconds: its service in seconds on the GPUs that it asked for, up to its end or up to now.
        ended: whether it has ended.
    """

    job: Job
    seconds: float
    ended: bool


class Durations:
    """The distribution of the durations of similar jobs, by the estimator of Kaplan and Meier (JASA 53, 1958).

    Live jobs count as jobs that last longer than they have run: without them long jobs would be missing at first.

    Args:
        jobs: the similar jobs, each with its weight.
    """

    def __init__(self, jobs: Iterable[tuple[EarlierJob, float]]) -> None:
        ordered = sorted((one.seconds, not one.ended, weight) for one, weight in jobs if one.seconds > 0)
        self.ended = sum(weight for _, lives, weight in ordered if not lives)
        self._instants: list[float] = []
        self._survival: list[float] = []  # after each of these instants, negated: ascending
        survival, at_risk = 1.0, sum(weight for *_, weight in ordered)
        for seconds, lives, weight in ordered:
            if not lives:
                survival *= max(1.0 - weight / at_risk, 0.0) if at_risk > weight else 0.0
                self._instants.append(seconds)
                self._survival.append(-survival)
            at_risk -= weight
        self._last = ordered[-1][0] if ordered else 0.0

    def drawn_beyond(self, seconds: float, rng: random.Random) -> float:
        """Return a drawn duration of a job that has run for ``seconds``; beyond all jobs the tail is a power law."""
        position = bisect_right(self._instants, seconds)
        before = -self._survival[position - 1] if position else 1.0
        target = before * (1.0 - rng.random())
        found = bisect_left(self._survival, -target, lo=position)
        if found < len(self._instants):
            return self._instants[found] * math.exp(rng.gauss(0.0, ALIKE_ERROR))
        return max(self._last, seconds) * math.pow(1.0 - rng.random(), -1.0 / TAIL_EXPONENT)


@dataclass(frozen=True, slots=True)
class _Group:
    """Similar jobs.

    Attributes:
        durations: of the jobs.
        ended: the share of the jobs that have ended, of each burst with such jobs, by the number of the burst.
    """

    durations: Durations
    ended: Mapping[int, float]


@dataclass(frozen=True)
class EarlierJobs:
    """The jobs of the last days, from which work and arrivals are drawn.

    Attributes:
        jobs: the jobs, live ones as well.
        since: the instant from which on all submissions are known, unix seconds.
        until: the instant up to which they are known.
        resemblance: the share of jobs that are like an earlier one of their burst.
        burst_of: the number of each job's burst, by uid.
        bursts: the jobs of each burst, in the order of their submissions.
    """

    jobs: Sequence[EarlierJob]
    since: float
    until: float
    resemblance: float = field(init=False)
    burst_of: Mapping[str, int] = field(init=False, repr=False)
    bursts: Sequence[Sequence[EarlierJob]] = field(init=False, repr=False)
    _groups: Mapping[_Level, _Group] = field(init=False, repr=False)
    _level_durations: dict[tuple[_Level, ...], list[tuple[Durations, float]]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        bursts = bursts_of(self.jobs)
        burst_of = {one.job.uid: number for number, burst in enumerate(bursts) for one in burst}
        object.__setattr__(self, "bursts", bursts)
        object.__setattr__(self, "burst_of", burst_of)
        object.__setattr__(self, "resemblance", _resemblance(bursts))
        groups: dict[_Level, list[tuple[EarlierJob, int]]] = {}
        for one in self.jobs:
            for key in _levels(one.job):
                groups.setdefault(key, []).append((one, burst_of[one.job.uid]))
        object.__setattr__(self, "_groups", {key: _group(found) for key, found in groups.items()})
        object.__setattr__(self, "_level_durations", {})  # filled as jobs are drawn

    def drawn(self, job: Job, beyond: float, rng: random.Random) -> float | None:
        """Return a drawn duration of a job that lasts longer than ``beyond``; None for one unlike all earlier jobs.

        The draw is from the jobs of the same user and name, else of the same user and number of GPUs, else of the same
        user, else of all. Where a level adds n bursts that have ended to those of the levels before, the draw leaves it
        with a probability of 1 / (n + 1): the next burst may be unlike all of them.
        """
        for durations, count in self._durations_by_level(job):
            if rng.random() * (count + 1.0) < count:
                return durations.drawn_beyond(beyond, rng)
        return None

    def _durations_by_level(self, job: Job) -> list[tuple[Durations, float]]:
        """Return the durations of each level that adds ended bursts to those before, with the number of these."""
        levels = _levels(job)
        found = self._level_durations.get(levels)
        if found is None:
            found = self._level_durations[levels] = []
            counted: set[int] = set()
            for group in (self._groups[key] for key in levels if key in self._groups):
                count = sum(share for burst, share in group.ended.items() if burst not in counted)
                if count > 0.0:
                    found.append((group.durations, count))
                counted.update(group.ended)
        return found


class DrawnDurations:
    """The durations of the jobs of one simulation.

    Args:
        earlier: the jobs of the last days.
        rng: draws the random numbers.
    """

    def __init__(self, earlier: EarlierJobs, rng: random.Random) -> None:
        self._earlier = earlier
        self._rng = rng
        self._shared: dict[int, float] = {}  # by burst

    def seconds(self, job: Job, done: float, assumed_left: float) -> float:
        """Return a duration in seconds, on the GPUs that the job asked for; more than ``done``.

        Args:
            job: the job.
            done: the service so far, in seconds on these GPUs.
            assumed_left: the seconds that a job of which nothing is known has left.
        """
        burst = self._earlier.burst_of.get(job.uid)
        if burst is not None and len(self._earlier.bursts[burst]) > 1:
            drawn = self._like_its_burst(job, burst, assumed_left)
            if drawn > done and self._rng.random() < self._earlier.resemblance:
                return drawn
        return max(self._unlike_its_burst(job, done, assumed_left), done + 1.0)

    def _like_its_burst(self, job: Job, burst: int, assumed_left: float) -> float:
        members = self._earlier.bursts[burst]
        shared = self._shared.get(burst)
        if shared is None:
            known = Durations((one, 1.0) for one in members)  # the first ones to end are its shortest ones
            longest = max(one.seconds for one in members)
            shared = (
                known.drawn_beyond(0.0, self._rng)
                if known.ended
                else self._unlike_its_burst(job, longest, assumed_left)
            )
            self._shared[burst] = shared
        return shared * math.exp(self._rng.gauss(0.0, ALIKE_ERROR))

    def _unlike_its_burst(self, job: Job, done: float, assumed_left: float) -> float:
        drawn = self._earlier.drawn(job, done, self._rng)
        return done + assumed_left * math.exp(self._rng.gauss(0.0, ASSUMED_ERROR)) if drawn is None else drawn


def bursts_of(jobs: Sequence[EarlierJob]) -> list[list[EarlierJob]]:
    """Return the bursts: jobs of one user and one number of GPUs, each soon after the one before."""
    found: list[list[EarlierJob]] = []
    latest: dict[tuple[str, int], list[EarlierJob]] = {}
    for one in sorted(jobs, key=lambda one: (one.job.submitted, one.job.uid)):
        key = one.job.user, one.job.gpus
        burst = latest.get(key)
        if burst is None or one.job.submitted - burst[-1].job.submitted > BURST_SECONDS:
            burst = latest[key] = []
            found.append(burst)
        burst.append(one)
    return found


def _levels(job: Job) -> tuple[_Level, ...]:
    """Return the groups of similar jobs that a job belongs to, the most similar ones first."""
    return (job.user, job.name), (job.user, job.gpus), (job.user,), ()


def _group(jobs: Sequence[tuple[EarlierJob, int]]) -> _Group:
    """Return a group of jobs, each with the number of its burst; those of one burst count as one."""
    of_burst = Counter(burst for _, burst in jobs)
    ended = Counter(burst for one, burst in jobs if one.ended and one.seconds > 0)
    return _Group(
        Durations((one, 1.0 / of_burst[burst]) for one, burst in jobs),
        {burst: count / of_burst[burst] for burst, count in ended.items()},
    )


def _resemblance(bursts: Sequence[Sequence[EarlierJob]]) -> float:
    """Return the share of neighbours in bursts that are alike; each burst counts once, and one half before any."""
    alike, count = 0.5, 1.0
    for burst in bursts:
        ended = [one.seconds for one in burst if one.ended and one.seconds > 0]
        pairs = [max(one, other) <= ALIKE * min(one, other) for one, other in pairwise(ended)]
        if pairs:
            alike += sum(pairs) / len(pairs)
            count += 1.0
    return alike / count
