"""Saving in the background: the state of that moment, the same file, one at a time."""

import collections
import io
import threading

import pytest
import torch

from trainer_shim.checkpointing.async_saver import AsyncSaver
from trainer_shim.checkpointing.cpu_copy import cpu_copy
from trainer_shim.checkpointing.formats.script_checkpoints import Progress, ScriptCheckpoints, States
from trainer_shim.checkpointing.save_history import REMEMBERED_SAVES, SaveHistory
from trainer_shim.errors import SupersededError
from trainer_shim.reporting.report_writer import ReportWriter

ORDER = {"seed": 1, "size": 10, "shuffle": True}


class Things:
    def __init__(self, values):
        self.values = values


def a_state():
    """A state with everything that a script may hold: tied weights, views, hyper-parameters, its own objects."""
    net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    net[1].weight = net[0].weight
    optimizer = torch.optim.AdamW(net.parameters())
    net(torch.ones(3)).sum().backward()
    optimizer.step()
    base = torch.arange(12.0)
    more = collections.OrderedDict(part=base[3:5], transposed=base.view(3, 4).t(), half=base.half(), nothing=None)
    turned = torch.complex(base, base)
    more |= {"turned": turned, "conjugate": turned.conj(), "negative": torch.complex(base, base).conj().imag}
    return {
        "net": net.state_dict(),
        "optimizer": optimizer.state_dict(),
        "more": more,
        "own": (1, [2.5, 1], torch.nn.Parameter(torch.ones(2))),
    }


def written(state):
    file = io.BytesIO()
    torch.save(state, file)
    return file.getvalue()


def test_a_snapshot_is_written_alike():
    """torch.save makes of the snapshot what it makes of the state, module metadata and shared memory included."""
    state = a_state()
    copied = cpu_copy(state)
    assert len(written(copied)) == len(written(state))
    loaded = torch.load(io.BytesIO(written(copied)), weights_only=False)
    original = torch.load(io.BytesIO(written(state)), weights_only=False)
    torch.testing.assert_close(loaded, original, rtol=0, atol=0)
    assert loaded["net"]._metadata == original["net"]._metadata
    assert loaded["net"]["0.weight"].data_ptr() == loaded["net"]["1.weight"].data_ptr()
    assert loaded["more"]["transposed"].stride() == original["more"]["transposed"].stride()
    assert loaded["own"][2].requires_grad


def test_a_snapshot_is_apart():
    """What happens to the state later does not reach its snapshot."""
    things = Things([1])
    state = {"w": torch.zeros(3), "groups": [{"lr": 0.1}], "things": things}
    copied = cpu_copy(state)
    state["w"].add_(1)
    state["groups"][0]["lr"] = 0.2
    things.values.append(2)
    assert copied["w"].tolist() == [0, 0, 0]
    assert copied["groups"] == [{"lr": 0.1}]
    assert copied["things"].values == [1]


@pytest.fixture
def gate():
    """Opened at the end, so that no thread is left waiting."""
    gate = threading.Event()
    yield gate
    gate.set()


@pytest.fixture
def make(tmp_path):
    def make_saver(check=lambda: None):
        report = ReportWriter(tmp_path / "reports", 1)
        history = SaveHistory(resumed=False)
        return AsyncSaver(ScriptCheckpoints(tmp_path), 1, None, check, report, history=history)

    return make_saver


def test_training_goes_on(make, gate, tmp_path):
    """While bytes are written the state may change; the checkpoint has what it was, and is noted when it is there."""
    saver, weights = make(gate.wait), torch.zeros(3)
    saver.start(lambda: States({"w": weights}), Progress(step=1), ORDER)
    weights.add_(1)
    saver.settle(wait=False)
    assert saver.saved_progress == Progress()
    assert saver.covers(Progress(step=1))
    assert not saver._history.due(0)
    gate.set()
    saver.settle()
    assert saver.saved_progress == Progress(step=1)
    assert saver._history.due(0)
    store = ScriptCheckpoints(tmp_path)
    assert store.load(store.latest())["w"].tolist() == [0, 0, 0]


def test_a_save_awaits_the_one_before(make, gate, tmp_path):
    """A save that is under way is finished first, and one that says the same is not written again."""
    saver = make(gate.wait)
    saver.start(lambda: States({"w": 1}), Progress(step=1), ORDER)
    gate.set()
    saver.save(lambda: States({"w": 2}), Progress(step=1), ORDER, "stop")
    store = ScriptCheckpoints(tmp_path)
    assert store.load(store.latest()) == {"w": 1}
    saver.save(lambda: States({"w": 3}), Progress(step=2), ORDER, "stop")
    assert store.load(store.latest()) == {"w": 3}


def test_a_slow_save_is_forgotten(make, monkeypatch):
    """The slowest of the last saves counts: one slow save does not count for ever."""
    now, seconds = 0.0, 50.0

    def check():
        nonlocal now
        now += seconds

    monkeypatch.setattr("time.monotonic", lambda: now)
    saver = make(check)
    assert saver._history.slowest_seconds is None
    found = []
    for step in range(1, REMEMBERED_SAVES + 2):
        saver.save(lambda: States({"w": 1}), Progress(step=step), ORDER, "stop")
        found.append(saver._history.slowest_seconds)
        seconds = 1.0
    assert set(found[:-1]) == {found[0]}
    assert found[-1] == found[0] / 50


def test_a_failure_is_an_error_in_the_log(make, caplog):
    """A background save that the disk refuses is one error, and the next one is made all the same."""
    errors = iter([OSError(28, "No space left on device")])

    def check():
        for error in errors:
            raise error

    saver = make(check)
    saver.start(lambda: States({"w": 1}), Progress(step=1), ORDER)
    saver.settle()
    assert "no checkpoint at step 1, the last one stays: [Errno 28]" in caplog.text
    assert saver.saved_progress == Progress()
    saver.start(lambda: States({"w": 1}), Progress(step=2), ORDER)
    saver.settle()
    assert saver.saved_progress == Progress(step=2)


def test_superseded_in_the_background(make, tmp_path):
    """A background save of a superseded trainer writes nothing."""

    def check():
        raise SupersededError("newer")

    saver = make(check)
    saver.start(lambda: States({"w": 1}), Progress(step=1), ORDER)
    saver.settle()
    assert saver.saved_progress == Progress()
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_saved(make):
    """A state that cannot be written is the script's mistake, and is raised."""
    saver = make()
    saver.start(lambda: States({"f": (lambda: 1)}), Progress(step=1), ORDER)
    with pytest.raises(Exception, match="pickle"):
        saver.settle()
