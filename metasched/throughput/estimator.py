"""Gavel's throughput estimator: a job's co-located speeds, estimated from a few measurements.

Source: Narayanan et al., OSDI 2020, sections 3.3 and 6 (Figure 8), after Quasar. Reference jobs have been measured in
pairs in advance. A new job is measured with a few of them as co-runners. Its *fingerprint* is the fraction of its
isolated speed that it retains with each reference job, on each GPU type; matrix completion fills in what was not
measured. From then on, the job's co-located speeds are taken from the reference job with the closest fingerprint.
Isolated speeds are measured as jobs run, and are not estimated.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from metasched.core.model import Speed
from metasched.throughput.matrix_completion import Floats, closest_row, complete_fractions
from metasched.throughput.throughput_table import TableSpeed, ThroughputTable


@dataclass(frozen=True, slots=True)
class EstimatedSpeed:
    """The speed of a job that slows down with co-runners as a reference job does: a ``Speed``.

    Attributes:
        alone: the job's own speed.
        reference: the speed of the reference job.
    """

    alone: Speed
    reference: TableSpeed

    def steps_per_second(self, gpu_type: str, spread: tuple[int, ...]) -> float | None:
        """The job's own isolated speed."""
        return self.alone.steps_per_second(gpu_type, spread)

    def steps_per_second_with(self, other: Speed, gpu_type: str, spread: tuple[int, ...]) -> float | None:
        """The measured co-located speed; else its own speed times the fraction that the reference job retains."""
        measured = self.alone.steps_per_second_with(other, gpu_type, spread)
        if measured is not None:
            return measured
        co_runner = other.reference if isinstance(other, EstimatedSpeed) else other
        own = self.steps_per_second(gpu_type, spread)
        isolated = self.reference.steps_per_second(gpu_type, spread)
        colocated = self.reference.steps_per_second_with(co_runner, gpu_type, spread)
        return None if own is None or not isolated or colocated is None else own * colocated / isolated


@dataclass(frozen=True, eq=False)
class Estimator:
    """The fingerprints of the reference jobs of one number of GPUs, and of new jobs.

    Attributes:
        table: the isolated and co-located speeds of the reference jobs.
        gpus: the number of GPUs of each job.
    """

    table: ThroughputTable
    gpus: int = 1

    @cached_property
    def models(self) -> tuple[str, ...]:
        """The reference jobs, by name: models that run in isolation on some GPU type."""
        found = (model for model, gpus in self.table.job_types if gpus == self.gpus)
        return tuple(
            sorted(model for model in found if any(self._isolated(model, gpu_type) for gpu_type in self.table.types))
        )

    @cached_property
    def fingerprints(self) -> Floats:
        """The fingerprints of the reference jobs; shape (models, types x models).

        An entry is the fraction of the isolated speed that the row's job retains with the column's job as a co-runner:
        0.0 where the two cannot be co-located, NaN where that was not measured.
        """
        spread = (self.gpus,)
        rows = []
        for one in self.models:
            row = []
            for gpu_type in self.table.types:
                isolated = self._isolated(one, gpu_type)
                for other in self.models:
                    speed = self.table.speed(one, gpu_type, spread, other)
                    row.append(math.nan if speed is None else speed / isolated if isolated else 0.0)
            rows.append(row)
        return np.array(rows, dtype=float).reshape(len(self.models), -1)

    def column(self, gpu_type: str, model: str) -> int:
        """The column of fingerprints for a reference job on a GPU type."""
        return self.table.types.index(gpu_type) * len(self.models) + self.models.index(model)

    def fingerprint(self, known: Floats) -> Floats:
        """A job's whole fingerprint, from the measured entries of it (NaN elsewhere); shape (types x models,)."""
        found: Floats = complete_fractions(np.vstack([self.fingerprints, known]))[-1]
        return found

    def closest(self, known: Floats) -> str:
        """The reference job whose fingerprint is closest (Euclidean distance) to a job's; by name among equals."""
        return self.models[closest_row(self.fingerprints, self.fingerprint(known))]

    def _isolated(self, model: str, gpu_type: str) -> float:
        return self.table.speed(model, gpu_type, (self.gpus,)) or 0.0
