"""Fetching ahead: the same items, and a look at whether one is there."""

import threading
import time

import pytest

from trainer_shim.data.prefetch import Prefetcher


@pytest.mark.parametrize("waits", [False, True])
def test_the_same_items(waits):
    """Every item comes once and in order, then the end is seen."""
    source = Prefetcher(iter(range(5)), waits=waits)
    found = []
    while not source.exhausted:
        found.append(source.pop())
    assert found == list(range(5))
    assert source.ready(0)
    source.close(wait=True)


@pytest.mark.parametrize("waits", [False, True])
def test_a_failure_comes_out(waits):
    """What the iterator raises is raised where the item is taken."""

    def items():
        yield 1
        raise KeyError("lost")

    source = Prefetcher(items(), waits=waits)
    assert source.pop() == 1
    assert not source.exhausted
    with pytest.raises(KeyError):
        source.pop()


def test_nothing_there_yet():
    """While the source blocks, a look says so and does not block."""
    gate = threading.Event()

    def items():
        gate.wait()
        yield 1

    source = Prefetcher(items(), waits=True)
    assert not source.ready(0)
    gate.set()
    assert source.pop() == 1
    source.close(wait=True)


def until(condition):
    """Wait until a condition that a thread brings about holds."""
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_several_ahead():
    """After `ready(..., count)`, `count` items are prefetched, and `ready` is true when all of them are there."""
    fetched = []

    def items():
        for number in range(10):
            fetched.append(number)
            yield number

    source = Prefetcher(items(), waits=True)
    assert source.ready(30)
    assert fetched == [0]
    until(lambda: source.ready(0, 4))
    assert fetched == [0, 1, 2, 3]
    assert source.pop() == 0
    until(lambda: source.ready(0, 4))
    assert fetched == [0, 1, 2, 3, 4]
    found = []
    while not source.exhausted:
        found.append(source.pop())
    assert found == list(range(1, 10))


def test_as_many_as_there_are():
    """Behind the end there is nothing to wait for, so the last few are enough."""
    source = Prefetcher(iter(range(3)), waits=True)
    until(lambda: source.ready(0, 8))
    assert [source.pop() for _ in range(3)] == [0, 1, 2]
    assert source.ready(0, 8)
    assert source.exhausted


def test_one_of_several_is_late():
    """While one of them blocks, a look says so, and those before it can be taken."""
    gate = threading.Event()

    def items():
        yield 1
        gate.wait()
        yield 2

    source = Prefetcher(items(), waits=True)
    assert source.ready(30)
    assert not source.ready(0, 2)
    assert source.pop() == 1
    gate.set()
    assert source.pop() == 2
    assert source.exhausted


def test_no_more_is_fetched_behind_the_end():
    """Once closed, only the item that is on its way is awaited, however many were to be fetched ahead."""
    gate, fetched = threading.Event(), []

    def items():
        for number in range(10):
            fetched.append(number)
            gate.wait()
            yield number

    source = Prefetcher(items(), waits=True)
    assert not source.ready(0, 8)
    until(lambda: fetched)
    closing = threading.Thread(target=source.close, kwargs={"wait": True})
    closing.start()
    until(lambda: source._closed)
    gate.set()
    closing.join(30)
    assert fetched == [0]
