"""Programs over merged classes: classes that a program cannot tell apart are one class of it.

Classes whose rates, GPUs and coefficients are equal have equal parts of some optimum (Gavel, OSDI 2020, section 4; see
``problem``), however the policy distinguishes them. Under FIFO within accounts, each job is a class of its own, and
most of these have either all that they can have or nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from policies.gavel.problem import Floats, Ints, Problem

DIGITS = 9
"""Significant digits in which coefficients must agree; HiGHS's tolerance is 100 times as large."""


@dataclass(frozen=True)
class MergedClasses:
    """The merged classes of a program.

    Attributes:
        problem: the program over the merged classes.
        of: number of the merged class of each class, shape (M,).
        first: number of the first class of each merged class, shape (merged classes,).
        whole: the program over all classes.
    """

    problem: Problem
    of: Ints
    first: Ints
    whole: Problem

    @classmethod
    def merge(cls, problem: Problem, coefficients: Sequence[Floats]) -> Self | None:
        """Merge classes with equal rates, GPUs and coefficients.

        Args:
            problem: the program over all classes.
            coefficients: further numbers of each class, each of shape (M,).

        Returns:
            None where there is nothing to merge, or where classes are also told apart by their co-runners.
        """
        if len(problem.pairs.first) or len(problem.pools.single_kind) or not len(problem.rates):
            return None
        limited = [limit.slots for limit in problem.node_limits] + [quota.use for quota in problem.quotas]
        rows = np.column_stack([problem.rates, problem.scale, *limited, *map(_rounded, coefficients)])
        _, first, of = np.unique(rows, axis=0, return_index=True, return_inverse=True)
        of = of.reshape(-1)
        if len(first) == len(problem.rates):
            return None
        merged = replace(
            problem,
            rates=problem.rates[first],
            counts=np.bincount(of, problem.counts).astype(float),
            scale=problem.scale[first],
            node_limits=tuple(replace(limit, slots=limit.slots[first]) for limit in problem.node_limits),
            quotas=tuple(replace(quota, use=quota.use[first]) for quota in problem.quotas),
        )
        return cls(merged, of, first, problem)

    def least(self, values: Floats) -> Floats:
        """The least value of the classes in each merged class."""
        found = np.full(len(self.first), np.inf)
        np.minimum.at(found, self.of, values)
        return found

    def spread(self, x: Floats) -> Floats:
        """The variables of the program over all classes, from those over merged ones: each job has the same part."""
        time = np.zeros(self.problem.rates.shape)
        time[self.problem.columns] = x
        share = self.whole.counts / self.problem.counts[self.of]
        return np.asarray((time[self.of] * share[:, None])[self.whole.columns])


def _rounded(values: Floats) -> Floats:
    """The values in ``DIGITS`` significant digits."""
    size = 10.0 ** np.floor(np.log10(np.where(values > 0, values, 1.0)) + 1 - DIGITS)
    return np.where(values > 0, np.round(values / size) * size, values)
