"""A companion in a single process: even splits, order, stops and checkpoints."""

import json
import os
import signal
import time

import pytest

from trainer_shim import attach
from trainer_shim.data.even_split import EvenSplit, GlobalOrder, RankBatches, plan_even_split
from trainer_shim.data.sample_order import SampleOrder
from trainer_shim.errors import BatchError, CheckpointError, SupersededError, UsageError
from trainer_shim.session import trainer_session as module


class Stand:
    """A place in the training."""

    def __init__(self, rank, step):
        self.rank = rank
        self.step = step


@pytest.mark.parametrize(
    ("batch", "size", "most", "plan"),
    [(12, 1, None, (12, 1)), (12, 3, None, (4, 1)), (12, 2, 4, (3, 2)), (12, 1, 5, (4, 3)), (7, 1, 3, (1, 7))],
)
def test_even_plans(batch, size, most, plan):
    """A share is cut into the fewest equal micro-batches that fit."""
    assert plan_even_split(batch, size, most) == EvenSplit(batch, size, *plan)


@pytest.mark.parametrize(
    ("batch", "size", "most", "message"),
    [
        (10, 3, None, "multiple of 3, such as 9 or 12"),
        (2, 3, None, "multiple of 3, such as 3\\."),
        (8, 2, 0, "must be 1 or more"),
        (0, 1, None, "must be 1 or more"),
    ],
)
def test_uneven_plans_are_refused(batch, size, most, message):
    """A batch that cannot be split evenly is refused with those that can."""
    with pytest.raises(BatchError, match=message):
        plan_even_split(batch, size, most)


def test_the_order_is_the_same_in_every_world():
    """The ranks' micro-batches of a step are together the global batch of the order, at any size and from any step."""
    order = SampleOrder(1, 50, shuffle=True)
    whole = list(GlobalOrder(Stand(0, 5), order, 50, plan_even_split(12, 1, None)))
    assert len(whole) == len(set(whole)) == 48
    assert whole != list(GlobalOrder(Stand(0, 0), order, 50, plan_even_split(12, 1, None)))
    for size in (1, 2, 3):
        plan = plan_even_split(12, size, 2)
        ranks = [list(RankBatches(Stand(rank, 6), order, 50, plan)) for rank in range(size)]
        assert all(len(micro) <= 2 for batches in ranks for micro in batches)
        for step in (2, 3):
            cut = slice((step - 2) * plan.accumulation, (step - 1) * plan.accumulation)
            seen = [index for batches in ranks for micro in batches[cut] for index in micro]
            assert sorted(seen) == sorted(whole[step * 12 : step * 12 + 12])
        assert len(RankBatches(Stand(0, 6), order, 50, plan)) == 4 * plan.accumulation


@pytest.fixture
def start(tmp_path, monkeypatch, trainer_process):
    """Attach a companion as a new trainer would be."""
    monkeypatch.setattr(module, "POLL_INTERVAL", 0.0)

    def make(batch=4, total=10, **options):
        made = attach(tmp_path / "checkpoints", **options)
        made.plan(batch)
        made.order(21, seed=1)
        made.begin(total)
        return made

    return make


@pytest.mark.parametrize("batch", [None, {"plan": 0}])
def test_the_batch_of_a_framework_does_not_adapt(start, tmp_path, monkeypatch, caplog, batch):
    """Where the tag asks for it, the log says that the batch stays fixed, and what to do."""
    lease = tmp_path / "lease.json"
    lease.write_text(json.dumps({"format": 1, "run": 1, "stop": None, "batch": batch}))
    monkeypatch.setenv("METASCHED_LEASE", str(lease))
    monkeypatch.setenv("METASCHED_RUN", "1")
    start()
    assert ("a framework owns the training loop: take batch=adaptive out of the tag" in caplog.text) == bool(batch)


def save(companion, **options):
    path = companion.directory / f"step-{companion.step}.ckpt"
    path.write_bytes(b"state")
    return companion.saved(path, **options)


