"""Points that are logged once, and trackers that fail."""

import importlib
import sys
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from trainer_shim.errors import UsageError
from trainer_shim.trackers import tracker as module
from trainer_shim.trackers.logged_steps import LoggedSteps

UID = "0123456789abcdef"


class Fake:
    """A tracker's run in memory."""

    handle = "the library's object"

    def __init__(self):
        self.points, self.outcomes, self.fails = [], [], False

    def log(self, values, step):
        if self.fails:
            raise ConnectionError("no server")
        self.points += [(name, value, step) for name, value in values.items()]

    def close(self, outcome):
        self.outcomes.append(outcome)


@pytest.fixture
def library(monkeypatch):
    """A library whose runs are opened by `open_run`, and kept by id."""
    found = SimpleNamespace(runs={})
    found.open_run = lambda run_id, options: found.runs.setdefault(run_id, Fake())
    monkeypatch.setitem(module.LIBRARIES, "fake", "fake_run")
    monkeypatch.setitem(sys.modules, "fake_run", found)
    return found


def opened(directory, *, step=0, superseded=False):
    """The tracker of a trainer at that step."""
    return module.open_tracker(
        "fake", {}, directory=directory, uid=UID, present_step=lambda: step, superseded=lambda: superseded
    )


def test_a_later_run_leaves_out_what_was_logged(library, tmp_path):
    """Of steps that are trained again, a value is logged that no earlier run has logged there, and no other."""
    opened(tmp_path, step=7).log({"loss": 1.0, "lr": 0.5})
    again = opened(tmp_path, step=7)
    again.log({"loss": 2.0, "evaluation": 3.0})
    again.log({"loss": 4.0}, step=8)
    again.log({"loss": 5.0}, step=8)
    points = [("loss", 1.0, 7), ("lr", 0.5, 7), ("evaluation", 3.0, 7), ("loss", 4.0, 8), ("loss", 5.0, 8)]
    assert library.runs == {f"metasched-{UID}": again._run}
    assert again._run.points == points


def test_the_run_stays_that_of_the_training(tmp_path):
    """A second job that continues a checkpoint directory continues its run; each training has an id of its own."""
    assert LoggedSteps(tmp_path / "a", UID).run_id == f"metasched-{UID}"
    assert LoggedSteps(tmp_path / "a", "f" * 16).run_id == f"metasched-{UID}"
    assert LoggedSteps(tmp_path / "b", None).run_id != LoggedSteps(tmp_path / "c", None).run_id


def test_a_torn_line_is_no_line(tmp_path):
    """A process that dies in the middle of a line leaves the lines before and after it readable."""
    first = LoggedSteps(tmp_path / "a", UID)
    first.add(["loss"], 3)
    with (tmp_path / "a").open("a") as file:
        file.write('{"step": 4, "na')
    LoggedSteps(tmp_path / "a", UID).add(["loss"], 5)
    assert LoggedSteps(tmp_path / "a", UID).new({"loss": 1.0}, 5) == {}
    assert LoggedSteps(tmp_path / "a", UID).new({"loss": 1.0}, 6) == {"loss": 1.0}


def test_a_failing_tracker_pauses(library, tmp_path, caplog, monkeypatch):
    """An error of the library is a warning; the points of the next minute are left out, and later ones logged."""
    tracker = opened(tmp_path)
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    (run,) = library.runs.values()
    run.fails = True
    tracker.log({"loss": 1.0}, step=1)
    assert "no server" in caplog.text
    run.fails = False
    tracker.log({"loss": 1.0}, step=2)
    now[0] += module.PAUSE_SECONDS
    tracker.log({"loss": 1.0}, step=3)
    assert run.points == [("loss", 1.0, 3)]


def test_a_tracker_that_cannot_be_opened(library, tmp_path, caplog):
    """It fails the first run of a job; a later run trains on, and logs nothing."""

    def fail(run_id, options):
        raise ConnectionError("no server")

    open_run = library.open_run
    library.open_run = fail
    with pytest.raises(ConnectionError):
        opened(tmp_path)
    library.open_run = open_run
    opened(tmp_path)
    library.open_run = fail
    tracker = opened(tmp_path)
    tracker.log({"loss": 1.0})
    tracker.close("stopped")
    assert tracker.handle is None
    assert "goes on without it: no server" in caplog.text


