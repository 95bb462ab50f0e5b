"""Requests to stop: the lease, the flag, the exit code."""

import json
import math
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from trainer_shim.errors import LeaseError, UsageError
from trainer_shim.preemption.lease import LeaseBatch, LeaseWatch, read_lease
from trainer_shim.preemption.stop_requests import CAUSES, StopRequests, exit_code, handle_stop_signals


@pytest.fixture
def write(tmp_path):
    """Replace the lease as the daemon does."""
    path = tmp_path / "lease.json"

    def replace(content):
        partial = tmp_path / "partial"
        partial.write_text(content if isinstance(content, str) else json.dumps(content))
        partial.replace(path)
        return path

    return replace


def test_lease_asks_its_run_only(write):
    """A stop counts for the run that it names, from the moment it is there."""
    watch = LeaseWatch(write({"format": 1, "run": 2, "stop": None}), run=2)
    assert watch.stop_cause() is None
    write({"format": 1, "run": 2, "stop": {"run": 1, "requested": 1, "deadline": 5}})
    assert watch.stop_cause() is None
    assert watch.seconds_to_deadline(None) == math.inf
    write({"format": 1, "run": 2, "stop": {"run": 2}})
    assert watch.stop_cause() == "mailbox"
    assert watch.seconds_to_deadline(None) == math.inf


@pytest.mark.parametrize(
    ("ahead", "signalled", "left"),
    [(0, None, 80), (3600, None, 70), (-3600, None, 90), (3600, 100, 80), (-3600, 100, 80), (0, 119, 80)],
)
def test_the_grace_is_counted_on_one_clock(write, monkeypatch, ahead, signalled, left):
    """However far a host's clock is `ahead` of the daemon's: from the signal, else from a time since the last look."""
    now = 90.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    monkeypatch.setattr("time.time", lambda: now + ahead)
    watch = LeaseWatch(write({"format": 1, "run": 2, "stop": None}), run=2)
    assert watch.stop_cause() is None
    for now in (110.0, 120.0):
        write({"format": 1, "run": 2, "round": now, "stop": {"run": 2, "requested": 100, "deadline": 200}})
        assert watch.stop_cause() == "mailbox"
    assert watch.seconds_to_deadline(signalled) == left


def test_higher_run_supersedes(write):
    """A lease for a later run means that this one is over."""
    assert LeaseWatch(write({"format": 1, "run": 3, "stop": None}), run=2).stop_cause() == "superseded"
    assert LeaseWatch(write({"format": 1, "run": 1, "stop": None}), run=2).stop_cause() is None


@pytest.mark.parametrize("stop", [None, {"run": 2}])
def test_a_request_to_finish_comes_before_a_stop(write, stop):
    """It counts for the run that it names, with its own grace; the trainer exits with 0."""
    finish = {"run": 1, "requested": 100.0, "deadline": 160.0}
    watch = LeaseWatch(write({"format": 1, "run": 2, "stop": None, "finish": finish}), run=2)
    assert watch.stop_cause() is None
    write({"format": 1, "run": 2, "stop": stop, "finish": finish | {"run": 2}})
    assert watch.stop_cause() == "finish"
    assert watch.seconds_to_deadline(None) <= 60
    assert exit_code("finish", 85) == 0


def test_unreadable_lease(write, caplog):
    """A lease that cannot be read is one warning, and asks for nothing; when it can be read again, it counts."""
    watch = LeaseWatch(write("{"), run=1)
    assert watch.stop_cause() is None
    assert watch.stop_cause() is None
    assert len(caplog.records) == 1
    write({"format": 1, "run": 1, "stop": {"run": 1}})
    assert watch.stop_cause() == "mailbox"


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        '{"format": 2, "run": 1}',
        '{"format": 1}',
        '{"format": 1, "run": true}',
        '{"format": 1, "run": 1, "stop": 1}',
        '{"format": 1, "run": 1, "finish": [1]}',
        '{"format": 1, "run": 1, "finish": {"reason": "x"}}',
        '{"format": 1, "run": 1, "stop": {"reason": "x"}}',
        '{"format": 1, "run": 1, "stop": {"run": 1, "requested": 1, "deadline": "soon"}}',
        '{"format": 1, "run": 1, "stop": {"run": 1, "requested": NaN}}',
        '{"format": 1, "run": 1, "stop": {"run": 1, "deadline": 1' + "0" * 400 + "}}",
    ],
)
def test_malformed_lease(write, content):
    """What the protocol does not allow is an error that names the file."""
    path = write(content)
    with pytest.raises(LeaseError, match=str(path)):
        read_lease(path)


def test_the_batch_of_a_lease(write):
    """A batch plan is read with the lease; without one the batch is fixed."""
    watch = LeaseWatch(write({"format": 1, "run": 1, "stop": None}), run=1)
    assert watch.stop_cause() is None
    assert watch.batch is None
    plan = {"plan": 3, "per_gpu": 32, "accumulation": 2, "theta": [1, 2, 3, 4, 5, 6, 7.5]}
    write({"format": 1, "run": 1, "stop": None, "batch": plan, "nodes": {"n1": 2, "n2": 2}})
    assert watch.stop_cause() is None
    assert watch.batch == LeaseBatch(3, 32, 2, (1, 2, 3, 4, 5, 6, 7.5), several_nodes=True)
    write({"format": 1, "run": 1, "batch": {"plan": 0, "per_gpu": None}, "nodes": {"n1": 2}})
    assert watch.stop_cause() is None
    assert watch.batch == LeaseBatch(0, None, None, None, several_nodes=False)


