"""What the daemon costs slurmctld: calls and their time for each round, by the number of jobs that wait."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from contrib.benchmarks.bench import ROOT, add_numbers, arguments, finish, positive, private_cluster, say
from contrib.benchmarks.poll_to_plan import SUBMITTERS, request, submit
from metasched.cli.status_tables import console, row, table
from metasched.devcluster import DevCluster, NodeGroup

NODES = NodeGroup(64, 8)
WHOLE_NODE = ("--nodes=1", "--gres=gpu:8", "--comment=metasched")
CONFIG = """
[paths]
state = "{base}/state"
shared = "{base}/shared"
[schedule]
round_seconds = {round}
poll_seconds = 2
[policy]
name = "{policy}"
"""
CALM, BUSY = "nothing happens", "jobs end and come"
CHANGE_SECONDS = 2.0
PATIENCE = 600.0
_CALL = re.compile(r"^\s*(\w+)\s*\(\s*\d+\)\s*count:(\d+)\s+ave_time:\d+\s+total_time:(\d+)", re.MULTILINE)


class Load(NamedTuple):
    """Slurmctld's own account, since it started.

    Attributes:
        calls: (how many, seconds) by kind of message.
        cpu: seconds of processor time.
    """

    calls: Mapping[str, tuple[int, float]]
    cpu: float

    def since(self, before: Load) -> Load:
        """What came between."""
        calls = {}
        for kind, (count, seconds) in self.calls.items():
            earlier = before.calls.get(kind, (0, 0.0))
            if count > earlier[0]:
                calls[kind] = (count - earlier[0], seconds - earlier[1])
        return Load(calls, self.cpu - before.cpu)


def load(cluster: DevCluster) -> Load:
    """As of now."""
    by_type = cluster.run("sdiag").partition("by message type")[2].partition("by user")[0]
    calls = {kind: (int(count), int(micros) / 1e6) for kind, count, micros in _CALL.findall(by_type)}
    fields = Path(f"/proc/{cluster.status()['daemons']['slurmctld']}/stat").read_text().rpartition(")")[2].split()
    return Load(calls, (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"))


@contextmanager
def daemon(cluster: DevCluster, base: Path, policy: str, round_seconds: float) -> Iterator[None]:
    """The real one, as a process."""
    config = base / "metasched.toml"
    config.write_text(CONFIG.format(base=base, round=round_seconds, policy=policy))
    with (base / "daemon.log").open("wb") as log:
        argv = [sys.executable, "-m", "metasched", "--config", str(config), "daemon"]
        process = subprocess.Popen(argv, env=cluster.env, cwd=ROOT, stdout=log, stderr=log)
    try:
        yield
    finally:
        process.terminate()
        process.wait(60)


def settled(cluster: DevCluster, running: int) -> None:
    """Wait until so many jobs run."""
    deadline = time.monotonic() + PATIENCE
    while len(cluster.run("squeue", "-h", "-t", "RUNNING", "-o", "%A").split()) < running:
        if time.monotonic() > deadline:
            message = f"fewer than {running} jobs run after {PATIENCE:g} s"
            raise TimeoutError(message)
        time.sleep(1)


def churned(cluster: DevCluster, base: Path, ids: list[str], seconds: float) -> int:
    """End the oldest running job and submit another one, every now and then; how often."""
    until, changes = time.monotonic() + seconds, 0
    while (left := until - time.monotonic()) > 0:
        cluster.run("scancel", ids.pop(0))
        ids.append(submit(cluster, base / "shared", base / "job.sh", *WHOLE_NODE))
        changes += 1
        time.sleep(min(CHANGE_SECONDS, left))
    return changes


def measure(pending: int, policy: str, round_seconds: float, rounds: int) -> dict[str, Any]:
    """Calm and busy rounds with so many jobs waiting, and Slurm by itself with the same queue."""
    seconds = round_seconds * rounds
    with private_cluster(NODES) as (cluster, base):
        (base / "shared").mkdir()
        (base / "job.sh").write_text("#!/bin/bash\nexec sleep 100000\n")
        say(f"{pending} jobs: submitting")
        shared, script = base / "shared", base / "job.sh"
        ids = [submit(cluster, shared, script, *WHOLE_NODE) for _ in range(NODES.count)]
        with ThreadPoolExecutor(SUBMITTERS) as pool:
            list(pool.map(lambda number: submit(cluster, shared, script, *request(number)), range(pending)))
        say(f"{pending} jobs: Slurm by itself for {seconds:g} s")
        before = load(cluster)
        time.sleep(seconds)
        found = {"without the daemon": (load(cluster).since(before), 0)}
        with daemon(cluster, base, policy, round_seconds):
            settled(cluster, NODES.count)
            time.sleep(2 * round_seconds)
            for name in (CALM, BUSY):
                say(f"{pending} jobs: {name} for {seconds:g} s")
                before, changes = load(cluster), 0
                if name == BUSY:
                    changes = churned(cluster, base, ids, seconds)
                else:
                    time.sleep(seconds)
                found[name] = (load(cluster).since(before), changes)
    return {name: summary(between, rounds, seconds, changes) for name, (between, changes) in found.items()}


def summary(between: Load, rounds: int, seconds: float, changes: int) -> dict[str, Any]:
    """For each round; slurmctld's processor time as a share of one core."""
    count = sum(number for number, _ in between.calls.values())
    busy = sum(spent for _, spent in between.calls.values())
    return {
        "calls_per_round": round(count / rounds, 1),
        "ms_per_round": round(1000 * busy / rounds, 1),
        "core_percent": round(100 * between.cpu / seconds, 1),
        "changes": changes,
        "kinds": {kind: round(number / rounds, 1) for kind, (number, _) in sorted(between.calls.items())},
    }


def show(pending: int, found: Mapping[str, Any], round_seconds: float) -> None:
    """As a table."""
    columns = ("calls", "ms", "core %")
    shown = table(
        "what happens", *columns, "calls by kind", title=f"{pending} waiting jobs, a round of {round_seconds:g} s"
    )
    for name, part in found.items():
        kinds = ", ".join(f"{kind.removeprefix('REQUEST_').lower()} {count:g}" for kind, count in part["kinds"].items())
        row(shown, name, part["calls_per_round"], part["ms_per_round"], part["core_percent"], kinds)
    console().print(shown)


def main() -> None:
    """Measure and print."""
    parser = arguments(__doc__ or "")
    add_numbers(parser, "--jobs", (10, 1000, 10000), "how many jobs wait")
    parser.add_argument("--policy", default="las", help="the daemon's policy (default las)")
    parser.add_argument("--round", type=positive, default=10, metavar="SECONDS", help="length of a round (default 10)")
    parser.add_argument("--rounds", type=positive, default=6, metavar="N", help="rounds that are measured (default 6)")
    options = parser.parse_args()
    result: dict[str, Any] = {"benchmark": "slurm_load", "round_seconds": options.round, "jobs": {}}
    for pending in options.jobs:
        result["jobs"][pending] = measure(pending, options.policy, options.round, options.rounds)
        show(pending, result["jobs"][pending], options.round)
    finish(result, as_json=options.json)


if __name__ == "__main__":
    main()
