"""Allocations as linear programs: who could run where, how fast, and what makes an allocation valid.

Section 3.1: an allocation says which fraction of the time each job, or pair of jobs on the same GPUs, spends on each
GPU type. Jobs that no policy can tell apart are one *class* here: by symmetry and convexity some optimum treats them
alike, so a class has one variable for each type, which counts its jobs' fractions together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Pair:
    """Two classes that may share GPUs: speeds of one job of each on each type, steps/s, shape (J,) each.

    ``first`` and ``second`` are the classes' numbers; they are equal where two jobs of one class share.
    """

    first: int
    second: int
    first_rates: Floats
    second_rates: Floats


@dataclass(frozen=True)
class Problem:
    """M classes of jobs, J types of GPUs.

    Attributes:
        rates: steps/s of one job of a class alone on each type, shape (M, J); 0.0 where it cannot run.
        counts: jobs in each class, shape (M,).
        scale: GPUs that one job takes, its ``scale_factor``, shape (M,).
        capacity: GPUs of each type, shape (J,).
        pairs: who may share.
    """

    rates: Floats
    counts: Floats
    scale: Floats
    capacity: Floats
    pairs: Sequence[Pair] = ()

    @cached_property
    def columns(self) -> tuple[Ints, Ints]:
        """Combination and type of each variable. Combinations 0 to M-1 are the classes alone, then come the pairs."""
        usable = [(m, j) for m, j in zip(*np.nonzero(self.rates), strict=True)]
        offset = len(self.rates)
        for number, pair in enumerate(self.pairs):
            used = np.nonzero((pair.first_rates > 0) | (pair.second_rates > 0))[0]
            usable += [(offset + number, j) for j in used]
        found = np.array(usable, dtype=np.int64).reshape(-1, 2)
        return found[:, 0], found[:, 1]

    @cached_property
    def throughput(self) -> sp.csr_array:
        """Variables -> effective throughput of one job of each class, steps/s; shape (M, variables)."""
        rows, columns, values = [], [], []
        alone = len(self.rates)
        for variable, (combination, j) in enumerate(zip(*self.columns, strict=True)):
            if combination < alone:
                members = [(combination, self.rates[combination, j])]
            else:
                pair = self.pairs[combination - alone]
                members = [(pair.first, pair.first_rates[j]), (pair.second, pair.second_rates[j])]
            for m, rate in members:
                rows.append(m)
                columns.append(variable)
                values.append(rate / self.counts[m])
        shape = (len(self.rates), len(self.columns[0]))
        return sp.csr_array(sp.coo_array((values, (rows, columns)), shape=shape))

    @cached_property
    def limits(self) -> tuple[sp.csr_array, Floats]:
        """What makes an allocation valid, as A x <= b: (2) each job's time, (3) each type's GPUs."""
        combination, kind = self.columns
        alone, types = self.rates.shape
        rows, columns, values = [], [], []
        for variable, (c, j) in enumerate(zip(combination, kind, strict=True)):
            if c < alone:
                members: tuple[int, ...] = (c,)
            else:
                members = (self.pairs[c - alone].first, self.pairs[c - alone].second)
            rows += [*members, alone + j]
            columns += [variable] * (len(members) + 1)
            values += [*(1.0 for _ in members), self.scale[members[0]]]
        matrix = sp.coo_array((values, (rows, columns)), shape=(alone + types, len(combination)))
        return sp.csr_array(matrix), np.concatenate([self.counts, self.capacity])

    @cached_property
    def equal(self) -> Floats:
        """Throughput of one job with an equal share of time on every type's GPUs, steps/s, shape (M,); section 4.1.

        X^equal gives each job time on type j in proportion to the type's share of all GPUs.
        """
        total = self.capacity.sum()
        return self.rates @ (self.capacity / total) if total else np.zeros(len(self.rates))

    @cached_property
    def fastest(self) -> Floats:
        """Throughput of one job alone on the fastest type, steps/s, shape (M,)."""
        return np.asarray(self.rates.max(axis=1, initial=0.0))

    def fractions(self, x: Floats) -> Floats:
        """Variables -> fraction of time of one job of each class alone on each type, shape (M, J)."""
        combination, kind = self.columns
        alone = combination < len(self.rates)
        found = np.zeros(self.rates.shape)
        found[combination[alone], kind[alone]] = x[alone]
        return found / self.counts[:, None]
