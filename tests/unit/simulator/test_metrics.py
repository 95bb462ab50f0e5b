import math
from dataclasses import replace

import pytest

from metasched.core.model import Node, Placement
from metasched.simulator.metrics import IsolatedDurations, app_of, isolated_seconds, measure, percentile
from metasched.simulator.records import JobOutcome, Locality, Outcome, RunInterval, Settings
from metasched.throughput.batch_size_regimes import FAMILIES, Mode, RegimeTraining, model_name
from metasched.throughput.throughput_table import ThroughputTable
from tests.unit.gavel_tables import cluster, small_table, workload
from tests.unit.workloads import submission

TABLE = small_table()


def job(uid, submitted, *intervals, finished=None, **more):
    """The outcome of a job whose run intervals on node v100 are (began, ended, GPUs)."""
    made = tuple(RunInterval(began, ended, Placement(("v100",), gpus, "v100")) for began, ended, gpus in intervals)
    first = made[0].began if made else None
    return JobOutcome(uid, submitted, first, finished, made, **more)


def outcome(*jobs, nodes=None, ended=None):
    """A simulation on one node of two GPUs by default."""
    last = max((one.finished or 0.0 for one in jobs), default=0.0)
    nodes = cluster(v100=2) if nodes is None else nodes
    return Outcome("test", "p", {}, Settings(), "honest", nodes, jobs, (), last if ended is None else ended, 0, 0, 0)


def two_jobs():
    """Two jobs of 100 s alone on one GPU each, one after the other: 10 steps/s, 1000 steps."""
    found = outcome(job("a", 0.0, (0, 100, 1), finished=100.0), job("b", 0.0, (100, 200, 1), finished=200.0))
    return found, workload(TABLE, ("a", "quick", 1, 1000, 0.0), ("b", "quick", 1, 1000, 0.0))


def test_jct_makespan_wait_and_queueing():
    """They follow from arrivals, intervals and completions."""
    found = measure(*two_jobs())
    assert (found.jobs, found.unfinished) == (2, 0)
    assert found.jct_mean == found.jct_median == 150.0
    assert found.jct_p99 == pytest.approx(199.0)
    assert found.makespan == 200.0
    assert found.first_wait_mean == found.queueing_mean == 50.0


def test_utilization_is_gpu_time_held_over_capacity_and_over_demand():
    """Half of the GPU time is held; two jobs ask for two GPUs for 100 s, and one of them for one GPU for 100 s more."""
    found = measure(*two_jobs())
    assert found.utilization == pytest.approx(0.5)
    assert found.utilization_wanted == pytest.approx(200 / 300)
    assert found.gpu_hours == pytest.approx(200 / 3600)


def test_with_an_unfinished_job_the_makespan_is_none():
    """Means are over the complete jobs."""
    ended, jobs = two_jobs()
    ended = replace(ended, jobs=(ended.jobs[0], replace(ended.jobs[1], finished=None)))
    found = measure(ended, jobs)
    assert (found.unfinished, found.makespan, found.jct_mean) == (1, None, 100.0)
    assert set(found.fairness["shockwave"].rho) == {"a"}


def test_without_jobs_every_mean_is_none():
    """No metric fails for an empty workload."""
    found = measure(outcome(), workload(TABLE)).values
    counts = {"jobs", "unfinished", "ended", "gpu_hours", "lost_hours", "overhead_hours"}
    assert {name for name, value in found.items() if value is not None} == counts


def test_the_window_chooses_jobs_by_arrival():
    """Only the jobs of the window are measured; the others remain load."""
    found = measure(*two_jobs(), window=range(1, 2))
    assert (found.jobs, found.jct_mean) == (1, 200.0)
    assert found.fairness["shockwave_live"].rho == {"b": pytest.approx(2.0)}


def test_cost_is_gpu_hours_times_the_price_of_their_type():
    """Without the price of a type the cost is None."""
    assert measure(*two_jobs(), prices={"v100": 3.6}).cost == pytest.approx(0.2)
    assert measure(*two_jobs(), prices={"k80": 1.0}).cost is None
    assert measure(*two_jobs()).cost is None


