"""The bound on waits for training data, on a clock that the test moves."""

import logging
import os

import pytest

from trainer_shim.data.data_wait import DataWait
from trainer_shim.data.worker_progress import WorkerProgress, WorkerState


class Waiting:
    """A prefetcher whose workers the test moves; `now` is the time in seconds."""

    def __init__(self, workers=1):
        self.progress = WorkerProgress(workers)
        self.now = 0.0
        self.restarts = 0

    def restart(self):
        self.restarts += 1
        self.progress.note_start(0)
        return True


class EndedError(Exception):
    """The process would have ended."""


@pytest.fixture
def waiting(monkeypatch):
    # the worker of these tests is the test's own process, which reads files
    monkeypatch.setattr(WorkerState, "bytes_read", lambda _: 0)
    monkeypatch.setattr("trainer_shim.data.data_wait._signal", lambda *_: None)
    monkeypatch.setattr("trainer_shim.data.data_wait.signal.signal", lambda *_: None)
    monkeypatch.setattr("trainer_shim.data.data_wait.time.sleep", lambda _: None)
    return Waiting()


def end(words):
    raise EndedError(words)


def wait(source, waits, seconds, each=lambda: None):
    """Look each second for so many seconds."""
    for _ in range(seconds):
        source.now += 1
        each()
        waits.check(source)


def test_a_wait_without_progress_ends_the_process(waiting, caplog):
    """A worker that stays at one sample is named at half of the bound, and ends the process at its end."""
    waits = DataWait(40, 3, end, lambda: waiting.now)
    waiting.progress.note_start(0)
    waiting.progress.note_sample(2, 77)
    with caplog.at_level(logging.WARNING, "trainer_shim"):
        wait(waiting, waits, 39)
    assert "rank 3 has waited 20 s for data, of at most 40 s" in caplog.text
    with pytest.raises(EndedError, match=rf"stuck for 40 s: worker 0 \(process {os.getpid()}\) is at sample 77 of epo"):
        wait(waiting, waits, 3)


def test_progress_prolongs_the_wait(waiting, caplog):
    """A worker that goes on to other samples is named as slow, and ends nothing."""
    waits = DataWait(40, 0, end, lambda: waiting.now)
    waiting.progress.note_start(0)
    with caplog.at_level(logging.WARNING, "trainer_shim"):
        wait(waiting, waits, 200, lambda: waiting.progress.note_sample(0, int(waiting.now)))
        waits.finish()
    assert "which come slowly" in caplog.text
    assert "rank 0 has its next batch, after" in caplog.text


def test_each_batch_has_its_own_bound(waiting):
    """The wait for the next batch begins at zero."""
    waits = DataWait(40, 0, end, lambda: waiting.now)
    waiting.progress.note_start(0)
    for _ in range(5):
        wait(waiting, waits, 39)
        waits.finish()


def test_a_suspension_does_not_count(waiting):
    """Time in which the process did not run is no wait."""
    waits = DataWait(40, 0, end, lambda: waiting.now)
    waiting.progress.note_start(0)
    wait(waiting, waits, 10)
    waiting.now += 10_000
    wait(waiting, waits, 20)


def test_a_worker_that_does_not_come_up_is_replaced_once(waiting):
    """Workers that have not come up are replaced; a second time they count as stuck."""
    waits = DataWait(40, 0, end, lambda: waiting.now)
    wait(waiting, waits, 22)
    assert waiting.restarts == 1
    waiting.progress.reset()
    with pytest.raises(EndedError, match="worker 0 has not come up"):
        wait(waiting, waits, 50)
    assert waiting.restarts == 1


def test_no_bound(waiting):
    """Without a limit nothing ends, and nothing is replaced."""
    waits = DataWait(None, 0, end, lambda: waiting.now)
    wait(waiting, waits, 2000)
    assert waiting.restarts == 0
