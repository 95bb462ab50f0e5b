"""Processes beside the daemon: their results, their ends, and that rounds do not change by them."""

import os
import signal
import sys
import time

import pytest

from metasched.configuration.config import Config
from metasched.daemon import side_process
from metasched.daemon.side_process import SideProcess
from metasched.daemon.side_work import SideWork
from metasched.forecast.records import InstantRange, JobForecast, QueueForecast
from metasched.forecast.result_file import FORECASTS_FILE, ForecastResult, encode_result
from metasched.forecast.round_follower import Task, alive_path
from metasched.shadow.result_file import SHADOWS_FILE, ShadowResult, encode_shadows
from metasched.slurm.client import JobState
from metasched.store import ShadowRecord
from tests.fakes.fake_nodes import FakeNode
from tests.fakes.fake_slurm import FakeSlurm
from tests.unit.site import FakeSite

SECONDS = 60.0


class FakeProcess:
    """A process that never runs; its results are the files that a test writes."""

    def __init__(self, module, task):
        self._real = SideProcess(module, task)
        self.module, self.task, self.problem, self.tended = module, task, "", 0

    def tend(self):
        self.tended += 1

    def collect(self):
        return self._real.collect()

    def close(self):
        self.closed = True


@pytest.fixture
def site(tmp_path):
    made = FakeSite(tmp_path, FakeSlurm([FakeNode("n1", gpus=4, cpus=16)]))
    yield made
    made.close()


@pytest.fixture
def beside(site, monkeypatch):
    """The side work of a site, with processes that a test plays."""
    monkeypatch.setattr("metasched.daemon.side_work.SideProcess", FakeProcess)
    data = site.config.model_dump(mode="json")
    site.config = Config.model_validate(data | {"shadow": {"policies": ["las"]}})
    site.controller.config = site.config
    site.controller.side_work = SideWork(site.config, site.store)
    return site


def write(site, name, content):
    path = site.base / "state" / name
    path.with_suffix(".part").write_bytes(content)
    path.with_suffix(".part").replace(path)


def forecast_of(site, uid, *, start=None, end=None):
    jobs = (JobForecast(uid, start, end, "assumed"),)
    found = QueueForecast(1, site.slurm.now, "fifo", 20, jobs, assumptions=("No node fails.",))
    return encode_result(ForecastResult(1, found))


def test_a_forecast_is_published_stored_and_compared(beside):
    """Status shows the range of a waiting job; once the job starts, the store has its true start."""
    first = beside.add("--gres=gpu:4")
    beside.run_until(lambda: beside.state(first) is JobState.RUNNING)
    second = beside.add("--gres=gpu:4")
    beside.run(3)
    uid, now = beside.record(second).uid, beside.slurm.now
    write(beside, FORECASTS_FILE, forecast_of(beside, uid, start=InstantRange(now + 10, now + 20, now + 900)))
    beside.run(3)
    shown = next(job for job in beside.status().jobs if job.uid == uid).forecast
    assert (shown.start.low, shown.start.high, shown.end) == (now + 10, now + 900, None)
    assert beside.status().forecast.assumptions == ("No node fails.",)
    beside.slurm.exit(first, 0, after=30)
    beside.run_until(lambda: beside.state(second) is JobState.RUNNING)
    write(beside, FORECASTS_FILE, encode_result(ForecastResult(9)))
    beside.run(3)
    (record,) = beside.store.forecasts(uid)
    assert record.covered
    assert beside.store.forecast_calibration("start")[2] == 1


@pytest.mark.parametrize("content", [b"", b"[]", b'{"round": 1', b'{"round": "x"}', b"\xff" * 50])
def test_a_result_that_cannot_be_read_is_refused(beside, content):
    """Polls continue, and the next whole result counts."""
    beside.add("--gres=gpu:1")
    beside.run(3)
    for name in (FORECASTS_FILE, SHADOWS_FILE):
        write(beside, name, content)
        beside.run(2)
    write(
        beside, SHADOWS_FILE, encode_shadows(ShadowResult((ShadowRecord(1, beside.slurm.now, "las", "fifo", gpus=3),)))
    )
    beside.run(2)
    assert [one.gpus for one in beside.store.recent_shadows(5)] == [3]


def test_problems_are_shown(beside):
    """Why there is no forecast, and why the shadow policies do not decide, is in the status."""
    beside.add("--gres=gpu:1")
    beside.run(3)
    write(beside, FORECASTS_FILE, encode_result(ForecastResult(1, problem="no snapshot is kept")))
    write(beside, SHADOWS_FILE, encode_shadows(ShadowResult(problem="round 1: broken")))
    beside.run(3)
    assert beside.status().forecast.problem == "no snapshot is kept"
    assert beside.status().shadow_problem == "round 1: broken"


def test_a_reload_replaces_the_processes(beside):
    """Processes with the old options end; a forecast that is switched off is not shown any more."""
    work = beside.controller.side_work
    before = work._forecasts
    off = {"forecast": {"enabled": False}, "shadow": {"policies": []}}
    config = Config.model_validate(beside.config.model_dump(mode="json") | off)
    beside.controller.reconfigure(config, beside.controller.policy)
    assert before.closed
    assert (work._forecasts, work._shadows, work.forecast) == (None, None, None)


# -- real processes


@pytest.fixture
def process(tmp_path, monkeypatch):
    """A process of a module that sleeps, in place of the one of forecasts."""
    (tmp_path / "sleeper.py").write_text("import time\ntime.sleep(600)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(side_process, "FIRST_PAUSE", 0.05)
    made = SideProcess("sleeper", Task("none", str(tmp_path / "out.json"), 1.0, 1.0, "console", {}))
    yield made
    made.close()


def wait(condition):
    until = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_killed_process_is_started_again(process):
    """The poll only notes the end; a later one starts the process anew."""
    process.tend()
    first = process.pid
    os.kill(first, signal.SIGKILL)
    wait(lambda: process.tend() or process.pid is None)
    assert "signal 9" in process.problem
    wait(lambda: process.tend() or process.pid not in {None, first})


def test_a_hanging_process_is_killed(process, tmp_path, monkeypatch):
    """A process without a sign of life is killed; one with a fresh sign is left alone."""
    process.tend()
    monkeypatch.setattr(side_process, "SILENT_SECONDS", -1.0)
    process.tend()
    assert "no sign of life" in process.problem
    monkeypatch.setattr(side_process, "SILENT_SECONDS", 900.0)
    wait(lambda: process.tend() or process.pid is not None)
    alive_path(tmp_path / "out.json").touch()
    pid = process.pid
    process.tend()
    assert process.pid == pid


def test_a_process_that_cannot_start_is_a_problem(process, monkeypatch):
    """The daemon continues where no process can be made."""
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    process.tend()
    assert "cannot be started" in process.problem
