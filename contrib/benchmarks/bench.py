"""What the benchmarks share: a private cluster for each measurement, samples, tables, and the last line of JSON."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from metasched.devcluster import DevCluster, NodeGroup

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "slurm_scripts"


def arguments(description: str) -> argparse.ArgumentParser:
    """A parser with the options that every benchmark has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    return parser


def positive(text: str) -> int:
    """An argument that is a whole number above 0."""
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def say(text: str) -> None:
    """Tell the person at the terminal what is being done."""
    print(text, file=sys.stderr, flush=True)


@contextmanager
def private_cluster(group: NodeGroup, *, tuned: bool = True) -> Iterator[tuple[DevCluster, Path]]:
    """A cluster with our job_submit plugin, and a directory for what uses it; both are gone afterwards."""
    base = Path(tempfile.mkdtemp(prefix="mbench-"))
    try:
        with DevCluster.up(
            base / "c", (group,), tuned=tuned, job_submit=SCRIPTS / "job_submit.lua", owner_pid=os.getpid()
        ) as cluster:
            yield cluster, base
    finally:
        shutil.rmtree(base, ignore_errors=True)


def environment(cluster: DevCluster, shared: Path | None) -> Mapping[str, str]:
    """What jobs are submitted with: our wrapper and this Python, and the directory unless they run as plain Slurm."""
    path = f"{SCRIPTS}:{Path(sys.executable).parent}:{cluster.env['PATH']}"
    found = {**cluster.env, "PATH": path, "OMP_NUM_THREADS": "1"}
    found.pop("METASCHED_SHARED", None)
    return found if shared is None else {**found, "METASCHED_SHARED": str(shared)}


def milliseconds(seconds: Sequence[float]) -> dict[str, float]:
    """Least, median and most of some durations, in ms with one decimal."""
    found = {"min": min(seconds), "median": statistics.median(seconds), "max": max(seconds)}
    return {name: round(1000 * value, 1) for name, value in found.items()}


def cell(summary: Mapping[str, float] | None) -> str:
    """Those three for a table."""
    return "" if summary is None else " / ".join(f"{summary[name]:.0f}" for name in ("min", "median", "max"))


def finish(result: Mapping[str, Any], *, as_json: bool) -> None:
    """Print the last line if it is wanted."""
    if as_json:
        print(json.dumps(result), flush=True)
