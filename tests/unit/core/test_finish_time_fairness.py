"""Finish-time fairness of one job, by each definition that a running cluster can know."""

import pytest

from metasched.core.finish_time_fairness import LIVE_DEFINITIONS, UNFAIR, MeanLoad, isolated_share, rho_by_definition

BUSY = MeanLoad(jobs=16, apps=4, contention=3.0)


def test_each_definition_has_its_fair_time():
    """100 s alone on 2 of 8 GPUs: 300 s by contention, 200 s by jobs, 400 s by apps, 400 s with 1/16 of the GPUs."""
    found = rho_by_definition(1200, {"v100": 100.0}, 2, {"v100": 8}, BUSY)
    assert found == pytest.approx({"pollux": 4.0, "shockwave_live": 6.0, "themis": 3.0, "gavel": 3.0})
    assert found.keys() == set(LIVE_DEFINITIONS) <= UNFAIR.keys()


def test_an_idle_cluster_asks_for_the_time_alone():
    """Contention below 1 does not make a fair time shorter than the time alone."""
    found = rho_by_definition(100, {"v100": 100.0}, 2, {"v100": 8}, MeanLoad(1, 1, 0.25))
    assert set(found.values()) == {1.0}


def test_the_fastest_type_counts_and_gavel_needs_all_types():
    """A type of the cluster whose time alone is not known leaves Gavel's rho unknown."""
    capacity = {"v100": 8, "k80": 8, "gone": 0}
    found = rho_by_definition(300, {"v100": 100.0}, 2, capacity, MeanLoad(1, 1, 1.0))
    assert (found["pollux"], "gavel" in found) == (3.0, False)
    found = rho_by_definition(300, {"v100": 100.0, "k80": 400.0}, 2, capacity, MeanLoad(1, 1, 1.0))
    assert found["gavel"] == pytest.approx(300 / isolated_share({"v100": 100.0, "k80": 400.0}, 2, capacity, 1.0))


@pytest.mark.parametrize(("alone", "capacity"), [({}, {"v100": 8}), ({"v100": 1.0}, {}), ({"v100": 1.0}, {"v100": 0})])
def test_what_is_not_known_is_missing(alone, capacity):
    """Without a time alone, or without GPUs, there is no rho."""
    assert rho_by_definition(10, alone, 1, capacity, BUSY) == {}


def test_a_job_larger_than_the_cluster_has_the_work_on_the_cluster():
    """Themis's work is on at most the cluster's GPUs."""
    found = rho_by_definition(400, {"v100": 100.0}, 16, {"v100": 8}, MeanLoad(1, 1, 1.0))
    assert found["themis"] == 2.0
