"""From the jobs of a round to a program over classes of jobs, and from its solution back to shares of time."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from metasched.core.model import Job
from metasched.time_shares.allocation_inputs import AllocationInputs
from metasched.time_shares.round_mechanism import APART, Combination, Times
from policies.gavel.problem import Floats, Pairs, Pools, Problem, Room

PAYS = 1.05
"""Two jobs share GPUs only where together they do this many times what one of them does alone (section 3.1)."""
LEAST = 1e-6
"""Shares below are a solver's rounding."""

FEW = 2
"""Of so many classes of one kind that share among themselves, each two are a pair; of more they are a pool."""

Mark = Callable[[Job], Hashable]
Part = tuple[Job, float]
"""A job, and for how long it is in something."""


@dataclass(frozen=True)
class Market:
    """The jobs in classes.

    Attributes:
        problem: the program over them.
        members: the jobs of each class, in the order of the claims.
        types: worker types, in the order of the program's: first the GPU types.
    """

    problem: Problem
    members: Sequence[Sequence[Job]]
    types: Sequence[str]

    @classmethod
    def of(cls, claims: AllocationInputs, *, aware: bool, mark: Mark) -> Market:
        """Put jobs that are alike into one class. Those that fit nowhere, beside jobs that stay, are in none.

        Args:
            claims: of the round.
            aware: whether speeds differ between types; else each type that can run a job is taken to be as fast as its
                fastest, as the heterogeneity-agnostic policies have it, and nobody shares.
            mark: what else tells a policy's jobs apart.
        """
        types = sorted(claims.capacity)
        speeds = _fitting(claims, _speeds(claims))
        scattered = _fitting(claims, claims.apart) if aware else {}
        beyond = [t for t in types if any(t in apart for apart in scattered.values())]
        classes: dict[Hashable, list[Job]] = {}
        rows: list[tuple[float, ...]] = []
        for job in claims.jobs:
            if rates := speeds[job.uid]:
                best = max(rates.values())
                apart = scattered.get(job.uid, {})
                row = (
                    *((rates[t] if aware else best) if t in rates else 0.0 for t in types),
                    *(apart.get(t, 0.0) for t in beyond),
                )
                # Who may share is told by the model: two of equal speed alone may differ beside a third.
                shape = tuple(claims.spreads[job.uid].items()) if apart else ()
                company = (job.speed, job.whole_gpus) if claims.sharing else None
                key = (job.gpus, row, shape, company, mark(job))
                if key not in classes:
                    classes[key] = []
                    rows.append(row)
                classes[key].append(job)
        members = list(classes.values())
        table: Floats = np.array(rows, dtype=float).reshape(len(rows), len(types) + len(beyond))
        pairs, pools = Pairs.none(table.shape[1]), Pools.none(table.shape[1])
        if claims.sharing and aware:
            pairs, pools = _together(claims, members, table, types)
        problem = Problem(
            rates=table,
            counts=np.array([len(jobs) for jobs in members], dtype=float),
            scale=np.array([jobs[0].gpus for jobs in members], dtype=float),
            capacity=np.array([claims.capacity[t] for t in types], dtype=float),
            pairs=pairs,
            pools=pools,
            source=tuple(types.index(t) for t in beyond),
            rooms=tuple(_rooms(claims, members, types)) if beyond else (),
        )
        return cls(problem, members, [*types, *(t + APART for t in beyond)])

    def each(self, value: Callable[[Job], float]) -> Floats:
        """A number for each class, taken from its first job."""
        return np.array([value(jobs[0]) for jobs in self.members], dtype=float)

    def times(self, x: Floats) -> Times:
        """The solution as the share of time of each job, and of each pair, on each worker type."""
        found: dict[Combination, dict[str, float]] = {}
        parts: dict[tuple[int, int], tuple[list[Part], list[Part]]] = {}
        pairs, pools, last = self.problem.starts
        used = np.nonzero(x > LEAST)[0]

        def add(who: Combination, kind: int, share: float) -> None:
            mine = found.setdefault(who, {})
            mine[self.types[kind]] = min(mine.get(self.types[kind], 0.0) + share, 1.0)

        combinations, kinds = (column[used].tolist() for column in self.problem.columns)
        for total, number, kind in zip(x[used].tolist(), combinations, kinds, strict=True):
            if number < pairs:
                for job in self.members[number]:
                    add((job.uid,), kind, total / len(self.members[number]))
            elif number < pools:
                one, other = self.problem.pairs.first[number - pairs], self.problem.pairs.second[number - pairs]
                for who, share in matched(self.members[one], self.members[other], total):
                    add(who, kind, share)
            elif number >= last:
                pool, side, member = (
                    int(column[number - last])
                    for column in (self.problem.together.pool, self.problem.together.side, self.problem.together.member)
                )
                jobs = self.members[member]
                sides = parts.setdefault((pool, kind), ([], []))
                sides[side].extend((job, total / len(jobs)) for job in jobs)
        for (pool, kind), (one_side, other_side) in parts.items():
            lines = halves(one_side) if self.problem.together.inner[pool] else (one_side, other_side)
            for who, share in side_by_side(*lines):
                add(who, kind, share)
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


def halves(line: Sequence[Part]) -> tuple[list[Part], list[Part]]:
    """A line of jobs cut in the middle of its time."""
    first: list[Part] = []
    second: list[Part] = []
    left = sum(share for _, share in line) / 2
    for job, share in line:
        before = min(share, max(left, 0.0))
        left -= before
        if before > 0:
            first.append((job, before))
        if share > before:
            second.append((job, share - before))
    return first, second


