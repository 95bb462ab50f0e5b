from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from metasched.throughput.estimator import EstimatedSpeed, Estimator
from metasched.throughput.matrix_completion import complete
from metasched.throughput.measured_speed import MeasuredSpeed
from metasched.throughput.throughput_table import TableSpeed, ThroughputTable

HERE = ("v100", (1,))
NAMES = tuple(f"m{i}" for i in range(12))


def references():
    """Reference jobs of two traits: how much they disturb, and how much they are disturbed (rank one, nearly)."""
    chance = np.random.default_rng(1)
    push = {name: chance.uniform(0.1, 0.9) for name in NAMES}
    suffer = {name: chance.uniform(0.2, 0.9) for name in NAMES}
    alone = {
        gpu_type: {(name, 1): speed * (i + 1) for i, name in enumerate(NAMES)}
        for gpu_type, speed in (("v100", 4.0), ("k80", 1.0))
    }
    colocated = {
        gpu_type: {
            (one, 1): {(other, 1): cells[one, 1] * (1 - suffer[one] * push[other]) for other in NAMES} for one in NAMES
        }
        for gpu_type, cells in alone.items()
    }
    return ThroughputTable(alone, colocated)


def masked(row, fraction, seed):
    """A fingerprint of which a fraction was measured; NaN elsewhere."""
    chance = np.random.default_rng(seed)
    known = chance.permutation(len(row)) < max(1, round(fraction * len(row)))
    return np.where(known, row, np.nan)


def without(table, model):
    """The table without a model, which is then a new one."""

    def keep(rows):
        return {gpu_type: cells for gpu_type, cells in rows.items() if gpu_type[0] != model}

    return ThroughputTable(
        {sheet: keep(rows) for sheet, rows in table.alone.items()},
        {
            sheet: {gpu_type: keep(cells) for gpu_type, cells in keep(rows).items()}
            for sheet, rows in table.colocated.items()
        },
    )


def errors(table, fraction):
    """Mean absolute errors with each model as a new one: of its fingerprint, and of the closest reference's."""
    by_completion, by_reference, by_average = [], [], []
    for number, model in enumerate(Estimator(table).models):
        rest = Estimator(without(table, model))
        alone = {gpu_type: table.speed(model, gpu_type, (1,)) for gpu_type in table.types}
        truth = np.array(
            [
                (table.speed(model, gpu_type, (1,), other) or 0.0) / alone[gpu_type] if alone[gpu_type] else np.nan
                for gpu_type in table.types
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
    """Hidden values are estimated closely; known values remain unchanged."""
    chance = np.random.default_rng(0)
    truth = chance.random((20, 2)) @ chance.random((2, 30))
    matrix = np.where(chance.random(truth.shape) < 0.5, truth, np.nan)
    found, hidden = complete(matrix), np.isnan(matrix)
    by_column = np.abs(np.nanmean(matrix, axis=0) - truth)[hidden].mean()
    assert np.abs(found - truth)[hidden].mean() < by_column / 3
    assert (found[~np.isnan(matrix)] == matrix[~np.isnan(matrix)]).all()


def test_a_column_without_known_values_gets_the_mean():
    """The mean is that of all known values."""
    found = complete(np.array([[1.0, np.nan], [3.0, np.nan]]))
    assert found[:, 1] == pytest.approx([2.0, 2.0], abs=1.0)


def test_the_closest_reference_of_a_reference_job_is_itself():
    """A whole fingerprint of a reference job is closest to its own."""
    estimator = Estimator(references())
    for model, row in zip(estimator.models, estimator.fingerprints, strict=True):
        assert estimator.closest(row) == model


def test_a_new_job_is_estimated_better_than_by_the_average():
    """With a fifth of the fingerprint measured, the error of completion is at most half of the average's."""
    completed, referred, average = errors(references(), 0.2)
    assert completed < average / 2
    assert referred < average


def test_estimates_on_the_published_table_are_better_than_the_average():
    """Gavel's measurements, with each model as a new one."""
    data = os.environ.get("METASCHED_DATA")
    if data is None:
        pytest.skip("METASCHED_DATA does not name the folder of the public data")
    completed, referred, average = errors(
        ThroughputTable.read(Path(data) / "gavel" / "simulation_throughputs.json"), 0.2
    )
    assert completed < 0.8 * average
    assert referred < average


def test_an_estimated_job_slows_down_as_its_reference_does():
    """Alone it has its own speed; with a co-runner, the fraction that its reference retains with the co-runner's."""
    table = references()
    alone = MeasuredSpeed("new", {HERE: 100.0})
    one, other = (EstimatedSpeed(alone, TableSpeed(table, name)) for name in NAMES[:2])
    assert one.steps_per_second(*HERE) == 100.0
    part = table.speed(NAMES[0], *HERE, NAMES[1]) / table.speed(NAMES[0], *HERE)
    assert one.steps_per_second_with(other, *HERE) == pytest.approx(100.0 * part)
    assert one.steps_per_second_with(TableSpeed(table, NAMES[1]), *HERE) == pytest.approx(100.0 * part)
    assert one.steps_per_second_with(other, "k80", (1,)) is None


def test_a_measured_speed_takes_precedence_over_the_estimate():
    """The measured speed is that with a co-runner of an earlier run."""
    alone = MeasuredSpeed("new", {HERE: 100.0}, {(HERE, "other"): 42.0})
    speed = EstimatedSpeed(alone, TableSpeed(references(), NAMES[0]))
    assert speed.steps_per_second_with(MeasuredSpeed("other"), *HERE) == 42.0