def test_gpus_of_co_located_jobs_count_once():
    """Two jobs are on one GPU for 60 s, and the measured one has it alone for 40 s more."""
    place, together = Placement(("v100",), 1, "v100"), ((0.0, 60.0),)
    ends = [
        JobOutcome(uid, 0.0, 0.0, end, (RunInterval(0.0, end, place, together),))
        for uid, end in (("a", 60), ("b", 100))
    ]
    jobs = workload(TABLE, ("a", "quick", 1, 1, 0.0), ("b", "quick", 1, 1, 0.0))
    ended = outcome(*ends, nodes=cluster(v100=1))
    found = measure(ended, jobs, prices={"v100": 3600.0})
    assert (found.utilization, found.cost, found.gpu_hours * 3600) == (1.0, 100.0, 100.0)
    assert measure(ended, jobs, window=range(1, 2), prices={"v100": 3600.0}).cost == 70.0
    assert measure(ended, jobs, window=range(1)).utilization == 1.0


@pytest.mark.parametrize(("racks", "seconds"), [("aab", 200.0), ("aba", 200.0), ("abc", 400.0)])
def test_the_isolated_duration_depends_on_the_distance_of_the_nodes(racks, seconds):
    """100 s of two nodes of four GPUs take twice as long within a rack, and four times as long between racks."""
    nodes = [Node(f"n{i}", "v100", 4, 16, 64, rack=rack) for i, rack in enumerate(racks)]
    alone = IsolatedDurations(nodes, Locality(rack=0.5, cluster=0.25))
    assert [alone.by_type(submission("a", gpus, total=800.0)) for gpus in (8, 4)] == [
        {"v100": seconds},
        {"v100": 200.0},
    ]


def test_preemptions_and_restarts():
    """A job with two intervals restarted once, after a preemption or a node failure."""
    stopped = job("a", 0.0, (0, 50, 1), (100, 160, 1), finished=160.0, preemptions=1, overhead_seconds=10.0)
    found = measure(outcome(stopped), workload(TABLE, ("a", "quick", 1, 1000, 0.0)))
    assert (found.preemptions_mean, found.restarts_mean) == (1.0, 1.0)
    assert found.overhead_hours == pytest.approx(10 / 3600)
    assert found.queueing_mean == pytest.approx(50.0)


def test_consolidated_is_the_fraction_of_gpu_time_on_the_fewest_nodes():
    """Two GPUs on two nodes of two are not consolidated; four GPUs on two nodes are."""
    nodes = tuple(Node(f"n{i}", "v100", 2, 0, 0) for i in range(2))
    spread = RunInterval(0.0, 10.0, Placement(("n0", "n1"), 1, "v100"))
    together = RunInterval(10.0, 20.0, Placement(("n0", "n1"), 2, "v100"))
    one = JobOutcome("a", 0.0, 0.0, 20.0, (spread, together))
    found = measure(outcome(one, nodes=nodes), workload(TABLE, ("a", "quick", 2, 10, 0.0)))
    assert found.consolidated == pytest.approx(40 / 60)


def test_shockwaves_fair_time_has_a_static_contention():
    """It is the isolated duration times jobs over GPUs; the threshold is 1.05, as in the artifact."""
    rho = measure(*two_jobs()).fairness["shockwave"]
    assert rho.rho == {"a": pytest.approx(1.0), "b": pytest.approx(2.0)}
    assert (rho.worst, rho.mean, rho.unfair) == (pytest.approx(2.0), pytest.approx(1.5), 0.5)


def test_themis_fairness_is_of_apps():
    """Tasks of one base are an app, which ends with its last task; its fair time grows with the number of live apps."""
    jobs = [("1_0", "quick", 1, 1000, 0.0), ("1_1", "quick", 1, 1000, 0.0), ("2", "quick", 1, 1000, 0.0)]
    ends = (
        job("1_0", 0.0, (0, 100, 1), finished=100.0),
        job("1_1", 0.0, (100, 200, 1), finished=200.0),
        job("2", 0.0, (0, 100, 1), finished=100.0),
    )
    rho = measure(outcome(*ends), workload(TABLE, *jobs)).fairness["themis"].rho
    assert rho == {"1": pytest.approx(200 / (100 * 1.5)), "2": pytest.approx(100 / (100 * 2))}
    assert (app_of("12_3"), app_of("_3"), app_of("a_b")) == ("12", "_3", "a_b")


