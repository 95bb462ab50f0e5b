"""The tables of Shockwave's headlines, with few jobs."""

import pytest

from contrib.reproductions.shockwave_headlines import TABLES, Case, Headlines, MisinformedShockwave
from contrib.reproductions.stored_results import Results
from metasched.core.policy import PolicyState
from policies.shockwave.policy import Shockwave, ShockwaveParameters
from tests.builders import job, linear, nodes, snapshot
from tests.unit.simulator.test_generate_shockwave import TABLE


def test_tables_have_a_row_for_each_case(monkeypatch):
    """Each row has as many cells as the table's head."""
    runs = Headlines(TABLE, [1], 0.02, Results(None))
    figures = runs.figures(Case())
    assert 0.0 < figures["jct"] <= figures["makespan"]
    monkeypatch.setattr(runs, "figures", lambda case: figures | {"jct": float(case.seed)})
    for table in TABLES.values():
        head, rule, *rows = table(runs)
        assert len(rows) >= 6
        assert {line.count("|") for line in (head, rule, *rows)} == {head.count("|")}


@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_noise_is_of_the_remaining_work(monkeypatch, noise):
    """A job's error is within the noise, and the same in every round."""
    told = []
    monkeypatch.setattr(Shockwave, "decide", lambda policy, seen, state: told.append(seen.jobs[0].remaining_steps))
    policy = MisinformedShockwave(ShockwaveParameters(), noise)
    for done in (0.0, 8000.0):
        one = job("a", 1, total_steps=9000.0, progress_steps=done, speed=linear(1.0))
        policy.decide(snapshot([one], nodes(1)), PolicyState(1, {}))
    assert abs(told[0] / 9000.0 - 1.0) <= noise
    assert (told[0] == 9000.0) is (noise == 0.0)
    assert told[0] / 9000.0 == pytest.approx(told[1] / 1000.0)
