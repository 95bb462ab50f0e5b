"""Stops outside the steps: in evaluations, while data is awaited, urgent stops, and the script's callbacks."""

import itertools
import json
import os
import signal

import pytest
import torch

from trainer_shim.session.vote_interval import MAX_STEPS

pytestmark = pytest.mark.shim

ONE_EPOCH = ("--samples", 40, "--global-batch", 10, "--epochs", 1)


@pytest.fixture(scope="module")
def in_evaluation(workplace):
    """Stopped by SIGTERM to all processes in an evaluation with loader workers, behind an epoch; then run again."""
    place = workplace()
    first = place.launch(2, *ONE_EPOCH, "--evaluate", 60, "--workers", 1)
    place.wait_for(lambda: len(place.evaluated(1, 1)) >= 2, "an evaluation")
    for process in first.processes:
        os.killpg(process.pid, signal.SIGTERM)
    assert first.wait() == [85, 85]
    second = place.launch(2, *ONE_EPOCH, "--evaluate", 0, "--evaluate-seconds", 0)
    assert second.wait() == [0, 0]
    return place


def test_a_stop_ends_a_long_evaluation_after_an_epoch(in_evaluation):
    """A SIGTERM in a long evaluation behind an epoch ends it there on all ranks; nothing that was trained is lost."""
    assert all(1 < len(in_evaluation.evaluated(1, rank)) < 50 for rank in range(2))
    stop = in_evaluation.report(1)[-1]
    assert (stop["kind"], stop["cause"], stop["step"], stop["checkpointed"]) == ("stop", "sigterm", 4, True)
    assert in_evaluation.report(2)[0]["step"] == 4
    assert in_evaluation.trained(2) == []


def test_an_interrupted_evaluation_is_repeated_by_the_next_run(in_evaluation):
    """Run again, the evaluation begins anew; one rank has no batch, the other one has, and a model with buffers."""
    for rank in range(2):
        expected = [f"epoch 0 {number}" for number in range(rank)]
        assert in_evaluation.evaluated(2, rank) == [*expected, "epoch 0 whole"]


def test_a_stop_in_an_evaluation_saves_what_was_trained(in_evaluation, plain_training):
    """What the script does to its model for an evaluation is not in the checkpoint of a stop in it."""
    final = torch.load(in_evaluation.directory / "final.pt")
    torch.testing.assert_close(final, dict(plain_training(40, 10, 1)), rtol=0, atol=1e-12)


def test_one_rank_may_leave_its_evaluation_early(workplace):
    """When one rank breaks out of its evaluation, the others go through theirs, and all train on."""
    place = workplace()
    args = "--evaluate", 6, "--evaluate-seconds", 0.01, "--evaluate-break", 1
    trainers = place.launch(3, "--samples", 40, "--epochs", 2, *args)
    assert trainers.wait() == [0, 0, 0]
    lengths = [len([line for line in place.evaluated(1, rank) if "whole" not in line]) for rank in range(3)]
    assert lengths == [2 * 6, 2 * 2, 2 * 8]
    assert place.last_step(1) == 8


def test_a_stop_waits_for_the_end_of_an_evaluation_between_steps(workplace):
    """Between two steps a stop waits for the evaluation's end, so that no step is lost or repeated."""
    place = workplace()
    trainers = place.launch(2, "--evaluate", 4, "--evaluate-at", 6, "--evaluate-seconds", "0.1", "--halt", 6)
    with place.halted(1, 6):
        place.wait_for(lambda: place.evaluated(1, 0), "an evaluation")
        trainers.signal(0)
    assert trainers.wait() == [85, 85]
    assert place.evaluated(1)[-1] == "step 6 whole"
    stop = place.report(1)[-1]
    assert 6 <= stop["step"] <= 7
    assert stop["checkpointed"]


@pytest.mark.parametrize("urgency", ["signal", "deadline"])
def test_an_urgent_stop_ends_an_evaluation_between_steps(workplace, urgency):
    """A late SIGTERM, or the deadline, ends an evaluation between two steps at once; the last checkpoint counts."""
    place = workplace()
    trainers = place.launch(1, "--evaluate", 200, "--evaluate-at", 6, "--checkpoint-every", 0)
    place.wait_for(lambda: place.evaluated(1), "an evaluation")
    if urgency == "deadline":
        place.write_lease(1, stop_run=1, seconds=2)
    else:
        trainers.signal(0)
        begun = len(place.evaluated(1))
        place.wait_for(lambda: len(place.evaluated(1)) > begun + 5, "two and a half seconds of evaluation")
        trainers.signal(0, signal.SIGTERM)
    assert trainers.wait() == [85]
    assert "whole" not in place.evaluated(1)[-1]
    stop = place.report(1)[-1]
    assert (stop["step"], stop["checkpointed"]) == (6, False)
    assert place.checkpoint_files()


