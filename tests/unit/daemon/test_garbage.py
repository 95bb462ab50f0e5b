"""The garbage collector between polls."""

import gc
import signal
import weakref
from pathlib import Path
from types import SimpleNamespace

import pytest

from metasched.configuration.config import load
from metasched.core.policy import installed_policies
from metasched.daemon import process
from metasched.daemon.garbage import ALL_SECONDS, GarbageCollection
from metasched.daemon.process import Daemon
from metasched.store import BusyStoreError


class Node:
    """An object of a cycle."""

    def __init__(self):
        self.self = self


@pytest.fixture(autouse=True)
def thawed():
    """Give the collector all objects and its threshold back, for the other tests."""
    threshold = gc.get_threshold()
    yield
    gc.set_threshold(*threshold)
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


def test_a_cycle_that_a_poll_has_dropped_is_found_at_its_end():
    """It needs no search of all objects, and none during the poll, for which it is too small."""
    collection = GarbageCollection(lambda: 0.0)
    collection.after_poll()
    searches = []
    gc.callbacks.append(lambda phase, info: searches.append(phase))
    try:
        nodes = [Node() for _ in range(5000)]
        left = weakref.ref(nodes[0])
        del nodes
        assert not searches
    finally:
        gc.callbacks.pop()
    assert left() is not None
    collection.after_poll()
    assert left() is None
    threshold = gc.get_threshold()
    collection.end()
    assert gc.get_threshold()[0] < threshold[0]


def test_free_memory_is_given_back_after_each_poll():
    """By the C library, where it can."""
    given = []
    collection = GarbageCollection(give_back=lambda: given.append(True))
    collection.after_poll()
    collection.after_poll()
    assert given == [True, True]
    GarbageCollection().after_poll()


def test_what_was_dropped_is_searched_after_the_next_poll():
    """Where a search of all is asked for, it does not wait for its time; it is one search."""
    collection = GarbageCollection(lambda: 0.0)
    first, second = Node(), Node()
    left = weakref.ref(first), weakref.ref(second)
    collection.after_poll()
    del first
    collection.search_all_next()
    collection.after_poll()
    assert left[0]() is None
    del second
    gc.collect()
    collection.after_poll()
    assert left[1]() is not None


class Controller(Node):
    """A controller in a cycle, whose first poll is cut short by a lock on the store."""

    def __init__(self, policy):
        super().__init__()
        self.policy = policy
        self.polls = 0

    def poll(self):
        self.polls += 1
        if self.polls == 2:
            raise BusyStoreError(Path("metasched.db"), "database is locked")
        return 1.0

    def reconfigure(self, config, policy):
        self.policy = policy

    def close(self):
        pass


@pytest.fixture
def daemon(tmp_path):
    path = tmp_path / "metasched.toml"
    path.write_text(f'[paths]\nstate = "{tmp_path}"\nshared = "{tmp_path}"\n[policy]\nname = "fifo"\n')
    registry = installed_policies()
    store, copier = SimpleNamespace(require_writable=lambda: None), SimpleNamespace(every=0.0)
    make = lambda config, policy: Controller(policy)  # noqa: E731  the daemon's
    return Daemon(path, load(path, registry), registry, make, Policy(), store, copier, None)


class Policy(Node):
    """A policy in a cycle."""


def test_a_controller_that_was_given_up_is_freed_after_the_next_poll(daemon):
    """The poll of its successor finds it, though it was kept out of searches."""
    daemon._poll()
    left = weakref.ref(daemon._controller)
    daemon._poll()
    assert daemon._controller is None
    gc.collect()
    assert left() is not None
    daemon._poll()
    assert left() is None


def test_a_policy_that_was_replaced_is_freed_after_the_next_poll(daemon, monkeypatch):
    """A reload leaves the policy before to nobody."""
    monkeypatch.setattr(process, "configure_logs", lambda _: None)
    daemon._poll()
    left = weakref.ref(daemon._policy)
    daemon._reload_config()
    gc.collect()
    assert left() is not None
    daemon._controller.polls = 0
    daemon._poll()
    assert left() is None


def test_the_end_of_the_daemon_gives_the_collector_all_objects_back(daemon, monkeypatch):
    """A process that goes on without the daemon searches all of them."""
    monkeypatch.setattr(daemon._scheduler, "start", daemon._poll)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        daemon.run()
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    assert gc.get_freeze_count() == 0