def test_gavels_isolated_share_is_of_every_type():
    """While n is 2, 1/n of 2 V100 (10 steps/s) and of 2 K80 (1 step/s) is half of the time on each."""
    nodes = cluster(v100=2, k80=2)
    ends = (job("a", 0.0, (0, 100, 1), finished=100.0), job("b", 0.0, (0, 100, 1), finished=100.0))
    jobs = workload(TABLE, ("a", "quick", 1, 1000, 0.0), ("b", "quick", 1, 1000, 0.0))
    rho = measure(outcome(*ends, nodes=nodes), jobs).fairness["gavel"].rho
    assert rho["a"] == pytest.approx(100 / (1000 / (0.5 * 10 + 0.5 * 1)))


def test_polluxs_fair_time_has_the_contention_of_the_jobs_life():
    """It is the isolated duration times the contention that the simulation recorded."""
    late = job("a", 0.0, (100, 200, 1), finished=200.0, contention=1.6)
    found = measure(outcome(late), workload(TABLE, ("a", "quick", 1, 1000, 0.0)))
    assert found.rho == {"a": pytest.approx(200 / 160)}


def test_aress_fair_time_is_that_of_processor_sharing():
    """On one GPU, jobs of 100 s and 50 s that arrive together end after 100 s and 150 s."""
    ends = (job("a", 0.0, (0, 100, 1), finished=100.0), job("b", 0.0, (100, 150, 1), finished=150.0))
    jobs = workload(TABLE, ("a", "quick", 1, 1000, 0.0), ("b", "quick", 1, 500, 0.0))
    rho = measure(outcome(*ends, nodes=cluster(v100=1)), jobs).fairness["ares"].rho
    assert rho == {"a": pytest.approx(100 / 150), "b": pytest.approx(150 / 100)}


def test_aress_fair_time_is_at_least_the_isolated_duration():
    """On an empty cluster processor sharing would give a job more GPUs than it asks for."""
    found = measure(outcome(job("a", 0.0, (0, 100, 1), finished=100.0)), workload(TABLE, ("a", "quick", 1, 1000, 0.0)))
    assert found.fairness["ares"].rho == {"a": pytest.approx(1.0)}


def test_aress_fair_time_counts_the_speed_of_each_type():
    """Two equal jobs that each have half of a V100 (10 steps/s) and half of a K80 (1 step/s) end fairly."""
    seconds = 2000 / 11
    ends = (job("a", 0.0, (0, seconds, 1), finished=seconds), job("b", 0.0, (0, seconds, 1), finished=seconds))
    jobs = workload(TABLE, ("a", "quick", 1, 1000, 0.0), ("b", "quick", 1, 1000, 0.0))
    rho = measure(outcome(*ends, nodes=cluster(v100=1, k80=1)), jobs).fairness["ares"].rho
    assert rho == {"a": pytest.approx(1.0), "b": pytest.approx(1.0)}


def test_values_have_every_number_by_name():
    """The metrics of fairness are named by their definitions."""
    values = measure(*two_jobs()).values
    assert values["jct_mean"] == 150.0
    assert values["rho_worst_shockwave"] == pytest.approx(2.0)
    assert {f"{part}_{name}" for part in ("rho_worst", "rho_mean", "unfair") for name in ("themis", "ares")} <= set(
        values
    )


def test_the_isolated_duration_is_the_sum_over_regimes():
    """The speed changes with the batch size."""
    rows = {(model_name("LM", batch), 1): float(batch) for batch in (10, 20, 40, 80)}
    table = ThroughputTable({"v100": rows}, {})
    steps = FAMILIES["LM"].steps
    training = RegimeTraining.of(table, Mode.GNS, model_name("LM", 10), 1, 50 * steps(10))
    expected = sum(count * steps(batch) / batch for batch, count in ((10, 11), (20, 10), (40, 20), (80, 9)))
    assert isolated_seconds(training, Placement(("n",), 1, "v100")) == pytest.approx(expected)
    assert isolated_seconds(training, Placement(("n",), 1, "k80")) == math.inf


def test_percentiles_are_interpolated_between_ranks():
    """The interpolation is linear."""
    assert percentile([1.0, 2.0, 4.0], 0.5) == 2.0
    assert percentile([1.0, 2.0], 0.99) == pytest.approx(1.99)
    assert percentile([3.0], 0.99) == 3.0
