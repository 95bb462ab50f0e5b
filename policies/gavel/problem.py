"""Allocations as linear programs over classes of jobs: variables, their speeds, and the constraints of validity.

Source: Narayanan et al., OSDI 2020, section 3.1: an allocation X says which fraction of the time each job, or pair of
jobs on the same GPUs, spends on each GPU type. Jobs that a policy cannot tell apart are one *class*: by symmetry and
convexity some optimum treats them alike, so a class has one variable for each type, the sum of its jobs' fractions.

A *worker type* is a GPU type; or, where placement counts, a GPU type consolidated or unconsolidated, which stand for
the same GPUs.

The program, in the order of this module:

- ``Problem.rates``, ``pairs``, ``pools``: speeds of classes alone, of pairs of classes, of pools of pairs.
- ``Problem.columns``: the variables x >= 0, one for each combination and worker type on which its speed is above 0.
- ``Problem.throughput``: from x to the effective throughput of one job of each class, of which the objectives are
  functions (``fairness_objectives``, ``sum_objectives``).
- ``Problem.limits``: A x <= b, the constraints of a valid allocation.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]

EVEN_ITERATIONS = 1000
"""Iterations of ``spread_evenly`` at most; one suffices where every job can run on every type."""
EVEN_CLOSE = 1e-9
"""Relative excess over a type's GPUs that ``spread_evenly`` accepts as rounding."""


@dataclass(frozen=True)
class Pairs:
    """P pairs of classes; a job of the first and a job of the second may have the same GPUs.

    Attributes:
        first: number of the first class, shape (P,).
        second: number of the second class, shape (P,); that of the first where two jobs of one class are co-located.
        first_rates: steps/s of the first job on each worker type, shape (P, J); 0.0 where the two are not co-located.
        second_rates: steps/s of the second job, likewise.
    """

    first: Ints
    second: Ints
    first_rates: Floats
    second_rates: Floats

    @classmethod
    def none(cls, types: int) -> Self:
        """No pairs, for this number of worker types."""
        numbers, rates = np.zeros(0, dtype=np.int64), np.zeros((0, types))
        return cls(numbers, numbers, rates, rates)


@dataclass(frozen=True)
class Pools:
    """G pools: all pairs of a class of one kind of job with a class of another kind, where there are many of both.

    The co-located speed of a job depends on its kind (model and GPUs) and on that of its co-runner alone. Instead of a
    variable for each two classes (M^2), a pool has one variable for the time in which its pairs run, and one for the
    time of each class in them, here a *part*. The parts of a side, which are the classes of one kind, sum up to at most
    the pool's time. A pool of a single kind has one side, whose parts sum up to at most twice the pool's time, and a
    single job's part is at most the pool's time. These are the conditions under which pairs can be formed.

    Attributes:
        allowed: whether the pool's pairs may run on a worker type, shape (G, J).
        single_kind: whether the pool is of a single kind, shape (G,).
        pool: number of the pool of each of S parts, shape (S,).
        side: side of each part, 0 or 1, shape (S,).
        member: number of the class of each part, shape (S,).
        rates: steps/s of a job of the class in the pool's pairs on each worker type, shape (S, J); 0.0 where the pairs
            do not run.
    """

    allowed: Bools
    single_kind: Bools
    pool: Ints
    side: Ints
    member: Ints
    rates: Floats

    @classmethod
    def none(cls, types: int) -> Self:
        """No pools, for this number of worker types."""
        numbers, rates = np.zeros(0, dtype=np.int64), np.zeros((0, types))
        return cls(rates > 0, np.zeros(0, dtype=bool), numbers, numbers, numbers, rates)


@dataclass(frozen=True)
class NodeLimit:
    """Limit of a worker type beyond its GPUs: consolidated jobs need several GPUs on one node, which few nodes have.

    Attributes:
        worker_type: number of the worker type.
        slots: slots that a job of each class takes, shape (M,); 0.0 for classes that this does not limit. A slot is a
            given number of GPUs on one node.
        most: slots that the nodes have.
    """

    worker_type: int
    slots: Floats
    most: float


