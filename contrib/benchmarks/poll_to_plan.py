"""The cost of one poll of the daemon with many held jobs: time by stage, calls to Slurm, memory, growth.

``--against REVISION`` measures another commit in the same run, with this script in a temporary work tree.
"""

from __future__ import annotations

import functools
import json
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any

import structlog

from contrib.benchmarks import common
from contrib.benchmarks.common import (
    add_numbers,
    arguments,
    environment,
    finish,
    growth,
    private_cluster,
    say,
    work_tree,
)
from metasched.cli.tables import console, row, table
from metasched.configuration.config import Config, Intake
from metasched.core.model import Snapshot, Status
from metasched.core.policy import Policy, installed_policies
from metasched.daemon import controller as controllers
from metasched.daemon.actuator import Actuator
from metasched.daemon.cluster_state import ClusterStateBuilder
from metasched.daemon.controller import Controller
from metasched.daemon.status_publisher import StatusPublisher
from metasched.devcluster import DevCluster, NodeGroup
from metasched.intake.job_intake import JobIntake
from metasched.intake.run_tracking import RunTracking
from metasched.learning.job_estimates import JobEstimates
from metasched.observe.observer import Observer
from metasched.scheduling.engine import run_round
from metasched.scheduling.plan import Timeouts, plan
from metasched.shared_dir import published_status
from metasched.shared_dir.mailbox import Mailbox
from metasched.slurm.command_line_client import CommandLineClient
from metasched.slurm.scontrol_pipe import ScontrolPipe
from metasched.store import Store

NODES = NodeGroup(64, 8)
POLICIES = ("fifo", "las")
SIZES = (1, 2, 4, 8, 1, 2, 16, 4)
SUBMITTERS = 4
STEADY_POLLS = 5
EVENTS = 5
"""Jobs that end, and as many that arrive; medians are taken over them."""
SETTLING_POLLS = 2
"""Polls after an event, in which the daemon sees what it has itself written to Slurm."""
MOST_INTAKE_POLLS = 200
SCRIPT_POLLS = 20
"""Polls after the intake, in which the daemon reads the batch scripts that it had no time for."""
POLL_SECONDS = 2.0
ROWS = (
    *("steady", "one job ended", "one job arrived", "reading the status"),
    *(f"{kind}, {policy}" for policy in POLICIES for kind in ("first round", "round")),
)
FILL_SECONDS = 60.0
# A stage is a function that the daemon calls at each poll: its owner and its name.
STAGES: Mapping[str, tuple[Any, str]] = {
    "observe": (Observer, "observe"),
    "intake": (JobIntake, "take_in"),
    "track": (RunTracking, "track"),
    "describe": (ClusterStateBuilder, "build"),
    "learn": (JobEstimates, "learn"),
    "decide": (controllers, "run_round"),
    "commit": (Store, "commit_round"),
    "plan": (controllers, "plan"),
    "act": (Actuator, "perform"),
    "publish": (StatusPublisher, "publish"),
    "processes": (subprocess, "run"),
    "commands": (ScontrolPipe, "command"),
}
SLURM = ("processes", "commands")
try:
    from metasched.daemon.garbage import GarbageCollection
except ImportError:  # a commit that --against names may not have it yet
    _garbage = None
else:
    _garbage = GarbageCollection()


class Stopwatch:
    """The seconds and the number of calls of each stage since the last reset.

    Attributes:
        seconds: by stage.
        calls: by stage.
        slurm_seconds: the seconds in which at least one of Slurm's commands ran; some run at the same time.
        last: the arguments of the latest call, by stage.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.calls: dict[str, int] = {}
        self.slurm_seconds = 0.0
        self._commands_running = 0
        self._commands_since = 0.0
        self._lock = threading.Lock()
        self.last: dict[str, tuple[Any, ...]] = {}

    def reset(self) -> None:
        """Set all seconds and calls to 0, and forget the arguments, which may be large."""
        self.seconds = dict.fromkeys(STAGES, 0.0)
        self.calls = dict.fromkeys(STAGES, 0)
        self.slurm_seconds = 0.0
        self.last = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Measure the stages while the context lasts."""
        self.reset()
        originals = {stage: getattr(owner, name) for stage, (owner, name) in STAGES.items()}
        for stage, (owner, name) in STAGES.items():
            setattr(owner, name, self._timed(stage, originals[stage]))
        try:
            yield
        finally:
            for stage, (owner, name) in STAGES.items():
                setattr(owner, name, originals[stage])

    def _timed(self, stage: str, function: Any) -> Any:
        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            self.last[stage] = args
            begun = time.perf_counter()
            if stage in SLURM:
                self._note_commands(1)
            try:
                return function(*args, **kwargs)
            finally:
                if stage in SLURM:
                    self._note_commands(-1)
                with self._lock:  # two commands may end at the same time
                    self.seconds[stage] += time.perf_counter() - begun
                    self.calls[stage] += 1

        return timed

    def _note_commands(self, more: int) -> None:
        """Note that one more of Slurm's commands runs, or one less (-1)."""
        with self._lock:
            now = time.perf_counter()
            if self._commands_running:
                self.slurm_seconds += now - self._commands_since
            self._commands_running += more
            self._commands_since = now


