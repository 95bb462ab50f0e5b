"""The seconds, bytes and lines of `metasched status` and `metasched explain`, by the number of jobs and nodes.

    python -m contrib.benchmarks.status_commands [--jobs N] [--nodes N] [--repeat N] [--json]

The published status is synthetic: each node has eight GPUs, a tenth of the nodes is drained or half used, and as many
jobs run as the GPUs hold; all other jobs wait. Seconds are those of a whole process, its start included.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from contrib.benchmarks import common
from metasched.core.reason_words import ordinal
from metasched.shared_dir.published_status import JobStatus, NodeStatus, Status, publish

GPUS = 8
TIMEOUT = 120.0
USERS = 200


def main() -> None:
    """Publish the status, time the commands and print a table."""
    parser = common.arguments(str(__doc__))
    parser.add_argument("--jobs", type=common.positive, default=10_000)
    parser.add_argument("--nodes", type=common.positive, default=512)
    parser.add_argument("--repeat", type=common.positive, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mbench-") as name:
        shared = Path(name)
        publish(shared, _status(given.jobs, given.nodes))
        waiting = str(given.jobs - 1)
        commands = {
            "status": ["status"],
            "status --user": ["status", "--user", "user7"],
            "status --json": ["status", "--json"],
            "explain, a waiting job": ["explain", waiting],
            "explain, a running job": ["explain", "0"],
        }
        result = {label: _measured([*argv, "--shared", str(shared)], given.repeat) for label, argv in commands.items()}
    print(f"{given.jobs} jobs, {given.nodes} nodes")
    print(f"{'command':<24}{'median s':>10}{'bytes':>12}{'lines':>8}{'first job in line':>19}")
    for label, row in result.items():
        first = row["first_job_line"] or ""
        print(f"{label:<24}{row['seconds']:>10.2f}{row['bytes']:>12}{row['lines']:>8}{first:>19}")
    common.finish(result, as_json=given.json)


def _measured(argv: list[str], repeat: int) -> dict[str, float | int | None]:
    """Run a command ``repeat`` times: median seconds; bytes and lines of its output, its first line with a job."""
    seconds, output = [], ""
    for _ in range(repeat):
        began = time.perf_counter()
        command = [sys.executable, "-m", "metasched", *argv]
        output = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=True).stdout
        seconds.append(time.perf_counter() - began)
    lines = output.splitlines()
    job = next((number for number, line in enumerate(lines, 1) if "train-" in line), None)
    return {
        "seconds": round(statistics.median(seconds), 3),
        "bytes": len(output.encode()),
        "lines": len(lines),
        "first_job_line": job,
    }


def _status(jobs: int, nodes: int) -> Status:
    now = time.time()
    live = list(_jobs(jobs, nodes, now))
    used = {name: gpus for job in live for name, gpus in job.nodes.items()}
    return Status(
        published=now,
        poll_seconds=2.0,
        cluster="bench",
        host="controller",
        pid=1,
        policy="las",
        round=1,
        round_at=now,
        next_round=now + 60,
        slurm="ok",
        nodes=tuple(_node(number, used.get(_name(number), 0)) for number in range(nodes)),
        jobs=tuple(live),
    )


def _name(number: int) -> str:
    return f"gpu{number + 1:04d}"


def _node(number: int, used: int) -> NodeStatus:
    kind, drained = ("v100", "a100")[number % 5 == 0], number % 10 == 1
    return NodeStatus(_name(number), kind, GPUS, used, accepts=not drained, reason="check of fans" if drained else "")


def _jobs(jobs: int, nodes: int, now: float) -> Iterator[JobStatus]:
    hosts = iter([number for number in range(nodes) if number % 10 != 1])
    for number in range(jobs):
        host = next(hosts, None)
        held = 0 if host is None else (GPUS // 2, GPUS)[host % 10 != 2]  # noqa: PLR2004  a tenth is half used
        yield JobStatus(
            uid=f"{number:016x}",
            slurm_job_id=str(number),
            name=f"train-{number % 97}-{number}",
            user=f"user{number % USERS}",
            account=f"lab{number % 40}",
            status="running" if held else "held",
            gpus=GPUS,
            min_gpus=GPUS // 2,
            max_gpus=GPUS,
            preempt="checkpoint",
            reason=f"{ordinal(number + 1)} of {jobs} by attained service" + ("" if held else "; waits for 8 GPUs"),
            nodes={} if host is None else {_name(host): held},
            gpu_type=None if host is None else "v100",
            submitted=now - 7200.0 - number,
            run_started=now - 3600.0 if held else None,
            runs=1 if held else 0,
            preemptions=0,
            attained_service=3600.0 * held,
            ran_seconds=3600.0 if held else 0.0,
            waited_seconds=3600.0 + number,
            progress_steps=1000.0 if held else None,
            total_steps=100_000,
            steps_per_second=2.0 if held else None,
            loss=None,
            world_sizes=(held,) if held else (),
        )


if __name__ == "__main__":
    main()