def test_a_superseded_trainer_logs_nothing(library, tmp_path):
    """After a newer trainer has started, no point comes from the older one."""
    opened(tmp_path, superseded=True).log({"loss": 1.0}, step=1)
    (run,) = library.runs.values()
    assert run.points == []


def test_a_tracker_is_closed_once(library, tmp_path):
    """The first outcome counts, and a closed tracker logs nothing."""
    tracker = opened(tmp_path)
    tracker.close("stopped")
    tracker.close("failed")
    tracker.log({"loss": 1.0}, step=1)
    (run,) = library.runs.values()
    assert (run.outcomes, run.points) == (["stopped"], [])


def test_an_unknown_tracker_is_refused(tmp_path, monkeypatch):
    """The message has the trackers that there are, or the package to install."""
    monkeypatch.setitem(module.LIBRARIES, "gone", "trainer_shim.no_such_module")
    for kind, words in [("excel", "'wandb', 'mlflow'"), ("gone", "pip install gone")]:
        with pytest.raises(UsageError, match=words):
            module.open_tracker(
                kind, {}, directory=tmp_path, uid=None, present_step=lambda: 0, superseded=lambda: False
            )


def test_a_superseded_trainer_says_so(library, tmp_path):
    """Whatever ends a trainer that a newer one has superseded, its library is told of the newer one."""
    for outcome in ("stopped", "finished", "failed"):
        opened(tmp_path, superseded=True).close(outcome)
    (run,) = library.runs.values()
    assert run.outcomes == ["superseded"] * 3


@pytest.mark.parametrize(
    ("outcome", "status"),
    [("stopped", "SCHEDULED"), ("superseded", "RUNNING"), ("finished", "FINISHED"), ("failed", "FAILED")],
)
def test_the_status_of_an_mlflow_run(outcome, status, monkeypatch):
    """A stopped run waits for its next trainer; the status that a newer trainer has set stays."""
    client = SimpleNamespace(status="RUNNING")
    client.get_experiment_by_name = lambda _: SimpleNamespace(experiment_id="1")
    client.search_runs = lambda *_, **__: [SimpleNamespace(info=SimpleNamespace(run_id="r"))]
    client.update_run = lambda _, status: setattr(client, "status", status)
    client.set_terminated = client.update_run
    monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "mlflow.entities", SimpleNamespace(Metric=None, Param=None))
    monkeypatch.setitem(sys.modules, "mlflow.tracking", SimpleNamespace(MlflowClient=lambda _: client))
    monkeypatch.delitem(sys.modules, module.LIBRARIES["mlflow"], raising=False)
    mlflow_run = importlib.import_module(module.LIBRARIES["mlflow"])
    del sys.modules[module.LIBRARIES["mlflow"]]  # later tests do not find the module with these stubs
    mlflow_run.open_run("metasched-1", {}).close(outcome)
    assert client.status == status


@pytest.mark.parametrize(
    ("outcome", "preempting", "code"),
    [("stopped", 1, 1), ("superseded", 0, 0), ("finished", 0, 0), ("failed", 0, 1)],
)
def test_the_end_of_a_wandb_run(outcome, preempting, code, monkeypatch):
    """Only a stopped run waits for its next trainer; a superseded one neither waits nor has failed."""
    run = Mock()
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=lambda **_: run))
    monkeypatch.delitem(sys.modules, module.LIBRARIES["wandb"], raising=False)
    wandb_run = importlib.import_module(module.LIBRARIES["wandb"])
    del sys.modules[module.LIBRARIES["wandb"]]  # later tests do not find the module with this stub
    wandb_run.open_run("metasched-1", {}).close(outcome)
    assert run.mark_preempting.call_count == preempting
    run.finish.assert_called_once_with(exit_code=code)
