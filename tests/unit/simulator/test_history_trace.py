import pytest

from metasched.core.batching import BatchControl, Batching, BatchPlan, GradientNoise
from metasched.core.model import Placement, Preempt
from metasched.simulator.recorded_trainings import reported_curves
from metasched.simulator.traces.errors import TraceError
from metasched.simulator.traces.history import read_history
from metasched.simulator.traces.sacct import read_sacct
from metasched.store import EndCause, JobRecord, Store
from metasched.store.row_conversion import record_json
from metasched.throughput.training import AdaptiveTraining

UID = "0123456789abcdef"
ONE, TWO = Placement(("n1",), 1, "v100"), Placement(("n1",), 2, "v100")
NEEDS = {
    "gpus": 2,
    "min_gpus": 1,
    "max_gpus": 4,
    "gpu_types": ["v100"],
    "weight": 0.5,
    "preempt": "no",
    "slo_seconds": 9.0,
}

SACCT = "JobID|JobName|User|Account|Submit|ElapsedRaw|AllocTRES\n"


def ended(store, uid, submitted, runs, *, steps=None, needs=NEEDS):
    """Store a finished job with a run for each (placement, seconds) of `runs`."""
    store.add_job(
        JobRecord(uid, uid[:3], "net", "ann", submitted, account="lab", requirements=needs, progress_steps=steps)
    )
    for number, (placement, seconds) in enumerate(runs, start=1):
        store.release(uid, number, placement, submitted)
        store.run_started(uid, number, submitted + 10, placement)
        store.run_ended(uid, number, submitted + 10 + seconds, EndCause.FINISHED)
    store.finish_job(uid, submitted + 1000, "COMPLETED", 0)


def reported(store, run, steps, seconds):
    """Store a speed report of the trainer of run number `run`, which has `run` GPUs."""
    with store.transaction():
        store._write(
            "INSERT INTO throughput (uid, run, generation, at, step, steps, samples, seconds, world_size,"
            " global_batch, per_gpu_batch, accumulation) VALUES (?, ?, 1, 0, ?, ?, 8, ?, ?, 8, 8, 1)",
            [UID, run, steps, steps, seconds, run],
        )


@pytest.fixture
def store(tmp_path):
    with Store.open(tmp_path / "metasched.db") as made:
        yield made


def test_speeds_are_measured_by_size_and_extrapolated_beyond(store):
    """All reports of a size count together; beyond the measured sizes the exponent decides."""
    ended(store, UID, 0.0, [(ONE, 100), (TWO, 100)], steps=500)
    reported(store, 1, 100, 50.0)
    reported(store, 1, 100, 150.0)
    reported(store, 2, 300, 100.0)
    curve = reported_curves(store, UID, 0.5)["v100"]
    assert [curve.at(1), curve.at(2)] == [1.0, 3.0]
    assert curve.at(8) == pytest.approx(6.0)


def test_history_becomes_a_workload(store, tmp_path):
    """Jobs that ran have their requests and the work that they did; the clock begins at the first arrival."""
    ended(store, UID, 5000.0, [(ONE, 100), (TWO, 100)], steps=400)
    reported(store, 1, 100, 100.0)
    reported(store, 2, 300, 100.0)
    ended(store, "f" * 16, 4000.0, [(TWO, 300)])
    ended(store, "e" * 16, 6000.0, [])
    first, second = read_history(tmp_path / "metasched.db").submissions
    assert (first.job.uid, first.job.submitted, second.job.submitted) == ("f" * 16, 0.0, 1000.0)
    assert first.training.pace(0.0, TWO).steps_per_second * 300 == first.training.total
    assert second.training.total == 400
    assert second.training.pace(0.0, TWO).steps_per_second == 3.0
    assert (second.job.gpus, second.job.min_gpus, second.job.max_gpus, second.job.weight) == (2, 1, 4, 0.5)
    assert (second.job.preempt, second.job.slo_seconds) == (Preempt.NO, 9.0)


def test_jobs_without_gpus_have_the_speed_that_they_reported(store, tmp_path):
    """The number of their processes does not matter, so that their simulation ends."""
    spot = Placement(("n1",), 0, None)
    ended(store, UID, 0.0, [(spot, 100)], steps=400, needs={"gpus": 0, "min_gpus": 0, "max_gpus": 0})
    reported(store, 1, 300, 100.0)
    (found,) = read_history(tmp_path / "metasched.db").submissions
    assert found.training.pace(0.0, spot).steps_per_second == 3.0