def submit(cluster: DevCluster, shared: Path, script: Path, *options: str) -> str:
    """Submit one job; returns its Slurm job id."""
    argv = ["sbatch", "--parsable", f"--chdir={script.parent}", "--output=/dev/null", *options, str(script)]
    done = subprocess.run(
        argv, env=environment(cluster, shared), capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.strip()


def request(number: int) -> tuple[str, ...]:
    """The options of the job of this number: sizes from a list, every other job elastic."""
    gpus = SIZES[number % len(SIZES)]
    tag = f"metasched min_gpus=1 max_gpus={2 * gpus}" if number % 2 else "metasched"
    return (f"--gpus={gpus}", f"--comment={tag}")


def hold_all(cluster: DevCluster, ids: list[str]) -> None:
    """Put an administrator's hold on the jobs, which the daemon's polls would do within their budgets of writes."""
    lines = "".join(f"hold {slurm_job_id}\n" for slurm_job_id in ids)
    subprocess.run(
        ["scontrol"], env=cluster.env, input=lines, text=True, timeout=600, stdout=subprocess.DEVNULL, check=False
    )


def milliseconds(watch: Stopwatch, total: float, cpu: float) -> dict[str, float]:
    """The stages of one poll in ms, and the calls of Slurm's commands.

    "ours" is the time without these commands, "cpu" the processor time of this process, which other load on the machine
    changes little.
    """
    slurm = watch.slurm_seconds
    found = {stage: watch.seconds[stage] for stage in STAGES if stage not in SLURM}
    found |= {"total": total, "slurm": slurm, "ours": total - slurm, "cpu": cpu}
    return {name: round(1000 * value, 1) for name, value in found.items()} | {
        stage: watch.calls[stage] for stage in SLURM
    }


def polled(controller: Controller, watch: Stopwatch) -> dict[str, float]:
    """Poll once; returns the poll's ``milliseconds``, and the peak of the memory meanwhile in MiB."""
    watch.reset()
    Path("/proc/self/clear_refs").write_text("5")  # the peak is that from now on
    begun, cpu = time.perf_counter(), time.process_time()
    controller.poll()
    found = milliseconds(watch, time.perf_counter() - begun, time.process_time() - cpu) | {"MiB": peak_mib()}
    if _garbage is not None:
        _garbage.after_poll()
    return found


def peak_mib() -> int:
    """The peak of this process's resident memory in MiB, since it was last cleared."""
    status = Path("/proc/self/status").read_text()
    return round(int(status.partition("VmHWM:")[2].split()[0]) / 1024)


def reading(shared: Path) -> dict[str, float]:
    """The ms in which the published status is read, the median of several readings."""
    samples: list[dict[str, float]] = []
    for _ in range(STEADY_POLLS):
        begun, cpu = time.perf_counter(), time.process_time()
        published_status.read(shared)
        total, used = time.perf_counter() - begun, time.process_time() - cpu
        samples.append({"total": 1000 * total, "ours": 1000 * total, "cpu": 1000 * used})
    return median(samples)


def median(samples: list[dict[str, float]]) -> dict[str, float]:
    """The medians over several polls."""
    return {name: round(statistics.median(sample[name] for sample in samples), 1) for name in samples[0]}


def policy_named(name: str) -> Policy:
    """The policy with its default parameters."""
    return installed_policies().get(name)()


def on_free_gpus(snapshot: Snapshot, policy: Policy) -> dict[str, float]:
    """The ms of a decision and a plan as if no job held GPUs, and the number of actions: the largest round."""
    jobs = tuple(job for job in snapshot.jobs if job.status is Status.HELD)
    emptied = replace(snapshot, jobs=jobs)
    begun = time.perf_counter()
    result = run_round(emptied, policy, None)
    decided = time.perf_counter()
    actions = plan(emptied, result.targets, Timeouts(grace_seconds=120, start_limit_seconds=60))
    ended = time.perf_counter()
    return {
        "decide": round(1000 * (decided - begun), 1),
        "plan": round(1000 * (ended - decided), 1),
        "starts": len(actions),
    }


def fill(cluster: DevCluster, shared: Path, script: Path, controller: Controller) -> None:
    """Poll until one job that cannot be preempted holds all GPUs, so that the others wait."""
    options = ("--nodes=64", "--gres=gpu:8", "--comment=metasched preempt=no", "--job-name=filler")
    filler = submit(cluster, shared, script, *options)
    deadline = time.monotonic() + FILL_SECONDS
    while cluster.run("squeue", "-h", "-o", "%T", "-j", filler).strip() != "RUNNING":
        if time.monotonic() > deadline:
            message = f"the job that fills the cluster does not run after {FILL_SECONDS:g} s"
            raise TimeoutError(message)
        controller.poll()
        time.sleep(0.1)
    controller.poll()


def of_events(
    controller: Controller, watch: Stopwatch, end_one: Callable[[], object], submit_one: Callable[[], object]
) -> dict[str, dict[str, float]]:
    """The medians of the polls that see that one job has ended, and that one has arrived."""
    samples: dict[str, list[dict[str, float]]] = {"one job ended": [], "one job arrived": []}
    for _ in range(EVENTS):
        for found, cause in zip(samples.values(), (end_one, submit_one), strict=True):
            cause()
            found.append(polled(controller, watch))
            for _ in range(SETTLING_POLLS):
                controller.poll()
    return {name: median(found) for name, found in samples.items()}


def measure(base: Path, held: int, *, bulk_hold: bool) -> dict[str, Any]:
    """The results for one number of held jobs; runs in a new process, because it reads the process's peak memory."""
    structlog.configure(processors=[lambda *_: _drop()])
    cluster = DevCluster.attach(base / "c")
    shared, script = base / "shared", base / "job.sh"
    watch = Stopwatch()
    result: dict[str, Any] = {"polls": {}, "free": {}}
    polls = result["polls"]
    config = Config.model_validate(
        {
            "paths": {"state": base / "state", "shared": shared},
            "schedule": {"round_seconds": 1e6, "min_round_seconds": 1e-6, "poll_seconds": POLL_SECONDS},
            "intake": {"live_jobs": 10**6}
            if "live_jobs" in Intake.model_fields
            else {},  # an earlier commit has no limit
        }
    )
    schedule = config.schedule.model_copy(update={"min_round_seconds": 1e6})
    without_rounds = config.model_copy(update={"schedule": schedule})  # an end or an arrival alone
    before = peak_mib()
    client = CommandLineClient(cluster.env)
    with Store.open(base / "state" / "metasched.db") as store, watch.watching():
        controller = Controller(config, client, client.settings(), store, Mailbox(shared), policy_named("fifo"))
        fill(cluster, shared, script, controller)
        say(f"{held} jobs: submitting")
        with ThreadPoolExecutor(SUBMITTERS) as pool:
            ids = list(pool.map(lambda number: submit(cluster, shared, script, *request(number)), range(held)))
        say(f"{held} jobs: polling")
        polls["first (intake)"] = slowest = polled(controller, watch)
        if bulk_hold:
            hold_all(cluster, ids)
        for _ in range(MOST_INTAKE_POLLS):
            polls["after our writes"] = polled(controller, watch)
            slowest = max(slowest, polls["after our writes"], key=itemgetter("total"))
            # A commit that --against names may not defer new jobs yet.
            deferred = getattr(controller, "deferred", ()) or len(store.live_jobs()) <= held  # one job more: the filler
            if not deferred and not polls["after our writes"]["commands"]:
                break
        polls["slowest of the intake"] = slowest
        controller.reconfigure(without_rounds, policy_named("fifo"))
        for _ in range(SCRIPT_POLLS):
            controller.poll()
        polls["steady"] = median([polled(controller, watch) for _ in range(STEADY_POLLS)])
        polls |= of_events(
            controller,
            watch,
            end_one=lambda: cluster.run("scancel", ids.pop()),
            submit_one=lambda: ids.append(submit(cluster, shared, script, *request(0))),
        )
        polls["reading the status"] = dict.fromkeys(polls["steady"].keys() - {"MiB"}, 0.0) | reading(shared)
        for name in POLICIES:
            for row_name, settings in (
                (f"first round, {name}", config),
                (f"poll after it, {name}", without_rounds),  # publishes the round where that took long
                (f"round, {name}", config),
            ):
                controller.reconfigure(settings, policy_named(name))
                polls[row_name] = polled(controller, watch)
            snapshot = watch.last["decide"][0]
            result["free"][name] = on_free_gpus(snapshot, policy_named(name))
        result["jobs"] = len(snapshot.jobs) - 1
    client.close()
    result["memory_mib"] = {"before": before, "peak": max(poll.get("MiB", 0) for poll in polls.values())}
    return result


def _drop() -> Any:
    raise structlog.DropEvent


def show(held: int, found: Mapping[str, Any]) -> None:
    """Print the results for one number of held jobs as a table."""
    columns = ("total", "ours", "cpu", "MiB", "slurm", *STAGES)
    memory = found["memory_mib"]
    title = f"{held} held jobs: ms; memory {memory['before']} MiB without jobs, {memory['peak']} MiB at most"
    shown = table("poll", *columns, title=title, right=columns)
    for name, poll in found["polls"].items():
        row(shown, name, *(f"{poll[column]:.0f}" if column in poll else "" for column in columns))
    for name, free in found["free"].items():
        cells = {"decide": f"{free['decide']:.0f}", "plan": f"{free['plan']:.0f}"}
        words = f"{name}, if all GPUs were free: {free['starts']} actions"
        row(shown, words, *(cells.get(column, "") for column in columns))
    console().print(shown)
    console().print()


def show_growth(found: Mapping[int, Mapping[str, Any]]) -> None:
    """Print how each kind of poll grows with the number of jobs, and the daemon's share of a core when idle."""
    for name in ROWS if len(found) > 1 else ():
        times = {held: max(result["polls"][name]["cpu"], 0.1) for held, result in found.items()}
        console().print(f"{name}: cpu {', '.join(f'{time:.1f} ms' for time in times.values())}: {growth(times)}")
    for held, result in found.items():
        share = result["polls"]["steady"]["cpu"] / 1000 / POLL_SECONDS
        console().print(f"{held} jobs, nothing happens: {share:.1%} of a core at a poll each {POLL_SECONDS:g} s")


def of_revision(revision: str, jobs: list[int], *, bulk_hold: bool) -> dict[int, Any]:
    """The results of another commit, measured by this script and what it imports in a work tree of that commit."""
    with work_tree(revision) as tree:
        for script in (__file__, common.__file__):
            shutil.copy(script, tree / "contrib" / "benchmarks")
        argv = [sys.executable, "-m", "contrib.benchmarks.poll_to_plan", "--json", "--jobs", ",".join(map(str, jobs))]
        argv += ["--bulk-hold"] if bulk_hold else []
        env = {**os.environ, "PYTHONPATH": str(tree)}
        done = subprocess.run(argv, cwd=tree, env=env, check=True, timeout=7200, stdout=subprocess.PIPE, text=True)
    return {int(held): found for held, found in json.loads(done.stdout.splitlines()[-1])["jobs"].items()}


def main() -> None:
    """Measure, and print the tables."""
    parser = arguments(__doc__ or "")
    add_numbers(parser, "--jobs", (10, 1000, 10_000), "numbers of held jobs")
    parser.add_argument("--against", metavar="REVISION", help="measure this commit, too, before the present one")
    parser.add_argument("--bulk-hold", action="store_true", help="hold all jobs at once after the first poll")
    options = parser.parse_args()
    result: dict[str, Any] = {"benchmark": "poll_to_plan", "unit": "ms", "jobs": {}}
    if options.against is not None:
        result["against"] = of_revision(options.against, options.jobs, bulk_hold=options.bulk_hold)
    for held in options.jobs:
        with private_cluster(NODES) as (_, base):
            (base / "shared").mkdir()
            (base / "job.sh").write_text("#!/bin/bash\nexec sleep 100000\n")
            with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
                result["jobs"][held] = process.submit(measure, base, held, bulk_hold=options.bulk_hold).result()
    for revision, results in ((options.against, result.get("against", {})), ("present", result["jobs"])):
        for held, found in results.items():
            console().print(f"{revision} commit:" if options.against else "", end="\n" if options.against else "")
            show(held, found)
        if results:
            show_growth(results)
    finish(result, as_json=options.json)


if __name__ == "__main__":
    main()