@pytest.mark.parametrize(
    ("batch", "key"),
    [
        (3, "batch"),
        ([], "batch"),
        ({}, "batch.plan"),
        ({"plan": -1}, "batch.plan"),
        ({"plan": True}, "batch.plan"),
        ({"plan": 1, "per_gpu": 0, "accumulation": 1}, "batch.per_gpu"),
        ({"plan": 1, "per_gpu": 4, "accumulation": 1.5}, "batch.accumulation"),
        ({"plan": 0, "theta": [1, 2, 3]}, "batch.theta"),
        ({"plan": 0, "theta": {}}, "batch.theta"),
        ({"plan": 0, "theta": [0, 0, 0, 0, 0, -1, 2]}, "batch.theta"),
        ({"plan": 0, "theta": [0, 0, 0, 0, 0, 10**400, 2]}, "batch.theta"),
        ({"plan": 0, "theta": [0, 0, 0, 0, 0, float("nan"), 2]}, "batch.theta"),
        ({"plan": 0, "theta": [0, 0, 0, 0, 0, 0, 0.5]}, "batch.theta"),
        ({"plan": 0, "theta": [0, 0, 0, 0, 0, 0, 11]}, "batch.theta"),
    ],
)
def test_a_malformed_batch_in_a_lease(write, caplog, batch, key):
    """One warning names the file and the key; the last plan stays, and the rest of the lease counts."""
    watch = LeaseWatch(write({"format": 1, "run": 1, "batch": {"plan": 0}}), run=1)
    assert watch.stop_cause() is None
    for stop in (None, {"run": 1}):
        path = write({"format": 1, "run": 1, "stop": stop, "batch": batch})
        assert watch.stop_cause() == (stop and "mailbox")
    assert watch.batch == LeaseBatch(0, None, None, None, several_nodes=False)
    assert len(caplog.records) == 1
    assert f"{path}: key '{key}'" in caplog.text


def test_requests():
    """Each cause counts once, and the instant of the first one is kept."""
    flag = StopRequests()
    assert flag.noticed is None
    assert not any(flag.flags().values())
    flag.request("sigterm")
    first = flag.noticed
    flag.request("sigterm")
    flag.request("mailbox")
    assert flag.noticed == first
    flag.request("superseded")
    assert flag.flags() == {"superseded": 1, "finish": 0, "signal": 0, "mailbox": 1, "sigterm": 1}
    assert tuple(flag.flags()) == CAUSES


def test_a_second_signal_is_urgent(monkeypatch):
    """Signals at once, and the preemption signal sent again, are one request; a SIGTERM well after it is urgent."""
    clock = iter([100.0, 101.0, 110.0, 110.5])
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    flag = StopRequests()
    flag.request_by_signal("signal")
    flag.request_by_signal("sigterm")
    flag.request_by_signal("signal")
    assert not flag.urgent
    flag.request_by_signal("sigterm")
    assert flag.urgent
    assert flag.flags() == {"superseded": 0, "finish": 0, "signal": 1, "mailbox": 0, "sigterm": 1}


@pytest.mark.parametrize(
    ("cause", "configured", "code"),
    [("signal", 99, 99), ("sigterm", 99, 99), ("signal", None, 85), ("sigterm", None, 143), ("superseded", 99, 76)],
)
def test_exit_code(cause, configured, code):
    """Metasched's code where there is one, a program's usual code where not, and never a requeue when superseded."""
    assert exit_code(cause, configured) == code


def test_signals():
    """Both signals become requests."""
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR2)]
    flag = StopRequests()
    try:
        handle_stop_signals(flag, signal.SIGUSR2)
        os.kill(os.getpid(), signal.SIGUSR2)
        assert flag.flags() == {"superseded": 0, "finish": 0, "signal": 1, "mailbox": 0, "sigterm": 0}
        os.kill(os.getpid(), signal.SIGTERM)
        assert flag.flags() == {"superseded": 0, "finish": 0, "signal": 1, "mailbox": 0, "sigterm": 1}
    finally:
        signal.signal(signal.SIGTERM, before[0])
        signal.signal(signal.SIGUSR2, before[1])


def test_signals_in_a_thread():
    """Outside the main thread there is a clear error."""
    caught = []

    def attempt():
        try:
            handle_stop_signals(StopRequests(), signal.SIGUSR2)
        except UsageError as error:
            caught.append(error)

    thread = threading.Thread(target=attempt)
    thread.start()
    thread.join()
    assert "main thread" in str(caught[0])


def test_a_stopped_process_does_not_wait_for_workers_that_ignore_signals():
    """Loader workers ignore SIGTERM; a stopped trainer leaves without them and their files, at any import order."""
    script = """
import signal, sys, time
import trainer_shim
from trainer_shim.preemption.exit import process_exit
import multiprocessing

def work():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)

if __name__ == "__main__":
    print(multiprocessing.util.get_temp_dir())
    multiprocessing.Process(target=work, daemon=True).start()
    time.sleep(0.3)
    process_exit.start(85)
"""
    done = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, timeout=60, check=False)
    assert done.returncode == 85
    assert not Path(done.stdout.strip()).exists()
