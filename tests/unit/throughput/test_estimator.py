from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from metasched.throughput.estimator import EstimatedSpeed, Estimator
from metasched.throughput.matrix_completion import complete
from metasched.throughput.online_speed import MeasuredSpeed
from metasched.throughput.throughput_table import Table, TableSpeed

HERE = ("v100", (1,))
NAMES = tuple(f"m{i}" for i in range(12))


def references():
    """Reference jobs of two traits: how much they disturb, and how much they are disturbed (rank one, nearly)."""
    chance = np.random.default_rng(1)
    push = {name: chance.uniform(0.1, 0.9) for name in NAMES}
    suffer = {name: chance.uniform(0.2, 0.9) for name in NAMES}
    alone = {
        kind: {(name, 1): speed * (i + 1) for i, name in enumerate(NAMES)}
        for kind, speed in (("v100", 4.0), ("k80", 1.0))
    }
    beside = {
        kind: {
            (one, 1): {(other, 1): cells[one, 1] * (1 - suffer[one] * push[other]) for other in NAMES} for one in NAMES
        }
        for kind, cells in alone.items()
    }
    return Table(alone, beside)


def masked(row, fraction, seed):
    """A fingerprint of which only some was measured."""
    chance = np.random.default_rng(seed)
    known = chance.permutation(len(row)) < max(1, round(fraction * len(row)))
    return np.where(known, row, np.nan)


def without(table, model):
    """The table without a model, which is then new."""

    def keep(rows):
        return {kind: cells for kind, cells in rows.items() if kind[0] != model}

    return Table(
        {sheet: keep(rows) for sheet, rows in table.alone.items()},
        {sheet: {kind: keep(cells) for kind, cells in keep(rows).items()} for sheet, rows in table.colocated.items()},
    )


def errors(table, fraction):
    """Mean absolute errors over all models, each taken for new: of fingerprints, and of the closest reference job's."""
    by_completion, by_reference, by_average = [], [], []
    for number, model in enumerate(Estimator(table).models):
        rest = Estimator(without(table, model))
        alone = {kind: table.speed(model, kind, (1,)) for kind in table.types}
        truth = np.array(
            [
                (table.speed(model, kind, (1,), other) or 0.0) / alone[kind] if alone[kind] else np.nan
                for kind in table.types
                for other in rest.models
            ]
        )
        known = masked(truth, fraction, number)
        hidden = np.isnan(known) & ~np.isnan(truth)
        like = rest.fingerprints[rest.models.index(rest.closest(known))]
        by_completion.append(np.abs(rest.fingerprint(known) - truth)[hidden].mean())
        by_reference.append(np.abs(like - truth)[hidden].mean())
        by_average.append(np.abs(np.nanmean(rest.fingerprints, axis=0) - truth)[hidden].mean())
    return tuple(float(np.mean(found)) for found in (by_completion, by_reference, by_average))


def test_a_matrix_of_low_rank_is_completed():
    """What is hidden of it comes back, nearly; what is known stays."""
    chance = np.random.default_rng(0)
    truth = chance.random((20, 2)) @ chance.random((2, 30))
    matrix = np.where(chance.random(truth.shape) < 0.5, truth, np.nan)
    found, hidden = complete(matrix), np.isnan(matrix)
    by_column = np.abs(np.nanmean(matrix, axis=0) - truth)[hidden].mean()
    assert np.abs(found - truth)[hidden].mean() < by_column / 3
    assert (found[~np.isnan(matrix)] == matrix[~np.isnan(matrix)]).all()


def test_a_column_of_which_nothing_is_known_is_the_mean():
    """There is nothing better to say of it."""
    found = complete(np.array([[1.0, np.nan], [3.0, np.nan]]))
    assert found[:, 1] == pytest.approx([2.0, 2.0], abs=1.0)


def test_a_job_that_was_measured_fully_is_its_own_reference():
    """The closest fingerprint to a reference job's own is that."""
    estimator = Estimator(references())
    for model, row in zip(estimator.models, estimator.fingerprints, strict=True):
        assert estimator.closest(row) == model


def test_a_new_job_is_estimated_better_than_by_the_average():
    """With a fifth of its fingerprint measured, completion errs by half as much, or less."""
    completed, referred, average = errors(references(), 0.2)
    assert completed < average / 2
    assert referred < average


def test_on_the_published_table_it_is_better_than_the_average():
    """Gavel's own measurements, each job in turn taken for new."""
    data = os.environ.get("METASCHED_DATA")
    if data is None:
        pytest.skip("METASCHED_DATA does not name the folder of the public data")
    completed, referred, average = errors(Table.read(Path(data) / "gavel" / "simulation_throughputs.json"), 0.2)
    assert completed < 0.8 * average
    assert referred < average


def test_an_estimated_job_suffers_as_its_reference_does():
    """Alone it has its own speed; beside another, the part that the reference keeps beside the other's reference."""
    table = references()
    alone = MeasuredSpeed("new", {HERE: 100.0})
    one, other = (EstimatedSpeed(alone, TableSpeed(table, name)) for name in NAMES[:2])
    assert one.steps_per_second(*HERE) == 100.0
    part = table.speed(NAMES[0], *HERE, NAMES[1]) / table.speed(NAMES[0], *HERE)
    assert one.steps_per_second_with(other, *HERE) == pytest.approx(100.0 * part)
    assert one.steps_per_second_with(TableSpeed(table, NAMES[1]), *HERE) == pytest.approx(100.0 * part)
    assert one.steps_per_second_with(other, "k80", (1,)) is None


def test_what_was_measured_is_believed_over_the_estimate():
    """Beside a job that it has run with."""
    alone = MeasuredSpeed("new", {HERE: 100.0}, {(HERE, "other"): 42.0})
    speed = EstimatedSpeed(alone, TableSpeed(references(), NAMES[0]))
    assert speed.steps_per_second_with(MeasuredSpeed("other"), *HERE) == 42.0
