import math
from dataclasses import replace

import pytest

from metasched.core.model import Node, Placement
from metasched.simulator.metrics import IsolatedDurations, app_of, isolated_seconds, measure, percentile
from metasched.simulator.records import JobOutcome, Locality, Outcome, RunInterval, Settings
from metasched.throughput.batch_size_regimes import FAMILIES, Mode, RegimeTraining, model_name
from metasched.throughput.throughput_table import Table
from tests.unit.gavel_tables import cluster, small_table, workload
from tests.unit.workloads import submission

TABLE = small_table()


def job(uid, submitted, *stays, finished=None, **more):
    """An outcome; stays are (began, ended, GPUs) on the one node."""
    made = tuple(RunInterval(began, ended, Placement(("v100",), gpus, "v100")) for began, ended, gpus in stays)
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


def test_times_of_jobs():
    """Completion, makespan, wait and queueing follow from submissions, stays and ends."""
    found = measure(*two_jobs())
    assert (found.jobs, found.unfinished) == (2, 0)
    assert found.jct_mean == found.jct_median == 150.0
    assert found.jct_p99 == pytest.approx(199.0)
    assert found.makespan == 200.0
    assert found.first_wait_mean == found.queueing_mean == 50.0


def test_utilization_counts_what_is_held_and_what_is_wanted():
    """Half of the GPU time is held; two jobs wanted two GPUs for 100 s, and one of them one for 100 s more."""
    found = measure(*two_jobs())
    assert found.utilization == pytest.approx(0.5)
    assert found.utilization_wanted == pytest.approx(200 / 300)
    assert found.gpu_hours == pytest.approx(200 / 3600)


def test_an_unfinished_job_has_no_makespan():
    """While a job is not done the makespan is not defined, and means are over those that are."""
    ended, jobs = two_jobs()
    ended = replace(ended, jobs=(ended.jobs[0], replace(ended.jobs[1], finished=None)))
    found = measure(ended, jobs)
    assert (found.unfinished, found.makespan, found.jct_mean) == (1, None, 100.0)
    assert set(found.fairness["shockwave"].rho) == {"a"}


def test_nothing_at_all_is_defined_of_no_jobs():
    """Without jobs every mean is None."""
    found = measure(outcome(), workload(TABLE)).values
    counts = {"jobs", "unfinished", "gpu_hours", "lost_hours", "overhead_hours"}
    assert {name for name, value in found.items() if value is not None} == counts


def test_the_window_chooses_jobs_by_arrival():
    """Only the jobs of the window are measured; the others remain load."""
    found = measure(*two_jobs(), window=range(1, 2))
    assert (found.jobs, found.jct_mean) == (1, 200.0)
    assert found.fairness["shockwave_live"].rho == {"b": pytest.approx(2.0)}


def test_cost_is_by_type_and_needs_a_price():
    """GPU-hours times the price of their type; without a price there is no cost."""
    assert measure(*two_jobs(), prices={"v100": 3.6}).cost == pytest.approx(0.2)
    assert measure(*two_jobs(), prices={"k80": 1.0}).cost is None
    assert measure(*two_jobs()).cost is None


def test_what_two_jobs_share_counts_once():
    """Two jobs have the same GPU for 60 s, and the one that is measured has it for 40 s more."""
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
def test_time_alone_heeds_distance(racks, seconds):
    """100 s of two nodes of four GPUs take twice as long within a rack, and four times as long between racks."""
    nodes = [Node(f"n{i}", "v100", 4, 16, 64, rack=rack) for i, rack in enumerate(racks)]
    alone = IsolatedDurations(nodes, Locality(rack=0.5, cluster=0.25))
    assert [alone.by_type(submission("a", gpus, total=800.0)) for gpus in (8, 4)] == [
        {"v100": seconds},
        {"v100": 200.0},
    ]


def test_preemptions_and_restarts():
    """A job with two stays restarted once, whether it was preempted or its node failed."""
    stopped = job("a", 0.0, (0, 50, 1), (100, 160, 1), finished=160.0, preemptions=1, overhead_seconds=10.0)
    found = measure(outcome(stopped), workload(TABLE, ("a", "quick", 1, 1000, 0.0)))
    assert (found.preemptions_mean, found.restarts_mean) == (1.0, 1.0)
    assert found.overhead_hours == pytest.approx(10 / 3600)
    assert found.queueing_mean == pytest.approx(50.0)


