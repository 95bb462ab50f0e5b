import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
LEAST = 22
"""Characters: a shorter docstring leaves out what is returned, for what, or in which unit."""


def public(tree, within=""):
    """The public classes and functions of a module, with their qualified names."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
            yield within + node.name, node
            if isinstance(node, ast.ClassDef):
                yield from public(node, f"{within}{node.name}.")


@pytest.mark.parametrize("package", ["metasched", "policies", "trainer_shim"])
def test_public_docstrings_are_sentences(package):
    """A public docstring says more than two words; that of an override may be "See Base."."""
    short = {
        f"{path.relative_to(ROOT)}: {name}: {text}"
        for path in (ROOT / package).rglob("*.py")
        for name, node in public(ast.parse(path.read_text()))
        if (text := ast.get_docstring(node)) is not None and len(text) < LEAST and not text.startswith("See ")
    }
    assert not short
