"""Simulations whose results are kept in a file, so that an interrupted reproduction continues."""

from __future__ import annotations

import argparse
import json
import math
import subprocess
from collections import defaultdict
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


class Results:
    """Finished simulations, stored in a file, if there is one; those that it has are not repeated.

    A line of the file is a JSON object: ``simulation``, a list of texts; its ``figures``, to six digits; and the
    ``commit`` by which they were made, where there is one, with ``-dirty`` if files differed from it.

    Args:
        file: JSON lines; None to store nothing.
        stored_only: whether simulations that the file lacks are not run; each of their figures is NaN.
    """

    def __init__(self, file: Path | None, *, stored_only: bool = False) -> None:
        self._file = file
        self._stored_only = stored_only
        self._commit = None if file is None or stored_only else _commit()
        lines = file.read_text().splitlines() if file is not None and file.exists() else []
        self._found: dict[tuple[str, ...], Mapping[str, float]] = {
            tuple(stored["simulation"]): stored["figures"] for stored in map(json.loads, lines)
        }

    def figures(self, simulation: tuple[str, ...], simulate: Callable[[], dict[str, float]]) -> Mapping[str, float]:
        """The figures of a simulation, by name.

        Args:
            simulation: all that identifies it.
            simulate: runs it; called only if the file does not have it.
        """
        if simulation not in self._found:
            if self._stored_only:
                return defaultdict(lambda: math.nan)
            figures = {name: float(f"{value:.6g}") for name, value in simulate().items()}
            self._found[simulation] = figures
            self._append({"simulation": simulation, "figures": figures})
        return self._found[simulation]

    def _append(self, result: Mapping[str, Any]) -> None:
        if self._file is not None:
            made = {**result, "commit": self._commit} if self._commit else result
            with self._file.open("a") as out:
                out.write(json.dumps(made) + "\n")


def _commit() -> str | None:
    """The abbreviated commit of this checkout; None without git."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return found.stdout.strip()


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
