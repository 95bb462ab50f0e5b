"""From the decision to training again, part by part, beside what bare Slurm needs for the same on the same cluster."""

from __future__ import annotations

import json
import random
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from contrib.benchmarks.bench import (
    ROOT,
    arguments,
    cell,
    environment,
    finish,
    milliseconds,
    positive,
    private_cluster,
    say,
)
from metasched.cli.status_tables import console, row, table
from metasched.configuration.config import Schedule
from metasched.devcluster import DevCluster, NodeGroup
from metasched.store import JobRecord, Store

CLUSTERS = {"tuned": True, "default": False}
TRAINERS = {
    # -I -S: nothing of site-packages, so that starting Python is next to nothing
    "light": [sys.executable, "-I", "-S", str(Path(__file__).with_name("light_trainer.py"))],
    "torch": [
        sys.executable,
        str(ROOT / "contrib" / "examples" / "train_elastic.py"),
        *("--epochs", "1000000", "--seconds-per-step", "0.05"),
    ],
}
# A round follows from an arrival alone, and one GPU-second in the first queue is enough to be preempted.
CONFIG = """
[paths]
state = "{base}/state"
shared = "{base}/shared"

[schedule]
round_seconds = 3600
min_round_seconds = 0.05
poll_seconds = 0.5
busy_poll_seconds = {busy_poll}

[policy]
name = "las"

[policy.parameters]
queue_thresholds_gpu_seconds = [1.0]
promote_knob = 100000

[log]
format = "json"
"""
WAIT_SECONDS = 180.0
LOOK_SECONDS = 0.01
PARTS = {
    "decide": "the poll begins -> the round is committed",
    "queue": "-> successors are queued, the stop begins",
    "signal": "-> the trainer notices",
    "checkpoint": "-> it has checkpointed",
    "exit": "-> Slurm has the job back, held",
    "notice": "-> we begin to start it",
    "release": "-> it is updated and released",
    "start": "-> its batch script runs",
    "launch": "-> the trainer's process (wrapper, srun)",
    "init": "-> the trainer is ready",
    "step": "-> the first step is done",
}
OWN = ("decide", "queue", "signal", "notice", "release")


class BenchmarkError(Exception):
    """A measurement cannot be taken; the message says why."""


