"""Speeds learnt from trainers' reports."""

import pytest

from metasched.core.model import Placement, Status
from metasched.learning.throughput_learning import ThroughputLearning
from metasched.shared_dir.reports import StepsReport
from metasched.store import JobRecord, SpeedRecord, Store
from metasched.store.report_rows import ReportFile
from metasched.throughput.measured_speed import REPORT_WEIGHT, MeasuredSpeed
from tests.builders import job

V100 = Placement(("n1",), 1, "v100")
K80 = Placement(("n2",), 1, "k80")


@pytest.fixture
def store(tmp_path):
    with Store.open(tmp_path / "m.db") as opened:
        for uid in ("a", "b"):
            opened.add_job(JobRecord(uid, uid, "job", "ann", 0.0))
            opened.release(uid, 1, V100, 0.0)
            opened.run_started(uid, 1, 0.0, V100)
        yield opened


def running(uid, place=V100, **more):
    return job(uid, status=Status.RUNNING, placement=place, run=1, **more)


def report(store, uid, at, seconds, steps, *, batch=1):
    """A line of `steps` that ends at an instant."""
    line = StepsReport(
        at=at, step=steps, steps=steps, samples=steps, seconds=seconds, loss=None, world_size=1, global_batch=batch,
        per_gpu_batch=batch, accumulation=1,
    )  # fmt: skip
    file = store.report_files(uid).get(1, ReportFile(uid, 1, run=1))
    store.commit_reports(file, [line], latest=True)


def poll(learning, now, *jobs, reported=(), subjects=None):
    learning.learn(jobs, subjects or {job.uid: job.uid for job in jobs}, reported, {}, now)


def test_a_speed_is_known_where_the_job_ran(store):
    """It is unknown elsewhere; a restarted daemon knows it, too."""
    learning = ThroughputLearning(store, 0.6)
    poll(learning, 10.0, running("a"))
    report(store, "a", 15.0, 4.0, 20)
    poll(learning, 16.0, running("a"), reported={"a"})
    for known in (learning, ThroughputLearning(store, 0.6)):
        speed = known.speed("a")
        assert speed.steps_per_second("v100", (1,)) == 5.0
        assert speed.steps_per_second("k80", (1,)) is None


def test_two_batches_of_a_model_are_not_averaged(store):
    """Each batch has its own speed; a job whose batch is not known has that of the latest one."""
    learning = ThroughputLearning(store, 0.6)
    pair, subjects = (running("a"), running("b")), {"a": "ann/net", "b": "ann/net"}
    poll(learning, 10.0, *pair, subjects=subjects)
    report(store, "a", 15.0, 4.0, 20, batch=32)
    report(store, "b", 16.0, 4.0, 8, batch=128)
    poll(learning, 17.0, *pair, subjects=subjects, reported=["a", "b"])
    for known in (learning, ThroughputLearning(store, 0.6)):
        assert known.speed("ann/net", 32).steps_per_second("v100", (1,)) == 5.0
        assert known.speed("ann/net", 128).steps_per_second("v100", (1,)) == 2.0
        assert known.speed("ann/net").batch == 128
        assert known.speed("ann/net", 64).steps_per_second("v100", (1,)) is None


def test_speeds_of_before_batches_were_recorded_count_until_a_batch_is_measured(store):
    """They were means over all batches; nothing that was learnt is lost."""
    store.set_speed(SpeedRecord("ann/net", "v100", (1,), None, 3.0, 1.0))
    store.set_speed(SpeedRecord("ann/net", "v100", (2,), None, 4.0, 1.0))
    learning = ThroughputLearning(store, 0.6)
    poll(learning, 10.0, running("a"), subjects={"a": "ann/net"})
    report(store, "a", 15.0, 4.0, 20, batch=32)
    assert learning.speed("ann/net", 32).steps_per_second("v100", (1,)) == 3.0
    poll(learning, 16.0, running("a"), subjects={"a": "ann/net"}, reported=["a"])
    assert learning.speed("ann/net", 32).steps_per_second("v100", (1,)) == pytest.approx(3.0 + REPORT_WEIGHT * 2.0)
    assert learning.speed("ann/net", 32).steps_per_second("v100", (2,)) == 4.0


def test_reports_without_a_co_runner_tell_the_time_of_an_iteration(store):
    """The parameters of the subject's GPU type are fitted to them."""
    learning = ThroughputLearning(store, 0.6)
    poll(learning, 10.0, running("a"))
    for at, seconds, batch in ((15.0, 4.0, 16), (21.0, 6.0, 32)):
        report(store, "a", at, seconds, 20, batch=batch)
        poll(learning, at + 1, running("a"), reported=["a"])
    found = learning.iteration_parameters("a")["v100"]
    assert found.iteration_seconds(1, 16, 1, multi_node=False) == pytest.approx(0.2, rel=0.01)
    assert found.iteration_seconds(1, 32, 1, multi_node=False) == pytest.approx(0.3, rel=0.01)
    learning.forget("a")
    assert learning.iteration_parameters("a") == {}


