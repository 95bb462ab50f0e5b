import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "GLOSSARY.md").read_text()
TERMS, DROPPED = PAGE.split("## Words not used")
LINES = re.findall(r"^- \*\*(.+?)\*\*: (.+)$", TERMS, flags=re.MULTILINE)
PACKAGES = ("metasched", "policies", "trainer_shim")
FOLDERS_OF_ONE_TERM = (
    "cli/",
    "demo/",
    "simulator/generate/",
    "simulator/traces/",
    "policies/baselines/",
    "trainer_shim/rehearse/",
)
# Words of the table "Words not used" that stand for nothing else in a name.
NAMES_WITHOUT = {
    *("adoption", "beside", "chance", "claims", "company", "couples", "deaf", "heir", "heirs", "hopeless"),
    *("incarnation", "incarnations", "ledger", "mate", "mates", "owed", "room", "rooms", "seat", "seats", "vain"),
}


def modules(*packages):
    """The files of modules that others import: no dunder and no private ones."""
    return [path for package in packages for path in (ROOT / package).rglob("*.py") if not path.stem.startswith("_")]


def named(tree):
    """The names that a module defines: classes, functions, parameters, attributes and variables."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.id if isinstance(node, ast.Name) else node.attr


def words(name):
    """The words of a name: of ``GpuShards`` and ``gpu_shards`` the same."""
    return {part.lower() for part in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)}


def test_the_terms_are_in_order_and_each_has_one_line():
    """The terms are in alphabetical order, each once."""
    terms = [term.lower() for term, _ in LINES]
    assert len(terms) > 100
    assert terms == sorted(set(terms))


def below_metasched(path):
    """A path as the page writes it: below ``metasched/``, or from the repository's root."""
    return path.relative_to(ROOT / "metasched" if path.is_relative_to(ROOT / "metasched") else ROOT).as_posix()


def test_every_module_is_explained():
    """A module's name is a term, or the page names its file, or one term explains all modules of its folder."""
    terms = {term.lower() for term, _ in LINES}
    for path in modules(*PACKAGES):
        name = path.stem.replace("_", " ")
        place = below_metasched(path)
        assert {name, name.rstrip("s")} & terms or place in TERMS or place.startswith(FOLDERS_OF_ONE_TERM), place


def test_every_file_that_the_page_names_exists():
    """A path in the page is a file or folder of the repository."""
    paths = {path.strip("()`,.;") for path in re.findall(r"[(`][\w./-]+/[\w.-]*[)`,]", TERMS)}
    assert len(paths) > 100
    assert not {path for path in paths if not (ROOT / path).exists() and not (ROOT / "metasched" / path).exists()}


def test_every_record_of_the_model_is_explained():
    """The classes of core/model.py stand in the page by their names, or their names in words are terms."""
    terms = {term.lower() for term, _ in LINES}
    tree = ast.parse((ROOT / "metasched" / "core" / "model.py").read_text())
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", node.name).lower()
            assert spaced in terms or re.search(rf"\b{node.name}\b", TERMS), node.name


def test_the_table_has_the_words_that_the_test_watches():
    """Each dropped word of this test stands in the table of words that are not used."""
    table = set(re.findall(r"[a-z]+", " ".join(re.findall(r"^\| ([^|]+) \|", DROPPED, flags=re.MULTILINE)).lower()))
    assert {word.rstrip("s") for word in NAMES_WITHOUT} <= {word.rstrip("s") for word in table}


@pytest.mark.parametrize("package", PACKAGES)
def test_dropped_words_do_not_come_back(package):
    """No name of the product contains a word that the glossary has dropped."""
    found = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in (ROOT / package).rglob("*.py")
        for name in named(ast.parse(path.read_text()))
        if words(name) & NAMES_WITHOUT
    }
    stems = {str(path.relative_to(ROOT)) for path in modules(package) if words(path.stem) & NAMES_WITHOUT}
    assert not found | stems