def test_a_stop_ends_a_wait_for_data(workplace):
    """A stop counts while one rank's data does not come: the steps so far are saved, and no sample is lost."""
    place = workplace()
    stuck = place.directory / "stuck"
    stuck.touch()
    first = place.launch(2, "--workers", 1, "--epochs", 1)
    last = place.wait_for(lambda: place.last_step(1), "a step")
    first.signal(1)
    assert first.wait() == [85, 85]
    stop = place.report(1)[-1]
    assert stop["checkpointed"]
    assert last <= stop["step"] < 21
    stuck.unlink()
    assert place.launch(2, "--workers", 1, "--epochs", 1).wait() == [0, 0]
    assert place.surviving() == {0: list(range(203))}


def test_stop_callbacks_run_before_and_after_the_checkpoint(in_evaluation, workplace):
    """Functions are called on every rank before and after the checkpoint; one that fails changes nothing."""
    place = workplace()
    trainers = place.launch(2, "--step-seconds", "0.03", "--epochs", 1000)
    place.wait_for_step(1, 2)
    trainers.signal(1)
    assert trainers.wait() == [85, 85]
    for rank in range(2):
        output = trainers.output(rank)
        assert output.index(f"before signal on {rank}") < output.index(f"after signal on {rank}")
        assert "ZeroDivisionError" in output
    assert "before" not in in_evaluation.started[0].output()
    assert "after sigterm on 0" in in_evaluation.started[0].output()


def test_a_near_deadline_leaves_out_the_checkpoint(workplace):
    """A deadline nearer than a checkpoint takes means none: the last one counts, and the job is run again."""
    place = workplace()
    trainers = place.launch(1, "--step-seconds", "0.03", "--checkpoint-every", "0.2", "--epochs", 1000)
    place.wait_for(place.checkpoint_files, "a checkpoint")
    place.write_lease(1, stop_run=1, seconds=-1)
    assert trainers.wait() == [85]
    assert "no checkpoint: one took" in trainers.output()
    assert place.report(1)[-1]["step"] >= max(
        int(name.split("-")[3].split(".")[0]) for name in place.checkpoint_files()
    )


@pytest.mark.parametrize("workers", [0, 1])
def test_short_steps_share_votes(workplace, workers):
    """Where steps are short all ranks vote at the same few boundaries, and at the first ones of each epoch."""
    place = workplace()
    args = "--samples", 800, "--epochs", 2, "--workers", workers, "--latency", 3600
    assert place.launch(2, *args).wait() == [0, 0]
    votes, others = (json.loads((place.directory / f"votes-1-{rank}.json").read_text()) for rank in range(2))
    assert votes == others
    assert min(votes.count(0), votes.count(80)) >= 3  # before the epoch, for its data, and in its first step
    assert max(after - before for before, after in itertools.pairwise(votes)) <= MAX_STEPS
    if workers == 0:  # else it depends on whether the data are there in time
        assert len(set(votes)) < 40


def test_long_steps_have_a_vote_each(workplace):
    """With long steps a stop comes at the end of the step in which it was requested."""
    place = workplace()
    assert place.launch(1, "--samples", 200, "--epochs", 1, "--latency", 0).wait() == [0]
    assert set(json.loads((place.directory / "votes-1-0.json").read_text())) >= set(range(20))


def test_reports_tell_waits_from_work(workplace):
    """The reports split a step's time: waits for data, and for a slower rank, are told from work."""
    place = workplace()
    assert place.launch(2, "--read-seconds", "0.02", "--epochs", 1, "--global-batch", 20).wait() == [0, 0]
    lines = [line for line in place.report(1) if line["kind"] == "steps"]
    seconds, data, sync = (sum(line[key] for line in lines) for key in ("seconds", "data_seconds", "sync_seconds"))
    assert data >= 203 * 0.02 / 2
    assert sync >= 0
    assert data + sync <= seconds * 1.05
    assert all(2**20 < line["peak_bytes"] < 2**40 for line in lines)


def test_training_goes_on_while_bytes_are_written(workplace):
    """A periodic checkpoint on a slow disk does not hold the steps up; a stop has its own when that one is done."""
    place = workplace()
    trainers = place.launch(1, "--step-seconds", "0.01", "--checkpoint-every", 0, "--slow-disk", 2, "--epochs", 1000)
    place.wait_for(lambda: len(place.checkpoint_files()) >= 2, "a checkpoint")
    trainers.signal(0)
    assert trainers.wait() == [85]
    written = [line for line in place.report(1) if line["kind"] == "checkpoint"]
    assert written[0]["seconds"] - written[0]["stall_seconds"] >= 2
    assert written[-1]["cause"] == "stop"
    assert written[-1]["stall_seconds"] == written[-1]["seconds"] >= 2
    assert written[1]["step"] > written[0]["step"] + 10
    assert place.launch(1, "--epochs", 1).wait() == [0]


def test_a_script_that_fails_ends_with_its_workers(workplace):
    """An exception ends the trainers, though their loaders' workers do not hear a SIGTERM and one is in a long read."""
    place = workplace()
    (place.directory / "stuck").touch()
    trainers = place.launch(2, "--workers", 1, "--epochs", 1, "--fail-at", 2)
    assert trainers.wait() == [1, 1]
    assert "this step fails" in trainers.output(0)