def test_the_speed_of_a_job_without_a_model_is_dropped_at_its_end(store):
    """The speed of a model stays."""
    learning = ThroughputLearning(store, 0.6)
    pair, subjects = (running("a"), running("b", K80)), {"a": "a", "b": "ann/net"}
    poll(learning, 10.0, *pair, subjects=subjects)
    for uid in ("a", "b"):
        report(store, uid, 15.0, 4.0, 20)
    poll(learning, 16.0, *pair, subjects=subjects, reported={"a", "b"})
    for uid in ("a", "b"):
        learning.forget(uid)
    assert [record.subject for record in store.speeds()] == ["ann/net"]
    assert learning.speed("ann/net").steps_per_second("k80", (1,)) == 5.0
    assert learning.speed("a").alone == {}


def test_subjects_without_jobs_and_measurements_are_dropped(store):
    """Users may name ever new models."""
    learning = ThroughputLearning(store, 0.6)
    for number in range(3):
        learning.speed(f"ann/{number}")
        poll(learning, 10.0, running("a"), subjects={"a": f"ann/{number}"})
    assert list(learning._speeds) == ["ann/2"]


@pytest.mark.parametrize("before", [{"place": K80}, {"co_runner": "b"}, None])
def test_a_report_that_began_before_a_change_is_not_counted(store, before):
    """Its steps ran in two placements, or with and without a co-runner, or began before the first poll."""
    learning = ThroughputLearning(store, 0.6)
    if before is not None:
        poll(learning, 10.0, running("a", **before), running("b"))
    poll(learning, 14.0, running("a"), running("b"))
    report(store, "a", 15.0, 4.0, 20)
    poll(learning, 16.0, running("a"), running("b"), reported={"a"})
    assert learning.speed("a").steps_per_second("v100", (1,)) is None


def test_a_speed_with_a_co_runner_is_known_by_the_co_runners_model(store):
    """An unmeasured co-runner is expected to leave a fixed fraction of the speed."""
    learning = ThroughputLearning(store, 0.6)
    subjects = {"a": "ann/gpt", "b": "ann/bert"}
    pair = (running("a", co_runner="b"), running("b", co_runner="a"))
    poll(learning, 10.0, *pair, subjects=subjects)
    report(store, "a", 15.0, 4.0, 12)
    poll(learning, 16.0, *pair, subjects=subjects, reported={"a"})
    gpt = learning.speed("ann/gpt")
    assert gpt.steps_per_second_with(learning.speed("ann/bert"), "v100", (1,)) == 3.0
    assert gpt.steps_per_second_with(MeasuredSpeed("else"), "v100", (1,)) is None
    assert gpt.after(("v100", (1,)), None, 5.0).steps_per_second_with(MeasuredSpeed("else"), "v100", (1,)) == 3.0


def test_a_job_with_a_suspended_co_runner_counts_as_alone(store):
    """In time-slicing only one of the two computes."""
    learning = ThroughputLearning(store, 0.6)
    pair = (running("a", co_runner="b"), running("b", co_runner="a").evolve(status=Status.SUSPENDED))
    poll(learning, 10.0, *pair)
    report(store, "a", 15.0, 4.0, 20)
    poll(learning, 16.0, *pair, reported={"a"})
    assert learning.speed("a").steps_per_second("v100", (1,)) == 5.0


def test_newer_reports_change_the_mean_a_little(store):
    """One deviating report does not overturn a policy's time shares."""
    learning = ThroughputLearning(store, 0.6)
    poll(learning, 10.0, running("a"))
    for at, steps in ((15.0, 20), (20.0, 40)):
        report(store, "a", at, 4.0, steps)
        poll(learning, at + 1, running("a"), reported={"a"})
    assert learning.speed("a").steps_per_second("v100", (1,)) == pytest.approx(5 + REPORT_WEIGHT * 5)


@pytest.mark.parametrize(("seconds", "is_told"), [(10.0, False), (9.1, False), (8.0, True), (0.001, True)])
def test_a_speed_is_that_of_the_clock(store, seconds, is_told):
    """100 steps every 10 s are 10 steps a second, also if they took a millisecond; a pause of an hour slows none."""
    learning = ThroughputLearning(store, 0.6)
    poll(learning, 10.0, running("a"))
    for number in range(60):
        at = 20.0 + 10.0 * number + (3600.0 if number >= 20 else 0.0)
        report(store, "a", at, seconds, 100)
        poll(learning, at + 1, running("a"), reported={"a"})
    assert learning.speed("a").steps_per_second("v100", (1,)) == pytest.approx(10.0, rel=0.02)
    told = [event.kind for event in store.recent_events(10, "a")]
    assert told == (["speed-implausible"] if is_told else [])
