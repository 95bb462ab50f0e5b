"""The costs of the trainer shim: a step against plain DDP, gradient noise, order of the samples, checkpoints.

Two processes with gloo on this machine. See docs/researcher/BENCHMARKS.md.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from contrib.benchmarks.common import ROOT, add_numbers, arguments, finish, positive, say, work_tree
from trainer_shim.adaptive_batch.gradient_noise import MEASURE_EVERY

TRAINER = Path(__file__).with_name("shim_overhead_trainer.py")
UID = "0123456789abcdef"
PARAMETERS = 10**6  # of the net whose gradient noise is measured
LIMIT = 900.0  # seconds: the longest wait


class BenchmarkError(Exception):
    """A trainer has ended with an unexpected exit code, or left no result."""


class Trainers:
    """A world of trainers in a directory, with the lease and the reports of a job of metasched.

    The trainers import the shim from `code`.
    """

    def __init__(self, directory: Path, ranks: int, *command: object, code: Path = ROOT) -> None:
        self.directory = directory
        lease = directory / "lease.json"
        lease.write_text(json.dumps({"format": 1, "uid": UID, "run": 1, "stop": None, "batch": {"plan": 0}}))
        (directory / "reports").mkdir(exist_ok=True)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        common = {
            "PYTHONPATH": str(code),
            "OMP_NUM_THREADS": "1",
            "METASCHED_RUN": "1",
            "METASCHED_LEASE": str(lease),
            "METASCHED_REPORTS": str(directory / "reports" / UID),
            "METASCHED_EXIT_CODE": "85",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "WORLD_SIZE": str(ranks),
        }
        self.processes = [
            subprocess.Popen(
                [sys.executable, str(TRAINER), *map(str, command)],
                cwd=directory,
                env={**os.environ, **common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stderr=subprocess.DEVNULL if rank else None,
            )
            for rank in range(ranks)
        ]

    def reports(self, kind: str) -> list[dict[str, Any]]:
        """Return the report lines of one kind so far, in order."""
        found = []
        for path in (self.directory / "reports" / UID).glob("*.jsonl"):
            found += [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
        return [line for line in found if line["kind"] == kind]

    def wait(self, code: int) -> None:
        """Wait for all trainers to end with this exit code."""
        codes = [process.wait(LIMIT) for process in self.processes]
        if set(codes) != {code}:
            raise BenchmarkError(f"trainers exited with {codes}")

    def kill(self) -> None:
        """Kill the trainers that still run."""
        for process in self.processes:
            process.kill()
            process.wait()


@contextmanager
def trainers(base: Path, ranks: int, *command: object, code: Path = ROOT) -> Iterator[Trainers]:
    """Start trainers in a temporary directory; at the end, kill the trainers and remove the directory."""
    with tempfile.TemporaryDirectory(dir=base) as directory:
        running = Trainers(Path(directory), ranks, *command, code=code)
        try:
            yield running
        finally:
            running.kill()


def compare_steps(base: Path, seconds: float, block: int, pairs: int) -> dict[str, Any]:
    """Measure alternating blocks of plain and of shim steps, in the same processes."""
    with trainers(base, 2, "steps", base / "steps.json", seconds, block, pairs) as running:
        running.wait(0)
    found = json.loads((base / "steps.json").read_text())
    ratios = [shim / plain for shim, plain in zip(found["shim"], found["plain"], strict=True)]
    extra = [shim - plain for shim, plain in zip(found["shim"], found["plain"], strict=True)]
    plain, shim = (statistics.median(found[name]) / block for name in ("plain", "shim"))
    error = 1.25 * statistics.pstdev(ratios) / len(ratios) ** 0.5  # standard error of a median
    return {
        "computing_ms": round(1000 * seconds),
        "plain_ms": round(1000 * plain, 3),
        "shim_ms": round(1000 * shim, 3),
        "more_us": round(1e6 * statistics.median(extra) / block),
        "overhead_percent": round(100 * (statistics.median(ratios) - 1), 2),
        "overhead_error_percent": round(100 * error, 2),
    }


def compare_revisions(base: Path, revision: str, block: int, pairs: int) -> list[dict[str, Any]]:
    """Measure the CPU time of a step without computation, plain and under the shim of two commits.

    The commits alternate, so that other work on this machine meets both alike.
    """
    rounds = 5
    found: dict[str, dict[str, list[float]]] = {}
    with work_tree(revision) as tree:
        for _ in range(rounds):
            for name, code in ((revision, tree), ("present", ROOT)):
                command = ("steps", base / "steps.json", 0.0, block, -(-pairs // rounds))
                with trainers(base, 2, *command, code=code) as running:
                    running.wait(0)
                for kind, seconds in json.loads((base / "steps.json").read_text())["cpu"].items():
                    found.setdefault(name, {}).setdefault(kind, []).extend(seconds)
    medians = {
        name: {kind: 1e6 * statistics.median(seconds) / block for kind, seconds in kinds.items()}
        for name, kinds in found.items()
    }
    before = medians[revision]["shim"] / medians[revision]["plain"]
    return [
        {
            "commit": name,
            "plain_cpu_us": round(kinds["plain"]),
            "shim_cpu_us": round(kinds["shim"]),
            "more_cpu_us": round(kinds["shim"] - kinds["plain"]),
            "shim_to_plain": round(kinds["shim"] / kinds["plain"], 3),
            "to_before": round(kinds["shim"] / kinds["plain"] / before, 3),
        }
        for name, kinds in medians.items()
    ]


def time_noise(base: Path, ranks: int, optimizer: str, seconds: float, blocks: int) -> dict[str, Any]:
    """Measure the part of the steps' CPU time that the gradient noise takes."""
    with trainers(base, ranks, "noise", base / "noise.json", seconds, blocks, optimizer, PARAMETERS) as running:
        running.wait(0)
    found = json.loads((base / "noise.json").read_text())
    parts = [noise / (steps - noise) for noise, steps in zip(found["noise"], found["steps"], strict=True)]
    return {
        "ranks": ranks,
        "optimizer": optimizer,
        "step_ms": round(1000 * statistics.median(found["steps"]) / MEASURE_EVERY, 1),
        "measurement_ms": round(1000 * statistics.median(found["noise"]), 2),
        "noise_percent": round(100 * statistics.median(parts), 2),
    }


