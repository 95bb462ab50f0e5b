"""From the jobs of a round to a program over classes of jobs, and from its solution back to shares of time."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from metasched.fractions import Claims
from metasched.mechanism import Combination, Times
from metasched.model import Job
from policies.gavel.problem import Floats, Pair, Problem

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
            aware: whether speeds differ between types; else each type that can run a job is as good as any other, as
                the heterogeneity-agnostic policies have it.
            mark: what else tells a policy's jobs apart.
        """
        types = sorted(claims.capacity)
        speeds = _speeds(claims)
        classes: dict[Hashable, list[Job]] = {}
        rows: list[tuple[float, ...]] = []
        for job in claims.jobs:
            if rates := speeds[job.uid]:
                row = tuple((rates[t] if aware else 1.0) if t in rates else 0.0 for t in types)
                # Who may share is told by the model: two of equal speed alone may differ beside a third.
                alike = job.speed if claims.sharing else None
                key = (job.gpus, row, alike, mark(job))
                if key not in classes:
                    classes[key] = []
                    rows.append(row)
                classes[key].append(job)
        members = list(classes.values())
        table: Floats = np.array(rows, dtype=float).reshape(-1, len(types))
        problem = Problem(
            rates=table,
            counts=np.array([len(jobs) for jobs in members], dtype=float),
            scale=np.array([jobs[0].gpus for jobs in members], dtype=float),
            capacity=np.array([claims.capacity[t] for t in types], dtype=float),
            pairs=tuple(_pairs(claims, members, table, types)) if claims.sharing and aware else (),
        )
        return cls(problem, members, types)

    def each(self, value: Callable[[Job], float]) -> Floats:
        """A number for each class, taken from its first job."""
        return np.array([value(jobs[0]) for jobs in self.members], dtype=float)

    def times(self, x: Floats) -> Times:
        """The solution as the share of time of each job, and of each pair, on each type."""
        found: dict[Combination, dict[str, float]] = {}
        alone = len(self.members)
        for total, combination, kind in zip(x, *self.problem.columns, strict=True):
            if total <= LEAST:
                continue
            if combination < alone:
                jobs = self.members[combination]
                parts: Iterator[tuple[Combination, float]] = (((job.uid,), total / len(jobs)) for job in jobs)
            else:
                pair = self.problem.pairs[combination - alone]
                parts = _matched(self.members[pair.first], self.members[pair.second], float(total))
            for who, share in parts:
                mine = found.setdefault(who, {})
                mine[self.types[kind]] = min(mine.get(self.types[kind], 0.0) + float(share), 1.0)
        return found


def _matched(first: Sequence[Job], second: Sequence[Job], total: float) -> Iterator[tuple[Combination, float]]:
    """Pairs of jobs of two classes that together share for ``total``, everybody of a class for equally long."""
    if first is second:
        ring = zip(first, (*first[1:], first[0]), strict=True)
        pairs = {tuple(sorted((one.uid, other.uid))) for one, other in ring}
        yield from (((one, other), total / len(pairs)) for one, other in sorted(pairs))
        return
    # Both classes are laid along the same stretch of time; who lies side by side shares.
    i = j = 0
    at = 0.0
    while i < len(first) and j < len(second):
        end = min((i + 1) * total / len(first), (j + 1) * total / len(second))
        if end - at > LEAST:
            one, other = sorted((first[i].uid, second[j].uid))
            yield (one, other), end - at
        i, j = i + (end >= (i + 1) * total / len(first)), j + (end >= (j + 1) * total / len(second))
        at = end


def _pairs(claims: Claims, members: Sequence[Sequence[Job]], rates: Floats, types: Sequence[str]) -> Iterator[Pair]:
    """Classes that pay together."""
    for a, first in enumerate(members):
        for b in range(a, len(members)):
            one, other = first[0], members[b][-1]
            if one.gpus != other.gpus or one is other:
                continue
            usable = [t for t in types if t in claims.spreads[one.uid] and t in claims.spreads[other.uid]]
            mine = np.array([_beside(claims, one, other, t) if t in usable else 0.0 for t in types])
            its = np.array([_beside(claims, other, one, t) if t in usable else 0.0 for t in types])
            with np.errstate(divide="ignore", invalid="ignore"):
                worth = np.nan_to_num(mine / rates[a]) + np.nan_to_num(its / rates[b])
            pays = (worth >= PAYS) & (mine > 0) & (its > 0)
            if pays.any():
                yield Pair(a, b, np.where(pays, mine, 0.0), np.where(pays, its, 0.0))


def _beside(claims: Claims, job: Job, other: Job, gpu_type: str) -> float:
    return claims.speed_beside(job, other, gpu_type) or 0.0


def _speeds(claims: Claims) -> Mapping[str, Mapping[str, float]]:
    """Steps/s by uid and type. What is not known is guessed from what is.

    A job that is known on some types is taken to gain on another one what the jobs do that are known on both; one of
    which nothing is known is taken to be as fast as the average.
    """
    known = {job.uid: {t: claims.speed(job, t) for t in claims.spreads[job.uid]} for job in claims.jobs}
    if all(speed is not None for speeds in known.values() for speed in speeds.values()):
        return {uid: {t: speed for t, speed in speeds.items() if speed} for uid, speeds in known.items()}
    columns: dict[str, dict[str, float]] = {}
    for uid, speeds in known.items():
        for t, speed in speeds.items():
            if speed:
                columns.setdefault(t, {})[uid] = speed
    average = {t: fmean(column.values()) for t, column in columns.items()}

    def guess(uid: str, wanted: str) -> float:
        gains = []
        for t, speed in known[uid].items():
            if speed and t != wanted and wanted in columns:
                both = columns[t].keys() & columns[wanted].keys()
                if both:
                    gains.append(speed * fmean(columns[wanted][other] / columns[t][other] for other in sorted(both)))
        mine = [speed for speed in known[uid].values() if speed]
        return fmean(gains) if gains else fmean(mine) if mine else average.get(wanted, 1.0)

    return {
        uid: {t: found for t, speed in speeds.items() if (found := guess(uid, t) if speed is None else speed)}
        for uid, speeds in known.items()
    }
