"""The tables of Themis's headlines, with tiny apps."""

import pytest

from contrib.reproductions import themis_headlines
from contrib.reproductions.ares_headlines import Results
from contrib.reproductions.themis_headlines import CLUSTERS, TABLES, Case, Headlines, MisknownTraining


@pytest.fixture
def runs(monkeypatch):
    monkeypatch.setattr(themis_headlines, "MOST_TRIALS", 2)
    monkeypatch.setattr(themis_headlines, "GPU_HOURS", 0.1)
    return Headlines(["64"], [1], 0.05, Results(None))


def test_the_clusters_have_their_gpus():
    """Footnote 6 in its proportions."""
    gpus = {name: sum(count * size for count, size in nodes) for name, nodes in CLUSTERS.items()}
    assert gpus == {"64": 64, "32": 32, "16": 16, "256": 256, "liar": 64}


@pytest.mark.parametrize("table", ["pair"])
def test_a_table_has_a_row_for_each_case(runs, table):
    """Each row has as many cells as the table's head."""
    head, rule, *rows = TABLES[table](runs)
    assert len(rows) >= 2
    assert {line.count("|") for line in (head, rule, *rows)} == {head.count("|")}


def test_errors_are_those_of_an_app(runs):
    """All jobs of an app are wrong alike, and train at their true speed."""
    exact, wrong = (runs.workload(Case("64", "2", error=error)).submissions for error in (0.0, 0.2))
    factors = {}
    for one, other in zip(exact, wrong, strict=True):
        assert isinstance(other.training, MisknownTraining)
        assert other.training.true == one.training
        factor = other.training.told.seconds_per_step / one.training.seconds_per_step
        assert factors.setdefault(one.job.app, factor) == pytest.approx(factor)
        assert 0.8 <= factor <= 1.2
    assert len(set(factors.values())) == 2


def test_one_of_eight_lies(runs):
    """The first app over-reports its slowdown; all jobs are alike otherwise."""
    told = [one.training.known(0.0).slowdown for one in runs.workload(Case("liar", "liar", lie=0.5)).submissions]
    assert len(told) == 8
    assert told[0] == pytest.approx(1.5 * told[1])
    assert len(set(told[1:])) == 1
