"""Stops, resizes and failures, which do not change the result of the training."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.shim

SAMPLES, GLOBAL_BATCH, EPOCHS = 203, 10, 3
STEPS_PER_EPOCH = 21
EVERY_SAMPLE_ONCE = {epoch: list(range(SAMPLES)) for epoch in range(EPOCHS)}
SLOW = ("--step-seconds", "0.03")


@pytest.fixture(scope="module")
def undisturbed(plain_training):
    return plain_training(SAMPLES, GLOBAL_BATCH, EPOCHS)


def assert_close(place, expected):
    found = torch.load(place.directory / "final.pt")
    torch.testing.assert_close(found, dict(expected), rtol=0, atol=1e-12)


@pytest.fixture(scope="module")
def journey(workplace):
    """A job through worlds of 1, 4, 2 and 3 ranks, and started once more when it had finished."""
    place = workplace()
    place.server = None  # real starts: forked processes share the seed of the hashes of strings
    first = place.launch(1, "--halt", 5, run=1)
    with place.halted(1, 5):
        first.signal(0)
    assert first.wait() == [85]

    place.write_lease(run=2)
    second = place.launch(4, "--halt", STEPS_PER_EPOCH + 4, run=2)
    with place.halted(2, STEPS_PER_EPOCH + 4):
        second.signal(2)
    assert second.wait() == [85] * 4

    place.write_lease(run=3, stop_run=2)  # a request to the run before has no effect
    third = place.launch(2, "--step-seconds", "0.1", "--halt", 2 * STEPS_PER_EPOCH, run=3)
    with place.halted(3, 2 * STEPS_PER_EPOCH):
        place.write_lease(run=3, stop_run=3)
    assert third.wait() == [85] * 2

    place.write_lease(run=4)
    fourth = place.launch(3, "--max-per-gpu", 3, "--wrap-by-hand", run=4)  # shares of 2 + 2, 3 and 3
    assert fourth.wait() == [0] * 3

    place.write_lease(run=5)
    fifth = place.launch(1, run=5)
    assert fifth.wait() == [0]
    return place


def test_every_sample_once_through_all_sizes(journey):
    """Every sample of each epoch is trained exactly once in the surviving history, partial batches included."""
    assert journey.surviving() == EVERY_SAMPLE_ONCE


def test_parameters_through_all_sizes(journey, undisturbed):
    """Stops, sizes, uneven shares and uneven accumulation change the parameters by rounding only."""
    assert_close(journey, undisturbed)


def test_all_ranks_stop_together(journey):
    """A signal to one rank stops every rank after the same step, and that step is in the checkpoint."""
    start = journey.report(3)[0]
    assert start["resumed"]
    assert [journey.last_step(2, rank) for rank in range(4)] == [start["step"]] * 4


def test_reports_of_a_stop(journey):
    """A stopped trainer reports its start, its steps, the checkpoint and the cause, and its steps add up."""
    for generation, cause, world in [(1, "signal", 1), (2, "signal", 4), (3, "mailbox", 2)]:
        lines = journey.report(generation)
        kinds = [line["kind"] for line in lines]
        assert kinds[:2] == ["start", "declare"]
        assert kinds[-2:] == ["checkpoint", "stop"]
        start, stop = lines[0], lines[-1]
        assert start["world_size"] == world
        assert start["run"] == start["incarnation"] == generation
        assert 0 < start["init_seconds"] < 120
        assert stop["cause"] == cause
        assert stop["checkpointed"]
        assert start["t"] < stop["noticed"] < stop["t"]
        steps = [line for line in lines if line["kind"] == "steps"]
        assert start["step"] + sum(line["steps"] for line in steps) == stop["step"] == steps[-1]["step"]


def test_reports_of_an_end(journey):
    """The last trainer reports its batch plan, and the end with all samples."""
    lines = journey.report(4)
    steps = next(line for line in lines if line["kind"] == "steps")
    assert (steps["global_batch"], steps["per_gpu_batch"], steps["accumulation"]) == (10, 2, 2)
    end = lines[-1]
    assert (end["kind"], end["step"], end["samples"]) == ("end", EPOCHS * STEPS_PER_EPOCH, EPOCHS * SAMPLES)
    assert [line["cause"] for line in lines if line["kind"] == "checkpoint"][-1] == "final"


def test_a_finished_job_trains_no_further_step(journey):
    """Started again, a finished job ends at once and reports an end."""
    assert journey.trained(5) == []
    assert [line["kind"] for line in journey.report(5)] == ["start", "declare", "end"]


def test_rank_0_logs_the_start(journey):
    """Rank 0 alone logs generation, run, world size and position in one line."""
    assert "generation 2, run 2, world size 4, resumed from step" in journey.started[1].output(0)
    assert "generation" not in journey.started[1].output(1)


def test_same_size_is_bitwise(workplace):
    """Stopped and resumed at the same size, dropout included, the parameters are equal to the last bit."""
    places = [workplace(), workplace()]
    whole = places[0].launch(2, "--dropout", "0.3", "--max-per-gpu", 3, run=None)
    stopped = places[1].launch(2, "--dropout", "0.3", "--max-per-gpu", 3, "--halt", 7)
    with places[1].halted(1, 7):
        stopped.signal(1)
    assert stopped.wait() == [85, 85]
    resumed = places[1].launch(2, "--dropout", "0.3", "--max-per-gpu", 3)
    assert resumed.wait() == [0, 0]
    assert whole.wait() == [0, 0]
    found, expected = (torch.load(place.directory / "final.pt") for place in reversed(places))
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[key], expected[key]) for key in expected)


def mean_loss(place):
    steps = [line for line in place.report(1) if line["kind"] == "steps"]
    return sum(line["loss"] * line["samples"] for line in steps) / sum(line["samples"] for line in steps)


def test_scaled_gradients(workplace, undisturbed):
    """With a gradient scaler the parameters and the reported losses are those of a training without."""
    places = [workplace(), workplace()]
    scaled = places[0].launch(2, "--scaler", "--max-per-gpu", 3)
    plain = places[1].launch(1)
    assert scaled.wait() + plain.wait() == [0, 0, 0]
    assert_close(places[0], undisturbed)
    assert mean_loss(places[0]) == pytest.approx(mean_loss(places[1]), rel=1e-9)


def test_all_objects_survive_a_stop(workplace):
    """A scaler with an overflow behind it, averaged weights and a metric continue after a stop as without one."""
    places = [workplace(), workplace()]
    args = "--scaler", "--overflow-at", 5, "--epochs", 2
    whole = places[0].launch(1, *args, run=None)
    stopped = places[1].launch(1, *args, "--halt", 7)
    with places[1].halted(1, 7):
        stopped.signal(0)
    assert stopped.wait() == [85]
    assert places[1].launch(1, *args).wait() + whole.wait() == [0, 0]
    for name in ("final.pt", "others.pt"):
        found, expected = (torch.load(place.directory / name) for place in reversed(places))
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert expected["scaler"]["scale"] != 2.0**10
    assert expected["metric"]["count"] == 2 * STEPS_PER_EPOCH


def test_a_job_resumes_after_the_kill_of_a_rank(workplace, undisturbed):
    """After kill -9 of a rank the job resumes from its last periodic checkpoint; a damaged newest one is skipped."""
    place = workplace()
    killed = place.launch(2, "--halt", 12, "--checkpoint-every", 0, "--await-saves")
    with place.halted(1, 12):
        place.wait_for(lambda: len(place.manifests()) >= 2, "two checkpoints")
        killed.signal(1, signal.SIGKILL)
    assert killed.processes[0].wait(60) not in {0, 85}  # its collective fails; under srun it would be killed too
    older, newest = sorted(place.manifests(), key=lambda path: int(path.stem.rpartition("-")[2]))[-2:]
    os.truncate(newest.with_suffix(".pt"), newest.with_suffix(".pt").stat().st_size // 2)
    resumed = place.launch(2)
    assert resumed.wait() == [0, 0]
    assert f"{newest} is skipped: its data has" in resumed.output()
    assert place.report(2)[0]["step"] == int(older.stem.rpartition("-")[2]) >= 1
    assert place.surviving() == EVERY_SAMPLE_ONCE
    assert_close(place, undisturbed)


def test_a_second_trainer_supersedes_the_first(workplace):
    """When a second trainer starts on the directory, the first exits with 76 and writes nothing more."""
    place = workplace()
    old = place.launch(2, *SLOW, "--epochs", 1000, "--checkpoint-every", "0.1")
    place.wait_for(place.manifests, "a checkpoint")
    new = place.launch(1, *SLOW, "--epochs", 1000)
    place.wait_for_step(2, 1)
    assert old.wait() == [76, 76]
    stop = place.report(1)[-1]
    assert (stop["kind"], stop["cause"], stop["checkpointed"]) == ("stop", "superseded", False)
    newest = place.report(2)[0]["step"]
    steps = [int(path.stem.partition("-step-")[2]) for path in place.manifests()]
    assert newest == max(steps)
    new.signal(0)
    assert new.wait() == [85]


def test_the_lease_of_a_later_run_supersedes_a_trainer(workplace):
    """A trainer whose run is lower than the lease's exits with 76 and leaves no checkpoint."""
    place = workplace()
    trainers = place.launch(1, *SLOW, "--epochs", 1000, run=1)
    place.wait_for_step(1, 2)
    place.write_lease(run=2)
    assert trainers.wait() == [76]
    assert place.checkpoint_files() == []


