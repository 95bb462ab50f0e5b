"""Fetching ahead: the same items, and a look at whether one is there."""

import threading

import pytest

from trainer_shim.ahead import Ahead


@pytest.mark.parametrize("waits", [False, True])
def test_the_same_items(waits):
    """Every item comes once and in order, then the end is seen."""
    source = Ahead(iter(range(5)), waits=waits)
    found = []
    while not source.ended:
        found.append(source.take())
    assert found == list(range(5))
    assert source.ready(0)
    source.close(wait=True)


@pytest.mark.parametrize("waits", [False, True])
def test_a_failure_comes_out(waits):
    """What the iterator raises is raised where the item is taken."""

    def items():
        yield 1
        raise KeyError("lost")

    source = Ahead(items(), waits=waits)
    assert source.take() == 1
    assert not source.ended
    with pytest.raises(KeyError):
        source.take()


def test_nothing_there_yet():
    """While the source blocks, a look says so and does not block."""
    gate = threading.Event()

    def items():
        gate.wait()
        yield 1

    source = Ahead(items(), waits=True)
    assert not source.ready(0)
    gate.set()
    assert source.take() == 1
    source.close(wait=True)
