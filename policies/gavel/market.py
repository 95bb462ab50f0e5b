"""From the jobs of a round to a program over classes of jobs, and from its solution back to shares of time."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from metasched.fractions import Claims
from metasched.mechanism import Combination, Times
from metasched.model import Job
from policies.gavel.problem import Floats, Ints, Pairs, Problem

PAYS = 1.05
"""Two jobs share GPUs only where together they do this many times what one of them does alone (section 3.1)."""
LEAST = 1e-6
"""Shares below are a solver's rounding."""

Mark = Callable[[Job], Hashable]


@dataclass(frozen=True)
class Market:
    """The jobs in classes.

    Attributes:
        problem: the program over them.
        members: the jobs of each class, in the order of the claims.
        types: GPU types, in the order of the program's.
    """

    problem: Problem
    members: Sequence[Sequence[Job]]
    types: Sequence[str]

    @classmethod
    def of(cls, claims: Claims, *, aware: bool, mark: Mark) -> Market:
        """Put jobs that are alike into one class.

        Args:
            claims: of the round.
            aware: whether speeds differ between types; else each type that can run a job is taken to be as fast as its
                fastest, as the heterogeneity-agnostic policies have it, and nobody shares.
            mark: what else tells a policy's jobs apart.
        """
        types = sorted(claims.capacity)
        speeds = _speeds(claims)
        classes: dict[Hashable, list[Job]] = {}
        rows: list[tuple[float, ...]] = []
        for job in claims.jobs:
            if rates := speeds[job.uid]:
                best = max(rates.values())
                row = tuple((rates[t] if aware else best) if t in rates else 0.0 for t in types)
                # Who may share is told by the model: two of equal speed alone may differ beside a third.
                key = (job.gpus, row, job.speed if claims.sharing else None, mark(job))
                if key not in classes:
                    classes[key] = []
                    rows.append(row)
                classes[key].append(job)
        members = list(classes.values())
        table: Floats = np.array(rows, dtype=float).reshape(len(rows), len(types))
        problem = Problem(
            rates=table,
            counts=np.array([len(jobs) for jobs in members], dtype=float),
            scale=np.array([jobs[0].gpus for jobs in members], dtype=float),
            capacity=np.array([claims.capacity[t] for t in types], dtype=float),
            pairs=_pairs(claims, members, table, types) if claims.sharing and aware else Pairs.none(len(types)),
        )
        return cls(problem, members, types)

    def each(self, value: Callable[[Job], float]) -> Floats:
        """A number for each class, taken from its first job."""
        return np.array([value(jobs[0]) for jobs in self.members], dtype=float)

    def times(self, x: Floats) -> Times:
        """The solution as the share of time of each job, and of each pair, on each type."""
        found: dict[Combination, dict[str, float]] = {}
        alone, pairs = len(self.members), self.problem.pairs
        used = np.nonzero(x > LEAST)[0]
        combinations, kinds = (column[used].tolist() for column in self.problem.columns)
        for total, combination, kind in zip(x[used].tolist(), combinations, kinds, strict=True):
            if combination < alone:
                jobs = self.members[combination]
                parts: Iterator[tuple[Combination, float]] = (((job.uid,), total / len(jobs)) for job in jobs)
            else:
                first, second = pairs.first[combination - alone], pairs.second[combination - alone]
                parts = matched(self.members[first], self.members[second], total)
            for who, share in parts:
                mine = found.setdefault(who, {})
                mine[self.types[kind]] = min(mine.get(self.types[kind], 0.0) + share, 1.0)
        return found


def matched(first: Sequence[Job], second: Sequence[Job], total: float) -> Iterator[tuple[Combination, float]]:
    """Pairs of jobs of two classes that together share for ``total``, everybody of a class for equally long."""
    if first is second:
        ring = zip(first, (*first[1:], first[0]), strict=True)
        pairs = dict.fromkeys(_by_arrival(one, other) for one, other in ring)
        yield from ((who, total / len(pairs)) for who in pairs)
        return
    # Both classes are laid along the same stretch of time, in so many parts each; who lies side by side shares.
    i = j = at = 0
    parts = len(first) * len(second)
    while at < parts:
        end = min((i + 1) * len(second), (j + 1) * len(first))
        yield _by_arrival(first[i], second[j]), total * (end - at) / parts
        i, j, at = end // len(second), end // len(first), end


