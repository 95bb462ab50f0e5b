"""Gavel's throughput estimator: how fast a job will be beside others, from a few measurements.

Source: Narayanan et al., OSDI 2020, sections 3.3 and 6 (Figure 8), after Quasar. Reference jobs have been measured
beside each other in advance. A new job is measured beside a few of them; matrix completion fills in the rest of its
*fingerprint*, what is left of its speed beside each reference job on each GPU type. From then on it is taken to suffer
as the reference job with the closest fingerprint. Alone, jobs are measured as they run, and need no estimate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from metasched.core.model import Speed
from metasched.throughput.matrix_completion import Floats, closest, completed_parts
from metasched.throughput.throughput_table import Table, TableSpeed


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

    def steps_per_second_with(self, other: Speed, gpu_type: str, spread: tuple[int, ...]) -> float | None:
        """As measured, where it was; else the part of its own speed that the reference job keeps beside the other's."""
        measured = self.alone.steps_per_second_with(other, gpu_type, spread)
        if measured is not None:
            return measured
        company = other.like if isinstance(other, EstimatedSpeed) else other
        mine = self.steps_per_second(gpu_type, spread)
        whole = self.like.steps_per_second(gpu_type, spread)
        part = self.like.steps_per_second_with(company, gpu_type, spread)
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

    def fingerprint(self, known: Floats) -> Floats:
        """All of a job's fingerprint, from the part of it that was measured (NaN elsewhere)."""
        found: Floats = completed_parts(np.vstack([self.fingerprints, known]))[-1]
        return found

    def closest(self, known: Floats) -> str:
        """The reference job whose fingerprint is the closest to a job's, by Euclid's distance; by name among equals."""
        return self.models[closest(self.fingerprints, self.fingerprint(known))]

    def _alone(self, model: str, gpu_type: str) -> float:
        return self.table.speed(model, gpu_type, (self.gpus,)) or 0.0
