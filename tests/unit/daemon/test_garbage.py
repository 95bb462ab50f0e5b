"""The garbage collector between polls."""

import gc
import weakref

import pytest

from metasched.daemon.garbage import ALL_SECONDS, GarbageCollection


class Node:
    """An object of a cycle."""

    def __init__(self):
        self.self = self


@pytest.fixture(autouse=True)
def thawed():
    """Give the collector all objects back, for the other tests."""
    yield
    gc.unfreeze()


def test_the_objects_of_earlier_polls_are_searched_once_in_a_while():
    """A cycle that a poll has left is no matter of the next polls' searches, and is found in the end."""
    now = [0.0]
    collection = GarbageCollection(lambda: now[0])
    node = Node()
    left = weakref.ref(node)
    collection.after_poll()
    del node
    gc.collect()
    collection.after_poll()
    assert left() is not None
    now[0] += ALL_SECONDS
    collection.after_poll()
    assert left() is None
    assert gc.get_freeze_count() > 0
