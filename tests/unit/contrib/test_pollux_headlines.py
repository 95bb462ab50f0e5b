"""The tables of Pollux's headlines, on two nodes, with jobs of made-up applications."""

from __future__ import annotations

import pytest

from contrib.reproductions import pollux_headlines
from contrib.reproductions.pollux_headlines import TABLES, TYPES, Case, Headlines
from contrib.reproductions.stored_results import Results
from contrib.reproductions.typed_training import on_types
from metasched.core.batching import BatchPlan
from metasched.core.model import Placement
from metasched.simulator.generate.pollux import PolluxWorkloadParameters, generate_pollux, synthetic_profiles
from metasched.throughput.training import AdaptiveTraining


def short_profiles(_=None):
    """Every application trains for as little as one that has three epochs left."""
    profile = synthetic_profiles()["cifar10"]
    profile.ends = profile.ends[:3]
    return dict.fromkeys(synthetic_profiles(), profile)


@pytest.fixture
def runs(monkeypatch, tmp_path):
    """Headlines of three short jobs on four nodes, without any published data."""
    monkeypatch.setattr(pollux_headlines, "read_profiles", short_profiles)
    monkeypatch.setattr(pollux_headlines, "JOBS", 12)
    monkeypatch.setattr(Headlines, "_iterations", lambda _: {})
    return Headlines(tmp_path, [1], 0.25, Results(tmp_path / "kept.jsonl"))


@pytest.mark.parametrize("table", ["p", "types"])
def test_a_table_has_a_row_for_each_case(runs, table):
    """Each row has as many cells as the table's head, and no cell says that a figure is missing."""
    head, rule, *rows = TABLES[table](runs)
    assert len(rows) >= 3
    assert {line.count("|") for line in (head, rule, *rows)} == {head.count("|")}
    assert "nan" not in "".join(rows)


def test_figures_are_kept(runs, monkeypatch):
    """A second run with the same file simulates nothing."""
    case = Case("workloads/generated-1", policy="tiresias")
    found = runs.figures(case)
    assert found["unfinished"] == 0
    again = Headlines(runs.folder, [1], 0.25, Results(runs.folder / "kept.jsonl"))
    monkeypatch.setattr(again, "_simulated", lambda other: {"jct": float(other != case)})
    assert again.figures(case) == found
    assert again.figures(Case("workloads/generated-1", policy="optimus")) == {"jct": 1.0}


def test_a_case_says_how_its_cluster_behaves():
    """The slow-down is a factor; Slurm's placements are even."""
    found = Case("workloads/workload-6", interval=30.0, slow_down=25, even=True).settings
    assert (found.round_seconds, found.interference_factor, found.uneven, found.restart_seconds) == (
        30.0,
        0.75,
        False,
        30.0,
    )


def test_trainings_on_several_types_differ_by_a_factor():
    """Speeds and iterations do, on any placement and with any batch; the noise and the work do not."""
    workload = generate_pollux(PolluxWorkloadParameters(jobs=1, adaptive=True), 1, synthetic_profiles())
    one, typed = workload.submissions[0], on_types(workload, dict(TYPES)).submissions[0]
    assert typed.job.gpu_types == ("t4", "slow")
    training, plan = typed.training, BatchPlan(64)
    assert isinstance(training, AdaptiveTraining)
    fast, slow, other = (Placement(("n0",), 2, name) for name in ("t4", "slow", "a100"))
    seconds = one.training.iteration_seconds(fast, plan)
    assert training.iteration_seconds(fast, plan) == seconds
    assert training.iteration_seconds(slow, plan) == 2 * seconds
    assert training.iteration_seconds(other, plan) is None
    for pace in (training.pace, lambda done, place: training.tuned_pace(done, place, plan)):
        assert pace(0.0, slow).steps_per_second == pace(0.0, fast).steps_per_second / 2 > 0
        assert pace(0.0, other).steps_per_second == 0.0
    speed = training.known(0.0)
    assert speed.steps_per_second("slow", (2,)) == speed.steps_per_second("t4", (2,)) / 2
    assert speed.steps_per_second("a100", (2,)) is None
    assert speed.steps_per_second_with(speed, "t4", (1,)) is None
    assert (training.total, training.batching) == (one.training.total, one.training.batching)
    assert training.noise(0.0, 256) == one.training.noise(0.0, 256)
    assert training.own_plan(slow) == one.training.own_plan(fast)
