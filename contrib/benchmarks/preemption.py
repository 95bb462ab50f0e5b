"""The time from a decision until training resumes, part by part, compared with bare Slurm on the same cluster."""

from __future__ import annotations

import argparse
import json
import random
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from contrib.benchmarks.common import (
    ROOT,
    arguments,
    cell,
    daemon,
    environment,
    finish,
    milliseconds,
    positive,
    private_cluster,
    say,
)
from contrib.benchmarks.poll_to_plan import SUBMITTERS
from contrib.benchmarks.slurm_load import wait_until_taken_in
from metasched.cli.tables import console, row, table
from metasched.configuration.config import Schedule
from metasched.devcluster import DevCluster, NodeGroup
from metasched.store import JobRecord, Store

CLUSTERS = {"tuned": True, "default": False}
TRAINERS = {
    # -I -S: nothing of site-packages, so that starting Python is next to nothing
    "light": [sys.executable, "-I", "-S", str(Path(__file__).with_name("torchless_trainer.py"))],
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

[intake]
live_jobs = 100000

[log]
format = "json"
"""
WAITING = "waiting"
"""The name of jobs that only wait."""
INTAKE_SECONDS = 10.0
"""Seconds without a write to Slurm after which all waiting jobs are taken in."""
WAIT_SECONDS = 180.0
CHECK_SECONDS = 0.01
PARTS = {
    "decide": "the poll begins -> the round is committed",
    "queue": "-> successors are queued, the stop begins",
    "signal": "-> the trainer notices",
    "checkpoint": "-> the checkpoint is saved",
    "exit": "-> the job is requeued and held",
    "notice": "-> the daemon begins to start it",
    "release": "-> the job is updated and released",
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
    """A job's request.

    Attributes:
        options: options of sbatch.
        tag: keys of the metasched tag.
    """

    options: tuple[str, ...]
    tag: str = ""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One kind of preemption, on two nodes of four GPUs.

    Attributes:
        words: the description for users.
        victim: the job that is preempted, moved or resized; it starts on n1.
        intruder: the job whose arrival preempts the victim.
        blocker: a job that holds GPUs before the others start, to the end; None for none.
        by_victim: whether the victim's next start is measured; else the intruder's first start.
        bare: what an admin updates before the release with bare Slurm; None if the intruder is the job that starts.
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
        "another job gets its four GPUs",
        Request((*FOUR, "-w", "n1")),
        Request((*FOUR, "-w", "n1")),
        by_victim=False,
    ),
    "move": Scenario(
        "it resumes on another node",
        Request(("--ntasks=4", "--gpus=4")),
        Request((*FOUR, "-w", "n1")),
        bare=("ReqNodeList=n2", "StartTime=now"),
    ),
    "shrink": Scenario(
        "it resumes on two of its four GPUs",
        Request((*FOUR, "-w", "n1"), "min_gpus=2 max_gpus=4"),
        Request((*TWO, "-w", "n1")),
        bare=("NumNodes=1-1", "NumTasks=2", "NumCPUs=2", "Gres=gpu:2", "ReqNodeList=n1", "StartTime=now+1"),
    ),
    "spread": Scenario(
        "it resumes on 2 x 2 instead of 1 x 4 GPUs",
        Request(("--ntasks=4", "--gpus=4")),
        Request((*TWO, "-w", "n1")),
        blocker=Request((*TWO, "-w", "n2"), "preempt=no"),
        bare=("NumNodes=2-2", "NumTasks=4", "NumCPUs=4", "Gres=gpu:2", "ReqNodeList=n1,n2", "StartTime=now+1"),
    ),
}
# srun starts one task for each GPU, and not the tasks of the submission.
BARE_RUN = (
    "unset SLURM_NTASKS SLURM_NPROCS SLURM_GPUS_PER_NODE SLURM_GPUS SLURM_NTASKS_PER_NODE\n"
    "exec srun --mpi=none --nodes=$SLURM_JOB_NUM_NODES --ntasks-per-node=$SLURM_GPUS_ON_NODE "
    "--gpus-per-node=$SLURM_GPUS_ON_NODE"
)


@dataclass
class Submitter:
    """Submits jobs of one trainer to a cluster.

    Attributes:
        cluster: the private cluster.
        base: the directory of the jobs' directories.
        shared: the daemon's shared directory; None for jobs of bare Slurm.
        trainer: the trainer's command.
        jobs: the number of jobs so far.
    """

    cluster: DevCluster
    base: Path
    shared: Path | None
    trainer: Sequence[str]
    jobs: int = 0

    def submit(self, request: Request, *options: str) -> tuple[str, Path]:
        """Submit a job; returns its Slurm job id and its working directory."""
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

    def submit_waiting(self, number: int) -> None:
        """Submit jobs that wait for their begin time as long as the cluster lives, and wait until they are taken in."""
        script = self.base / "waiting.sh"
        script.write_text("#!/bin/bash\n")
        argv = ["sbatch", f"--job-name={WAITING}", f"--chdir={self.base}", "--output=/dev/null", "--begin=now+30days"]
        argv += ["--gres=gpu:4", "--comment=metasched", str(script)]

        def submit_one(_: int) -> None:
            env = environment(self.cluster, self.shared)
            subprocess.run(argv, env=env, capture_output=True, timeout=60, check=True)

        with ThreadPoolExecutor(SUBMITTERS) as pool:
            for _ in pool.map(submit_one, range(number)):
                pass
        if number:
            wait_until_taken_in(self.cluster, INTAKE_SECONDS)

    def clear(self) -> None:
        """Cancel every job that does not wait for its begin time, and wait until none is left."""
        while jobs := [
            job
            for job, name in map(str.split, self.cluster.run("squeue", "-h", "-o", "%A %j").splitlines())
            if name != WAITING
        ]:
            self.cluster.run("scancel", *jobs)
            time.sleep(0.1)

    def slurmctld_logged(self, pattern: str, slurm_job_id: str, after: float) -> float | None:
        """When slurmctld first logged ``pattern`` for a job after an instant, in unix seconds; None if it did not."""
        for line in (self.cluster.layout.log / "slurmctld.log").read_text(errors="replace").splitlines():
            stamp, _, text = line.removeprefix("[").partition("] ")
            if pattern in text and f"JobId={slurm_job_id}" in text.split():
                at = datetime.fromisoformat(stamp).timestamp()
                if at >= after - 0.001:  # the log has milliseconds
                    return at
        return None


def wait(what: str, condition: Callable[[], Any]) -> Any:
    """Wait until ``condition`` returns a true value, and return that value.

    Raises:
        BenchmarkError: it does not within ``WAIT_SECONDS``.
    """
    deadline = time.monotonic() + WAIT_SECONDS
    while not (result := condition()):
        if time.monotonic() > deadline:
            raise BenchmarkError(f"not within {WAIT_SECONDS:g} s: {what}")
        time.sleep(CHECK_SECONDS)
    return result


def wait_random_time() -> None:
    """Wait 1 to 2 s, so that samples do not depend on the phase of Slurm's and the daemon's periods of a second."""
    time.sleep(1 + random.random())  # noqa: S311  no secret


def reports(directory: Path, generation: int) -> dict[str, dict[str, Any]]:
    """The first report line of each kind that a trainer has written so far."""
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
    """When the first step was done, in unix seconds, from a report that covers several steps."""
    return float(steps["t"] - steps["seconds"] * (steps["steps"] - 1) / steps["steps"])


def started(directory: Path, number: int) -> float:
    """When the batch script of a job's directory started for the ``number``-th time, in unix seconds."""
    return float((directory / "starts").read_text().split()[number - 1])


# With metasched


def logged(submitter: Submitter, after: float, event: str, **values: object) -> float | None:
    """When the daemon first logged an event after an instant, in unix seconds; None if it did not.

    Args:
        submitter: the cluster, with the daemon's log.
        after: the instant.
        event: the event's name.
        values: the beginnings of other values of the log line.
    """
    for line in (submitter.base / "daemon.log").read_text().splitlines():
        if not line.startswith("{"):
            continue
        entry = json.loads(line)
        at = datetime.fromisoformat(entry["timestamp"]).timestamp()
        same = all(str(entry.get(key, "")).startswith(str(value)) for key, value in values.items())
        if entry["event"] == event and same and at >= after:
            return at
    return None


def time_slurms_commands(cluster: DevCluster, slurm_job_id: str) -> dict[str, float]:
    """The seconds of Slurm's commands that a poll and a stop cannot do without, by hand; both read all jobs."""
    found = {}
    for name, command in {
        "list": ("squeue", "-h", "-a", "-t", "all", "-o", "%i %T"),
        "scancel": ("scancel", "-s", "CONT", slurm_job_id),
    }.items():
        begun = time.perf_counter()
        cluster.run(*command)
        found[name] = time.perf_counter() - begun
    return found


def measure_ours(submitter: Submitter, scenario: Scenario) -> dict[str, float]:
    """The seconds of each part of one preemption by the daemon."""
    assert submitter.shared is not None  # noqa: S101  mypy
    tree = submitter.shared / "reports"
    with Store.open(submitter.base / "state" / "metasched.db", read_only=True) as store:

        def record(slurm_job_id: str) -> JobRecord | None:
            return next(iter(store.find_jobs(slurm_job_id)), None)

        def ready(slurm_job_id: str) -> JobRecord | None:
            job = record(slurm_job_id)
            return job if job is not None and job.current is not None and job.current.ready_at is not None else None

        if scenario.blocker is not None:
            blocker, _ = submitter.submit(scenario.blocker)
            wait("the blocker trains", lambda: ready(blocker))
        victim, victim_directory = submitter.submit(scenario.victim)
        job = wait("the victim trains", lambda: ready(victim))
        if job.current.placement.nodes != ("n1",):
            raise BenchmarkError(f"the victim was expected on n1, and is on {job.current.placement}")
        wait("the victim does steps", lambda: "steps" in reports(tree / job.uid, 1))
        by_slurm = time_slurms_commands(submitter.cluster, victim)
        wait_random_time()
        intruder, intruder_directory = submitter.submit(scenario.intruder)
        wait("the victim stops", lambda: "stop" in reports(tree / job.uid, 1))
        if scenario.by_victim:
            slurm_job_id, directory, uid, number = victim, victim_directory, job.uid, 2
        else:
            other = wait("the intruder is known", lambda: record(intruder))
            slurm_job_id, directory, uid, number = intruder, intruder_directory, other.uid, 1
        wait("training resumes", lambda: "steps" in reports(tree / uid, number))
        actions = store.recent_actions(100, job.uid)
        stop = next(action for action in actions if action.kind == "stop")
        begun = next(round_.at for round_ in store.recent_rounds() if round_.round == stop.round)
        latest = store.recent_actions(100, uid)
        release = next(action for action in latest if action.kind == "start")

    def need(what: str, at: float | None) -> float:
        if at is None:
            raise BenchmarkError(f"the logs do not have {what}")
        return at

    old, new = reports(tree / job.uid, 1), reports(tree / uid, number)
    stopped = need("the stop", logged(submitter, begun, "action", action=f"stop {victim}:"))
    instants = {
        "decide": need("the round", logged(submitter, begun, "round", round=stop.round)),
        "queue": stopped - (stop.latency_seconds or 0.0),
        "signal": old["stop"]["noticed"],
        "checkpoint": old["stop"]["t"],
        "exit": need("the requeue", submitter.slurmctld_logged("Requeuing", victim, begun)),
    }
    if scenario.by_victim:
        released = need("the start", logged(submitter, instants["exit"], "action", action=f"start {slurm_job_id} "))
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
    process = instants["launch"] - begun - parts["checkpoint"]
    return parts | by_slurm | {"own": own, "total": last - begun, "process": process}


# With bare Slurm


def measure_bare(submitter: Submitter, scenario: Scenario) -> dict[str, float]:
    """The seconds of each part of the same requeue and start by hand, of a trainer that exits at once on SIGTERM."""
    run = submitter.cluster.run
    victim, victim_directory = submitter.submit(Request(FOUR), "-w", "n1")
    wait("the job trains", lambda: "steps" in reports(victim_directory, 1))
    wait_random_time()
    if scenario.bare is None:
        (slurm_job_id, directory), number = submitter.submit(scenario.intruder, "--hold"), 1
        begun = time.time()
        run("scontrol", "release", slurm_job_id)
        run("scontrol", "requeuehold", victim)
    else:
        slurm_job_id, directory, number = victim, victim_directory, 2
        begun = time.time()
        run("scontrol", "requeuehold", victim)
        wait("the job is pending", lambda: run("squeue", "-h", "-o", "%T", "-j", victim).strip() == "PENDING")
        run("scontrol", "update", f"JobId={slurm_job_id}", *scenario.bare)
        run("scontrol", "release", slurm_job_id)
    released = time.time()
    wait("the job trains again", lambda: "steps" in reports(directory, number))
    held = submitter.slurmctld_logged("Requeuing", victim, begun) or begun
    batch = started(directory, number)
    start = reports(directory, number)["start"]
    process = start["t"] - start["init_seconds"]
    parts = {"exit": held - begun}
    if scenario.bare is None:
        parts["start"] = batch - held
    else:
        parts |= {"release": released - held, "start": batch - released}
    return parts | {"launch": process - batch, "process": process - begun}


# Both


def collected(samples: Sequence[Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Minimum, median and maximum of each part, in ms."""
    names = dict.fromkeys(name for sample in samples for name in sample)
    return {name: milliseconds([sample[name] for sample in samples if name in sample]) for name in names}


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """The results of the scenarios on one cluster, with and without metasched."""
    repeat, scenarios = options.repeat, options.scenario or list(SCENARIOS)
    found: dict[str, Any] = {}
    with private_cluster(NodeGroup(2, 4), tuned=CLUSTERS[name]) as (cluster, base):
        bare = Submitter(cluster, base, None, TRAINERS["light"])
        ours = Submitter(cluster, base, base / "shared", TRAINERS[options.trainer])
        (base / "shared").mkdir()
        for scenario in scenarios:
            samples = []
            for number in range(repeat):
                say(f"{name}: {scenario} by bare Slurm, {number + 1} of {repeat}")
                samples.append(measure_bare(bare, SCENARIOS[scenario]))
                bare.clear()
            found[scenario] = {"bare": collected(samples)}
        with daemon(cluster, base, CONFIG.format(base=base, busy_poll=options.busy_poll)):
            wait("the daemon publishes", (base / "shared" / "status.json").exists)
            ours.submit_waiting(options.waiting)
            for scenario in scenarios:
                samples = []
                for number in range(repeat):
                    say(f"{name}: {scenario} by metasched, {number + 1} of {repeat}")
                    samples.append(measure_ours(ours, SCENARIOS[scenario]))
                    ours.clear()
                found[scenario]["ours"] = collected(samples)
                beyond = 1000 * statistics.median(sample["process"] for sample in samples)
                beyond -= found[scenario]["bare"]["process"]["median"]
                found[scenario]["beyond_bare"] = round(beyond, 1)
    return found


def show(name: str, found: Mapping[str, Any]) -> None:
    """Print the results of one cluster as a table."""
    scenarios = list(found)
    words = "tuned SchedulerParameters" if CLUSTERS[name] else "Slurm's default SchedulerParameters"
    shown = table("ms: min / median / max", "", *scenarios, title=words, right=scenarios)

    def line(part: str, text: str, side: str = "ours", style: str | None = None) -> None:
        row(shown, part, text, *(cell(found[s][side].get(part)) for s in scenarios), style=style)

    for part, text in PARTS.items():
        line(part, text)
    line("total", "decision -> first step", style="bold")
    line("own", f"metasched's share: {' + '.join(OWN)}", style="bold green")
    line("list", "of the share, Slurm's own: a list of all jobs by squeue")
    line("scancel", "and a signal to one job by scancel")
    row(shown)
    for part, text in (
        ("exit", "bare Slurm: requeuehold -> the job is requeued and held"),
        ("release", "-> updated and released by hand"),
        ("start", PARTS["start"]),
        ("launch", "-> the process (srun)"),
        ("process", "bare Slurm, total"),
    ):
        line(part, text, "bare")
    line("process", "metasched to the same point, without the checkpoint")
    row(
        shown,
        "beyond",
        "metasched - bare Slurm, medians",
        *(f"{found[s]['beyond_bare']:.0f}" for s in scenarios),
        style="bold",
    )
    console().print(shown)
    console().print()


def main() -> None:
    """Measure, and print the tables."""
    parser = arguments(f"{__doc__} Scenarios: " + "; ".join(f"{k}: {v.words}" for k, v in SCENARIOS.items()))
    parser.add_argument("--repeat", type=positive, default=5, metavar="N", help="samples of each (default 5)")
    parser.add_argument("--trainer", choices=TRAINERS, default="light", help="light: without torch")
    parser.add_argument("--cluster", choices=CLUSTERS, action="append", help="SchedulerParameters (default: both)")
    parser.add_argument("--scenario", choices=SCENARIOS, action="append", help="(default: all)")
    parser.add_argument(
        "--busy-poll",
        type=float,
        default=Schedule().busy_poll_seconds,
        metavar="SECONDS",
        help="the daemon's busy_poll_seconds (default %(default)s)",
    )
    parser.add_argument("--waiting", type=int, default=0, metavar="N", help="jobs that wait for their begin time")
    options = parser.parse_args()
    result: dict[str, Any] = {
        "benchmark": "preemption",
        "unit": "ms",
        "trainer": options.trainer,
        "repeat": options.repeat,
        "waiting": options.waiting,
        "busy_poll_seconds": options.busy_poll,
    }
    for name in options.cluster or CLUSTERS:
        result[name] = measure(name, options)
    for name in options.cluster or CLUSTERS:
        show(name, result[name])
    finish(result, as_json=options.json)


if __name__ == "__main__":
    main()
