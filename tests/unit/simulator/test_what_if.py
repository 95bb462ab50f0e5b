import pytest

from metasched.core.batching import BatchControl, Batching, BatchPlan, GradientNoise
from metasched.core.model import Node, Placement, Quota, Snapshot, Status
from metasched.core.policy import PolicyState
from metasched.core.reasons import Reason
from metasched.simulator.records import Settings
from metasched.simulator.what_if import Estimate, estimate_all, forecast
from metasched.store import Store
from metasched.throughput.goodput import Goodput
from metasched.throughput.iteration_time import IterationParameters
from metasched.throughput.job_goodput import batch_limits
from metasched.throughput.measured_speed import MeasuredSpeed
from metasched.throughput.scaling_curve import training_of_run
from policies.baselines.fifo import Fifo
from policies.baselines.gandiva import Gandiva
from policies.baselines.las import Las
from policies.pollux.policy import Pollux, PolluxParameters
from tests import builders

NOW = 10_000.0
NODE = Node("n1", "v100", 4, 64, 1 << 40)
SETTINGS = Settings(round_seconds=100.0, min_round_seconds=0.0)


def job(uid, submitted, gpus=4, **facts):
    return builders.job(uid, gpus, submitted=submitted, **facts)


def running(uid, submitted, seconds, gpus=4, **facts):
    """A job that has run for so long."""
    return job(
        uid,
        submitted,
        gpus,
        status=Status.RUNNING,
        placement=Placement(("n1",), gpus, "v100"),
        run=1,
        run_started=NOW - seconds,
        attained={"v100": gpus * seconds},
        ran_seconds=seconds,
        **facts,
    )


def look(*jobs):
    return Snapshot(NOW, 7, 100.0, (NODE,), jobs)


def known(**left):
    """Seconds that are left of each job at its size, after 1000."""
    return {uid: Estimate(training_of_run(1000.0 + seconds, 4), 1000.0, "known") for uid, seconds in left.items()}


def pair_size(**left):
    """The same for jobs of two GPUs."""
    return {uid: Estimate(training_of_run(1000.0 + seconds, 2), 1000.0, "known") for uid, seconds in left.items()}


def test_a_running_job_keeps_its_gpus_to_its_end():
    """It does not restart, and a waiting job starts after it."""
    found = forecast(look(running("a", 0.0, 1000.0), job("b", 5.0)), known(a=300.0, b=200.0), {"f": Fifo()}, SETTINGS)
    assert [one.ends["f"] for one in found] == [NOW + 300.0, NOW + 500.0]
    assert [one.preemptions["f"] for one in found] == [0, 0]
    assert [one.gpu_seconds["f"] for one in found] == [4 * 300.0, 4 * 200.0]


def test_forecasts_differ_by_policy():
    """LAS stops a job with much service for one without; FIFO does not."""
    policies = {"f": Fifo(), "l": Las(Las.Parameters(queue_thresholds_gpu_seconds=(100.0,)))}
    old = running("a", 0.0, 1000.0, preemptions=2)
    one, other = forecast(look(old, job("b", 5.0)), known(a=300.0, b=50.0), policies, SETTINGS)
    assert (one.preemptions, other.ends) == ({"f": 0, "l": 1}, {"f": NOW + 350.0, "l": NOW + 50.0})
    assert one.ends["l"] == NOW + 350.0


def test_only_started_jobs_pay_for_a_start():
    """A job that runs already does not."""
    settings = Settings(round_seconds=100.0, min_round_seconds=0.0, start_seconds=60.0, restart_seconds=60.0)
    jobs = look(running("a", 0.0, 1000.0), job("b", 5.0))
    found = forecast(jobs, known(a=300.0, b=200.0), {"f": Fifo()}, settings)
    assert [one.ends["f"] for one in found] == [NOW + 300.0, NOW + 560.0]


def test_a_restart_costs_what_was_measured():
    """Jobs without a measured restart have that of the settings."""
    settings = Settings(round_seconds=100.0, min_round_seconds=0.0, restart_seconds=60.0)
    policies = {"l": Las(Las.Parameters(queue_thresholds_gpu_seconds=(100.0,)))}
    for measured, seconds in ((None, 60.0), (7.0, 7.0)):
        jobs = look(running("a", 0.0, 1000.0, restart_seconds=measured), job("b", 5.0))
        (restarted, _) = forecast(jobs, known(a=300.0, b=50.0), policies, settings)
        assert restarted.ends["l"] == NOW + 350.0 + seconds