def time_order(base: Path, samples: int, kind: str) -> dict[str, Any]:
    """Measure the start of an epoch: seconds and memory up to the first micro-batch, and the time for a sample."""
    with trainers(base, 1, "order", base / "order.json", samples, kind) as running:
        running.wait(0)
    found = json.loads((base / "order.json").read_text())
    return {
        "order": kind,
        "samples": samples,
        "start_ms": round(1000 * found["start_seconds"], 2),
        "megabytes": round(found["megabytes"], 1),
        "sample_us": round(found["sample_us"], 3),
    }


def save_states(base: Path, megabytes: int, kind: str, pairs: int) -> dict[str, Any]:
    """Compare stop checkpoints with dd on the same bytes, and measure background checkpoints."""
    ranks = 2 if kind == "fsdp2" else 1
    say(f"checkpoints, {kind}, compared with dd")
    with trainers(base, ranks, "saves", base / "saves.json", megabytes, kind, pairs) as running:
        running.wait(0)
    found = json.loads((base / "saves.json").read_text())
    ratios = [shim / dd for shim, dd in zip(found["shim"], found["dd"], strict=True)]
    say(f"checkpoints, {kind}, in the background")
    with trainers(base, ranks, "states", megabytes, kind) as running:
        lines = _checkpoints_until_stop(running, lambda: len(running.reports("checkpoint")) >= pairs)
    lines = [line for line in lines if line["cause"] == "periodic"]
    write, stall = (statistics.median(line[name] for line in lines) for name in ("seconds", "stall_seconds"))
    return {
        "kind": kind,
        "megabytes": round(found["bytes"] / 2**20),
        "dd_seconds": round(statistics.median(found["dd"]), 3),
        "stop_seconds": round(statistics.median(found["shim"]), 3),
        "stop_to_dd": round(statistics.median(ratios), 2),
        "least": round(min(ratios), 2),
        "most": round(max(ratios), 2),
        "background_seconds": round(write, 3),
        "stall_seconds": round(stall, 3),
        "stall_to_background": round(stall / write, 3),
    }


def _checkpoints_until_stop(running: Trainers, ready: Callable[[], bool]) -> list[dict[str, Any]]:
    """Stop the trainers when they are ready, and return the report lines of their checkpoints."""
    end = time.monotonic() + LIMIT
    while not ready():
        if time.monotonic() > end or running.processes[0].poll() is not None:
            raise BenchmarkError("the trainers ended, or made too few checkpoints")
        time.sleep(0.05)
    running.processes[0].send_signal(signal.SIGUSR2)
    running.wait(85)
    return running.reports("checkpoint")


def table(rows: Sequence[dict[str, Any]]) -> None:
    """Print a table of rows with the same keys."""
    names = list(rows[0])
    widths = [max(len(name), *(len(str(row[name])) for row in rows)) for name in names]
    for cells in (names, *([str(row[name]) for name in names] for row in rows)):
        print("  ".join(text.rjust(width) for text, width in zip(cells, widths, strict=True)), flush=True)
    print(flush=True)


def main() -> None:
    """Run the measurements, and print the tables."""
    parser = arguments("Measure what the trainer shim costs.")
    parser.add_argument("--step-ms", type=positive, default=50, help="computing in a step, in ms")
    parser.add_argument("--block", type=positive, default=20, help="steps of one kind in a row")
    parser.add_argument("--pairs", type=positive, default=30, help="blocks of each kind")
    add_numbers(parser, "--samples", (10**4, 10**6, 3 * 10**8), "sizes of data sets whose order is timed")
    parser.add_argument("--megabytes", type=positive, default=512, help="size of the saved state")
    parser.add_argument("--repeat", type=positive, default=10, help="checkpoints of each kind")
    parser.add_argument("--directory", type=Path, help="where to write checkpoints (default: the temporary directory)")
    parser.add_argument("--against", metavar="REVISION", help="compare the CPU time of a step with this commit, alone")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mbench-", dir=args.directory) as directory:
        base = Path(directory)
        if args.against is not None:
            commits = compare_revisions(base, args.against, args.block, args.pairs)
            table(commits)
            finish({"commits": commits}, as_json=args.json)
            return
        say(f"steps: {2 * args.pairs * args.block * args.step_ms / 1000:.0f} s")
        steps = [compare_steps(base, ms / 1000, args.block, args.pairs) for ms in (args.step_ms, 0)]
        table(steps)
        say(f"gradient noise: {4 * args.pairs * MEASURE_EVERY * args.step_ms / 1000:.0f} s")
        kinds = [(ranks, optimizer) for ranks in (1, 2) for optimizer in ("sgd", "adam")]
        noise = [time_noise(base, *kind, args.step_ms / 1000, args.pairs) for kind in kinds]
        table(noise)
        orders = [time_order(base, size, kind) for kind in ("shuffled", "unshuffled") for size in args.samples]
        table(orders)
        saves = [save_states(base, args.megabytes, kind, args.repeat) for kind in ("pt", "fsdp2")]
        table(saves)
    finish({"steps": steps, "noise": noise, "order": orders, "checkpoints": saves}, as_json=args.json)


if __name__ == "__main__":
    main()