def _by_arrival(one: Job, other: Job) -> Combination:
    """A pair, who arrived first before the other."""
    early, late = sorted((one, other), key=lambda job: (job.submitted, job.uid))
    return early.uid, late.uid


def _pairs(claims: Claims, members: Sequence[Sequence[Job]], rates: Floats, types: Sequence[str]) -> Pairs:
    """Classes that pay together. Speeds are asked for once for all classes that differ only in their marks."""
    kinds: dict[Hashable, int] = {}
    stands_for: list[int] = []  # by kind, its first class
    kind_of: Ints = np.zeros(len(members), dtype=np.int64)
    for number, (job, *_) in enumerate(members):
        key = (job.speed, job.gpus, tuple(claims.spreads[job.uid].items()), tuple(rates[number]))
        if key not in kinds:
            kinds[key] = len(kinds)
            stands_for.append(number)
        kind_of[number] = kinds[key]
    size = len(kinds)
    table = np.zeros((size, size, len(types)))  # speed of a job of the first kind beside one of the second
    for a, b in np.ndindex(size, size):
        one, other = members[stands_for[a]][0], members[stands_for[b]][0]
        if one.gpus == other.gpus:
            both = claims.spreads[one.uid].keys() & claims.spreads[other.uid].keys()
            table[a, b] = [(claims.speed_beside(one, other, t) or 0.0) if t in both else 0.0 for t in types]
    alone = rates[stands_for]
    with np.errstate(divide="ignore", invalid="ignore"):
        gain = np.where(table > 0, table / alone[:, None], 0.0)
    gain = gain + gain.transpose(1, 0, 2)
    pays = (gain >= PAYS) & (table > 0) & (table.transpose(1, 0, 2) > 0)
    first, second = np.triu_indices(len(members))
    counts = np.array([len(jobs) for jobs in members])
    able = np.asarray(pays.any(axis=2))[kind_of[first], kind_of[second]] & ((first < second) | (counts[first] > 1))
    first, second = first[able].astype(np.int64), second[able].astype(np.int64)
    paying = np.where(pays, table, 0.0)
    return Pairs(first, second, paying[kind_of[first], kind_of[second]], paying[kind_of[second], kind_of[first]])


def _speeds(claims: Claims) -> Mapping[str, Mapping[str, float]]:
    """Steps/s by uid and type. What is not known is guessed from what is.

    A job that is known on some types is taken to gain on another one what the jobs do that are known on both; one of
    which nothing is known is taken to be as fast as the average.
    """
    unknown = [uid for uid, speeds in claims.speeds.items() if None in speeds.values()]
    known = {uid: {t: speed for t, speed in speeds.items() if speed} for uid, speeds in claims.speeds.items()}
    columns: dict[str, dict[str, float]] = {}
    for uid, speeds in known.items() if unknown else ():
        for t, speed in speeds.items():
            columns.setdefault(t, {})[uid] = speed
    average = {t: fmean(column.values()) for t, column in columns.items()}
    gains: dict[tuple[str, str], float | None] = {}

    def gain(t: str, wanted: str) -> float | None:
        """How much faster jobs are on a type than on another one, in the mean over those known on both."""
        if (t, wanted) not in gains:
            one, other = columns[t], columns.get(wanted, {})
            both = [other[uid] / speed for uid, speed in one.items() if uid in other]
            gains[t, wanted] = fmean(both) if both else None
        return gains[t, wanted]

    def guess(uid: str, wanted: str) -> float:
        mine = known[uid]
        found = [speed * factor for t, speed in mine.items() if (factor := gain(t, wanted)) is not None]
        return fmean(found or mine.values() or (average.get(wanted, 1.0),))

    guessed = {
        uid: {t: guess(uid, t) if speed is None else speed for t, speed in claims.speeds[uid].items()}
        for uid in unknown
    }
    return {**known, **guessed}
