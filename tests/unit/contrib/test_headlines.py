from __future__ import annotations

import json
import math
import sys
from dataclasses import replace

import pytest

from contrib.reproductions import gavel_headlines, gavel_workloads
from contrib.reproductions.ares_headlines import FreeRestarts
from contrib.reproductions.demand import EXACT, HALF, QUARTER, UNKNOWN, UNPREDICTABLE, WRONG
from contrib.reproductions.gavel_fluid_limit import agnostic_limit, fluid_limit, mean_seconds
from contrib.reproductions.gavel_workloads import Line, Scale, fixed_rounds, jct_by_position, run_window
from contrib.reproductions.stored_results import Results
from metasched.core.model import Placement, Status
from metasched.scheduling.engine import run_round
from policies.ares.policy import Ares
from policies.baselines.fifo import Fifo
from policies.baselines.las import Las
from tests.builders import job, linear, nodes, snapshot
from tests.unit.gavel_tables import cluster, small_table
from tests.unit.workloads import submission, workload

TABLE = small_table()
HOUR = 3600.0
RATE = 36 * 20 * HOUR / mean_seconds()
"""Arrivals per hour at 36 GPUs: twenty jobs in the mean duration of a job at one GPU."""


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


def arriving_scale():
    return Scale(TABLE, gpus=1, window=range(2, 4), batch=1, seeds=range(1), plots=None)


def arriving():
    return arriving_scale().arriving(RATE, 0)


def test_jobs_arrive_until_the_last_measured_job_has_ended(monkeypatch):
    """The simulation ends with that job, so that more jobs do not change the figures."""
    window = range(2, 4)
    outcome, metrics = run_window(arriving(), cluster(v100=1), Fifo(), window)
    assert metrics.unfinished == 0
    assert outcome.ended <= arriving().lasting(window).submissions[-1].job.submitted
    found = jct_by_position(outcome, window)
    assert found.keys() == {2, 3}
    monkeypatch.setattr(gavel_workloads, "ARRIVALS", 2 * gavel_workloads.ARRIVALS)
    assert jct_by_position(run_window(arriving(), cluster(v100=1), Fifo(), window)[0], window) == found


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


def stored(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_stored_simulations_are_not_repeated(tmp_path):
    """A second run reads the figures of the first one from the file, which has six digits of them."""
    calls = []

    def simulate():
        calls.append(1)
        return {"jct": 2.5 + 1e-9}

    for _ in range(2):
        results = Results(tmp_path / "kept.jsonl")
        assert results.figures(("trace", "ares"), simulate) == {"jct": 2.5}
    results.figures(("trace", "las"), simulate)
    assert len(calls) == 2
    assert [one["simulation"] for one in stored(tmp_path / "kept.jsonl")] == [["trace", "ares"], ["trace", "las"]]


def test_only_stored_figures_are_known_where_nothing_is_simulated(tmp_path):
    """Others are NaN under any name, and the file stays as it is."""
    Results(tmp_path / "kept.jsonl").figures(("trace", "ares"), lambda: {"jct": 2.5})
    before = (tmp_path / "kept.jsonl").read_text()
    results = Results(tmp_path / "kept.jsonl", stored_only=True)
    assert results.figures(("trace", "ares"), pytest.fail) == {"jct": 2.5}
    assert math.isnan(results.figures(("trace", "las"), pytest.fail)["p99"])
    assert (tmp_path / "kept.jsonl").read_text() == before


def test_simulations_of_gavels_headlines_are_stored_one_by_one(tmp_path):
    """Another policy, seed, load, cluster or cost of restarts is another simulation; the same is not run twice."""
    file = tmp_path / "kept.jsonl"
    scale = replace(arriving_scale(), results=Results(file))
    arrivals, others = scale.arriving(RATE, 0), cluster(v100=1, k80=1)
    first = scale.jct(arrivals, Fifo())
    assert scale.jct(arrivals, Fifo()) == first
    scale.jct(arrivals, Fifo(), fixed_rounds(restart=60.0))
    scale.jct(arrivals, Fifo(), nodes=others)
    scale.jct(scale.arriving(RATE, 1), Fifo())
    scale.jct(scale.arriving(RATE / 2, 0), Fifo())
    scale.jct(scale.arriving(RATE, 1), Las())
    kept = stored(file)
    assert len(kept) == len({tuple(one["simulation"]) for one in kept}) == 6
    again = replace(scale, results=Results(file, stored_only=True))
    assert again.jct(arrivals, Fifo()) == first
    assert math.isnan(again.jct(scale.arriving(RATE, 2), Fifo()))


def test_the_table_has_what_is_stored(tmp_path, monkeypatch, capsys):
    """A line has the mean over the seeds that are stored of it, and their number; other lines are left out."""
    file = tmp_path / "kept.jsonl"

    def headline(scale):
        (seed,) = scale.seeds
        for name in ("a", "b"):
            found = scale.results.figures((name, f"{seed}"), pytest.fail)
            yield Line(name, "", (found["jct"],), "h")

    for seed, jct in ((0, 2.0), (1, 4.0)):
        Results(file).figures(("a", f"{seed}"), lambda jct=jct: {"jct": jct})
    monkeypatch.setattr(gavel_headlines, "HEADLINES", {"las": headline})
    monkeypatch.setattr(gavel_headlines.ThroughputTable, "read", lambda _: TABLE)
    options = ["gavel_headlines", "--data", "", "--only", "las", "--seeds", "3", "--results", str(file), "--stored"]
    monkeypatch.setattr(sys, "argv", options)
    assert gavel_headlines.main() == 0
    assert capsys.readouterr().out.splitlines()[2:] == ["| a |  |  | 3.00 +- 1.41 h | 2 |"]


def test_ares_that_takes_restarts_for_free_grows_where_ares_does_not():
    """From four GPUs to eight, by a restart that takes longer than the rest of the job."""
    place = Placement(("v100-0",), 4, "v100")
    one = job("a", 4, 1, 8, left=1000, speed=linear(1.0), restart_seconds=1e6)
    one = one.evolve(status=Status.RUNNING, placement=place, run=1, run_started=0.0)
    for policy, gpus in ((Ares(), 4), (FreeRestarts(), 8)):
        assert run_round(snapshot([one], nodes(1, 8)), policy, None).targets["a"].gpus == gpus
