"""The registry of policies."""

from importlib.metadata import EntryPoint

import pytest

from metasched.core.policy import DuplicatePolicyError, Registry, UnknownPolicyError, installed_policies
from policies.baselines.fifo import Fifo

FIFO = EntryPoint("fifo", "policies.baselines.fifo:Fifo", "metasched.policies")
BROKEN = EntryPoint("broken", "no_such_module:Policy", "metasched.policies")


def test_installed_policies_are_found_by_name():
    """A policy that setup.py names is found, and is among all names."""
    registry = installed_policies()
    assert registry.get("fifo") is Fifo
    assert {"fifo", "las", "pollux"} <= set(registry.names())


def test_a_broken_plug_in_is_skipped(caplog):
    """A policy that cannot be imported is logged once, and is no known name."""
    registry = Registry([FIFO, BROKEN])
    assert registry.get("fifo") is Fifo
    assert "broken" not in caplog.text
    with pytest.raises(UnknownPolicyError, match="broken"):
        registry.get("broken")
    assert registry.names() == ["fifo"]
    assert caplog.text.count("no_such_module:Policy") == 1


def test_a_name_is_registered_once():
    """Another policy under the name of an installed one is refused, be that one imported or not."""
    with pytest.raises(DuplicatePolicyError, match="fifo"):
        Registry([FIFO]).register(type("Other", (Fifo,), {}))


def test_a_plug_in_may_have_another_name_than_its_policy():
    """A policy is found by its own name."""
    entry_point = EntryPoint("first", FIFO.value, FIFO.group)
    assert Registry([entry_point]).get("fifo") is Fifo