@dataclass(frozen=True)
class QuotaLimit:
    """A quota of GPUs or running jobs that is below what its members ask for.

    Attributes:
        use: GPUs (of a quota of jobs: jobs, 1.0) for which a job of each class counts, shape (M,); 0.0 for others.
        gpu_types: whether GPUs of each GPU type count, shape (GPU types,).
        most: GPUs or jobs that the members may have.
    """

    use: Floats
    gpu_types: Bools
    most: float


@dataclass(frozen=True)
class Problem:
    """M classes of jobs and J worker types, of which the GPU types come first.

    Attributes:
        rates: steps/s of one job of a class alone on each worker type, shape (M, J); 0.0 where it cannot run.
        counts: jobs in each class, shape (M,).
        scale: GPUs of one job, its ``scale_factor`` in the paper, shape (M,).
        capacity: GPUs of each GPU type; shape (GPU types,).
        pairs: pairs of classes that may be co-located.
        pools: further pairs of classes that may be co-located, by kinds of jobs.
        source: number of the GPU type of each further, unconsolidated worker type.
        node_limits: further limits of consolidated worker types.
        quotas: quotas, within which X^isolated is.
        constrained_by_quotas: whether valid allocations are within the quotas, too. Programs of two stages do without:
            the members of a quota would have the worst objective, and the other GPUs would go to the fastest jobs.
        robust: whether HiGHS's slower but more robust methods solve the programs.
    """

    rates: Floats
    counts: Floats
    scale: Floats
    capacity: Floats
    pairs: Pairs
    pools: Pools
    source: tuple[int, ...] = ()
    node_limits: tuple[NodeLimit, ...] = ()
    quotas: tuple[QuotaLimit, ...] = ()
    constrained_by_quotas: bool = False
    robust: bool = False

    @cached_property
    def offsets(self) -> tuple[int, int, int]:
        """Numbers of the first combination that is a pair, a pool, a part of a pool; classes alone begin at 0."""
        pairs = len(self.rates)
        pools = pairs + len(self.pairs.first)
        return pairs, pools, pools + len(self.pools.single_kind)

    @cached_property
    def columns(self) -> tuple[Ints, Ints]:
        """Numbers of the combination (class alone, pair, pool, part of a pool) and worker type of each variable."""
        pairs, pools = self.pairs, self.pools
        runnable = (self.rates, pairs.first_rates + pairs.second_rates, pools.allowed, pools.rates)
        found = [np.nonzero(types) for types in runnable]
        combinations = [number + start for (number, _), start in zip(found, (0, *self.offsets), strict=True)]
        return np.concatenate(combinations), np.concatenate([worker_type for _, worker_type in found])

    @cached_property
    def _contributions(self) -> tuple[Ints, Ints, Floats]:
        """Variable, class and steps/s of one job of it: an entry for each class alone and part, two for each pair."""
        combination, worker_type = self.columns
        pairs, pools, parts = self.offsets
        variable = np.arange(len(combination))
        alone, two, part = combination < pairs, (combination >= pairs) & (combination < pools), combination >= parts
        pair, rest = combination[two] - pairs, combination[part] - parts
        return (
            np.concatenate([variable[alone], variable[two], variable[two], variable[part]]),
            np.concatenate(
                [combination[alone], self.pairs.first[pair], self.pairs.second[pair], self.pools.member[rest]]
            ),
            np.concatenate(
                [
                    self.rates[combination[alone], worker_type[alone]],
                    self.pairs.first_rates[pair, worker_type[two]],
                    self.pairs.second_rates[pair, worker_type[two]],
                    self.pools.rates[rest, worker_type[part]],
                ]
            ),
        )

    @cached_property
    def throughput(self) -> sp.csr_array:
        """Matrix from the variables to the effective throughput of one job of each class, steps/s; (M, variables)."""
        variable, member, rate = self._contributions
        shape = (len(self.rates), len(self.columns[0]))
        return sp.csr_array(sp.coo_array((rate / self.counts[member], (member, variable)), shape=shape))

    @cached_property
    def representative(self) -> Ints:
        """Number of the class of each variable, or of one of its classes, which all have as many GPUs; (variables,)."""
        pools = self.pools
        _, first = np.unique(pools.pool, return_index=True)
        of = (np.arange(len(self.rates)), self.pairs.first, pools.member[first], pools.member)
        return np.asarray(np.concatenate(of)[self.columns[0]])

    @cached_property
    def width(self) -> Floats:
        """GPUs on which each variable's jobs run, shape (variables,)."""
        return np.asarray(self.scale[self.representative])

    @cached_property
    def gpus(self) -> Floats:
        """GPUs that each variable occupies, shape (variables,); 0 for parts, as the pool's time occupies them."""
        return np.where(self.columns[0] < self.offsets[2], self.width, 0.0)

    @cached_property
    def gpu_type(self) -> Ints:
        """Number of the GPU type of each variable, shape (variables,)."""
        of = np.concatenate([np.arange(len(self.capacity)), np.array(self.source, dtype=np.int64)])
        return np.asarray(of[self.columns[1]])

    @cached_property
    def limits(self) -> tuple[sp.csr_array, Floats]:
        """A and b of A x <= b, which makes an allocation valid.

        Rows: each class's time (section 3.1, constraint 2), each GPU type's GPUs (constraint 3), node limits, quotas,
        pools.
        """
        variable, member, _ = self._contributions
        combination, worker_type = self.columns
        jobs, types, size = len(self.rates), len(self.capacity), len(combination)
        entries = np.concatenate([np.ones(len(member)), self.gpus])
        rows = np.concatenate([member, jobs + self.gpu_type])
        columns = np.concatenate([variable, np.arange(size)])
        blocks = [sp.coo_array((entries, (rows, columns)), shape=(jobs + types, size))]
        bounds = [self.counts, self.capacity]
        for limit in self.node_limits:
            within = (worker_type == limit.worker_type) & (self.gpus > 0)
            blocks.append(sp.coo_array(np.where(within, limit.slots[self.representative], 0.0)[None, :]))
            bounds.append(np.array([limit.most]))
        for quota in self.quotas if self.constrained_by_quotas else ():
            counts = quota.use[member] * quota.gpu_types[self.gpu_type[variable]]
            used = np.nonzero(counts)[0]
            blocks.append(sp.coo_array((counts[used], (np.zeros_like(used), variable[used])), shape=(1, size)))
            bounds.append(np.array([quota.most]))
        if len(self.pools.single_kind):
            blocks.append(self._pool_limits())
            bounds.append(np.zeros(blocks[-1].shape[0]))
        return sp.csr_array(sp.vstack(blocks)), np.concatenate(bounds)

    def _pool_limits(self) -> sp.coo_array:
        """Rows of A for pools, of which b is 0: the parts of each side against the pool's time; see ``Pools``."""
        combination, worker_type = self.columns
        pools, (_, first, parts) = self.pools, self.offsets
        width = self.rates.shape[1]
        time = np.nonzero((combination >= first) & (combination < parts))[0]
        of_pool = np.zeros((len(pools.single_kind), width), dtype=np.int64)  # the variable of its pairs' time
        of_pool[combination[time] - first, worker_type[time]] = time
        part = np.nonzero(combination >= parts)[0]
        number, on = combination[part] - parts, worker_type[part]
        pool = pools.pool[number]
        sides, row = np.unique((2 * pool + pools.side[number]) * width + on, return_inverse=True)
        whose, where = sides // (2 * width), sides % width
        single_kind = pools.single_kind[pool]
        single = len(sides) + np.arange(int(single_kind.sum()))
        counts = self.counts[pools.member[number[single_kind]]]
        entries = [np.ones(len(part)), -np.where(pools.single_kind[whose], 2.0, 1.0), np.ones(len(single)), -counts]
        rows = [row, np.arange(len(sides)), single, single]
        columns = [part, of_pool[whose, where], part[single_kind], of_pool[pool[single_kind], on[single_kind]]]
        place = (np.concatenate(rows), np.concatenate(columns))
        return sp.coo_array((np.concatenate(entries), place), shape=(len(sides) + len(single), len(combination)))

    @cached_property
    def equal(self) -> Floats:
        """Throughput of one job under X^equal, steps/s, shape (M,); section 4.1.

        X^equal gives each job time on a GPU type in proportion to the type's GPUs.
        """
        total, types = self.capacity.sum(), len(self.capacity)
        return self.rates[:, :types] @ (self.capacity / total) if total else np.zeros(len(self.rates))

    @cached_property
    def _isolated_shares(self) -> Floats:
        """Fraction of one job's time on each GPU type under X^isolated, shape (M, GPU types)."""
        rates = self.rates[:, : len(self.capacity)]
        share = (rates > 0) * self.capacity / self.counts.sum() / self.scale[:, None]
        share = share / np.maximum(share.sum(axis=1, keepdims=True), 1.0)
        for quota in self.quotas:
            counted = (quota.use > 0)[:, None] & quota.gpu_types
            used = float(((self.counts * quota.use)[:, None] * np.where(counted, share, 0.0)).sum())
            if used > quota.most:
                share = np.where(counted, share * (quota.most / used), share)
        return np.asarray(share)

    @cached_property
    def isolated(self) -> Floats:
        """Throughput of one job under X^isolated, steps/s, shape (M,): 1/n of every type's GPUs for each of n jobs.

        A job has at most all of its time, and no time on a type on which it cannot run. Quotas reduce the time of their
        members in proportion.
        """
        return np.asarray((self.rates[:, : len(self.capacity)] * self._isolated_shares).sum(axis=1))

    @cached_property
    def isolated_time(self) -> Floats:
        """The variables of X^isolated, shape (variables,): a valid allocation, node limits apart, for any problem."""
        combination, worker_type = self.columns
        time = np.zeros(len(combination))
        of = np.nonzero((combination < len(self.rates)) & (worker_type < len(self.capacity)))[0]
        classes = combination[of]
        time[of] = self._isolated_shares[classes, worker_type[of]] * self.counts[classes]
        return time

    @cached_property
    def fastest(self) -> Floats:
        """Throughput of one job alone on the fastest worker type, steps/s, shape (M,)."""
        return np.asarray(self.rates.max(axis=1, initial=0.0))

    @cached_property
    def peak(self) -> Floats:
        """Throughput of one job on the worker type, alone or co-located, where it is fastest, steps/s, shape (M,)."""
        _, member, rate = self._contributions
        found = np.zeros(len(self.rates))
        np.maximum.at(found, member, rate)
        return found

    def spread_evenly(self, x: Floats) -> Floats:
        """The variables of an allocation in which each class has the same time in sum, spread evenly over GPU types.

        Where types are alike to a program, its solution is arbitrary. This one has the largest entropy; each class's
        time and each type's GPUs are fitted alternately (Sinkhorn). For allocations without pairs and without
        unconsolidated worker types.
        """
        combination, worker_type = self.columns
        time = np.bincount(combination, x, minlength=len(self.rates))
        found = np.where(self.rates > 0, self.capacity[None, :], 0.0)
        for _ in range(EVEN_ITERATIONS):
            sums = found.sum(axis=1)
            found *= np.where(sums > 0, time / np.where(sums > 0, sums, 1.0), 0.0)[:, None]
            used = self.scale @ found
            if (used <= self.capacity * (1 + EVEN_CLOSE)).all():
                break
            found *= np.minimum(self.capacity / np.where(used > 0, used, 1.0), 1.0)
        return np.asarray(found[combination, worker_type])
