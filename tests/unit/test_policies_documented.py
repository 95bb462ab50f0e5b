from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import pytest

import policies
from metasched.policy import Policy, Registry

PAGES = sorted((Path(__file__).parents[2] / "docs" / "researcher" / "policies").glob("*.md"))
PAGE = "".join(page.read_text() for page in PAGES)


def shipped():
    """Every policy class in the ``policies`` package, found by looking, not by a list."""
    registry = Registry()
    for module in pkgutil.walk_packages(policies.__path__, "policies."):
        for _, found in inspect.getmembers(importlib.import_module(module.name), inspect.isclass):
            if issubclass(found, Policy) and not inspect.isabstract(found) and found.__module__ == module.name:
                registry.register(found)
    return [registry.get(name) for name in registry.names()]


def section(name):
    """The part of the page under a policy's heading."""
    _, found, rest = PAGE.partition(f"\n## `{name}`\n")
    assert found, f"docs/researcher/policies has no heading for {name}"
    return rest.partition("\n## ")[0]


def test_the_baselines_are_found():
    """The search itself works: the two baselines are among what it finds."""
    assert {"fifo", "las"} <= {policy.name for policy in shipped()}


@pytest.mark.parametrize("policy", shipped(), ids=lambda policy: policy.name)
def test_every_policy_documents_each_of_its_parameters_and_no_other(policy):
    """The table under its heading has a row per parameter, with the true default."""
    rows = dict(re.findall(r"^\| `(\w+)` \|[^|]*\| `([^|]*)` \|", section(policy.name), re.MULTILINE))
    defaults = {
        name: str(field.default).lower() if isinstance(field.default, bool) else str(field.default)
        for name, field in policy.Parameters.model_fields.items()
    }
    assert rows == defaults
