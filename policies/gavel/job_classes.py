"""Classes of jobs: from the jobs of a round to a program over classes, and from its solution to time shares."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from metasched.core.model import Job, Quota
from metasched.time_shares.allocation_inputs import AllocationInputs
from metasched.time_shares.round_mechanism import UNCONSOLIDATED, Combination, TimeShares
from policies.gavel.pair_times import ROUNDING, JobTime, divide_pair, pair_off, split_in_halves
from policies.gavel.problem import Floats, NodeLimit, Pairs, Pools, Problem, QuotaLimit

PAIR_GAIN = 1.05
"""Least sum of two jobs' co-located speeds, each over its speed alone, with which they may share GPUs (section 3.1)."""

FEW_CLASSES = 2
"""Number of classes of one kind up to which each two of them are a pair; more of them are a pool."""

ClassKey = Callable[[Job], Hashable]
"""What distinguishes jobs for a policy, in addition to their speeds and numbers of GPUs."""


@dataclass(frozen=True)
class JobClasses:
    """The jobs of a round in classes, and the program over these.

    Attributes:
        inputs: the allocation inputs of the round.
        problem: the program over the classes.
        members: the jobs of each class, in the order of the allocation inputs.
        types: worker types, in the order of the program: first the GPU types.
    """

    inputs: AllocationInputs
    problem: Problem
    members: Sequence[Sequence[Job]]
    types: Sequence[str]

    @classmethod
    def of(cls, inputs: AllocationInputs, *, aware: bool, class_key: ClassKey, quotas: bool = False) -> JobClasses:
        """Put jobs with equal speeds, GPUs and class key into one class; jobs that fit nowhere are in no class.

        Args:
            inputs: allocation inputs of the round.
            aware: whether speeds differ between types. Else every type that can run a job counts as its fastest, as in
                the heterogeneity-agnostic policies, and no GPUs are shared.
            class_key: what else distinguishes the policy's jobs.
            quotas: whether the program knows the quotas, which then distinguish jobs, too.
        """
        types = sorted(inputs.capacity)
        speeds = _fitting(inputs, _speeds(inputs))
        unconsolidated = _fitting(inputs, inputs.unconsolidated_speeds) if aware else {}
        further = [t for t in types if any(t in speeds_of for speeds_of in unconsolidated.values())]
        known_quotas = inputs.quotas if quotas else ()
        classes: dict[Hashable, list[Job]] = {}
        rows: list[tuple[float, ...]] = []
        for job in inputs.jobs:
            if rates := speeds[job.uid]:
                best = max(rates.values())
                slower = unconsolidated.get(job.uid, {})
                row = (
                    *((rates[t] if aware else best) if t in rates else 0.0 for t in types),
                    *(slower.get(t, 0.0) for t in further),
                )
                # Jobs of equal speed alone may differ in co-located speed, which depends on the model.
                shape = tuple(inputs.gpus_per_node[job.uid].items()) if slower else ()
                sharing = (job.speed, job.whole_gpus) if inputs.sharing else None
                limits = [number for number, quota in enumerate(known_quotas) if job.uid in quota.members]
                key = (job.gpus, row, shape, sharing, tuple(limits), class_key(job))
                if key not in classes:
                    classes[key] = []
                    rows.append(row)
                classes[key].append(job)
        members = list(classes.values())
        table: Floats = np.array(rows, dtype=float).reshape(len(rows), len(types) + len(further))
        pairs, pools = Pairs.none(table.shape[1]), Pools.none(table.shape[1])
        if inputs.sharing and aware:
            pairs, pools = _pairs_and_pools(inputs, members, table, types)
        problem = Problem(
            rates=table,
            counts=np.array([len(jobs) for jobs in members], dtype=float),
            scale=np.array([jobs[0].gpus for jobs in members], dtype=float),
            capacity=np.array([inputs.capacity[t] for t in types], dtype=float),
            pairs=pairs,
            pools=pools,
            source=tuple(types.index(t) for t in further),
            node_limits=tuple(_node_limits(inputs, members, types)) if further else (),
            quotas=tuple(_quota_limits(known_quotas, members, types)),
        )
        return cls(inputs, problem, members, [*types, *(t + UNCONSOLIDATED for t in further)])

    def each(self, value: Callable[[Job], float]) -> Floats:
        """The value of each class's first job, shape (classes,)."""
        return np.array([value(jobs[0]) for jobs in self.members], dtype=float)

    def time_shares(self, x: Floats) -> TimeShares:
        """The variables as time shares of each job alone, and of each pair."""
        found: dict[Combination, dict[str, float]] = {}
        parts: dict[tuple[int, int], tuple[list[JobTime], list[JobTime]]] = {}
        pairs, pools, last = self.problem.offsets
        used = np.nonzero(x > ROUNDING)[0]

        def add(combination: Combination, worker_type: int, share: float) -> None:
            """Add to the fraction of the time that a combination has on a worker type; 1.0 at most in all."""
            mine, name = found.setdefault(combination, {}), self.types[worker_type]
            mine[name] = min(mine.get(name, 0.0) + share, 1.0)

        combinations, worker_types = (column[used].tolist() for column in self.problem.columns)
        for total, number, worker_type in zip(x[used].tolist(), combinations, worker_types, strict=True):
            if number < pairs:
                for job in self.members[number]:
                    add((job.uid,), worker_type, total / len(self.members[number]))
            elif number < pools:
                one, other = self.problem.pairs.first[number - pairs], self.problem.pairs.second[number - pairs]
                for pair, share in divide_pair(self.members[one], self.members[other], total):
                    add(pair, worker_type, share)
            elif number >= last:
                pool, side, member = (
                    int(column[number - last])
                    for column in (self.problem.pools.pool, self.problem.pools.side, self.problem.pools.member)
                )
                jobs = self.members[member]
                sides = parts.setdefault((pool, worker_type), ([], []))
                sides[side].extend((job, total / len(jobs)) for job in jobs)
        for (pool, worker_type), (one_side, other_side) in parts.items():
            both = split_in_halves(one_side) if self.problem.pools.single_kind[pool] else (one_side, other_side)
            for combination, share in pair_off(*both):
                add(combination, worker_type, share)
        return found


