"""Allocations as linear programs: who could run where, how fast, and what makes an allocation valid.

Section 3.1: an allocation says which fraction of the time each job, or pair of jobs on the same GPUs, spends on each
GPU type. Jobs that no policy can tell apart are one *class* here: by symmetry and convexity some optimum treats them
alike, so a class has one variable for each type, which counts its jobs' fractions together.

A *worker type* is a GPU type; or, where placement counts, a GPU type with a job's GPUs on as few nodes as can be, or
spread over as many. The two have their GPUs in common.
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

EVEN_TURNS = 1000
"""Of fitting rows and columns in turn; where types are not restricted the first one fits."""
EVEN_CLOSE = 1e-9


@dataclass(frozen=True)
class Pairs:
    """P pairs of classes, a job of each of which may share GPUs.

    Attributes:
        first: numbers of the classes, shape (P,).
        second: likewise; equal where two jobs of one class share.
        first_rates: steps/s of the first of the two on each type, shape (P, J); 0.0 for both where they do not share.
        second_rates: likewise of the second.
    """

    first: Ints
    second: Ints
    first_rates: Floats
    second_rates: Floats

    @classmethod
    def none(cls, types: int) -> Self:
        """No pairs, on so many types."""
        nobody, nothing = np.zeros(0, dtype=np.int64), np.zeros((0, types))
        return cls(nobody, nobody, nothing, nothing)


@dataclass(frozen=True)
class Pools:
    """G pools: pairs of any class on one side with any on the other, where there are many on both.

    What a job does beside another depends on its kind and the other's. So no variable for each two classes is needed,
    of which there would be M^2: a pool has one for the time that its pairs run, and one for each class's part in that.
    The parts of a side fill at most that time. Where the classes of one kind share among themselves there is one side,
    whose parts fill at most twice that time, and a single job's no more than once: just what pairs can be made of.

    Attributes:
        pays: on which types its pairs may run, shape (G, J).
        inner: whether it is of one kind, with one side, shape (G,).
        pool: of each of S parts, shape (S,).
        side: of each part, 0 or 1, shape (S,).
        member: the class of each part, shape (S,).
        rates: steps/s of a job of the class in the pool's pairs on each type, shape (S, J); 0.0 where they do not run.
    """

    pays: Bools
    inner: Bools
    pool: Ints
    side: Ints
    member: Ints
    rates: Floats

    @classmethod
    def none(cls, types: int) -> Self:
        """No pools, on so many types."""
        nobody, nothing = np.zeros(0, dtype=np.int64), np.zeros((0, types))
        return cls(nothing > 0, np.zeros(0, dtype=bool), nobody, nobody, nobody, nothing)


@dataclass(frozen=True)
class Room:
    """What limits classes on a worker type beyond its GPUs: jobs that need many on one node fit on few nodes.

    Attributes:
        kind: the worker type.
        places: that a job of each class takes, shape (M,); 0.0 for classes that it does not limit.
        most: places that there are.
    """

    kind: int
    places: Floats
    most: float


@dataclass(frozen=True)
class Problem:
    """M classes of jobs, J worker types, the first of which are the GPU types themselves.

    Attributes:
        rates: steps/s of one job of a class alone on each worker type, shape (M, J); 0.0 where it cannot run.
        counts: jobs in each class, shape (M,).
        scale: GPUs that one job takes, its ``scale_factor``, shape (M,).
        capacity: GPUs of each GPU type; shape (J,), or fewer: worker types beyond take theirs from ``source``.
        pairs: who may share.
        pools: who else may share.
        source: the GPU types of the worker types beyond the first ones.
        rooms: what else limits classes.
    """

    rates: Floats
    counts: Floats
    scale: Floats
    capacity: Floats
    pairs: Pairs
    pools: Pools | None = None
    source: tuple[int, ...] = ()
    rooms: tuple[Room, ...] = ()

    @cached_property
    def together(self) -> Pools:
        """The pools, none by default."""
        return Pools.none(self.rates.shape[1]) if self.pools is None else self.pools

    @cached_property
    def starts(self) -> tuple[int, int, int]:
        """Where combinations other than classes alone begin: pairs, pools, parts in pools."""
        pairs = len(self.rates)
        pools = pairs + len(self.pairs.first)
        return pairs, pools, pools + len(self.together.inner)

    @cached_property
    def columns(self) -> tuple[Ints, Ints]:
        """Combination and worker type of each variable. Combinations: classes alone, pairs, pools, parts in pools."""
        pairs, pools = self.pairs, self.together
        chances = (self.rates, pairs.first_rates + pairs.second_rates, pools.pays, pools.rates)
        found = [np.nonzero(chance) for chance in chances]
        combinations = [who + start for (who, _), start in zip(found, (0, *self.starts), strict=True)]
        return np.concatenate(combinations), np.concatenate([kind for _, kind in found])

    @cached_property
    def _parts(self) -> tuple[Ints, Ints, Floats]:
        """Variable, class and steps/s of one job of it: an entry for each class alone or part, two for each pair."""
        combination, kind = self.columns
        pairs, pools, parts = self.starts
        variable = np.arange(len(combination))
        alone, two, part = combination < pairs, (combination >= pairs) & (combination < pools), combination >= parts
        pair, rest = combination[two] - pairs, combination[part] - parts
        return (
            np.concatenate([variable[alone], variable[two], variable[two], variable[part]]),
            np.concatenate(
                [combination[alone], self.pairs.first[pair], self.pairs.second[pair], self.together.member[rest]]
            ),
            np.concatenate(
                [
                    self.rates[combination[alone], kind[alone]],
                    self.pairs.first_rates[pair, kind[two]],
                    self.pairs.second_rates[pair, kind[two]],
                    self.together.rates[rest, kind[part]],
                ]
            ),
        )

    @cached_property
    def throughput(self) -> sp.csr_array:
        """Variables -> effective throughput of one job of each class, steps/s; shape (M, variables)."""
        variable, member, rate = self._parts
        shape = (len(self.rates), len(self.columns[0]))
        return sp.csr_array(sp.coo_array((rate / self.counts[member], (member, variable)), shape=shape))

    @cached_property
    def leader(self) -> Ints:
        """The class of each variable, or one of its classes."""
        pools = self.together
        _, first = np.unique(pools.pool, return_index=True)
        of = (np.arange(len(self.rates)), self.pairs.first, pools.member[first], pools.member)
        return np.asarray(np.concatenate(of)[self.columns[0]])

    @cached_property
    def width(self) -> Floats:
        """GPUs on which each variable's jobs run."""
        return np.asarray(self.scale[self.leader])

    @cached_property
    def gpus(self) -> Floats:
        """GPUs that each variable takes while it runs: a part in a pool none beside those of the pool's pairs."""
        return np.where(self.columns[0] < self.starts[2], self.width, 0.0)

    @cached_property
    def gpu_type(self) -> Ints:
        """The GPU type of each variable, a number from 0."""
        of = np.concatenate([np.arange(len(self.capacity)), np.array(self.source, dtype=np.int64)])
        return np.asarray(of[self.columns[1]])

    @cached_property
    def limits(self) -> tuple[sp.csr_array, Floats]:
        """What makes an allocation valid, as A x <= b: (2) each job's time, (3) each type's GPUs; rooms, and pools."""
        variable, member, _ = self._parts
        combination, kind = self.columns
        jobs, types, size = len(self.rates), len(self.capacity), len(combination)
        entries = np.concatenate([np.ones(len(member)), self.gpus])
        rows = np.concatenate([member, jobs + self.gpu_type])
        columns = np.concatenate([variable, np.arange(size)])
        blocks = [sp.coo_array((entries, (rows, columns)), shape=(jobs + types, size))]
        bounds = [self.counts, self.capacity]
        for room in self.rooms:
            within = (kind == room.kind) & (self.gpus > 0)
            blocks.append(sp.coo_array(np.where(within, room.places[self.leader], 0.0)[None, :]))
            bounds.append(np.array([room.most]))
        if len(self.together.inner):
            blocks.append(self._pooled())
            bounds.append(np.zeros(blocks[-1].shape[0]))
        return sp.csr_array(sp.vstack(blocks)), np.concatenate(bounds)

    def _pooled(self) -> sp.coo_array:
        """The parts of each side of a pool, less the time of its pairs; and, of one kind, each job's less that time."""
        combination, kind = self.columns
        pools, (_, first, parts) = self.together, self.starts
        width = self.rates.shape[1]
        time = np.nonzero((combination >= first) & (combination < parts))[0]
        of_pool = np.zeros((len(pools.inner), width), dtype=np.int64)  # the variable of its pairs' time
        of_pool[combination[time] - first, kind[time]] = time
        part = np.nonzero(combination >= parts)[0]
        number, on = combination[part] - parts, kind[part]
        pool = pools.pool[number]
        sides, row = np.unique((2 * pool + pools.side[number]) * width + on, return_inverse=True)
        whose, where = sides // (2 * width), sides % width
        inner = pools.inner[pool]
        single = len(sides) + np.arange(int(inner.sum()))
        counts = self.counts[pools.member[number[inner]]]
        entries = [np.ones(len(part)), -np.where(pools.inner[whose], 2.0, 1.0), np.ones(len(single)), -counts]
        rows = [row, np.arange(len(sides)), single, single]
        columns = [part, of_pool[whose, where], part[inner], of_pool[pool[inner], on[inner]]]
        place = (np.concatenate(rows), np.concatenate(columns))
        return sp.coo_array((np.concatenate(entries), place), shape=(len(sides) + len(single), len(combination)))

    @cached_property
    def equal(self) -> Floats:
        """Throughput of one job with an equal share of time on every type's GPUs, steps/s, shape (M,); section 4.1.

        X^equal gives each job time on type j in proportion to the type's share of all GPUs.
        """
        total, types = self.capacity.sum(), len(self.capacity)
        return self.rates[:, :types] @ (self.capacity / total) if total else np.zeros(len(self.rates))

    @cached_property
    def isolated(self) -> Floats:
        """Throughput of one job with 1/n of every type's GPUs, n being the number of jobs, steps/s, shape (M,).

        A job has no more time than there is, and spends none of it where it cannot run.
        """
        rates = self.rates[:, : len(self.capacity)]
        share = (rates > 0) * self.capacity / self.counts.sum() / self.scale[:, None]
        time = share.sum(axis=1, keepdims=True)
        return np.asarray((rates * share / np.maximum(time, 1.0)).sum(axis=1))

    @cached_property
    def fastest(self) -> Floats:
        """Throughput of one job alone on the fastest worker type, steps/s, shape (M,)."""
        return np.asarray(self.rates.max(axis=1, initial=0.0))

    @cached_property
    def most(self) -> Floats:
        """Throughput of one job on the worker type, and in the company, where it is fastest, steps/s, shape (M,)."""
        _, member, rate = self._parts
        found = np.zeros(len(self.rates))
        np.maximum.at(found, member, rate)
        return found

    def fractions(self, x: Floats) -> Floats:
        """Variables -> fraction of time of one job of each class alone on each worker type, shape (M, J)."""
        combination, kind = self.columns
        alone = combination < len(self.rates)
        found = np.zeros(self.rates.shape)
        found[combination[alone], kind[alone]] = x[alone]
        return found / self.counts[:, None]

    def even(self, x: Floats) -> Floats:
        """An allocation in which everybody has the same time in all, but as even over types as can be.

        That is of an allocation without pairs and without worker types beyond the GPU types.

        A solver is free to choose where types are alike to a program. This takes the choice of largest entropy, by
        fitting each class's time and each type's GPUs in turn (Sinkhorn).
        """
        combination, kind = self.columns
        time = np.bincount(combination, x, minlength=len(self.rates))
        found = np.where(self.rates > 0, self.capacity[None, :], 0.0)
        for _ in range(EVEN_TURNS):
            sums = found.sum(axis=1)
            found *= np.where(sums > 0, time / np.where(sums > 0, sums, 1.0), 0.0)[:, None]
            used = self.scale @ found
            if (used <= self.capacity * (1 + EVEN_CLOSE)).all():
                break
            found *= np.minimum(self.capacity / np.where(used > 0, used, 1.0), 1.0)
        return np.asarray(found[combination, kind])
