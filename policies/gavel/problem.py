"""Allocations as linear programs: who could run where, how fast, and what makes an allocation valid.

Section 3.1: an allocation says which fraction of the time each job, or pair of jobs on the same GPUs, spends on each
GPU type. Jobs that no policy can tell apart are one *class* here: by symmetry and convexity some optimum treats them
alike, so a class has one variable for each type, which counts its jobs' fractions together.
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
    pairs: Pairs

    @cached_property
    def columns(self) -> tuple[Ints, Ints]:
        """Combination and type of each variable. Combinations 0 to M-1 are the classes alone, then come the pairs."""
        alone, on = np.nonzero(self.rates)
        pair, together_on = np.nonzero(self.pairs.first_rates + self.pairs.second_rates)
        return np.concatenate([alone, len(self.rates) + pair]), np.concatenate([on, together_on])

    @cached_property
    def _parts(self) -> tuple[Ints, Ints, Floats]:
        """Variable, class and steps/s of one job of it: one entry for each class alone, two for each pair."""
        combination, kind = self.columns
        alone = combination < len(self.rates)
        variable, pair = np.arange(len(combination)), combination[~alone] - len(self.rates)
        return (
            np.concatenate([variable[alone], variable[~alone], variable[~alone]]),
            np.concatenate([combination[alone], self.pairs.first[pair], self.pairs.second[pair]]),
            np.concatenate(
                [
                    self.rates[combination[alone], kind[alone]],
                    self.pairs.first_rates[pair, kind[~alone]],
                    self.pairs.second_rates[pair, kind[~alone]],
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
    def gpus(self) -> Floats:
        """GPUs that each variable takes while it runs."""
        combination, _ = self.columns
        owner = np.concatenate([np.arange(len(self.rates)), self.pairs.first])
        return np.asarray(self.scale[owner[combination]])

    @cached_property
    def limits(self) -> tuple[sp.csr_array, Floats]:
        """What makes an allocation valid, as A x <= b: (2) each job's time, (3) each type's GPUs."""
        variable, member, _ = self._parts
        _, kind = self.columns
        jobs, types = self.rates.shape
        entries = np.concatenate([np.ones(len(member)), self.gpus])
        rows, columns = np.concatenate([member, jobs + kind]), np.concatenate([variable, np.arange(len(kind))])
        matrix = sp.coo_array((entries, (rows, columns)), shape=(jobs + types, len(kind)))
        return sp.csr_array(matrix), np.concatenate([self.counts, self.capacity])

    @cached_property
    def equal(self) -> Floats:
        """Throughput of one job with an equal share of time on every type's GPUs, steps/s, shape (M,); section 4.1.

        X^equal gives each job time on type j in proportion to the type's share of all GPUs.
        """
        total = self.capacity.sum()
        return self.rates @ (self.capacity / total) if total else np.zeros(len(self.rates))

    @cached_property
    def isolated(self) -> Floats:
        """Throughput of one job with 1/n of every type's GPUs, n being the number of jobs, steps/s, shape (M,)."""
        share = self.capacity[None, :] / self.counts.sum() / self.scale[:, None]
        time = share.sum(axis=1, keepdims=True)
        return np.asarray((self.rates * share / np.maximum(time, 1.0)).sum(axis=1))

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

    def even(self, x: Floats) -> Floats:
        """An allocation without pairs in which everybody has the same time in all, but as even over types as can be.

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
