"""Simulations whose results are kept in a file, so that an interrupted reproduction continues."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from contrib.benchmarks import common


def add_results(parser: argparse.ArgumentParser) -> None:
    """Add the option ``--results``, the file of finished simulations."""
    parser.add_argument("--results", type=Path, help="file of finished simulations, which another run skips")


def add_tables(parser: argparse.ArgumentParser, names: Iterable[str]) -> None:
    """Add the options ``--only``, the names of tables to print, by default all, and ``--results``."""
    known = list(names)
    parser.add_argument("--only", nargs="+", choices=known, default=known, help="tables")
    add_results(parser)


def read_results(file: Path | None) -> list[dict[str, Any]]:
    """The objects of a file of JSON lines; none without a file."""
    return [json.loads(text) for text in file.read_text().splitlines()] if file is not None and file.exists() else []


def append_result(file: Path | None, result: Mapping[str, Any]) -> None:
    """Append one object to a file of JSON lines, if there is one."""
    if file is not None:
        with file.open("a") as out:
            out.write(json.dumps(result) + "\n")


class Results:
    """Finished simulations, stored in a file, if there is one; those that it has are not repeated.

    Args:
        file: JSON lines, of ``simulation``, a list of texts, and its figures; None to store nothing.
    """

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._found: dict[tuple[str, ...], dict[str, float]] = {
            tuple(stored["simulation"]): stored["figures"] for stored in read_results(file)
        }

    def figures(self, simulation: tuple[str, ...], simulate: Callable[[], dict[str, float]]) -> dict[str, float]:
        """The figures of a simulation, by name.

        Args:
            simulation: all that identifies it.
            simulate: runs it; called only if the file does not have it.
        """
        if simulation not in self._found:
            found = self._found[simulation] = simulate()
            append_result(self._file, {"simulation": simulation, "figures": found})
        return self._found[simulation]


def means(found: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean of each figure that all of some simulations have, by name; there is at least one simulation."""
    return {name: fmean(one[name] for one in found) for name in found[0] if all(name in one for one in found)}


def print_tables(names: Sequence[str], tables: Mapping[str, Callable[[], Iterator[str]]], *, as_json: bool) -> None:
    """Print tables, each line as soon as it is known, and all of them as JSON where ``as_json``.

    Args:
        names: the tables to print.
        tables: by name, a function that returns the lines of a table.
        as_json: whether one line of JSON follows.
    """
    printed: dict[str, list[str]] = {}
    for name in names:
        for line in tables[name]():
            printed.setdefault(name, []).append(line)
            print(line, flush=True)
        print()
    common.finish(printed, as_json=as_json)
