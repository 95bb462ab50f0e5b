import re
import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "researcher" / "BENCHMARKS.md").read_text()


def benchmarks():
    """The programs in contrib/benchmarks and contrib/reproductions; modules that only help them have no main()."""
    found = [path for name in ("benchmarks", "reproductions") for path in (ROOT / "contrib" / name).glob("*.py")]
    return [path for path in sorted(found) if "def main(" in path.read_text()]


def command(path):
    """The program's module, as the page's commands run it."""
    return f"-m contrib.{path.parent.name}.{path.stem}"


def test_the_search_finds_benchmarks():
    """The search itself works: the known ones are among what it finds."""
    assert {"preemption", "poll_to_plan", "parity"} <= {path.stem for path in benchmarks()}


@pytest.mark.parametrize("path", benchmarks(), ids=lambda path: path.stem)
def test_every_benchmark_is_listed_with_its_command(path):
    """Each benchmark has a row in the table, and a section with the command that runs it."""
    assert f"| [{path.stem}](#{path.stem}) |" in PAGE
    _, found, rest = PAGE.partition(f"\n## {path.stem}\n")
    assert found
    assert f".venv/bin/python {command(path)}" in rest.partition("\n## ")[0]


def test_the_page_lists_no_missing_benchmark():
    """Every program that the page runs exists."""
    assert set(re.findall(r"-m contrib\.(?:benchmarks|reproductions)\.\w+", PAGE)) == {
        command(path) for path in benchmarks()
    }


@pytest.mark.parametrize("path", benchmarks(), ids=lambda path: path.stem)
def test_every_benchmark_has_help_and_json(path, monkeypatch, capsys):
    """--help works without Slurm, and every option on the page exists, --json among them."""
    monkeypatch.syspath_prepend(str(path.parent))
    monkeypatch.setattr(sys, "argv", [str(path), "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(path), run_name="__main__")
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert "--json" in said
    used = {
        option
        for line in PAGE.splitlines()
        if command(path) in line
        for option in re.findall(r"--[a-z-]+", line.partition("#")[0])
    }
    assert used <= set(re.findall(r"--[a-z-]+", said))