def lines(tmp_path, generation):
    text = (tmp_path / "reports" / f"incarnation-{generation}.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize("saves_before", [False, True])
def test_a_request_to_finish(start, tmp_path, monkeypatch, saves_before):
    """The framework's checkpoint becomes the final one, and the process exits with 0."""
    lease = tmp_path / "lease.json"
    lease.write_text(json.dumps({"format": 1, "run": 1, "stop": None}))
    monkeypatch.setenv("METASCHED_LEASE", str(lease))
    monkeypatch.setenv("METASCHED_RUN", "1")
    first = start()
    assert not first.should_stop(2.0)
    if saves_before:
        assert save(first)
        first.step -= 1  # the stop is noticed before a further step
    lease.write_text(json.dumps({"format": 1, "run": 1, "stop": None, "finish": {"run": 1}}))
    assert first.should_stop(1.0)
    assert first.should_save is not saves_before
    assert saves_before or save(first)
    with pytest.raises(SystemExit) as stopped:
        first.stop()
    assert stopped.value.code == 0
    assert [line["cause"] for line in lines(tmp_path, 1) if line["kind"] in ("checkpoint", "stop")][-2:] == [
        "final",
        "finish",
    ]
    assert start().resumed_metadata["finished"]


def test_a_stop_and_the_next_trainer(start, tmp_path):
    """A signal stops the training at the next step, and the next trainer resumes from the checkpoint saved there."""
    first = start()
    assert not first.should_stop(2.0)
    assert not first.should_save
    os.kill(os.getpid(), signal.SIGUSR2)
    assert first.should_stop(4.0)
    assert first.should_save
    assert save(first)
    with pytest.raises(SystemExit) as stopped:
        first.stop()
    assert stopped.value.code == 85
    kinds = [line["kind"] for line in lines(tmp_path, 1)]
    assert kinds == ["start", "declare", "steps", "steps", "checkpoint", "stop"]
    assert lines(tmp_path, 1)[3]["loss"] == 4.0
    assert lines(tmp_path, 1)[-1]["checkpointed"]

    second = start()
    assert (second.generation, second.step, second.finished) == (2, 2, False)
    assert second.resume.name == "step-2.ckpt"
    assert lines(tmp_path, 2)[0]["samples"] == 8


def test_periodic_and_final_checkpoints(start, tmp_path):
    """A save falls due by the clock; the final one says that the job is finished."""
    first = start(checkpoint_every=0.0)
    assert not first.should_stop()
    assert first.should_save
    assert save(first)
    first.should_stop()
    assert save(first, final=True)
    first.finish()
    assert [line["cause"] for line in lines(tmp_path, 1) if line["kind"] == "checkpoint"] == ["periodic", "final"]
    assert lines(tmp_path, 1)[-1]["loss"] is None
    assert start().finished


def test_a_periodic_checkpoint_may_be_the_last(start):
    """A training that calls `finish` after a periodic checkpoint is finished; one without the call is not."""
    first = start(checkpoint_every=0.0)
    first.should_stop()
    assert save(first)
    assert not start().finished
    second = start()
    second.should_stop()
    assert save(second)
    second.finish()
    assert start().finished


def test_a_stop_at_the_very_end(start):
    """After a stop at the last step the next trainer saves the checkpoint as final; a later one finds it current."""
    first = start()
    os.kill(os.getpid(), signal.SIGUSR2)
    assert first.should_stop()
    assert save(first)
    second = start()
    assert not second.checkpoint_is_current
    assert save(second, final=True)
    second.finish()
    assert start().checkpoint_is_current


def test_a_superseded_trainer(start, tmp_path):
    """A trainer with a successor saves nothing more, and exits with 76."""
    first = start()
    first.should_stop()
    second = start()
    with pytest.raises(SystemExit) as stopped:
        save(first)
    assert stopped.value.code == 76
    assert second.resume is None
    with pytest.raises(SupersededError), first.atomic_file(first.directory / "other"):
        pass
    assert not (first.directory / "other").exists()


def test_a_save_that_failed(start):
    """`saved` returns False for a path without a file, and the training continues."""
    first = start()
    first.should_stop()
    assert not first.saved(first.directory / "missing")
    assert not first.checkpoint_is_current


def test_no_time_for_a_checkpoint(start, tmp_path, monkeypatch):
    """A stop whose deadline is closer than a checkpoint takes is made without one."""
    lease = tmp_path / "lease.json"
    monkeypatch.setenv("METASCHED_LEASE", str(lease))
    monkeypatch.setenv("METASCHED_RUN", "3")
    first = start()
    first.should_stop()
    time.sleep(0.05)
    assert save(first)
    stop = {"run": 3, "requested": time.time(), "deadline": time.time() + 0.001, "reason": "a test"}
    lease.write_text(json.dumps({"format": 1, "uid": "0" * 16, "run": 3, "stop": stop}))
    assert first.should_stop()
    assert not first.should_save
    with pytest.raises(SystemExit):
        first.stop()
    last = lines(tmp_path, 1)[-1]
    assert (last["cause"], last["checkpointed"]) == ("mailbox", False)


def test_a_step_ends_with_the_gpu(start, tmp_path, monkeypatch):
    """The reported seconds include the work that the GPU has not finished when a step ends on the host."""
    clock = [1000.0]

    def catch_up():
        clock[0] += 5

    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: True)
    monkeypatch.setattr("torch.cuda.synchronize", catch_up)
    monkeypatch.setattr("torch.cuda.max_memory_allocated", lambda: 1)
    first = start()
    clock[0] += 2
    first.should_stop()
    clock[0] += 2
    first.should_stop()
    assert [line["seconds"] for line in lines(tmp_path, 1) if line["kind"] == "steps"] == [7, 7]


def test_another_training_is_refused(start, tmp_path):
    """A checkpoint made with another global batch or another data set is not continued, and the message says why."""
    first = start()
    first.should_stop()
    save(first)
    second = attach(tmp_path / "checkpoints")
    with pytest.raises(CheckpointError, match="made with global_batch 4, and this script has 8"):
        second.plan(8)
    second.plan(4)
    with pytest.raises(CheckpointError, match="and this script has"):
        second.order(22, seed=1)


def test_misuse(start, tmp_path):
    """Calls in an order that has no meaning are refused in words."""
    bare = attach(tmp_path / "bare")
    with pytest.raises(UsageError, match="plan"):
        bare.begin()
    bare.plan(4)
    with pytest.raises(UsageError, match="begin"):
        bare.should_stop()
    with pytest.raises(BatchError, match="3 samples"):
        bare.order(3)
    with pytest.raises(UsageError, match="should_stop"):
        bare.stop()
    with pytest.raises(UsageError, match="belongs directly in"):
        bare.saved(tmp_path / "elsewhere")


def test_a_directory_of_the_other_kind(tmp_path, start):
    """A directory with checkpoints of trainer_shim.init() is refused."""
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "incarnation-1-step-5.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"trainer_shim\.init"):
        start()
