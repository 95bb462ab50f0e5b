from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import pytest

import policies
from metasched.core.policy import Policy, Registry

PAGES = sorted((Path(__file__).parents[3] / "docs" / "researcher" / "policies").glob("*.md"))
PAGE = "".join(page.read_text() for page in PAGES)
HEADINGS = {heading.lower().replace(" ", "-"): heading for heading in re.findall(r"^## (.*)$", PAGE, re.MULTILINE)}


def shipped():
    """Every policy class in the ``policies`` package, found by looking, not by a list."""
    registry = Registry()
    for module in pkgutil.walk_packages(policies.__path__, "policies."):
        for _, found in inspect.getmembers(importlib.import_module(module.name), inspect.isclass):
            if issubclass(found, Policy) and not inspect.isabstract(found) and found.__module__ == module.name:
                registry.register(found)
    return [registry.get(name) for name in registry.names()]


def section(heading):
    """The text under a heading of the policies' pages."""
    _, found, rest = PAGE.partition(f"\n## {heading}\n")
    assert found, f"docs/researcher/policies has no heading {heading}"
    return rest.partition("\n## ")[0]


def documented(heading):
    """Parameters and defaults in the tables of a section, and of the sections of common parameters that it links."""
    text = section(heading)
    rows = re.findall(r"^\| `(\w+)` \|[^|]*\| `([^|]*)` \|", text, re.MULTILINE)
    for anchor in re.findall(r"^(?:Parameters: )?\[[^]]*\]\([\w.-]*#(parameters-of-[\w-]+)\)", text, re.MULTILINE):
        rows += documented(HEADINGS[anchor])
    return rows


def test_the_baselines_are_found():
    """The search itself works: the two baselines are among what it finds."""
    assert {"fifo", "las"} <= {policy.name for policy in shipped()}


@pytest.mark.parametrize("policy", shipped(), ids=lambda policy: policy.name)
def test_every_policy_documents_each_of_its_parameters_and_no_other(policy):
    """Its section, with those that it links, has exactly one row per parameter, with the true default."""
    rows = documented(f"`{policy.name}`")
    defaults = {
        name: str(field.default).lower() if isinstance(field.default, bool) else str(field.default)
        for name, field in policy.Parameters.model_fields.items()
    }
    assert sorted(rows) == sorted(defaults.items())


def test_the_table_to_choose_from_names_every_policy():
    """Each shipped policy has one row, which links its section."""
    rows = re.findall(r"^\| \[`(\w+)`\]\([\w-]+\.md#(\w+)\) \|", PAGE, re.MULTILINE)
    assert sorted(name for name, _ in rows) == sorted(policy.name for policy in shipped())
    assert all(name == anchor for name, anchor in rows)
