"""The daemon's load on slurmctld: calls and their time for each round, by the number of waiting jobs."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from contrib.benchmarks.common import add_numbers, arguments, daemon, finish, positive, private_cluster, say
from contrib.benchmarks.poll_to_plan import SUBMITTERS, request, submit
from metasched.cli.tables import console, row, table
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
[intake]
live_jobs = 100000
[policy]
name = "{policy}"
"""
CALM, BUSY = "nothing changes", "jobs end and arrive"
CHANGE_SECONDS = 2.0
WAIT_SECONDS = 600.0
MOST_INTAKE_SECONDS = 3600.0
_CALL = re.compile(r"^\s*(\w+)\s*\(\s*\d+\)\s*count:(\d+)\s+ave_time:\d+\s+total_time:(\d+)", re.MULTILINE)


class Load(NamedTuple):
    """The load on slurmctld over a time, as ``sdiag`` reports it.

    Attributes:
        calls: (number, seconds) by message type.
        cpu: CPU seconds.
    """

    calls: Mapping[str, tuple[int, float]]
    cpu: float

    def since(self, before: Load) -> Load:
        """The load between an earlier reading and this one."""
        calls = {}
        for message, (count, seconds) in self.calls.items():
            earlier = before.calls.get(message, (0, 0.0))
            if count > earlier[0]:
                calls[message] = (count - earlier[0], seconds - earlier[1])
        return Load(calls, self.cpu - before.cpu)


def load(cluster: DevCluster) -> Load:
    """The load since slurmctld started."""
    by_type = cluster.run("sdiag").partition("by message type")[2].partition("by user")[0]
    calls = {message: (int(count), int(micros) / 1e6) for message, count, micros in _CALL.findall(by_type)}
    fields = Path(f"/proc/{cluster.status()['daemons']['slurmctld']}/stat").read_text().rpartition(")")[2].split()
    return Load(calls, (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"))


def wait_for_running(cluster: DevCluster, running: int) -> None:
    """Wait until this number of jobs run.

    Raises:
        TimeoutError: they do not within ``WAIT_SECONDS``.
    """
    deadline = time.monotonic() + WAIT_SECONDS
    while len(cluster.run("squeue", "-h", "-t", "RUNNING", "-o", "%A").split()) < running:
        if time.monotonic() > deadline:
            message = f"fewer than {running} jobs run after {WAIT_SECONDS:g} s"
            raise TimeoutError(message)
        time.sleep(1)


def wait_until_taken_in(cluster: DevCluster, seconds: float) -> None:
    """Wait until the daemon has updated no job for so long: it stamps and holds new jobs within a budget of writes.

    Raises:
        TimeoutError: it still does after ``MOST_INTAKE_SECONDS``.
    """
    deadline = time.monotonic() + MOST_INTAKE_SECONDS
    updated = True
    while updated:
        if time.monotonic() > deadline:
            message = f"the daemon still takes jobs in after {MOST_INTAKE_SECONDS:g} s"
            raise TimeoutError(message)
        before = load(cluster)
        time.sleep(seconds)
        updated = "REQUEST_UPDATE_JOB" in load(cluster).since(before).calls


def replace_jobs(cluster: DevCluster, base: Path, ids: list[str], seconds: float) -> int:
    """Every ``CHANGE_SECONDS``, end the oldest running job and submit another one; returns the number of changes."""
    until, changes = time.monotonic() + seconds, 0
    while (left := until - time.monotonic()) > 0:
        cluster.run("scancel", ids.pop(0))
        ids.append(submit(cluster, base / "shared", base / "job.sh", *WHOLE_NODE))
        changes += 1
        time.sleep(min(CHANGE_SECONDS, left))
    return changes


def measure(pending: int, policy: str, round_seconds: float, rounds: int) -> dict[str, Any]:
    """The load of calm and busy rounds with ``pending`` waiting jobs, and of Slurm alone with the same queue."""
    seconds = round_seconds * rounds
    with private_cluster(NODES) as (cluster, base):
        (base / "shared").mkdir()
        (base / "job.sh").write_text("#!/bin/bash\nexec sleep 100000\n")
        say(f"{pending} jobs: submitting")
        shared, script = base / "shared", base / "job.sh"
        ids = [submit(cluster, shared, script, *WHOLE_NODE) for _ in range(NODES.count)]
        with ThreadPoolExecutor(SUBMITTERS) as pool:
            list(pool.map(lambda number: submit(cluster, shared, script, *request(number)), range(pending)))
        say(f"{pending} jobs: Slurm alone for {seconds:g} s")
        before = load(cluster)
        time.sleep(seconds)
        found = {"without the daemon": (load(cluster).since(before), 0)}
        config = CONFIG.format(base=base, round=round_seconds, policy=policy)
        with daemon(cluster, base, config):
            wait_for_running(cluster, NODES.count)
            say(f"{pending} jobs: taking them in")
            wait_until_taken_in(cluster, 2 * round_seconds)
            for name in (CALM, BUSY):
                say(f"{pending} jobs: {name} for {seconds:g} s")
                before, changes = load(cluster), 0
                if name == BUSY:
                    changes = replace_jobs(cluster, base, ids, seconds)
                else:
                    time.sleep(seconds)
                found[name] = (load(cluster).since(before), changes)
    return {name: summary(between, rounds, seconds, changes) for name, (between, changes) in found.items()}


def summary(between: Load, rounds: int, seconds: float, changes: int) -> dict[str, Any]:
    """The load for each round; slurmctld's CPU time in percent of one core."""
    count = sum(number for number, _ in between.calls.values())
    busy = sum(seconds for _, seconds in between.calls.values())
    return {
        "calls_per_round": round(count / rounds, 1),
        "ms_per_round": round(1000 * busy / rounds, 1),
        "core_percent": round(100 * between.cpu / seconds, 1),
        "changes": changes,
        "kinds": {message: round(number / rounds, 1) for message, (number, _) in sorted(between.calls.items())},
    }


def show(pending: int, found: Mapping[str, Any], round_seconds: float) -> None:
    """Print the loads with one number of waiting jobs as a table."""
    columns = ("calls", "ms", "core %")
    shown = table("phase", *columns, "calls by type", title=f"{pending} waiting jobs, a round of {round_seconds:g} s")
    for phase, part in found.items():
        kinds = ", ".join(
            f"{message.removeprefix('REQUEST_').lower()} {count:g}" for message, count in part["kinds"].items()
        )
        row(shown, phase, part["calls_per_round"], part["ms_per_round"], part["core_percent"], kinds)
    console().print(shown)


def main() -> None:
    """Measure, and print the tables."""
    parser = arguments(__doc__ or "")
    add_numbers(parser, "--jobs", (10, 1000, 10000), "numbers of waiting jobs")
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