def test_a_stop_in_the_first_step_follows_that_step(workplace):
    """A signal during the first step is obeyed after it."""
    place = workplace()
    trainers = place.launch(2, "--halt", 1)
    with place.halted(1, 1):
        trainers.signal(0)
        trainers.signal(0)  # twice is once
    assert trainers.wait() == [85, 85]
    stop = place.report(1)[-1]
    assert stop["step"] <= 2
    assert stop["checkpointed"]


def test_sigterm_without_metasched_saves_a_checkpoint(workplace):
    """Alone, a script checkpoints on a SIGTERM to it and its loader workers, and exits with 143."""
    place = workplace()
    trainers = place.launch(1, "--halt", 5, "--workers", 2, run=None)
    with place.halted(1, 5):
        os.killpg(trainers.processes[0].pid, signal.SIGTERM)
    assert trainers.wait() == [143]
    assert not place.reports.exists()
    step = place.last_step(1)
    assert place.checkpoint_files() == [f"incarnation-1-step-{step}.json", f"incarnation-1-step-{step}.pt"]


def test_an_early_end_is_final(workplace):
    """A script that calls finish() before its last epoch is finished for good; unwritable reports are one warning."""
    place = workplace()
    nowhere = {"METASCHED_REPORTS": "/dev/null/reports"}
    first = place.launch(1, "--last-epoch", 0, **nowhere)
    assert first.wait() == [0]
    assert first.output().count("reports cannot be written") == 1
    second = place.launch(1, **nowhere)
    assert second.wait() == [0]
    assert place.trained(2) == []


def test_the_example_runs_under_torchrun(tmp_path):
    """The example runs under torchrun as it is."""
    example = Path(__file__).parents[2] / "contrib" / "examples" / "train_elastic.py"
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", str(example), "--epochs=1"]
    environ = os.environ | {"PYTHONPATH": str(example.parents[2]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "accuracy" in done.stdout