def _node_limits(
    inputs: AllocationInputs, members: Sequence[Sequence[Job]], types: Sequence[str]
) -> Iterator[NodeLimit]:
    """Limits of how many jobs fit consolidated on a GPU type's nodes, where its GPUs could serve more.

    Jobs without a known unconsolidated speed are placed wherever GPUs are free, and are not counted.
    """
    for worker_type, gpu_type in enumerate(types):
        consolidated = [
            inputs.gpus_per_node[job.uid].get(gpu_type, ()) if job.uid in inputs.unconsolidated_speeds else ()
            for job, *_ in members
        ]
        sizes, gpus = inputs.node_gpus.get(gpu_type, ()), inputs.capacity[gpu_type]
        for least in sorted({part for per_node in consolidated for part in per_node}):
            nodes = sum(size // least for size in sizes)
            if nodes * least < gpus:
                slots = [float(sum(part >= least for part in per_node)) for per_node in consolidated]
                yield NodeLimit(worker_type, np.array(slots), float(nodes))


def _quota_limits(
    quotas: Iterable[Quota], members: Sequence[Sequence[Job]], types: Sequence[str]
) -> Iterator[QuotaLimit]:
    """The quotas as limits of classes, of which all jobs have the same quotas."""
    for quota in quotas:
        use = [float(quota.use(job.gpus)) if job.uid in quota.members else 0.0 for job, *_ in members]
        counted = np.array([quota.counts(gpu_type) for gpu_type in types], dtype=bool)
        yield QuotaLimit(np.array(use), counted, float(max(quota.left, 0)))


def _pairs_and_pools(
    inputs: AllocationInputs, members: Sequence[Sequence[Job]], rates: Floats, types: Sequence[str]
) -> tuple[Pairs, Pools]:
    """Pairs and pools of classes whose co-located speeds reach ``PAIR_GAIN``.

    Classes that differ in their class keys alone are one kind of job; co-located speeds are determined once for each
    two kinds.
    """
    kinds: dict[Hashable, list[int]] = {}  # numbers of the classes of each kind
    for number, (job, *_) in enumerate(members):
        key = (job.speed, job.whole_gpus, job.gpus, tuple(inputs.gpus_per_node[job.uid].items()), tuple(rates[number]))
        kinds.setdefault(key, []).append(number)
    classes = list(kinds.values())
    size = len(classes)
    table = np.zeros((size, size, rates.shape[1]))  # co-located speed of a job of the first kind with one of the second
    examples = [members[numbers[0]][0] for numbers in classes]
    alone = rates[[numbers[0] for numbers in classes]]
    for a, b in np.ndindex(size, size):
        one, other = examples[a], examples[b]
        if one.gpus == other.gpus:
            both = (alone[a] > 0) & (alone[b] > 0)
            table[a, b, : len(types)] = [
                (inputs.colocated_speed(one, other, t) or 0.0) if both[number] else 0.0
                for number, t in enumerate(types)
            ]
    with np.errstate(divide="ignore", invalid="ignore"):
        gain = np.where(table > 0, table / alone[:, None], 0.0)
    gain = gain + gain.transpose(1, 0, 2)
    allowed = (gain >= PAIR_GAIN) & (table > 0) & (table.transpose(1, 0, 2) > 0)
    colocated = np.where(allowed, table, 0.0)
    pooled = np.minimum(colocated, alone[:, None])  # no job of a pool may gain by time without a co-runner
    pairs: list[tuple[int, int, int, int]] = []
    pools: list[tuple[int, int]] = []
    for a, b in np.argwhere(np.triu(allowed.any(axis=2))).tolist():
        if a == b and len(classes[a]) <= FEW_CLASSES:
            of = classes[a]
            pairs += [(i, j, a, a) for n, i in enumerate(of) for j in of[n:] if i < j or len(members[i]) > 1]
        elif a != b and len(classes[a]) * len(classes[b]) <= len(classes[a]) + len(classes[b]):
            pairs += [(i, j, a, b) for i in classes[a] for j in classes[b]]
        else:
            pools.append((a, b))
    first, second, one_kind, other_kind = np.array(pairs, dtype=np.int64).reshape(-1, 4).T
    found = Pairs(first, second, colocated[one_kind, other_kind], colocated[other_kind, one_kind])
    parts = [
        (number, side, member, kind, co_runner)
        for number, (a, b) in enumerate(pools)
        for side, (kind, co_runner) in enumerate(((a, b), (b, a))[: 1 if a == b else 2])
        for member in classes[kind]
    ]
    pool, side, member, kind, co_runner = np.array(parts, dtype=np.int64).reshape(-1, 5).T
    left, right = np.array(pools, dtype=np.int64).reshape(-1, 2).T
    return found, Pools(allowed[left, right], left == right, pool, side, member, pooled[kind, co_runner])


def _fitting(inputs: AllocationInputs, speeds: Mapping[str, Mapping[str, float]]) -> Mapping[str, Mapping[str, float]]:
    """Speeds by uid and GPU type, without types where retained jobs leave too few GPUs for the job."""
    gpus, left = {job.uid: job.gpus for job in inputs.jobs}, inputs.capacity
    return {
        uid: {t: speed for t, speed in known.items() if gpus[uid] <= left.get(t, 0)} for uid, known in speeds.items()
    }


def _speeds(inputs: AllocationInputs) -> Mapping[str, Mapping[str, float]]:
    """Steps/s by uid and GPU type; speeds that are not known are estimated from those that are.

    A job with known speeds on some types gains on another type what jobs known on both types gain, in the mean. A job
    without known speeds counts as an average job.
    """
    unknown = [uid for uid, speeds in inputs.speeds.items() if None in speeds.values()]
    known = {uid: {t: speed for t, speed in speeds.items() if speed} for uid, speeds in inputs.speeds.items()}
    columns: dict[str, dict[str, float]] = {}
    for uid, speeds in known.items() if unknown else ():
        for t, speed in speeds.items():
            columns.setdefault(t, {})[uid] = speed
    average = {t: fmean(column.values()) for t, column in columns.items()}
    gains: dict[tuple[str, str], float | None] = {}

    def gain(t: str, wanted: str) -> float | None:
        """Speed on the wanted type over that on the other, mean over jobs known on both; None where there are none."""
        if (t, wanted) not in gains:
            one, other = columns[t], columns.get(wanted, {})
            both = [other[uid] / speed for uid, speed in one.items() if uid in other]
            gains[t, wanted] = fmean(both) if both else None
        return gains[t, wanted]

    def estimate(uid: str, wanted: str) -> float:
        """Steps/s of a job on a GPU type on which its speed is not known."""
        mine = known[uid]
        found = [speed * factor for t, speed in mine.items() if (factor := gain(t, wanted)) is not None]
        return fmean(found or mine.values() or (average.get(wanted, 1.0),))

    estimated = {
        uid: {t: estimate(uid, t) if speed is None else speed for t, speed in inputs.speeds[uid].items()}
        for uid in unknown
    }
    return {**known, **estimated}
