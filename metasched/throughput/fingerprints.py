"""Speeds beside others, estimated from those that were measured (Gavel, OSDI 2020, section 6 and Figure 8).

A subject's *fingerprint* is what is left of its speed beside each *reference subject*, by GPU type and number of GPUs.
What was not measured of it is filled in by matrix completion. How others fare beside a subject that is no reference is
taken from the reference whose fingerprint is the closest to its own.

The references are those beside which most others were measured. An admin's table of speeds adds its models, as if they
had been measured; a subject that names one of them is that reference.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Self, TypeVar

import numpy as np

from metasched.throughput.estimator import Estimator
from metasched.throughput.matrix_completion import closest, completed_parts
from metasched.throughput.online_speed import Column, Fingerprint, Parts
from metasched.throughput.throughput_table import Table

REFERENCES = 30
ROWS = 70
PLACES = 12
DIGITS = 4
"""Of a part that is filled in."""

_T = TypeVar("_T", str, tuple[str, int])


@dataclass(frozen=True)
class Fingerprints:
    """All fingerprints.

    Attributes:
        by_subject: by subject, or model of the table.
        models: of the table.
    """

    by_subject: Mapping[str, Fingerprint] = field(default_factory=dict)
    models: Collection[str] = ()

    def of(self, subject: str) -> Fingerprint | None:
        """Its own, or that of its model in the table; None where nothing was measured."""
        found = self.by_subject.get(subject)
        return self.by_subject.get(reference_of(subject, self.models)) if found is None else found

    @classmethod
    def made(cls, kept: Mapping[str, Parts], prior: Mapping[str, Parts]) -> Self:
        """From what was measured.

        The matrix has at most ``REFERENCES`` references at ``PLACES`` GPU types and numbers of GPUs (those that were
        measured most), and the rows of these references and of the ``ROWS`` latest others: 100 by 360, in all.

        Args:
            kept: by subject, what is left of its speed beside others, where that was measured; the latest last.
            prior: the same by model of a table.
        """
        rows = _rows(kept, prior)
        places = _most(((kind, gpus) for parts in rows.values() for kind, gpus, _ in parts), PLACES)
        rows = {name: {c: part for c, part in parts.items() if c[:2] in places} for name, parts in rows.items()}
        references = _most((who for parts in rows.values() for who in {c[2] for c in parts}), REFERENCES)
        rows = {name: {c: part for c, part in parts.items() if c[2] in references} for name, parts in rows.items()}
        rows = {name: parts for name, parts in rows.items() if parts}
        chosen = sorted({*[name for name in rows if name not in references][-ROWS:], *(rows.keys() & references)})
        found = {name: Fingerprint(name, {}) for name in references}
        return cls({**found, **_filled({name: rows[name] for name in chosen}, references, prior)}, prior.keys())


def reference_of(subject: str, models: Collection[str]) -> str:
    """As which reference a subject counts: its model, if the table has that, else itself."""
    model = subject.partition("/")[2]
    return model if model in models else subject


def prior_of(table: Table) -> Mapping[str, Parts]:
    """What a table tells, by model, each as a tag can name it: ``-`` stands for what tags cannot have."""
    found: dict[str, dict[Column, float]] = {}
    for gpus in sorted({gpus for _, gpus in table.kinds}):
        estimator = Estimator(table, gpus)
        for model, row in zip(estimator.models, estimator.fingerprints.tolist(), strict=True):
            parts = found.setdefault(_tagged(model), {})
            for kind in table.types:
                for other in estimator.models:
                    part = row[estimator.column(kind, other)]
                    if not math.isnan(part):
                        parts[kind, gpus, _tagged(other)] = part
    return found


def _tagged(model: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.+:-]+", "-", model).strip("-")


def _rows(kept: Mapping[str, Parts], prior: Mapping[str, Parts]) -> dict[str, Parts]:
    """What is known of each, its own measurements over the table's."""
    rows: dict[str, Parts] = dict(prior)
    for subject, parts in kept.items():
        mine: dict[Column, list[float]] = {}
        for (kind, gpus, other), part in parts.items():
            mine.setdefault((kind, gpus, reference_of(other, prior)), []).append(part)
        known = prior.get(reference_of(subject, prior), {})
        rows[subject] = {**known, **{column: fmean(found) for column, found in mine.items()}}
    return rows


def _most(named: Iterable[_T], limit: int) -> frozenset[_T]:
    """Those that are named most often, at most so many; by name among equals."""
    counts = Counter(named)
    return frozenset(sorted(counts, key=lambda one: (-counts[one], one))[:limit])


def _filled(
    rows: Mapping[str, Parts], references: Collection[str], models: Collection[str]
) -> Mapping[str, Fingerprint]:
    """Fingerprints in which everything is filled in of which something was measured."""
    if not rows:
        return {}
    names = list(rows)
    columns = sorted({column for parts in rows.values() for column in parts})
    known = np.array([[rows[name].get(column, math.nan) for column in columns] for name in names])
    full = completed_parts(known)
    candidates = [number for number, name in enumerate(names) if name in references]
    found = {}
    for name, row in zip(names, full, strict=True):
        like = reference_of(name, models)
        if like not in references and candidates:
            like = names[candidates[closest(full[candidates], row)]]
        found[name] = Fingerprint(like, dict(zip(columns, row.round(DIGITS).tolist(), strict=True)))
    return found
