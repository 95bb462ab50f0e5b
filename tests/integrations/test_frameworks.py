"""Under each framework: stops, sizes and failures, and the training is as if nothing had happened."""

import json
import signal

import pytest
import torch

pytestmark = pytest.mark.shim

SLOW = ("--step-seconds", "0.1")
DROPOUT = ("--dropout", "0.1")


def parameters(place):
    return torch.load(place.directory / "final.pt")


@pytest.fixture(scope="module")
def undisturbed(job):
    """A job that runs through, at one rank, with a periodic checkpoint of every step."""
    place = job()
    assert place.wait(place.launch(1, "--checkpoint-every", 0, forked=False)) == [0]
    return place


@pytest.fixture(scope="module")
def resized(job):
    """A job through worlds of 1, 2 and 3 ranks, the second as srun starts it; then started once more."""
    place = job()
    assert place.stop_at(3, 1) == [85]
    assert place.stop_at(7, 2, rank=1, slurm=True, forked=False) == [85, 85]
    assert place.wait(place.launch(3)) == [0, 0, 0]
    assert place.wait(place.launch(1)) == [0]
    return place


@pytest.fixture(scope="module")
def beaten(job):
    """A job of one rank with dropout: killed in the middle of a checkpoint, stopped by SIGTERM, and run to the end."""
    place = job()
    assert place.wait(place.launch(1, *DROPOUT, "--checkpoint-every", 0, "--die-in-save", 6)) == [-signal.SIGKILL]
    assert place.stop_at(8, 1, *DROPOUT, number=signal.SIGTERM) == [85]
    assert place.wait(place.launch(1, *DROPOUT)) == [0]
    return place


def test_every_sample_once_through_all_sizes(resized, undisturbed, common):
    """The surviving history has the undisturbed run's global batches, and each sample once in every epoch."""
    batches = resized.surviving()
    assert batches == undisturbed.surviving()
    per_epoch = common.SAMPLES // common.GLOBAL_BATCH
    for epoch in range(common.EPOCHS):
        seen = [index for step in range(per_epoch) for index in batches[epoch * per_epoch + step + 1]]
        assert sorted(seen) == list(range(common.SAMPLES))
    assert batches[1] != batches[per_epoch + 1]


def test_parameters_through_all_sizes(resized, undisturbed):
    """Stops and sizes change the parameters by rounding only."""
    torch.testing.assert_close(parameters(resized), parameters(undisturbed), rtol=0, atol=1e-12)


LOSS = {"lightning": ("loss_step", 0), "transformers": ("train/loss", 1), "accelerate": ("loss", 1)}


@pytest.mark.parametrize("history", ["resized", "beaten"])
def test_a_tracker_has_one_run(history, framework, request, common):
    """Over stops, kills and sizes, a tracker has one run with each step's loss once, and no other point twice."""
    place = request.getfixturevalue(history)
    lines = [json.loads(line) for line in (place.directory / "points.jsonl").read_text().splitlines()]
    added = {"run", "step", "epoch", "train/epoch"}  # the epoch comes with every value
    points = [(name, line["step"]) for line in lines if "step" in line for name in line.keys() - added]
    assert len(points) == len(set(points))
    name, first = LOSS[framework]
    steps = common.EPOCHS * common.SAMPLES // common.GLOBAL_BATCH
    assert sorted(step for each, step in points if each == name) == list(range(first, first + steps))
    if framework == "lightning":
        assert [each for each, _ in points].count("loss_epoch") == common.EPOCHS
    assert len({line["run"] for line in lines}) == 1
    outcomes = [line["outcome"] for line in lines if "outcome" in line]
    assert "failed" not in outcomes
    assert outcomes[-1] == "finished"


def test_reports(resized):
    """Each generation reports its start, its plan, its steps and how it ended, as the protocol says."""
    plans = {1: (12, 4, 3), 2: (12, 3, 2), 3: (12, 4, 1)}
    for number, plan in plans.items():
        lines = resized.report(number)
        kinds = [line["kind"] for line in lines]
        assert kinds[:2] == ["start", "declare"]
        assert (lines[0]["world_size"], lines[0]["resumed"], lines[1]["total_steps"]) == (number, number > 1, 12)
        steps = [line for line in lines if line["kind"] == "steps"]
        assert lines[0]["step"] + sum(line["steps"] for line in steps) == steps[-1]["step"]
        for line in steps:
            assert (line["global_batch"], line["per_gpu_batch"], line["accumulation"]) == plan
            assert line["loss"] is None or 0 < line["loss"] < 2
            assert line["samples"] == 12 * line["steps"]
        if number < 3:
            assert kinds[-2:] == ["checkpoint", "stop"]
            assert (lines[-1]["cause"], lines[-1]["checkpointed"]) == ("signal", True)
    assert any(line["loss"] for line in steps)  # a framework may tell it late
    assert [line["cause"] for line in lines if line["kind"] == "checkpoint"] == ["final"]
    assert (lines[-1]["kind"], lines[-1]["step"], lines[-1]["samples"]) == ("end", 12, 144)


def test_a_finished_job_trains_no_more(resized):
    """Started again, a finished job loads its end, trains nothing, and reports an end."""
    assert resized.trained(4) == []
    assert [line["kind"] for line in resized.report(4)] == ["start", "declare", "end"]


def test_the_last_checkpoint_says_that_it_is(undisturbed):
    """A job whose last step was saved periodically is known to be finished."""
    manifest = undisturbed.directory / "checkpoints" / "incarnation-1" / "step-12.json"
    assert json.loads(manifest.read_text())["facts"]["finished"]


def test_logs_outlive_their_trainers(beaten, framework):
    """What Transformers logs for TensorBoard stays where later trainers do not remove it."""
    if framework != "transformers":
        pytest.skip("other frameworks log where the script says")
    assert len(list((beaten.directory / "checkpoints" / "runs").iterdir())) == 3


def test_a_killed_save_is_not_resumed_from(beaten):
    """A trainer that died in the checkpoint of step 6 goes on from the one of step 5."""
    assert beaten.report(2)[0]["step"] == 5
    assert beaten.last_step(1) == 6


def test_same_size_is_bitwise(beaten, job):
    """Killed, stopped and resumed at the same size, dropout included, the parameters are equal to the last bit."""
    place = job()
    assert place.wait(place.launch(1, *DROPOUT)) == [0]
    assert beaten.surviving() == place.surviving()
    torch.testing.assert_close(parameters(beaten), parameters(place), rtol=0, atol=0)


def test_sigterm_is_a_stop(beaten):
    """SIGTERM ends the trainer with a checkpoint and the code that asks for another run."""
    assert beaten.report(2)[-1]["cause"] == "sigterm"
    assert beaten.report(2)[-1]["checkpointed"]
    assert "trained to the end" not in beaten.output(2)


def test_few_checkpoints_are_kept(beaten):
    """The newest two checkpoints are retained, and no folder of an earlier trainer without one."""
    assert len(beaten.checkpoints()) == 2
    assert beaten.checkpoints()[-1] == 12
    assert not (beaten.directory / "checkpoints" / "incarnation-1").exists()


def test_a_superseded_trainer_writes_nothing(job):
    """A trainer that has a successor exits with 76, and leaves no checkpoint that counts."""
    place = job()
    world = place.launch(1, *SLOW, "--halt", 2)
    with place.halted(2):
        (place.directory / "checkpoints" / "incarnations" / "2").touch()
    assert place.wait(world) == [76]
    assert place.checkpoints() == []
    assert place.report(1)[-1]["cause"] == "superseded"
