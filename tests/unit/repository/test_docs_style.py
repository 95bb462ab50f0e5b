"""What a machine can hold of the documentation's style: line length, and links that lead somewhere."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGES = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "contrib").glob("*/README.md")),
]
LENGTH = 120


def prose(page):
    """The lines of a page by number, without those of code blocks."""
    inside = False
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if line.lstrip().startswith("```"):
            inside = not inside
        elif not inside:
            yield number, line


def anchors(page):
    """The anchors of a page's headings, as GitHub makes them."""
    headings = [line.lstrip("# ") for _, line in prose(page) if line.startswith("#")]
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def name(page):
    """The page's path in the repository, which names its test."""
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_lines_are_short(page):
    """Outside tables and code blocks no line is longer than 120 characters."""
    long = [number for number, line in prose(page) if len(line) > LENGTH and not line.lstrip().startswith("|")]
    assert long == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_relative_links_resolve(page):
    """Each relative link names a file of the repository and, after ``#``, one of its headings."""
    broken = []
    for number, line in prose(page):
        for link in re.findall(r"\]\(([^)\s]+)\)", line):
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            if "://" in link:
                continue
            if not target.exists() or (anchor and anchor not in anchors(target)):
                broken.append((number, link))
    assert broken == []


def test_every_page_is_reached_from_the_first():
    """Each page of docs/ is linked, directly or by other pages, from docs/README.md."""
    reached, ahead = set(), [ROOT / "docs" / "README.md"]
    while ahead:
        page = ahead.pop()
        if page in reached:
            continue
        reached.add(page)
        links = re.findall(r"\]\(([^)\s#]+\.md)", page.read_text(encoding="utf-8"))
        ahead += [target for link in links if "://" not in link and (target := (page.parent / link).resolve()).exists()]
    assert set((ROOT / "docs").rglob("*.md")) <= reached
