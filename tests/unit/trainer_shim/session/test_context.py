"""The step reports and errors of a context, in a single process on a simulated device."""

import contextlib
import json
import os
from unittest.mock import patch

import pytest
import torch

import trainer_shim
from trainer_shim.process_groups.script_group import ScriptGroup

HOST, DEVICE = 0.125, 1.0  # seconds of a step: its launch on the host, and its execution on the device


class Device:
    """A simulated clock, and a device that executes the launched work in order while the host continues."""

    def __init__(self):
        self.now = 1000.0
        self.done = 0.0

    def launch(self, seconds):
        self.now += HOST
        self.done = max(self.now, self.done) + seconds

    def drain(self, *_):
        self.now = max(self.now, self.done)


class Weights:
    """A state on the device; a copy of the state waits for the launched work."""

    def __init__(self, device):
        self.device = device

    def state_dict(self):
        self.device.drain()
        return {}

    def load_state_dict(self, state):
        pass


@pytest.fixture
def device(monkeypatch):
    """Return a simulated device whose clock replaces the monotonic clock."""
    device = Device()
    totals = ScriptGroup.sum
    monkeypatch.setattr("time.monotonic", lambda: device.now)
    monkeypatch.setattr(ScriptGroup, "synchronize", device.drain)
    monkeypatch.setattr(ScriptGroup, "sum", lambda *arguments: (device.drain(), totals(*arguments))[1])
    return device


@pytest.fixture
def start(tmp_path, trainer_process):
    """Start a context as a new trainer would; environment and process group are as before afterwards."""
    with patch.dict(os.environ):
        yield lambda **options: trainer_shim.init(tmp_path / "checkpoints", **options)
    torch.distributed.destroy_process_group()


def train(ctx, device, *, own_backward=False, steps=4):
    """Train two epochs of `steps` steps, with two evaluations in each; return the seconds of all evaluations."""
    weight = torch.ones((), requires_grad=True)
    loader = ctx.loader(range(2 * steps), global_batch=2)
    ctx.track(weights=Weights(device))
    evaluations = 0.0

    def evaluate():
        nonlocal evaluations
        for _ in ctx.evaluate([0]):
            device.launch(50)
            evaluations += HOST + 50

    for _ in ctx.epochs(2):
        for batch in loader:
            device.launch(DEVICE)
            loss = weight * batch.sum()
            loss.backward() if own_backward else ctx.backward(loss)
            ctx.step()
            if ctx.step_count % steps == 2:
                evaluate()
        evaluate()
    return evaluations


def lines(tmp_path, kind):
    text = (tmp_path / "reports" / "incarnation-1.jsonl").read_text()
    return [line for line in map(json.loads, text.splitlines()) if line["kind"] == kind]


@pytest.mark.parametrize("every", [0.0, 600.0])
def test_a_step_ends_with_the_device(start, device, tmp_path, every):
    """The reported seconds include all of the device's time for steps, and none of its time for evaluations."""
    ctx = start(checkpoint_every=every)
    began = device.now
    evaluations = train(ctx, device)
    steps = lines(tmp_path, "steps")
    assert sum(line["steps"] for line in steps) == 8
    assert sum(line["seconds"] for line in steps) == pytest.approx(device.now - began - evaluations, abs=1e-3)


@pytest.mark.parametrize("finish", [False, True])
def test_a_step_after_which_the_script_leaves_its_loop(start, device, tmp_path, finish):
    """The step's time is counted, too, but not that of what the script does then."""
    ctx = start()
    weight = torch.ones((), requires_grad=True)
    loader = ctx.loader(range(8), global_batch=2)
    ctx.track(weights=Weights(device))
    for _ in ctx.epochs(1):
        for batch in loader:
            device.launch(DEVICE)
            ctx.backward(weight * batch.sum())
            ctx.step()
            if finish:
                ctx.finish()
            break
        device.now += 50 * finish
    (line,) = lines(tmp_path, "steps")
    assert (line["steps"], line["seconds"]) == (1, pytest.approx(HOST + DEVICE, abs=1e-3))


def test_a_profiling_run_ends_with_the_device(start, device, tmp_path, monkeypatch):
    """A profiling run's seconds are those of its steps on the device, without the warm-up's."""
    file = tmp_path / "trials.jsonl"
    monkeypatch.setenv("METASCHED_TRIAL", "3")
    monkeypatch.setenv("METASCHED_TRIALS", str(file))
    with pytest.raises(SystemExit):
        train(start(), device, steps=20)
    assert 3 * DEVICE <= json.loads(file.read_text())["seconds"] <= 3 * (HOST + DEVICE)


@pytest.mark.parametrize("own_backward", [False, True])
def test_a_loss_that_is_not_known(start, device, tmp_path, own_backward):
    """Where the script calls `backward` itself, its loss is not known, and not 0."""
    train(start(), device, own_backward=own_backward)
    losses = [line["loss"] for line in lines(tmp_path, "steps") + lines(tmp_path, "end")]
    assert all((loss is None) == own_backward for loss in losses)


def test_a_request_to_finish_ends_the_training_for_good(start, device, tmp_path, monkeypatch):
    """The final checkpoint is saved between the stop callbacks, and the process exits with 0."""
    lease = tmp_path / "lease.json"
    lease.write_text(json.dumps({"format": 1, "run": 1, "stop": None}))
    monkeypatch.setenv("METASCHED_LEASE", str(lease))
    monkeypatch.setenv("METASCHED_RUN", "1")
    ctx = start()
    loader = ctx.loader(range(80), global_batch=2)
    ctx.track(weights=torch.nn.Linear(1, 1))
    called = []
    ctx.on_stop(before=lambda cause: called.append(("before", cause)), after=called.append)

    def epochs():
        for _ in ctx.epochs(2):
            for _ in loader:
                device.launch(DEVICE)
                ctx.step()
                if ctx.step_count == 3:
                    lease.write_text(json.dumps({"format": 1, "run": 1, "finish": {"run": 1}}))

    with pytest.raises(SystemExit) as ended:
        epochs()
    assert ended.value.code == 0
    assert called == [("before", "finish"), "finish"]
    assert [line["cause"] for line in lines(tmp_path, "checkpoint")] == ["final"]
    (end,) = lines(tmp_path, "end")
    assert 3 <= end["step"] < 10
    assert lines(tmp_path, "stop") == []


class Synchronized:
    """A module whose `no_sync()` counts the open blocks, or raises an error."""

    def __init__(self, *, broken=False):
        self.broken = broken
        self.open = 0

    @contextlib.contextmanager
    def no_sync(self):
        if self.broken:
            raise RuntimeError("no no_sync")
        self.open += 1
        try:
            yield
        finally:
            self.open -= 1


def test_an_error_in_no_sync_ends_the_micro_batch(start):
    """Where a module's `no_sync()` raises, the other modules' blocks are closed and the watchdog is disarmed."""
    ctx = start()
    loader = ctx.loader(range(4), global_batch=2, max_per_gpu=1)
    ctx.track(weights=torch.nn.Linear(1, 1))
    whole = Synchronized()
    ctx._accumulation.synchronized = [whole, Synchronized(broken=True)]
    epochs = iter(ctx.epochs(1))
    next(epochs)
    with pytest.raises(RuntimeError, match="no no_sync"):
        next(iter(loader))
    assert whole.open == 0
    assert ctx._accumulation.micro is None
    assert ctx._group.watchdog._wait is None
