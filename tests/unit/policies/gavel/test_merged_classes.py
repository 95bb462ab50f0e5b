import numpy as np
import pytest

import policies.gavel.fairness_objectives as objectives
from policies.gavel import solve
from policies.gavel.fairness_objectives import Filling, water_filling
from policies.gavel.merged_classes import MergedClasses
from policies.gavel.problem import Pairs, Pools, Problem
from policies.gavel.solve import max_min


def random_problem(seed, size, gpus):
    """Classes of four kinds on three GPU types."""
    rng = np.random.default_rng(seed)
    rates = rng.uniform(0.2, 4.0, (4, 3))[rng.integers(0, 4, size)]
    scale = np.where(rates[:, 0] > 2, 2.0, 1.0)
    return Problem(rates, rng.integers(1, 4, size).astype(float), scale, np.full(3, gpus), Pairs.none(3), Pools.none(3))


def in_turn(size):
    """Weights under which the first class that can still grow is the only one, in each half of the classes."""

    def weights(growing):
        found = np.zeros(size)
        for half in np.array_split(np.arange(size), 2):
            found[half[np.argmax(growing[half] > 0)]] = 1.0
        return np.where(growing > 0, found, 0.0)

    return weights


WEIGHTS = {"fair": lambda size: lambda growing: np.linspace(1.0, 2.0, size) * growing, "in turn": in_turn}


@pytest.mark.parametrize("seed", range(3))
def test_merged_classes_have_the_same_optimum(seed, monkeypatch):
    """Value, constraints and each class's throughput are those of the program over all classes."""
    made = random_problem(seed, 12, 4.0)
    factor = made.scale / made.equal
    merged = max_min(made, factor)
    assert MergedClasses.merge(made, (factor,)) is not None
    matrix, bounds = made.limits
    assert (matrix @ merged.x <= bounds * (1 + 1e-6)).all()
    assert (factor * (made.throughput @ merged.x)).min() == pytest.approx(merged.value, rel=1e-6)
    monkeypatch.setattr(MergedClasses, "merge", lambda *_: None)
    assert max_min(made, factor).value == pytest.approx(merged.value, rel=1e-6)


@pytest.mark.parametrize("gpus", [2.0, 6.0, 100.0])
@pytest.mark.parametrize("kind", WEIGHTS)
def test_steps_without_a_program_reach_the_levels_of_water_filling(kind, gpus, monkeypatch):
    """Each class has the throughput that one program for each step, over all classes, gives it."""
    made = random_problem(1, 10, gpus)
    weights = WEIGHTS[kind](10)
    found = made.throughput @ water_filling(made, weights)
    monkeypatch.setattr(Filling, "after", lambda *_: None)
    monkeypatch.setattr(objectives, "_growable", lambda _problem, _reached, growing: growing)
    monkeypatch.setattr(MergedClasses, "merge", lambda *_: None)
    assert found == pytest.approx(made.throughput @ water_filling(made, weights), rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("kind", WEIGHTS)
def test_few_programs_fill_a_cluster_with_room_for_all(kind, monkeypatch):
    """With GPUs for all jobs, the number of programs grows with the logarithm of the number of classes."""
    programs, original = [], solve._solved
    monkeypatch.setattr(solve, "_solved", lambda *a, **more: programs.append(1) or original(*a, **more))
    made = random_problem(2, 60, 1000.0)
    found = made.throughput @ water_filling(made, WEIGHTS[kind](60))
    assert found == pytest.approx(made.peak, rel=1e-5)
    assert len(programs) <= 16
