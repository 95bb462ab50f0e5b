"""What benchmarks and reproductions share: options, private clusters, summaries of samples, the JSON line."""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from metasched.devcluster import DevCluster, NodeGroup, Settings

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "slurm_scripts"


def arguments(description: str) -> argparse.ArgumentParser:
    """A parser with the option ``--json``, which every benchmark and reproduction has."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    return parser


def add_data(parser: argparse.ArgumentParser) -> None:
    """Add the option ``--data``, the folder of the public data; its default is ``METASCHED_DATA``."""
    data = os.environ.get("METASCHED_DATA")
    parser.add_argument("--data", type=Path, default=data, required=data is None, help="folder of the public data")


def add_numbers(parser: argparse.ArgumentParser, option: str, default: Sequence[int], text: str) -> None:
    """Add an option that takes whole numbers above 0, separated by commas."""
    parser.add_argument(
        option,
        type=lambda given: [positive(part) for part in given.split(",")],
        default=list(default),
        metavar="N,N,...",
        help=f"{text} (default {','.join(map(str, default))})",
    )


def growth(times: Mapping[int, float]) -> str:
    """The growth of ``times`` (by size, two or more), as "jobs^1.00" for linear growth."""
    return f"jobs^{exponent(times):.2f}"


def exponent(times: Mapping[int, float]) -> float:
    """The exponent of the growth of ``times`` (by size, two or more): the slope of log time over log size.

    It is found by least squares.
    """
    points = [(math.log(size), math.log(time)) for size, time in times.items()]
    return statistics.linear_regression(*zip(*points, strict=True)).slope


def positive(text: str) -> int:
    """Parse an option that is a whole number above 0.

    Raises:
        ValueError: it is not.
    """
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def size(text: str) -> tuple[int, int]:
    """Parse an option such as ``160x64``: two whole numbers above 0.

    Raises:
        ValueError: the text is not of that form.
    """
    match = re.fullmatch(r"([1-9][0-9]*)x([1-9][0-9]*)", text)
    if match is None:
        raise ValueError(text)
    return int(match[1]), int(match[2])


def say(text: str) -> None:
    """Print progress on standard error."""
    print(text, file=sys.stderr, flush=True)


@contextmanager
def work_tree(revision: str) -> Iterator[Path]:
    """Context manager: a temporary work tree of another commit."""
    directory = tempfile.mkdtemp(prefix="mbench-")
    tree = Path(directory) / "tree"
    git = ["git", "-C", str(ROOT), "worktree"]
    subprocess.run([*git, "add", "--detach", str(tree), revision], check=True, timeout=60, capture_output=True)
    try:
        yield tree
    finally:
        subprocess.run([*git, "remove", "--force", str(tree)], check=False, timeout=60)
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def private_cluster(group: NodeGroup, *, tuned: bool = True) -> Iterator[tuple[DevCluster, Path]]:
    """A private Slurm cluster with the job_submit plugin, and a scratch directory; both are removed at the end."""
    base = Path(tempfile.mkdtemp(prefix="mbench-"))
    try:
        settings = Settings((group,), tuned=tuned)
        with DevCluster.up(
            base / "c", settings, job_submit=SCRIPTS / "job_submit.lua", owner_pid=os.getpid()
        ) as cluster:
            yield cluster, base
    finally:
        shutil.rmtree(base, ignore_errors=True)


def environment(cluster: DevCluster, shared: Path | None) -> Mapping[str, str]:
    """The environment of sbatch, with the wrapper and this Python on the PATH.

    Args:
        cluster: the private cluster.
        shared: the daemon's shared directory; None for jobs of bare Slurm.
    """
    path = f"{SCRIPTS}:{Path(sys.executable).parent}:{cluster.env['PATH']}"
    found = {**cluster.env, "PATH": path, "OMP_NUM_THREADS": "1"}
    found.pop("METASCHED_SHARED", None)
    return found if shared is None else {**found, "METASCHED_SHARED": str(shared)}


@contextmanager
def daemon(cluster: DevCluster, base: Path, config: str) -> Iterator[None]:
    """The daemon as a process, while the context lasts; ``base`` gets its configuration file and its log."""
    path = base / "metasched.toml"
    path.write_text(config)
    with (base / "daemon.log").open("wb") as log:
        argv = [sys.executable, "-m", "metasched", "--config", str(path), "daemon"]
        process = subprocess.Popen(argv, env=cluster.env, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        yield
    finally:
        process.terminate()
        process.wait(60)


def milliseconds(seconds: Sequence[float]) -> dict[str, float]:
    """Minimum, median and maximum of durations, in milliseconds with one decimal."""
    found = {"min": min(seconds), "median": statistics.median(seconds), "max": max(seconds)}
    return {name: round(1000 * value, 1) for name, value in found.items()}


def cell(summary: Mapping[str, float] | None) -> str:
    """Minimum, median and maximum as a table's cell; empty for None."""
    return "" if summary is None else " / ".join(f"{summary[name]:.0f}" for name in ("min", "median", "max"))


def finish(result: Mapping[str, Any], *, as_json: bool) -> None:
    """Print the result as one line of JSON, if ``as_json``."""
    if as_json:
        print(json.dumps(result), flush=True)