@dataclass(frozen=True, slots=True)
class Request:
    """What a job asks for."""

    options: tuple[str, ...]
    tag: str = ""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One thing to measure, on two nodes of four GPUs.

    Attributes:
        words: for people.
        victim: the job that has to leave or to change; it starts on n1.
        intruder: the job whose arrival does that.
        blocker: runs before the others and stays.
        by_victim: whether the victim's next start is measured, else the intruder's first.
        bare: what an admin would update before the release with bare Slurm; None: the intruder is what starts.
    """

    words: str
    victim: Request
    intruder: Request
    blocker: Request | None = None
    by_victim: bool = True
    bare: tuple[str, ...] | None = None


FOUR = ("--nodes=1", "--ntasks=4", "--gres=gpu:4")
TWO = ("--nodes=1", "--ntasks=2", "--gres=gpu:2")
SCENARIOS = {
    "swap": Scenario(
        "another job takes its four GPUs",
        Request((*FOUR, "-w", "n1")),
        Request((*FOUR, "-w", "n1")),
        by_victim=False,
    ),
    "move": Scenario(
        "it goes on elsewhere",
        Request(("--ntasks=4", "--gpus=4")),
        Request((*FOUR, "-w", "n1")),
        bare=("ReqNodeList=n2", "StartTime=now"),
    ),
    "shrink": Scenario(
        "it goes on with two of its four GPUs",
        Request((*FOUR, "-w", "n1"), "min_gpus=2 max_gpus=4"),
        Request((*TWO, "-w", "n1")),
        bare=("NumNodes=1-1", "NumTasks=2", "NumCPUs=2", "Gres=gpu:2", "ReqNodeList=n1", "StartTime=now+1"),
    ),
    "spread": Scenario(
        "it goes on with 2 x 2 instead of 1 x 4 GPUs",
        Request(("--ntasks=4", "--gpus=4")),
        Request((*TWO, "-w", "n1")),
        blocker=Request((*TWO, "-w", "n2"), "preempt=no"),
        bare=("NumNodes=2-2", "NumTasks=4", "NumCPUs=4", "Gres=gpu:2", "ReqNodeList=n1,n2", "StartTime=now+1"),
    ),
}
# What srun must forget of the submit line, and what it needs instead: one task for each GPU.
BARE_RUN = (
    "unset SLURM_NTASKS SLURM_NPROCS SLURM_GPUS_PER_NODE SLURM_GPUS SLURM_NTASKS_PER_NODE\n"
    "exec srun --mpi=none --nodes=$SLURM_JOB_NUM_NODES --ntasks-per-node=$SLURM_GPUS_ON_NODE "
    "--gpus-per-node=$SLURM_GPUS_ON_NODE"
)


@dataclass
class Site:
    """One cluster with a directory; jobs are submitted to metasched where ``shared`` is set, else to bare Slurm."""

    cluster: DevCluster
    base: Path
    shared: Path | None
    trainer: Sequence[str]
    jobs: int = 0

    def submit(self, request: Request, *options: str) -> tuple[str, Path]:
        """Submit a job; its id, and the directory that it runs in."""
        self.jobs += 1
        directory = self.base / f"{'bare' if self.shared is None else 'job'}-{self.jobs}"
        directory.mkdir()
        run = BARE_RUN if self.shared is None else "exec metasched-run"
        script = directory / "job.sh"
        script.write_text(f"#!/bin/bash\necho $EPOCHREALTIME >> starts\n{run} {shlex.join(self.trainer)}\n")
        tag = [] if self.shared is None else [f"--comment={f'metasched {request.tag}'.strip()}"]
        argv = ["sbatch", "--parsable", f"--chdir={directory}", "--output=out.txt", *tag, *request.options, *options]
        done = subprocess.run(
            [*argv, str(script)],
            env=environment(self.cluster, self.shared),
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        if done.returncode:
            raise BenchmarkError(f"sbatch: {done.stderr.strip()}")
        return done.stdout.strip(), directory

    def clear(self) -> None:
        """Cancel every job, and wait until none is left."""
        while jobs := self.cluster.run("squeue", "-h", "-o", "%A").split():
            self.cluster.run("scancel", *jobs)
            time.sleep(0.1)

    def happened(self, pattern: str, slurm_job_id: str, after: float) -> float | None:
        """When slurmctld logged something of a job, the first time after an instant."""
        for line in (self.cluster.layout.log / "slurmctld.log").read_text(errors="replace").splitlines():
            stamp, _, text = line.removeprefix("[").partition("] ")
            if pattern in text and f"JobId={slurm_job_id}" in text.split():
                at = datetime.fromisoformat(stamp).timestamp()
                if at >= after - 0.001:  # its clock has milliseconds
                    return at
        return None


def wait(what: str, condition: Callable[[], Any]) -> Any:
    """Wait for a condition and return what it returned; raises BenchmarkError."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not (result := condition()):
        if time.monotonic() > deadline:
            raise BenchmarkError(f"still not after {WAIT_SECONDS:g} s: {what}")
        time.sleep(LOOK_SECONDS)
    return result


def any_moment() -> None:
    """Wait for what a job may need to be ripe, and a random time: Slurm works in beats of a second, and so might we."""
    time.sleep(1 + random.random())  # noqa: S311  no secret


def reports(directory: Path, generation: int) -> dict[str, dict[str, Any]]:
    """What a trainer has reported so far: the first line of each kind."""
    try:
        text = (directory / f"incarnation-{generation}.jsonl").read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    found: dict[str, dict[str, Any]] = {}
    for line in text.splitlines(keepends=True):
        if line.endswith("\n"):
            entry = json.loads(line)
            found.setdefault(entry["kind"], entry)
    return found


def first_step(steps: Mapping[str, Any]) -> float:
    """When the first step was done: a report covers some of them."""
    return float(steps["t"] - steps["seconds"] * (steps["steps"] - 1) / steps["steps"])


def started(directory: Path, number: int) -> float:
    """When a batch script began for the nth time."""
    return float((directory / "starts").read_text().split()[number - 1])


# With metasched


