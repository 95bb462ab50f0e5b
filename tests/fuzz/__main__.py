"""Fuzz the parsers, guided by coverage: ``python -m tests.fuzz [--runs N] [--seconds S] [TARGET ...]``.

Each target runs in a process of its own under libFuzzer (the package ``atheris``). An exception that is no typed error,
an input that takes over 10 s, or more than 2 GiB of memory is a finding: its input is written to the directory of
findings. Copy it to ``tests/fuzz/corpus/TARGET`` together with the mend.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.fuzz.targets import TARGETS

MOST_SECONDS = 24 * 3600.0


def main() -> int:
    """Fuzz the named targets, or all; returns 1 where there was a finding."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(TARGETS))
    parser.add_argument("--runs", type=int, default=100_000, help="inputs of each target")
    parser.add_argument("--seconds", type=int, default=0, help="most seconds of each target; default: no limit")
    parser.add_argument("--findings", type=Path, default=Path("fuzz-findings"), help="directory of findings")
    given = parser.parse_args()
    if unknown := set(given.targets) - set(TARGETS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(TARGETS)}")
    names, failed, total = given.targets or list(TARGETS), [], 0
    for name in names:
        folder = given.findings.absolute() / name
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as corpus:
            worker = (name, str(given.runs), str(given.seconds), str(folder), corpus)
            command = [sys.executable, "-m", "tests.fuzz.worker", *worker]
            done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=MOST_SECONDS)
        statistics = dict(re.findall(r"^stat::(\w+):\s+([0-9]+)$", done.stderr, re.MULTILINE))
        total += int(statistics.get("number_of_executed_units", 0))
        _say(f"{name}: {_in_words(statistics)}")
        if done.returncode:
            failed.append(name)
            _say(done.stderr[-3000:])
    _say(f"{len(names)} targets, {total} inputs; findings: {', '.join(failed) or 'none'}")
    return 1 if failed else 0


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _in_words(statistics: Mapping[str, str]) -> str:
    """LibFuzzer's statistics in words."""
    runs, seconds = (statistics.get(name, "?") for name in ("number_of_executed_units", "slowest_unit_time_sec"))
    return f"{runs} inputs, the slowest {seconds} s, {statistics.get('peak_rss_mb', '?')} MiB"


if __name__ == "__main__":
    sys.exit(main())