def test_a_broken_request_is_refused(store, tmp_path):
    """The error names a row without a number of GPUs, and a job that needs more GPUs than the cluster has."""
    ended(store, UID, 0.0, [(ONE, 100)], needs={})
    with pytest.raises(TraceError, match=f"jobs.requirements.*{UID}"):
        read_history(tmp_path / "metasched.db")
    store.update_job(UID, requirements={**NEEDS, "preempt": "maybe"})
    with pytest.raises(TraceError, match="maybe"):
        read_history(tmp_path / "metasched.db")
    store.update_job(UID, requirements={**NEEDS, "min_gpus": 9, "gpus": 9, "max_gpus": 9})
    with pytest.raises(TraceError, match="9 GPUs at least"):
        read_history(tmp_path / "metasched.db", most_gpus=8)


def test_gpu_jobs_of_sacct_that_ran_are_read(tmp_path):
    """They are ordered by submission; steps, CPU jobs and jobs that never ran are left out."""
    path = tmp_path / "jobs.txt"
    path.write_text(
        SACCT
        + "8|late|bob|ml|2025-03-01T10:00:30|60|billing=4,cpu=4,gres/gpu=2,gres/gpu:v100=2,node=1\n"
        + "7|early|ann||2025-03-01T10:00:00|3600|cpu=4,gres/gpu:v100=1,gres/gpu=1\n"
        + "7.batch|batch|||2025-03-01T10:00:00|3600|cpu=4,gres/gpu=1\n"
        + "9|cpu|ann|ml|2025-03-01T10:00:00|3600|cpu=4\n"
        + "10|never|ann|ml|2025-03-01T10:00:00|0|cpu=4,gres/gpu=1\n"
        + "11|typed|bob|ml|2025-03-01T10:01:00|60|cpu=4,gres/gpu:a100=2,gres/gpu:v100=1\n"
    )
    found = read_sacct(path).submissions
    assert [(one.job.name, one.job.submitted, one.job.gpus, one.job.account) for one in found] == [
        ("7", 0.0, 1, None),
        ("8", 30.0, 2, "ml"),
        ("11", 60.0, 3, "ml"),
    ]
    assert found[0].training.pace(0.0, ONE).steps_per_second * 3600 == found[0].training.total


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("1|a|b|c|yesterday|60|gres/gpu=1", "line 2, column 'Submit'"),
        ("1|a|b|c|2025-03-01T10:00:00|-1|gres/gpu=1", "line 2, column 'ElapsedRaw'"),
        ("1|a|b|c|2025-03-01T10:00:00|60|gres/gpu=many", "line 2, column 'AllocTRES'"),
        ("1|a|b|c|2025-03-01T10:00:00|60|gres/gpu:v100=2G", "line 2, column 'AllocTRES'"),
        ("1|a|b|c|2025-03-01T10:00:00|60|gres/gpu=16", "cluster can give one job 8"),
        ("1|a|b", "line 2"),
    ],
)
def test_bad_accounting_is_refused(tmp_path, line, told):
    """The error names the line and the column."""
    path = tmp_path / "jobs.txt"
    path.write_text(SACCT + line + "\n")
    with pytest.raises(TraceError, match=told):
        read_sacct(path, most_gpus=8)


def test_jobs_whose_batch_changed_have_their_fitted_goodput(store, tmp_path):
    """Their work is in steps at the first batch, with which they begin, and simulations can give them other batches."""
    ended(store, UID, 0.0, [(ONE, 100), (TWO, 100)], steps=900.0, needs={**NEEDS, "adaptive_batch": True})
    limits = Batching(8, BatchControl.SCHEDULER, BatchPlan(32), 64, max_batch=64, max_per_gpu=32)
    with store.transaction():
        values = [record_json(limits), record_json(GradientNoise(1.0, 100.0)), UID]
        store._write("UPDATE jobs SET batching = ?, noise = ? WHERE uid = ?", values)
    reported(store, 1, 100, 100.0)
    reported(store, 2, 100, 100.0)
    (submission,) = read_history(tmp_path / "metasched.db").submissions
    training = submission.training
    assert isinstance(training, AdaptiveTraining)
    assert (training.total, training.noise(0.0, 8).scale) == (900.0, 100.0)
    assert training.own_plan(TWO).global_batch(2) == 8
    assert training.iteration_seconds(ONE, BatchPlan(8)) == pytest.approx(1.0, rel=0.01)
    faster = training.tuned_pace(0.0, TWO, BatchPlan(32)).steps_per_second
    assert faster > training.pace(0.0, TWO).steps_per_second
    assert submission.job.iteration_parameters == {}
