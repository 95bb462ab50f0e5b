"""Scripts of the shapes that people have, before and after the shim: lines, equality after stops, seconds to exit."""

from __future__ import annotations

import ast
import dataclasses
import difflib
import importlib.util
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from contrib.benchmarks.common import arguments, finish, say
from contrib.benchmarks.training_starts import REQUEUE, ROOT, Start, StartError, StartProcess, Training, start_python
from metasched.cli.tables import console, row, table

SCRIPTS = ROOT / "contrib" / "examples" / "adoption"
NAMES = sorted(path.parent.name for path in SCRIPTS.glob("*/plain.py"))
NEEDS = {
    "hydra_style": ("hydra",),
    "hf_argument_parser": ("transformers", "accelerate"),
    "lightning_cli": ("pytorch_lightning", "jsonargparse"),
}
"""Packages that a script needs besides torch."""
STOP_AT = 10
"""The optimizer step of a start before which the last rank gets the signal."""
RESIZED, SAME_SIZE = (2, 1, 2), (2, 2, 2)
TOLERANCE = 1e-5
"""The largest difference of parameters, in float32, that counts as rounding."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What the stops have changed, and how long they took.

    Attributes:
        resized: the largest difference of a final parameter to the undisturbed run, at world sizes 2, 1, 2.
        same_size: the same at 2, 2, 2; 0 is equality of every bit.
        exit_seconds: the seconds of each stop from the signal to the end of the last rank.
    """

    resized: float
    same_size: float
    exit_seconds: tuple[float, ...]


def missing(name: str) -> list[str]:
    """Return the packages that the script needs and that are not installed."""
    return [package for package in NEEDS.get(name, ()) if importlib.util.find_spec(package) is None]


def code_lines(script: Path) -> list[str]:
    """Return the lines of code, without docstrings, comments and empty lines, as the author would count them."""
    text = script.read_text(encoding="utf-8")
    inside: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            inside |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = enumerate(text.splitlines(), 1)
    return [line for number, line in lines if number not in inside and line.strip() and line.strip()[0] != "#"]


def changed_lines(before: Path, after: Path) -> tuple[int, int]:
    """Return the lines of code that are written and deleted to make one script of another."""
    changes = list(difflib.ndiff(code_lines(before), code_lines(after)))
    return sum(line.startswith("+ ") for line in changes), sum(line.startswith("- ") for line in changes)


def final_model(directory: Path) -> dict[str, torch.Tensor]:
    """Return the parameters that a script has written at its end."""
    found: dict[str, torch.Tensor] = torch.load(directory / "model.pt", map_location="cpu", weights_only=True)
    return found


def largest_difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """Return the largest absolute difference of two models' values.

    Raises:
        StartError: the models have other names.
    """
    if one.keys() != other.keys():
        raise StartError(f"models of other names: {sorted(one.keys() ^ other.keys())}")
    return max(float((one[name].double() - other[name].double()).abs().max()) for name in one)


def run_through(
    script: Path, directory: Path, sizes: Sequence[int], start_process: StartProcess = start_python
) -> tuple[dict[str, torch.Tensor], list[float]]:
    """Run a script at each of the sizes, with a stop between two, and return the final model and the stops' seconds.

    Raises:
        StartError: a start failed, or did not stop.
    """
    directory.mkdir()
    training = Training(directory, [str(script)], start_process=start_process)
    seconds = []
    for number, size in enumerate(sizes):
        last = number == len(sizes) - 1
        codes, took = training.run(Start(size, None if last else STOP_AT))
        if codes != [0 if last else REQUEUE] * size:
            raise StartError(training.describe(codes))
        seconds += [] if took is None else [took]
    return final_model(directory), seconds


def measure(
    name: str, directory: Path, start_process: StartProcess = start_python, *, same_size: bool = True
) -> Outcome:
    """Run the adopted script undisturbed, through resizes, and through stops at one size.

    Args:
        name: the script's folder.
        directory: an existing, empty directory.
        start_process: the function that starts a rank.
        same_size: whether to stop the script at one size, too; otherwise that difference is that of the resizes.

    Raises:
        StartError: a start failed, or did not stop.
    """
    script = SCRIPTS / name / "adopted.py"
    undisturbed, _ = run_through(script, directory / "undisturbed", (2,), start_process)
    resized, seconds = run_through(script, directory / "resized", RESIZED, start_process)
    difference = largest_difference(undisturbed, resized)
    if not same_size:
        return Outcome(difference, difference, tuple(seconds))
    same, further = run_through(script, directory / "same", SAME_SIZE, start_process)
    return Outcome(difference, largest_difference(undisturbed, same), (*seconds, *further))


def run_plain(name: str, directory: Path, start_process: StartProcess = start_python) -> None:
    """Run the plain script at two ranks to its end.

    Raises:
        StartError: the start failed.
    """
    run_through(SCRIPTS / name / "plain.py", directory / "plain", (2,), start_process)


def result(name: str, directory: Path) -> dict[str, Any]:
    """Return the row of a script; `error` or `missing` stand for what could not be measured."""
    written, deleted = changed_lines(SCRIPTS / name / "plain.py", SCRIPTS / name / "adopted.py")
    found: dict[str, Any] = {"written": written, "deleted": deleted}
    absent = missing(name)
    if absent:
        return found | {"missing": absent}
    directory.mkdir()
    try:
        run_plain(name, directory)
        outcome = measure(name, directory)
    except StartError as error:
        say(f"{name}: {error}")
        return found | {"error": str(error)}
    return found | {
        "resized": outcome.resized,
        "same_size": outcome.same_size,
        "exit_seconds": round(statistics.median(outcome.exit_seconds), 2),
    }


def holds(found: dict[str, Any]) -> bool:
    """Whether the result has no error, rounding alone after resizes, and every bit equal at one size."""
    return "error" not in found and found.get("resized", 0.0) <= TOLERANCE and found.get("same_size", 0.0) == 0.0


def cells(found: dict[str, Any]) -> tuple[str, ...]:
    """Return the cells of a row that show the runs."""
    if "missing" in found:
        return (f"not installed: {', '.join(found['missing'])}",)
    if "error" in found:
        return ("FAILED",)
    apart = ("bitwise" if found[key] == 0 else f"{found[key]:.1e}" for key in ("resized", "same_size"))
    return *apart, f"{found['exit_seconds']:.1f}"


def main() -> None:
    """Measure, and print the table; the exit status is 1 where a stop has changed a result."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--script", choices=NAMES, action="append", help="(default: all)")
    options = parser.parse_args()
    rows = {}
    with tempfile.TemporaryDirectory(prefix="adoption-") as base:
        for name in options.script or NAMES:
            say(f"{name} ...")
            rows[name] = result(name, Path(base) / name)
    headings = ("lines written", "deleted", "2 -> 1 -> 2: at most apart", "2 -> 2 -> 2", "signal -> exit, s")
    shown = table("script", *headings, right=headings)
    for name, found in rows.items():
        row(shown, name, found["written"], found["deleted"], *cells(found))
    console().print(shown)
    finish({"benchmark": "adoption", "scripts": rows}, as_json=options.json)
    sys.exit(0 if all(map(holds, rows.values())) else 1)


if __name__ == "__main__":
    main()