def test_placement_score_is_the_part_of_gpu_time_on_the_fewest_nodes():
    """Two GPUs on two nodes of two are spread; four GPUs on two nodes are not."""
    nodes = tuple(Node(f"n{i}", "v100", 2, 0, 0) for i in range(2))
    spread = RunInterval(0.0, 10.0, Placement(("n0", "n1"), 1, "v100"))
    together = RunInterval(10.0, 20.0, Placement(("n0", "n1"), 2, "v100"))
    one = JobOutcome("a", 0.0, 0.0, 20.0, (spread, together))
    found = measure(outcome(one, nodes=nodes), workload(TABLE, ("a", "quick", 2, 10, 0.0)))
    assert found.consolidated == pytest.approx(40 / 60)


def test_shockwaves_fairness_is_static():
    """Fair is the time alone times jobs over GPUs; 1.05 is the artifact's threshold."""
    rho = measure(*two_jobs()).fairness["shockwave"]
    assert rho.rho == {"a": pytest.approx(1.0), "b": pytest.approx(2.0)}
    assert (rho.worst, rho.mean, rho.unfair) == (pytest.approx(2.0), pytest.approx(1.5), 0.5)


def test_themis_has_apps_share_the_cluster():
    """The tasks of one base are one app; it ends with its last task, and its fair time grows with the live apps."""
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
    """1/n of 2 V100 (10 steps/s) and 2 K80 (1 step/s) is all of the time, half on each, while n is 2."""
    nodes = cluster(v100=2, k80=2)
    ends = (job("a", 0.0, (0, 100, 1), finished=100.0), job("b", 0.0, (0, 100, 1), finished=100.0))
    jobs = workload(TABLE, ("a", "quick", 1, 1000, 0.0), ("b", "quick", 1, 1000, 0.0))
    rho = measure(outcome(*ends, nodes=nodes), jobs).fairness["gavel"].rho
    assert rho["a"] == pytest.approx(100 / (1000 / (0.5 * 10 + 0.5 * 1)))


def test_polluxs_fairness_is_by_contention():
    """Fair is the time alone times the contention in the job's life, which the simulation told."""
    late = job("a", 0.0, (100, 200, 1), finished=200.0, contention=1.6)
    found = measure(outcome(late), workload(TABLE, ("a", "quick", 1, 1000, 0.0)))
    assert found.rho == {"a": pytest.approx(200 / 160)}


def test_aress_fair_end_is_under_processor_sharing():
    """On one GPU, 100 s and 50 s of work at once end after 100 s and 150 s if both have half of it."""
    ends = (job("a", 0.0, (0, 100, 1), finished=100.0), job("b", 0.0, (100, 150, 1), finished=150.0))
    jobs = workload(TABLE, ("a", "quick", 1, 1000, 0.0), ("b", "quick", 1, 500, 0.0))
    rho = measure(outcome(*ends, nodes=cluster(v100=1)), jobs).fairness["ares"].rho
    assert rho == {"a": pytest.approx(100 / 150), "b": pytest.approx(150 / 100)}


def test_ares_does_not_ask_for_more_than_running_alone():
    """On an empty cluster processor sharing would give a job more GPUs than it asks for: alone is fair enough."""
    found = measure(outcome(job("a", 0.0, (0, 100, 1), finished=100.0)), workload(TABLE, ("a", "quick", 1, 1000, 0.0)))
    assert found.fairness["ares"].rho == {"a": pytest.approx(1.0)}


def test_values_have_every_number_by_name():
    """All numbers, those of fairness by definition."""
    values = measure(*two_jobs()).values
    assert values["jct_mean"] == 150.0
    assert values["rho_worst_shockwave"] == pytest.approx(2.0)
    assert {f"{part}_{name}" for part in ("rho_worst", "rho_mean", "unfair") for name in ("themis", "ares")} <= set(
        values
    )


def test_time_alone_goes_through_the_regimes():
    """With a batch that grows, the time alone is the sum over the regimes."""
    rows = {(model_name("LM", batch), 1): float(batch) for batch in (10, 20, 40, 80)}
    table = Table({"v100": rows}, {})
    steps = FAMILIES["LM"].steps
    training = RegimeTraining.of(table, Mode.GNS, model_name("LM", 10), 1, 50 * steps(10))
    expected = sum(count * steps(batch) / batch for batch, count in ((10, 11), (20, 10), (40, 20), (80, 9)))
    assert isolated_seconds(training, Placement(("n",), 1, "v100")) == pytest.approx(expected)
    assert isolated_seconds(training, Placement(("n",), 1, "k80")) == math.inf


def test_percentiles_lie_between_ranks():
    """Linear between order statistics."""
    assert percentile([1.0, 2.0, 4.0], 0.5) == 2.0
    assert percentile([1.0, 2.0], 0.99) == pytest.approx(1.99)
    assert percentile([3.0], 0.99) == 3.0
