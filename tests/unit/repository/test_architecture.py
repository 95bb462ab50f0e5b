import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "ARCHITECTURE.md").read_text()
NAMED = set(re.findall(r"`([^`\n]+)`", PAGE))


def is_path(text: str) -> bool:
    """Whether what stands in backticks names a file or a directory, not a command, a class or a pattern."""
    return re.fullmatch(r"[\w./-]+(/|\.(py|md|lua|toml|txt)|/[\w-]+)", text) is not None


def test_paths_named_on_the_page_exist():
    """Every file and directory that the architecture page names in backticks is there."""
    paths = {name for name in NAMED if is_path(name)}
    assert paths
    assert not {path for path in paths if not (ROOT / path).exists()}


def test_the_page_names_every_package():
    """Every module and package right below metasched/ is named in the architecture page."""
    found = {p.name if p.is_file() else f"{p.name}/" for p in (ROOT / "metasched").iterdir()}
    packages = {f"metasched/{name}" for name in found if re.search(r"^[a-z]\w*(\.py|/)$", name)}
    assert packages
    assert not packages - NAMED