def side_by_side(first: Sequence[Part], second: Sequence[Part]) -> Iterator[tuple[Combination, float]]:
    """Two lines of jobs along the same stretch of time: who lies side by side shares, who lies beside nobody is alone.

    A job beside itself is alone for as long as it is in both lines.
    """
    lines = [list(reversed(line)) for line in (first, second)]
    while all(lines):
        (one, mine), (other, others) = (line.pop() for line in lines)
        share = min(mine, others)
        if one is other:
            yield (one.uid,), 2 * share
        else:
            yield _by_arrival(one, other), share
        for line, job, left in zip(lines, (one, other), (mine - share, others - share), strict=True):
            if left > LEAST:
                line.append((job, left))
    yield from (((job.uid,), share) for line in lines for job, share in line)


def _by_arrival(one: Job, other: Job) -> Combination:
    """A pair, who arrived first before the other."""
    early, late = sorted((one, other), key=lambda job: (job.submitted, job.uid))
    return early.uid, late.uid


def _rooms(claims: AllocationInputs, members: Sequence[Sequence[Job]], types: Sequence[str]) -> Iterator[Room]:
    """How many jobs fit on each type's nodes with their GPUs together, where that is fewer than its GPUs could serve.

    Jobs of which it is not known how fast they are apart are placed anyhow, and are not counted.
    """
    for kind, gpu_type in enumerate(types):
        near = [claims.spreads[j.uid].get(gpu_type, ()) if j.uid in claims.apart else () for j, *_ in members]
        sizes, gpus = claims.nodes.get(gpu_type, ()), claims.capacity[gpu_type]
        for least in sorted({spread[0] for spread in near if spread}):
            nodes = sum(size // least for size in sizes)
            if nodes * least < gpus:
                places = [float(len(spread)) if spread and spread[0] >= least else 0.0 for spread in near]
                yield Room(kind, np.array(places), float(nodes))


def _together(
    claims: AllocationInputs, members: Sequence[Sequence[Job]], rates: Floats, types: Sequence[str]
) -> tuple[Pairs, Pools]:
    """Classes that pay together. Speeds are asked for once for all classes that differ only in their marks."""
    kinds: dict[Hashable, list[int]] = {}  # their classes
    for number, (job, *_) in enumerate(members):
        key = (job.speed, job.whole_gpus, job.gpus, tuple(claims.spreads[job.uid].items()), tuple(rates[number]))
        kinds.setdefault(key, []).append(number)
    classes = list(kinds.values())
    size = len(classes)
    table = np.zeros((size, size, rates.shape[1]))  # speed of a job of the first kind beside one of the second
    examples = [members[numbers[0]][0] for numbers in classes]
    alone = rates[[numbers[0] for numbers in classes]]
    for a, b in np.ndindex(size, size):
        one, other = examples[a], examples[b]
        if one.gpus == other.gpus:
            both = (alone[a] > 0) & (alone[b] > 0)
            table[a, b, : len(types)] = [
                (claims.speed_beside(one, other, t) or 0.0) if both[kind] else 0.0 for kind, t in enumerate(types)
            ]
    with np.errstate(divide="ignore", invalid="ignore"):
        gain = np.where(table > 0, table / alone[:, None], 0.0)
    gain = gain + gain.transpose(1, 0, 2)
    pays = (gain >= PAYS) & (table > 0) & (table.transpose(1, 0, 2) > 0)
    paying = np.where(pays, table, 0.0)
    slower = np.minimum(paying, alone[:, None])  # in a pool nobody may gain by being beside nobody
    pairs: list[tuple[int, int, int, int]] = []
    pools: list[tuple[int, int]] = []
    for a, b in np.argwhere(np.triu(pays.any(axis=2))).tolist():
        if a == b and len(classes[a]) <= FEW:
            of = classes[a]
            pairs += [(i, j, a, a) for n, i in enumerate(of) for j in of[n:] if i < j or len(members[i]) > 1]
        elif a != b and len(classes[a]) * len(classes[b]) <= len(classes[a]) + len(classes[b]):
            pairs += [(i, j, a, b) for i in classes[a] for j in classes[b]]
        else:
            pools.append((a, b))
    first, second, one_kind, other_kind = np.array(pairs, dtype=np.int64).reshape(-1, 4).T
    found = Pairs(first, second, paying[one_kind, other_kind], paying[other_kind, one_kind])
    parts = [
        (number, side, member, kind, beside)
        for number, (a, b) in enumerate(pools)
        for side, (kind, beside) in enumerate(((a, b), (b, a))[: 1 if a == b else 2])
        for member in classes[kind]
    ]
    pool, side, member, kind, beside = np.array(parts, dtype=np.int64).reshape(-1, 5).T
    left, right = np.array(pools, dtype=np.int64).reshape(-1, 2).T
    return found, Pools(pays[left, right], left == right, pool, side, member, slower[kind, beside])


def _fitting(claims: AllocationInputs, speeds: Mapping[str, Mapping[str, float]]) -> Mapping[str, Mapping[str, float]]:
    """Speeds by uid and type, without types where too few GPUs are left for the job."""
    gpus, left = {job.uid: job.gpus for job in claims.jobs}, claims.capacity
    return {
        uid: {t: speed for t, speed in known.items() if gpus[uid] <= left.get(t, 0)} for uid, known in speeds.items()
    }


def _speeds(claims: AllocationInputs) -> Mapping[str, Mapping[str, float]]:
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
