"""The history of a trainer's checkpoints."""

import math

import pytest

from trainer_shim.checkpointing.save_history import SaveHistory


@pytest.fixture
def clock(monkeypatch):
    """A monotonic clock that the test moves."""
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    return now


def test_a_save_is_due_some_time_after_the_last_attempt(clock):
    """A save is due some time after the last attempt, also a failed one, and never while one is under way."""
    saves = SaveHistory(resumed=False)
    clock[0] += 10
    assert saves.due(10)
    assert not saves.due(11)
    saves.note_attempt()
    assert not saves.due(10)
    saves.in_progress = True
    clock[0] += 10
    assert not saves.due(10)


def test_the_age_of_the_newest_checkpoint(clock):
    """The age counts from the start for a resumed checkpoint, and is infinite without any."""
    fresh, resumed = SaveHistory(resumed=False), SaveHistory(resumed=True)
    clock[0] += 5
    assert (fresh.age, resumed.age) == (math.inf, 5)
    fresh.note_save(2.0)
    clock[0] += 1
    assert fresh.age == 1
    assert (fresh.slowest_seconds, resumed.slowest_seconds) == (2.0, None)
