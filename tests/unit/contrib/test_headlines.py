from __future__ import annotations

import pytest

from contrib.reproductions import gavel_workloads
from contrib.reproductions.demand import EXACT, HALF, QUARTER, UNKNOWN, UNPREDICTABLE, WRONG
from contrib.reproductions.gavel_fluid_limit import agnostic_limit, fluid_limit, mean_seconds
from contrib.reproductions.gavel_workloads import Scale, fixed_rounds, jct_by_position, run_window
from contrib.reproductions.stored_results import Results
from policies.baselines.fifo import Fifo
from tests.unit.gavel_tables import cluster, small_table
from tests.unit.workloads import submission, workload

TABLE = small_table()
HOUR = 3600.0


def jobs_per_hour(jobs):
    """A rate that is given as jobs in the mean duration of a job."""
    return pytest.approx(jobs * HOUR / mean_seconds())


@pytest.mark.parametrize(
    ("gpus", "sharing", "expected"),
    [
        ({"v100": 1}, False, 1.0),  # durations are those on a V100
        ({"v100": 1, "k80": 1}, False, 1.5),  # "steady" runs at half its speed on the K80, and a quarter of the V100
        ({"v100": 1}, True, 2 * 0.8 / 1.05),  # both together for 1 / 1.05 of the time, then "steady" alone
    ],
)
def test_the_fluid_limit_of_two_job_types(gpus, sharing, expected):
    """By hand, for as many jobs of "quick" as of "steady"."""
    assert fluid_limit(TABLE, gpus, multiple=False, sharing=sharing) == jobs_per_hour(expected)


def test_the_limit_with_equal_time_on_all_types():
    """The mean speeds of the jobs are 0.55 and 0.75 of those on a V100."""
    found = agnostic_limit(TABLE, {"v100": 1, "k80": 1}, multiple=False)
    assert found == jobs_per_hour(2 / (0.5 / 0.55 + 0.5 / 0.75))


def arriving():
    scale = Scale(TABLE, gpus=1, window=range(2, 4), batch=1, seeds=range(1), plots=None)
    return scale.arriving(36 * 20 * HOUR / mean_seconds(), 0)


def test_jobs_arrive_until_the_last_measured_job_has_ended(monkeypatch):
    """With too few jobs the simulation is repeated with twice as many, whose first ones are the same."""
    tried = []

    def simulate(workload, *arguments, **more):
        tried.append(workload)
        return found(workload, *arguments, **more)

    found = gavel_workloads.simulate_and_measure
    monkeypatch.setattr(gavel_workloads, "simulate_and_measure", simulate)
    monkeypatch.setattr(gavel_workloads, "LONGEST_JCT", 0.0)
    outcome, metrics = run_window(arriving(), cluster(v100=1), Fifo(), range(2, 4))
    assert metrics.unfinished == 0
    assert [len(one.submissions) for one in tried][:2] == [16, 32]
    assert all(outcome.ended > one.submissions[-1].job.submitted for one in tried[:-1])
    assert outcome.ended <= tried[-1].submissions[-1].job.submitted
    assert [one.training.total for one in tried[0].submissions] == [
        one.training.total for one in tried[1].submissions[:16]
    ]
    assert jct_by_position(outcome, range(2, 4)).keys() == {2, 3}


def test_restarts_cost_time_in_fixed_rounds():
    """They are part of the settings, and free by default."""
    assert (fixed_rounds().restart_seconds, fixed_rounds(restart=60.0).restart_seconds) == (0.0, 60.0)
    assert not fixed_rounds().early_rounds


def test_demand_as_policies_know_it():
    """True work never changes; jobs without a declaration are also undeclared at larger fractions."""
    jobs = workload(*(submission(f"{i:03}", name="train", submitted=float(i)) for i in range(400)))
    assert EXACT.known(jobs, 0).submissions == jobs.submissions
    ratios = [one.declared_ratio for one in WRONG.known(jobs, 0).submissions]
    assert min(ratios) >= 0.5
    assert max(ratios) <= 2.0
    assert 0.4 < sum(ratio < 1.0 for ratio in ratios) / 400 < 0.6
    quarter, half = (
        {one.job.uid for one in known.known(jobs, 0).submissions if not one.declared} for known in (QUARTER, HALF)
    )
    assert quarter < half
    assert 60 < len(quarter) < 140 < len(half) < 260
    assert not any(one.declared for one in UNKNOWN.known(jobs, 0).submissions)
    assert len({one.job.name for one in UNPREDICTABLE.known(jobs, 0).submissions}) == 400
    assert [one.training for one in WRONG.known(jobs, 0).submissions] == [one.training for one in jobs.submissions]


def test_stored_simulations_are_not_repeated(tmp_path):
    """A second run reads the figures of the first one from the file."""
    calls = []

    def simulate():
        calls.append(1)
        return {"jct": 2.5}

    for _ in range(2):
        results = Results(tmp_path / "kept.jsonl")
        assert results.figures(("trace", "ares"), simulate) == {"jct": 2.5}
    results.figures(("trace", "las"), simulate)
    assert len(calls) == 2
