from __future__ import annotations

import os
from pathlib import Path

import pytest

from contrib.reproductions.parity_rows import gavel, row
from contrib.reproductions.published_loops.gavel import GavelLoop
from metasched.simulator.records import Settings
from metasched.time_shares.policy_base import TimeShareParameters
from policies.baselines.fifo import Fifo, FifoParameters
from policies.baselines.gandiva import Gandiva, GandivaParameters
from policies.baselines.isolated import Isolated
from tests.unit.gavel_tables import cluster, small_table, workload

SETTINGS = Settings(round_seconds=100.0, sharing=True)


def run(*jobs, policy=None, gpus=None, settings=SETTINGS, **more):
    policy, nodes = policy or Fifo(FifoParameters(elastic=False)), gpus or cluster(v100=1)
    return GavelLoop(workload(small_table(), *jobs), nodes, policy, settings, **more).run()


def finished(outcome):
    return {job.uid: job.finished for job in outcome.jobs}


def test_jobs_do_whole_steps_and_the_round_ends_with_the_last_of_them():
    """In 2.3 s a job does 9 steps of 0.25 s; the next round begins after 2.25 s."""
    settings = Settings(round_seconds=2.3)
    outcome = run(("a", "steady", 1, 20, 0.0), settings=settings)
    assert [round_.at for round_ in outcome.rounds] == pytest.approx([0.0, 2.25, 4.5])
    assert finished(outcome)["a"] == pytest.approx(5.0)


def test_gpus_of_a_job_that_ends_early_are_idle():
    """A waiting job gets them at the end of the round."""
    outcome = run(
        ("a", "quick", 1, 100, 0.0), ("b", "quick", 1, 5000, 0.0), ("c", "quick", 1, 100, 0.0), gpus=cluster(v100=2)
    )
    assert finished(outcome)["a"] == 10.0
    assert {job.uid: job.first_started for job in outcome.jobs}["c"] == 100.0


def test_arrivals_wait_for_the_end_of_the_round():
    """They wait even if GPUs are free."""
    outcome = run(("a", "quick", 1, 5000, 0.0), ("b", "quick", 1, 100, 10.0), gpus=cluster(v100=2))
    assert {job.uid: job.first_started for job in outcome.jobs} == {"a": 0.0, "b": 100.0}
    assert finished(outcome)["b"] == 110.0


def test_the_clock_jumps_to_the_next_arrival_if_no_job_runs():
    """There are no empty rounds in between."""
    outcome = run(("a", "quick", 1, 100, 0.0), ("b", "quick", 1, 100, 5000.0))
    assert finished(outcome) == {"a": 10.0, "b": 5010.0}
    assert len(outcome.rounds) == 3


def test_a_job_without_progress_in_five_rounds_is_dropped():
    """A job of two GPUs with one step left never does it, and is not complete at the end."""
    outcome = run(("a", "quick", 2, 1601, 0.0), gpus=cluster(v100=2))
    (job,) = outcome.jobs
    assert job.finished is None
    assert len(outcome.rounds) == 6


def test_both_jobs_of_a_pair_end_with_the_longer_one():
    """Both have the speeds of co-located jobs until then."""
    policy = Gandiva(GandivaParameters(least_gain=0.0))
    outcome = run(("a", "quick", 1, 80, 0.0), ("b", "steady", 1, 60, 0.0), policy=policy)
    assert finished(outcome) == {"a": 20.0, "b": 20.0}


def test_gpus_of_jobs_without_time_shares_are_idle():
    """Time shares are computed every 1000 s here; a job that arrives after the second time waits for the third."""
    policy = Isolated(TimeShareParameters(recompute_seconds=1000.0, carry=False))
    jobs = [("a", "quick", 1, 50_000, 0.0), ("b", "quick", 1, 100, 50.0), ("c", "quick", 1, 100, 150.0)]
    outcome = run(*jobs, policy=policy, gpus=cluster(v100=3))
    assert {job.uid: job.first_started for job in outcome.jobs} == {"a": 0.0, "b": 100.0, "c": 1100.0}


def test_the_window_ends_the_simulation():
    """Other jobs are reported as not complete."""
    outcome = run(("a", "quick", 1, 100, 0.0), ("b", "quick", 1, 10**6, 0.0), gpus=cluster(v100=2), window=range(1))
    assert finished(outcome) == {"a": 10.0, "b": None}
    assert outcome.loop == "gavel"


def test_a_preempted_job_resumes_at_its_last_step():
    """Its intervals and preemptions are recorded, and no work is lost or done twice."""
    jobs = [("a", "quick", 1, 3000, 0.0), ("b", "quick", 1, 3000, 0.0)]
    outcome = run(*jobs, policy=Isolated())
    assert sorted(finished(outcome).values()) == [500.0, 600.0]
    assert sum(job.gpu_seconds for job in outcome.jobs) == pytest.approx(600.0)
    assert {job.preemptions for job in outcome.jobs} == {2}


def test_the_published_figures_are_equal_or_explained():
    """This holds for every row of Gavel's artifact."""
    data = os.environ.get("METASCHED_DATA")
    if data is None:
        pytest.skip("METASCHED_DATA does not name the folder of the public data")
    for one in gavel.rows(Path(data)):
        verdicts = [m.verdict(ours, one.reason) for m, ours in zip(one.measures, one.run(), strict=True)]
        assert row.DIFFERENT not in verdicts, one.policy
        assert row.EXPLAINED not in verdicts or one.reason


def test_a_reason_explains_figures_within_its_bounds_only():
    """Equal figures need no reason; without a reason, or outside of its bounds, another figure is DIFFERENT."""
    assert row.Measure("x", 1.234, 3).verdict(1.2341, "") == row.EQUAL
    assert row.Measure("x", 1.234, 3).verdict(1.3, "") == row.DIFFERENT
    assert row.Measure("x", 1.234, 3).verdict(1.3, "because") == row.DIFFERENT
    assert row.Measure("x", 1.234, 3, within=0.1).verdict(1.3, "because") == row.EXPLAINED
    assert row.Measure("x", 1.234, 3, within=0.01).verdict(1.3, "because") == row.DIFFERENT
    assert row.Measure("x", 1.234, 3, 1.4).verdict(1.3, "because") == row.DIFFERENT
    assert row.Measure("x", 1.234, 3, 1.3).verdict(1.3, "because") == row.EXPLAINED