@contextmanager
def daemon(site: Site, busy_poll: float) -> Iterator[None]:
    """The real daemon, while the context lasts."""
    config = site.base / "metasched.toml"
    config.write_text(CONFIG.format(base=site.base, busy_poll=busy_poll))
    with (site.base / "daemon.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "metasched", "--config", str(config), "daemon"],
            env=site.cluster.env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        wait("the daemon publishes", (site.base / "shared" / "status.json").exists)
        yield
    finally:
        process.terminate()
        process.wait(30)


def logged(site: Site, after: float, event: str, **values: object) -> float | None:
    """When the daemon logged an event, the first time after an instant; a text need only begin as given."""
    for line in (site.base / "daemon.log").read_text().splitlines():
        if not line.startswith("{"):
            continue
        entry = json.loads(line)
        at = datetime.fromisoformat(entry["timestamp"]).timestamp()
        same = all(str(entry.get(key, "")).startswith(str(value)) for key, value in values.items())
        if entry["event"] == event and same and at >= after:
            return at
    return None


def measure_ours(site: Site, scenario: Scenario) -> dict[str, float]:
    """One preemption by the daemon: seconds of each part."""
    assert site.shared is not None  # noqa: S101  mypy
    tree = site.shared / "reports"
    with Store.open(site.base / "state" / "metasched.db", read_only=True) as store:

        def record(slurm_job_id: str) -> JobRecord | None:
            return next(iter(store.find_jobs(slurm_job_id)), None)

        def ready(slurm_job_id: str) -> JobRecord | None:
            job = record(slurm_job_id)
            return job if job is not None and job.current is not None and job.current.ready_at is not None else None

        if scenario.blocker is not None:
            blocker, _ = site.submit(scenario.blocker)
            wait("the blocker trains", lambda: ready(blocker))
        victim, victim_directory = site.submit(scenario.victim)
        job = wait("the victim trains", lambda: ready(victim))
        if job.current.placement.nodes != ("n1",):
            raise BenchmarkError(f"the victim was expected on n1, and is on {job.current.placement}")
        wait("it steps", lambda: "steps" in reports(tree / job.uid, 1))
        any_moment()
        intruder, intruder_directory = site.submit(scenario.intruder)
        wait("the victim stops", lambda: "stop" in reports(tree / job.uid, 1))
        if scenario.by_victim:
            slurm_job_id, directory, uid, number = victim, victim_directory, job.uid, 2
        else:
            other = wait("the intruder is known", lambda: record(intruder))
            slurm_job_id, directory, uid, number = intruder, intruder_directory, other.uid, 1
        wait("training goes on", lambda: "steps" in reports(tree / uid, number))
        actions = store.recent_actions(100, job.uid)
        stop = next(action for action in actions if action.kind == "stop")
        begun = next(round_.at for round_ in store.recent_rounds() if round_.round == stop.round)
        latest = store.recent_actions(100, uid)
        release = next(action for action in latest if action.kind == "start")

    def need(what: str, at: float | None) -> float:
        if at is None:
            raise BenchmarkError(f"no trace of it: {what}")
        return at

    old, new = reports(tree / job.uid, 1), reports(tree / uid, number)
    stopped = need("the stop", logged(site, begun, "action", action=f"stop {victim}:"))
    instants = {
        "decide": need("the round", logged(site, begun, "round", round=stop.round)),
        "queue": stopped - (stop.latency_seconds or 0.0),
        "signal": old["stop"]["noticed"],
        "checkpoint": old["stop"]["t"],
        "exit": need("the requeue", site.happened("Requeuing", victim, begun)),
    }
    if scenario.by_victim:
        released = need("the start", logged(site, instants["exit"], "action", action=f"start {slurm_job_id} "))
        instants |= {"notice": released - (release.latency_seconds or 0.0), "release": released}
    instants |= {
        "start": started(directory, number),
        "launch": new["start"]["t"] - new["start"]["init_seconds"],
        "init": new["start"]["t"],
        "step": first_step(new["steps"]),
    }
    parts: dict[str, float] = {}
    last = begun
    for name, at in instants.items():
        parts[name] = at - last
        last = at
    own = sum(parts.get(name, 0.0) for name in OWN)
    return parts | {"own": own, "total": last - begun, "process": instants["launch"] - begun - parts["checkpoint"]}


# With bare Slurm


def measure_bare(site: Site, scenario: Scenario) -> dict[str, float]:
    """The same requeue and start by hand, of a trainer that exits at once on SIGTERM: seconds of each part."""
    run = site.cluster.run
    victim, victim_directory = site.submit(Request(FOUR), "-w", "n1")
    wait("the job trains", lambda: "steps" in reports(victim_directory, 1))
    any_moment()
    if scenario.bare is None:
        (slurm_job_id, directory), number = site.submit(scenario.intruder, "--hold"), 1
        begun = time.time()
        run("scontrol", "release", slurm_job_id)
        run("scontrol", "requeuehold", victim)
    else:
        slurm_job_id, directory, number = victim, victim_directory, 2
        begun = time.time()
        run("scontrol", "requeuehold", victim)
        wait("it is pending", lambda: run("squeue", "-h", "-o", "%T", "-j", victim).strip() == "PENDING")
        run("scontrol", "update", f"JobId={slurm_job_id}", *scenario.bare)
        run("scontrol", "release", slurm_job_id)
    released = time.time()
    wait("it trains again", lambda: "steps" in reports(directory, number))
    held = site.happened("Requeuing", victim, begun) or begun
    batch = started(directory, number)
    start = reports(directory, number)["start"]
    process = start["t"] - start["init_seconds"]
    parts = {"exit": held - begun}
    if scenario.bare is None:
        parts["start"] = batch - held
    else:
        parts |= {"release": released - held, "start": batch - released}
    return parts | {"launch": process - batch, "process": process - begun}


# The whole


def collected(samples: Sequence[Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Each part's least, median and most, in ms."""
    names = dict.fromkeys(name for sample in samples for name in sample)
    return {name: milliseconds([sample[name] for sample in samples if name in sample]) for name in names}


def measure(name: str, trainer: str, repeat: int, busy_poll: float, scenarios: Sequence[str]) -> dict[str, Any]:
    """All scenarios on one cluster."""
    found: dict[str, Any] = {}
    with private_cluster(NodeGroup(2, 4), tuned=CLUSTERS[name]) as (cluster, base):
        bare = Site(cluster, base, None, TRAINERS["light"])
        ours = Site(cluster, base, base / "shared", TRAINERS[trainer])
        (base / "shared").mkdir()
        for scenario in scenarios:
            samples = []
            for number in range(repeat):
                say(f"{name}: {scenario} by bare Slurm, {number + 1} of {repeat}")
                samples.append(measure_bare(bare, SCENARIOS[scenario]))
                bare.clear()
            found[scenario] = {"bare": collected(samples)}
        with daemon(ours, busy_poll):
            for scenario in scenarios:
                samples = []
                for number in range(repeat):
                    say(f"{name}: {scenario} by metasched, {number + 1} of {repeat}")
                    samples.append(measure_ours(ours, SCENARIOS[scenario]))
                    ours.clear()
                found[scenario]["ours"] = collected(samples)
                beyond = statistics.median(sample["process"] for sample in samples)
                beyond = 1000 * beyond - found[scenario]["bare"]["process"]["median"]
                found[scenario]["beyond_bare"] = round(beyond, 1)
    return found


def show(name: str, found: Mapping[str, Any]) -> None:
    """One cluster as a table."""
    scenarios = list(found)
    words = "tuned SchedulerParameters" if CLUSTERS[name] else "Slurm's default SchedulerParameters"
    shown = table("ms: min / median / max", "", *scenarios, title=words, right=scenarios)

    def line(part: str, text: str, side: str = "ours", style: str | None = None) -> None:
        row(shown, part, text, *(cell(found[s][side].get(part)) for s in scenarios), style=style)

    for part, text in PARTS.items():
        line(part, text)
    line("total", "decision -> first step", style="bold")
    line("own", f"our own share: {' + '.join(OWN)}", style="bold green")
    row(shown)
    for part, text in (
        ("exit", "bare Slurm: requeuehold -> the job is back, held"),
        ("release", "-> updated and released by hand"),
        ("start", PARTS["start"]),
        ("launch", "-> the process (srun)"),
        ("process", "bare Slurm in all"),
    ):
        line(part, text, "bare")
    line("process", "ours in all to the same point, without the checkpoint")
    row(shown, "beyond", "ours - bare, medians", *(f"{found[s]['beyond_bare']:.0f}" for s in scenarios), style="bold")
    console().print(shown)
    console().print()


def main() -> None:
    """Measure and print."""
    parser = arguments(f"{__doc__} Scenarios: " + "; ".join(f"{k}: {v.words}" for k, v in SCENARIOS.items()))
    parser.add_argument("--repeat", type=positive, default=5, metavar="N", help="of each measurement (default 5)")
    parser.add_argument("--trainer", choices=TRAINERS, default="light", help="without torch, or real training")
    parser.add_argument("--cluster", choices=CLUSTERS, action="append", help="its SchedulerParameters (default: both)")
    parser.add_argument("--scenario", choices=SCENARIOS, action="append", help="(default: all)")
    parser.add_argument(
        "--busy-poll",
        type=float,
        default=Schedule().busy_poll_seconds,
        metavar="SECONDS",
        help="the daemon's busy_poll_seconds (default %(default)s)",
    )
    options = parser.parse_args()
    result: dict[str, Any] = {
        "benchmark": "preemption",
        "unit": "ms",
        "trainer": options.trainer,
        "repeat": options.repeat,
        "busy_poll_seconds": options.busy_poll,
    }
    for name in options.cluster or CLUSTERS:
        result[name] = measure(
            name, options.trainer, options.repeat, options.busy_poll, options.scenario or list(SCENARIOS)
        )
    for name in options.cluster or CLUSTERS:
        show(name, result[name])
    finish(result, as_json=options.json)


if __name__ == "__main__":
    main()
