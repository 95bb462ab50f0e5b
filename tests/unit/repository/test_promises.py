"""The pages of threats and of faults name the tests that hold each of their lines."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "docs" / "admin" / name for name in ("THREATS.md", "FAULTS.md")]
NAMED = re.compile(r"`([\w/]+\.py)::(\w+)`")


@cache
def defined(path):
    """The names of a module's test functions."""
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_named_test_exists(page):
    """A renamed or deleted test must be replaced on the page."""
    named = NAMED.findall(page.read_text())
    assert len(named) > 20
    missing = [
        f"{file}::{test}"
        for file, test in named
        if not (ROOT / "tests" / file).is_file() or test not in defined(ROOT / "tests" / file)
    ]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_promise_has_a_test(page):
    """Each row of a table whose last column is `tests` names at least one."""
    promises = without = 0
    in_table = False
    for line in page.read_text().splitlines():
        if line.startswith("|") and line.endswith("| tests |"):
            in_table = True
        elif not line.startswith("|"):
            in_table = False
        elif in_table and not line.startswith("|---"):
            promises += 1
            without += not NAMED.search(line)
    assert promises > 15
    assert without == 0