def test_blocked_jobs_are_left_out_unless_they_run():
    """A job that must not start is not in the forecast; a running one keeps its GPUs to its end."""
    blocked = Reason.text("it waits for job 3")
    jobs = look(running("a", 0.0, 1000.0, blocked=blocked), job("b", 5.0), job("c", 6.0, blocked=blocked))
    found = forecast(jobs, known(a=300.0, b=200.0), {"f": Fifo()}, SETTINGS)
    assert {one.job.uid: one.ends["f"] for one in found} == {"a": NOW + 300.0, "b": NOW + 500.0}


def test_a_job_that_an_admin_suspended_stays_suspended():
    """It holds its GPUs without progress, even if the daemon had asked it to stop; other jobs wait."""
    asleep = running("a", 0.0, 1000.0, gpus=2).evolve(status=Status.SUSPENDED, stop_requested=NOW - 1.0)
    jobs = look(asleep, running("b", 0.0, 1000.0, gpus=2), job("c", 6.0))
    found = forecast(jobs, pair_size(a=300.0, b=300.0) | known(c=100.0), {"f": Fifo()}, SETTINGS)
    assert {one.job.uid: one.ends["f"] for one in found} == {"a": None, "b": NOW + 300.0, "c": None}


@pytest.mark.parametrize("limit", [Quota("gpus", frozenset("ab"), 2), Quota("jobs", frozenset("ab"), 1, of_jobs=True)])
def test_quotas_hold_in_the_forecast(limit):
    """Two jobs that fit together run one after the other where a quota allows no more."""
    jobs = look(running("a", 0.0, 1000.0, gpus=2), job("b", 5.0, gpus=2))
    for limits, second in (((), 200.0), ((limit,), 500.0)):
        view = Snapshot(NOW, 7, 100.0, (NODE,), jobs.jobs, quotas=limits)
        found = forecast(view, pair_size(a=300.0, b=200.0), {"f": Fifo()}, SETTINGS)
        assert [one.ends["f"] for one in found] == [NOW + 300.0, NOW + second]


def test_a_job_on_a_node_that_is_not_listed_keeps_its_gpus():
    """The daemon does not move it either; no other job starts on that node."""
    away = running("a", 0.0, 1000.0).evolve(placement=Placement(("gone",), 4, "v100"))
    found = forecast(
        look(away, job("b", 5.0), job("c", 6.0)), known(a=300.0, b=200.0, c=100.0), {"f": Fifo()}, SETTINGS
    )
    assert [one.ends["f"] for one in found] == [NOW + 300.0, NOW + 200.0, NOW + 300.0]


class Curious(Fifo):
    """Remembers what it was shown."""

    steady = False

    def __init__(self):
        super().__init__()
        self.seen = []

    def decide(self, snapshot, state):
        facts = {job.uid: (job.total_steps, job.progress_steps) for job in snapshot.jobs}
        self.seen.append((snapshot.round, dict(state.data), facts))
        return super().decide(snapshot, state)


def test_a_policy_continues_from_its_state():
    """Round number and state are those of the daemon; assumed work is hidden from the policy."""
    policies = {"now": Curious(), "new": Curious()}
    estimates = {
        **pair_size(a=300.0),
        **known(c=100.0),
        "b": Estimate(training_of_run(500.0, 2), 200.0, "its own reports", declared=True),
    }
    jobs = look(running("a", 0.0, 1000.0, gpus=2), running("b", 0.0, 1000.0, gpus=2), job("c", 5.0))
    forecast(jobs, estimates, policies, SETTINGS, {"now": PolicyState(1, {"known": 5})})
    facts = {"a": (None, None), "b": (500.0, 200.0), "c": (None, None)}
    assert policies["now"].seen[0] == (8, {"known": 5}, facts)
    assert policies["new"].seen[0] == (8, {}, facts)
    assert [facts["a"] for _, _, facts in policies["now"].seen if "a" in facts] == [(None, None)] * 3


