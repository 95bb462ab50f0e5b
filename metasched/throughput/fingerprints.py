"""Co-located speeds, estimated from measured ones (Gavel, OSDI 2020, section 6 and Figure 8).

A subject's *fingerprint* is the fraction of its speed that it retains with each *reference subject* as a co-runner, by
GPU type and number of GPUs. Entries that were not measured are filled in by matrix completion. A subject that is no
reference is represented, as a co-runner, by the reference with the closest fingerprint.

The references are the subjects with which most others were measured. The models of an admin's throughput table count as
measured subjects; a subject that names such a model is represented by it.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Self, TypeVar

import numpy as np

from metasched.throughput.estimator import Estimator
from metasched.throughput.matrix_completion import closest_row, complete_fractions
from metasched.throughput.measured_speed import ColocationKey, Fingerprint, SpeedFractions
from metasched.throughput.throughput_table import ThroughputTable

REFERENCES = 30
"""The number of reference subjects."""
ROWS = 70
"""The number of other subjects in the matrix."""
SHAPES = 12
"""The number of (GPU type, number of GPUs) in the matrix."""
DIGITS = 4
"""The decimals of filled-in fractions."""

_T = TypeVar("_T", str, tuple[str, int])


@dataclass(frozen=True)
class Fingerprints:
    """The fingerprints of all subjects.

    Attributes:
        by_subject: fingerprints by subject, or by model of the table.
        models: the models of the table.
    """

    by_subject: Mapping[str, Fingerprint] = field(default_factory=dict)
    models: Collection[str] = ()

    def of(self, subject: str) -> Fingerprint | None:
        """A subject's fingerprint, or that of its model in the table; None where nothing was measured."""
        found = self.by_subject.get(subject)
        return self.by_subject.get(reference_of(subject, self.models)) if found is None else found

    @classmethod
    def from_measurements(cls, measured: Mapping[str, SpeedFractions], prior: Mapping[str, SpeedFractions]) -> Self:
        """Complete the matrix of measured fractions.

        The matrix has at most ``REFERENCES`` references at ``SHAPES`` GPU types and numbers of GPUs (those that were
        measured most often), and the rows of these references and of the ``ROWS`` latest others: at most 100 by 360.

        Args:
            measured: measured fractions by subject, the latest subject last.
            prior: fractions by model of a throughput table.
        """
        rows = _rows(measured, prior)
        shapes = _most_frequent((key[:2] for fractions in rows.values() for key in fractions), SHAPES)
        rows = {name: _only(fractions, lambda key: key[:2] in shapes) for name, fractions in rows.items()}
        references = _most_frequent((other for row in rows.values() for other in {key[2] for key in row}), REFERENCES)
        rows = {name: _only(fractions, lambda key: key[2] in references) for name, fractions in rows.items()}
        rows = {name: fractions for name, fractions in rows.items() if fractions}
        chosen = sorted({*[name for name in rows if name not in references][-ROWS:], *(rows.keys() & references)})
        found = {name: Fingerprint(name, {}) for name in references}
        return cls({**found, **_completed({name: rows[name] for name in chosen}, references, prior)}, prior.keys())


def _only(fractions: SpeedFractions, wanted: Callable[[ColocationKey], bool]) -> SpeedFractions:
    return {key: fraction for key, fraction in fractions.items() if wanted(key)}


def reference_of(subject: str, models: Collection[str]) -> str:
    """The reference that represents a subject: its model, if the table has that, else itself."""
    model = subject.partition("/")[2]
    return model if model in models else subject


def table_fractions(table: ThroughputTable) -> Mapping[str, SpeedFractions]:
    """A table's fractions by model; in names of models, characters that tags cannot have are replaced by ``-``."""
    found: dict[str, dict[ColocationKey, float]] = {}
    for gpus in sorted({gpus for _, gpus in table.job_types}):
        estimator = Estimator(table, gpus)
        for model, row in zip(estimator.models, estimator.fingerprints.tolist(), strict=True):
            fractions = found.setdefault(_tagged(model), {})
            for gpu_type in table.types:
                for other in estimator.models:
                    fraction = row[estimator.column(gpu_type, other)]
                    if not math.isnan(fraction):
                        fractions[gpu_type, gpus, _tagged(other)] = fraction
    return found


def _tagged(model: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.+:-]+", "-", model).strip("-")


def _rows(measured: Mapping[str, SpeedFractions], prior: Mapping[str, SpeedFractions]) -> dict[str, SpeedFractions]:
    """The rows of the matrix by subject: measured fractions, and the table's where there are none."""
    rows: dict[str, SpeedFractions] = dict(prior)
    for subject, fractions in measured.items():
        by_reference: dict[ColocationKey, list[float]] = {}
        for (gpu_type, gpus, other), fraction in fractions.items():
            by_reference.setdefault((gpu_type, gpus, reference_of(other, prior)), []).append(fraction)
        of_model = prior.get(reference_of(subject, prior), {})
        rows[subject] = {**of_model, **{key: fmean(found) for key, found in by_reference.items()}}
    return rows


def _most_frequent(named: Iterable[_T], limit: int) -> frozenset[_T]:
    """The ``limit`` most frequent items; by name among equals."""
    counts = Counter(named)
    return frozenset(sorted(counts, key=lambda one: (-counts[one], one))[:limit])


def _completed(
    rows: Mapping[str, SpeedFractions], references: Collection[str], models: Collection[str]
) -> Mapping[str, Fingerprint]:
    """Fingerprints by subject, with all entries of the matrix filled in."""
    if not rows:
        return {}
    names = list(rows)
    keys = sorted({key for fractions in rows.values() for key in fractions})
    known = np.array([[rows[name].get(key, math.nan) for key in keys] for name in names])
    full = complete_fractions(known)
    candidates = [number for number, name in enumerate(names) if name in references]
    found = {}
    for name, row in zip(names, full, strict=True):
        reference = reference_of(name, models)
        if reference not in references and candidates:
            reference = names[candidates[closest_row(full[candidates], row)]]
        found[name] = Fingerprint(reference, dict(zip(keys, row.round(DIGITS).tolist(), strict=True)))
    return found
