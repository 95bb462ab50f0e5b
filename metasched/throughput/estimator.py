"""Gavel's throughput estimator: how fast a job will be beside others, from a few measurements.

Source: Narayanan et al., OSDI 2020, sections 3.3 and 6 (Figure 8), after Quasar. Reference jobs have been measured
beside each other in advance. A new job is measured beside a few of them; matrix completion fills in the rest of its
*fingerprint*, what is left of its speed beside each reference job on each GPU type. From then on it is taken to suffer
as the reference job with the closest fingerprint. Alone, jobs are measured as they run, and need no estimate.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from metasched.model import Job, Speed
from metasched.throughput.table import Table, TableSpeed

Floats = npt.NDArray[np.float64]

PENALTY = 0.02
"""Of singular values, relative to the largest: what completion takes off them (chosen on the published table)."""
TURNS = 300
CLOSE = 1e-5
"""Relative change of the completed matrix below which completion ends."""

Where = tuple[str, tuple[int, ...]]
"""A GPU type, and the GPUs on each node."""


@dataclass(frozen=True, eq=False)
class Measured:
    """What a job's own reports have told of its speed: a ``Speed``; immutable.

    Attributes:
        alone: steps/s by where it ran.
        beside_model: the same beside a reference job, by the model of that.
    """

    alone: Mapping[Where, float] = field(default_factory=lambda: MappingProxyType({}))
    beside_model: Mapping[tuple[Where, str], float] = field(default_factory=lambda: MappingProxyType({}))

    def after(self, job: Job, company: str | None = None) -> Measured:
        """With what a job measures now; ``company`` is the model of the reference job beside it, if it shares GPUs.

        A measurement beside a job of unknown model tells nothing; a newer one replaces an older one.
        """
        place, speed = job.placement, job.steps_per_second
        if place is None or place.gpu_type is None or speed is None:
            return self
        where = (place.gpu_type, place.spread)
        if job.shares_with is None:
            return self if self.alone.get(where) == speed else Measured({**self.alone, where: speed}, self.beside_model)
        if company is None or self.beside_model.get((where, company)) == speed:
            return self
        return Measured(self.alone, {**self.beside_model, (where, company): speed})

    def steps_per_second(self, gpu_type: str, spread: tuple[int, ...]) -> float | None:
        """As measured there; None elsewhere."""
        return self.alone.get((gpu_type, spread))

    def beside(self, other: Speed, gpu_type: str, spread: tuple[int, ...]) -> float | None:
        """As measured beside that model; None beside others."""
        if not isinstance(other, TableSpeed):
            return None
        return self.beside_model.get(((gpu_type, spread), other.model))


@dataclass(frozen=True, slots=True)
class EstimatedSpeed:
    """A job that suffers beside others as a reference job does: a ``Speed``.

    Attributes:
        alone: its own speed.
        like: the reference job.
    """

    alone: Speed
    like: TableSpeed

    def steps_per_second(self, gpu_type: str, spread: tuple[int, ...]) -> float | None:
        """Its own."""
        return self.alone.steps_per_second(gpu_type, spread)

    def beside(self, other: Speed, gpu_type: str, spread: tuple[int, ...]) -> float | None:
        """As measured, where it was; else the part of its own speed that the reference job keeps beside the other's."""
        measured = self.alone.beside(other, gpu_type, spread)
        if measured is not None:
            return measured
        company = other.like if isinstance(other, EstimatedSpeed) else other
        mine = self.steps_per_second(gpu_type, spread)
        whole = self.like.steps_per_second(gpu_type, spread)
        part = self.like.beside(company, gpu_type, spread)
        return None if mine is None or not whole or part is None else mine * part / whole


@dataclass(frozen=True, eq=False)
class Estimator:
    """What is known of the reference jobs that have so many GPUs.

    Attributes:
        table: their speeds, alone and beside each other.
        gpus: of each.
    """

    table: Table
    gpus: int = 1

    @cached_property
    def models(self) -> tuple[str, ...]:
        """The reference jobs: those that run alone on some type."""
        found = (model for model, gpus in self.table.kinds if gpus == self.gpus)
        return tuple(sorted(model for model in found if any(self._alone(model, kind) for kind in self.table.types)))

    @cached_property
    def fingerprints(self) -> Floats:
        """What is left of each reference job's speed beside each, on each type; shape (models, types x models).

        0.0 where the two cannot run together, NaN where that was not measured.
        """
        spread = (self.gpus,)
        rows = []
        for one in self.models:
            row = []
            for kind in self.table.types:
                whole = self._alone(one, kind)
                for other in self.models:
                    part = self.table.speed(one, kind, spread, other)
                    row.append(math.nan if part is None else part / whole if whole else 0.0)
            rows.append(row)
        return np.array(rows, dtype=float).reshape(len(self.models), -1)

    def column(self, gpu_type: str, model: str) -> int:
        """Where a fingerprint tells of a reference job on a type."""
        return self.table.types.index(gpu_type) * len(self.models) + self.models.index(model)

    def measured(self, measured: Measured) -> Floats:
        """The part of a fingerprint that a job's reports tell; NaN elsewhere; shape (types x models,)."""
        found = np.full(len(self.table.types) * len(self.models), math.nan)
        for (where, model), speed in measured.beside_model.items():
            whole = measured.alone.get(where)
            if whole and sum(where[1]) == self.gpus and model in self.models and where[0] in self.table.types:
                found[self.column(where[0], model)] = speed / whole
        return found

    def fingerprint(self, known: Floats) -> Floats:
        """All of a job's fingerprint, from the part of it that was measured (NaN elsewhere)."""
        completed = complete(np.vstack([self.fingerprints, known]))[-1]
        return np.where(np.isnan(known), np.clip(completed, 0.0, 1.0), known)

    def closest(self, known: Floats) -> str:
        """The reference job whose fingerprint is the closest to a job's, by Euclid's distance; by name among equals."""
        apart = np.nan_to_num(self.fingerprints - self.fingerprint(known)[None, :])
        return self.models[int(np.argmin(np.linalg.norm(apart, axis=1)))]

    def speed(self, alone: Speed, known: Floats) -> EstimatedSpeed:
        """What is known of a job that runs alone like that, and of whose fingerprint this was measured."""
        return EstimatedSpeed(alone, TableSpeed(self.table, self.closest(known)))

    def _alone(self, model: str, gpu_type: str) -> float:
        return self.table.speed(model, gpu_type, (self.gpus,)) or 0.0


def complete(matrix: Floats, penalty: float = PENALTY) -> Floats:
    """Fill in the NaN of a matrix that is nearly of low rank: soft-impute (Mazumder, Hastie and Tibshirani, 2010).

    Columns are centred on their known mean (a column without any on the mean of all); the sum of the singular values of
    the rest is what is penalised.

    Args:
        matrix: NaN where not known; something must be known.
        penalty: taken off singular values, relative to the largest.
    """
    known = ~np.isnan(matrix)
    counts = known.sum(axis=0)
    sums = np.where(known, matrix, 0.0).sum(axis=0)
    middle = np.where(counts > 0, sums / np.maximum(counts, 1), sums.sum() / known.sum())
    given = np.where(known, matrix - middle, 0.0)
    found = given
    for _ in range(TURNS):
        left, values, right = np.linalg.svd(np.where(known, given, found), full_matrices=False)
        shrunk = np.maximum(values - penalty * values[0], 0.0)
        after = (left * shrunk) @ right
        done = np.linalg.norm(after - found) <= CLOSE * max(float(np.linalg.norm(found)), CLOSE)
        found = after
        if done:
            break
    return np.where(known, matrix, found + middle)