@pytest.mark.parametrize(
    ("facts", "seconds", "how"),
    [
        ({}, 14400.0, "assumed"),
        ({"time_limit_seconds": 1800.0}, 1800.0, "its time limit"),
        ({"time_limit_seconds": 1e6}, 14400.0, "assumed"),
        ({"total_steps": 100, "whole_gpus": True}, 14400.0, "assumed"),
        ({"total_steps": 100}, 50.0, "its own reports"),
    ],
)
def test_the_work_of_a_job_that_has_not_run_is_estimated(tmp_path, facts, seconds, how):
    """It is the assumption, at most the time limit; for jobs that may share GPUs, the learned isolated speeds count."""
    learned = MeasuredSpeed("ann/x", {("v100", (4,)): 2.0}, {(("v100", (4,)), "ann/y"): 1.0})
    with Store.open(tmp_path / "metasched.db") as store:
        found = estimate_all(store, [job("a", 0.0, speed=learned, **facts)], 14400.0, 0.9)["a"]
    speed = found.training.pace(0.0, Placement(("n1",), 4, "v100")).steps_per_second
    assert (found.training.total / speed, found.how, found.declared) == (seconds, how, how == "its own reports")


def test_a_job_that_fits_nowhere_never_ends():
    """Its forecast has no end."""
    found = forecast(look(job("a", 0.0, gpus=8)), known(a=300.0), {"f": Fifo()}, SETTINGS)
    assert found[0].ends == {"f": None}


def test_a_simulation_that_moves_jobs_faster_than_they_restart_ends():
    """The jobs are reported as not complete."""
    settings = Settings(round_seconds=3.0, min_round_seconds=0.0, restart_seconds=60.0)
    policy = Las(Las.Parameters(queue_thresholds_gpu_seconds=(1.0,), promote_knob=1.0))
    jobs = look(running("a", 0.0, 5.0), job("b", NOW))
    found = forecast(jobs, known(a=3000.0, b=3000.0), {"l": policy}, settings)
    assert None in {one.ends["l"] for one in found}


def test_co_located_jobs_stay_co_located():
    """The snapshot says that the cluster shares GPUs; no job is stopped."""
    pair = [running(uid, 0.0, 1000.0, co_runner=other) for uid, other in ("ab", "ba")]
    view = Snapshot(NOW, 7, 100.0, (NODE,), tuple(pair), sharing=True)
    found = forecast(view, known(a=300.0, b=300.0), {"g": Gandiva()}, SETTINGS)
    assert [one.preemptions["g"] for one in found] == [0, 0]
    assert all(one.ends["g"] is not None for one in found)


NOISE = GradientNoise(1.0, 1e6)
THETA = (0.02, 0.001, 0.01, 0.001, 0.05, 0.002, 1.5)


def adaptive(uid, *, noise=NOISE, **facts):
    """A job of one to four GPUs whose trainers have reported its batch, its noise and its iterations."""
    batching = Batching(64, BatchControl.SCHEDULER, BatchPlan(64), 64, max_batch=4096, max_per_gpu=256)
    known = {"batching": batching, "noise": noise, "iteration_parameters": {"v100": THETA}, "adaptive_batch": True}
    return running(uid, 0.0, 1000.0, 1, most_gpus=4, **known | facts).evolve(min_gpus=1, max_gpus=4)


def test_a_job_whose_batch_adapts_is_forecast_by_its_fitted_goodput(tmp_path):
    """On the same GPUs Pollux gives it larger batches; under FIFO it keeps its batch."""
    one = adaptive("a", total_steps=10_000.0, progress_steps=4000.0)
    with Store.open(tmp_path / "metasched.db") as store:
        estimates = estimate_all(store, [one], 14400.0, 0.9)
    assert (estimates["a"].how, estimates["a"].declared) == ("its fitted goodput", True)
    policies = {"f": Fifo(), "p": Pollux(PolluxParameters(background=False))}
    (found,) = forecast(look(one), estimates, policies, SETTINGS)
    theta = IterationParameters(*THETA)
    assert found.ends["f"] - NOW == pytest.approx(6000 * theta.iteration_seconds(4, 16, 1, multi_node=False))
    best = Goodput(theta, batch_limits(one.batching), 1e6).best(4, multi_node=False)
    assert found.ends["p"] - NOW == pytest.approx(6000 * 64 / best.goodput, rel=0.01)


@pytest.mark.parametrize(
    "facts", [{"noise": None}, {"iteration_parameters": {}}, {"batching": Batching(64, BatchControl.SCRIPT)}]
)
def test_a_job_whose_goodput_is_not_known_is_forecast_by_its_speed(tmp_path, facts):
    """So is one whose batch metasched must not change."""
    with Store.open(tmp_path / "metasched.db") as store:
        one = adaptive("a", total_steps=100.0, speed=MeasuredSpeed("ann/x", {("v100", (1,)): 2.0}), **facts)
        assert estimate_all(store, [one], 14400.0, 0.9)["a"].how == "its own reports"
