"""A generated site for the web page: a database with a long history, and a published status with many live jobs.

Everything is a function of the sizes and of ``now``: two calls give the same site.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contrib.benchmarks.site_policies import fill_policies, write_policies
from metasched.apps.app_state import VERSION as APPS_VERSION
from metasched.core.model import Node, Placement, Snapshot, Status
from metasched.core.reasons import Reason, to_json, to_text
from metasched.replay.snapshot_codec import encode
from metasched.shared_dir import published_status
from metasched.shared_dir.published_status import (
    AppStatus,
    InstantStatus,
    JobForecastStatus,
    JobStatus,
    NodeStatus,
    publish,
)
from metasched.simulator.records import trace_job
from metasched.store import Store
from metasched.store.row_conversion import as_json, placement_json

GPUS_PER_NODE = 8
USERS = tuple(f"user{number:02d}" for number in range(40))
ACCOUNTS = ("vision", "language", "speech", "robotics")
NAMES = ("resnet50", "bert-large", "gpt-neo", "deepspeech2", "a-job-with-a-name-that-is-much-longer-than-others")
RUN_SECONDS = 3000.0
ROUND_SECONDS = 300.0
CONTENTION = 1.5
"""The mean over time of the GPUs that live jobs request over all GPUs."""
SHOWCASE = "5eed000000000001"
"""The uid of a live job with a long history: eight runs of several sizes, reports, checkpoints, batch changes."""
APP = "app:user00/learning-rates"
_COLUMNS = (
    "uid, slurm_job_id, name, user, submitted, account, partition, requirements, status, run, preemptions, attained, "
    "ran_seconds, finished, end_state, exit_code"
)
_RUN_COLUMNS = (
    "uid, run, released_at, placement, started, ended, cause, first_step_at, step_seconds, data_seconds, gpus"
)
_FAIRNESS_COLUMNS = "uid, user, account, finished, gpu_seconds, alone, measured, pollux"


@dataclass(frozen=True, slots=True)
class Sizes:
    """How large the site is: nodes of eight GPUs, live jobs, and runs that are over."""

    nodes: int = 512
    live: int = 10_000
    runs: int = 300_000


def node_name(index: int) -> str:
    """The name of the node at a position from 0."""
    return f"n{index + 1:04d}"


def fill_store(store: Store, sizes: Sizes, now: float) -> None:
    """Insert the history into an empty store, in one transaction; a site without live jobs has no history."""
    if not sizes.live:
        return
    with store.transaction():
        many, write = store._write_many, store._write  # noqa: SLF001  rows in bulk; the store's own methods take hours
        jobs = f"INSERT INTO jobs ({_COLUMNS}) VALUES ({_marks(_COLUMNS)})"  # noqa: S608  constants
        many(jobs, _past_jobs(sizes, now))
        many(jobs, _live_jobs(sizes, now))
        many(f"INSERT INTO fairness ({_FAIRNESS_COLUMNS}) VALUES ({_marks(_FAIRNESS_COLUMNS)})", _fairness(sizes, now))  # noqa: S608  constants
        runs = f"INSERT INTO runs ({_RUN_COLUMNS}) VALUES ({_marks(_RUN_COLUMNS)})"  # noqa: S608  constants
        many(runs, _past_runs(sizes, now))
        many(runs, _open_runs(sizes, now))
        rounds = _rounds_of(sizes)
        many("INSERT INTO rounds VALUES (?, ?, 'las', '{}', 0.05, ?)", _rounds(rounds, sizes, now))
        many(
            "INSERT INTO decisions (uid, first_round, last_round, granted, reason) VALUES (?, ?, ?, ?, ?)",
            _decisions(rounds, sizes),
        )
        write("INSERT INTO apps VALUES (?, ?, ?)", [rounds, APPS_VERSION, as_json(_apps_state(now))])
        _showcase(store, rounds, now)
        snapshot = encode(_snapshot(rounds, sizes, now))
        write("INSERT INTO snapshots (round, data, state_bytes) VALUES (?, ?, 0)", [rounds, snapshot])


def status(sizes: Sizes, now: float) -> published_status.Status:
    """The status that the daemon of the site published at ``now``."""
    running = _running(sizes)
    jobs = [_job_status(index, sizes, now) for index in range(sizes.live)]
    used = GPUS_PER_NODE if running else 0
    nodes = [
        NodeStatus(node_name(i), "h100" if i % 2 else "a100", GPUS_PER_NODE, used if i < running else 0, accepts=True)
        for i in range(sizes.nodes)
    ]
    app = AppStatus(APP, "learning-rates", USERS[0], "hyperband", ((1, 3), (2, 3)), 6, 3, now - 9000, 40_000.0)
    return published_status.Status(
        published=now,
        poll_seconds=2.0,
        cluster="hpc",
        host="head",
        pid=1,
        policy="las",
        round=_rounds_of(sizes),
        round_at=now - 20,
        next_round=now + 40,
        slurm="ok",
        nodes=tuple(nodes),
        jobs=tuple(jobs),
        apps=(app,) if jobs else (),
        contention_seconds=CONTENTION * 40_000.0,
    )


def build(base: Path, sizes: Sizes, now: float) -> tuple[Path, Path]:
    """Make the site below a directory; returns the paths of the database and of the shared directory."""
    database, shared = base / "state" / "metasched.db", base / "shared"
    shared.mkdir(parents=True, exist_ok=True)
    with Store.open(database) as store:
        fill_store(store, sizes, now)
        if sizes.live:
            uids = [live_uid(index) for index in range(min(sizes.live, 200))]
            rounds = _rounds_of(sizes)
            fill_policies(store, uids, rounds, ROUND_SECONDS, now)
            write_policies(base, uids, rounds, now)
    publish(shared, status(sizes, now))
    return database, shared


def _rounds_of(sizes: Sizes) -> int:
    return max(10, min(sizes.runs // 10, 30_000))


def live_uid(index: int) -> str:
    """The uid of a live job; the first one is the showcase."""
    return SHOWCASE if index == 0 else f"11fe{index:012d}"


def past_uid(index: int) -> str:
    """The uid of a job that has finished."""
    return f"0a57{index:012d}"


def _marks(columns: str) -> str:
    return ", ".join("?" * len(columns.split(",")))


def _owner(index: int) -> tuple[str, str]:
    return USERS[index * 7 % len(USERS)], ACCOUNTS[index * 3 % len(ACCOUNTS)]


def _past_jobs(sizes: Sizes, now: float) -> Iterator[tuple[Any, ...]]:
    for index in range(sizes.runs // 3):
        user, account = _owner(index)
        end = _past_span(3 * index + 2, sizes, now)[1]
        yield (
            *(past_uid(index), str(100_000 + index), NAMES[index % len(NAMES)], user, end - 12_000, account, "gpu"),
            *("{}", "finished", 3, 2, as_json({"a100": 3 * RUN_SECONDS * GPUS_PER_NODE}), 3 * RUN_SECONDS, end),
            *("COMPLETED", 0),
        )


def _fairness(sizes: Sizes, now: float) -> Iterator[tuple[Any, ...]]:
    for index in range(sizes.runs // 3):
        user, account = _owner(index)
        spans = [_past_span(3 * index + part, sizes, now) for part in range(3)]
        end, held = spans[-1][1], sum(end - begin for begin, end in spans)
        yield past_uid(index), user, account, end, held * GPUS_PER_NODE, held, 1, 0.6 + index % 13 / 10


def _live_jobs(sizes: Sizes, now: float) -> Iterator[tuple[Any, ...]]:
    for index in range(sizes.live):
        user, account = _owner(index)
        requirements = as_json({"app": "learning-rates"}) if 0 < index < 10 else "{}"  # noqa: PLR2004  the app's trials
        state = "running" if index < _running(sizes) else "held"
        yield (
            *(live_uid(index), str(900_000 + index), NAMES[index % len(NAMES)], USERS[0] if index < 10 else user),  # noqa: PLR2004
            *(now - 40_000 + index, account, "gpu", requirements, state, 8 if index == 0 else int(state == "running")),
            *(0, "{}", 0.0, None, None, None),
        )


def _running(sizes: Sizes) -> int:
    return min(sizes.live, sizes.nodes * 9 // 10)


def _past_span(run: int, sizes: Sizes, now: float) -> tuple[float, float]:
    """Start and end of a run that is over: the three runs of a job, and the jobs of a node, follow each other."""
    job, part = divmod(run, 3)
    position, last = job // sizes.nodes * 3 + part, (sizes.runs // 3 - 1) // sizes.nodes * 3 + 2
    end = now - 1000 - (last - position) * (RUN_SECONDS + 100) - job % 7 * 10
    return end - RUN_SECONDS + run % 5 * 100, end


def _placement(index: int, sizes: Sizes) -> str | None:
    node = index % sizes.nodes
    return placement_json(Placement((node_name(node),), GPUS_PER_NODE, "h100" if node % 2 else "a100"))


def _past_runs(sizes: Sizes, now: float) -> Iterator[tuple[Any, ...]]:
    causes = ("preempted", "resized", "finished")
    for run in range(sizes.runs // 3 * 3):
        begin, end = _past_span(run, sizes, now)
        held = end - begin
        yield (
            *(past_uid(run // 3), run % 3 + 1, begin - 2, _placement(run // 3, sizes), begin, end, causes[run % 3]),
            *(begin + 40, held - 60, held * 0.1, GPUS_PER_NODE),
        )


def _open_runs(sizes: Sizes, now: float) -> Iterator[tuple[Any, ...]]:
    for index in range(1, _running(sizes)):
        begin = now - 900 + index % 50 * 10
        yield (live_uid(index), 1, begin - 2, _placement(index, sizes), begin, None, None, begin + 40, 300.0, 30.0, 8)


def _snapshot(number: int, sizes: Sizes, now: float) -> Snapshot:
    """The snapshot of the latest round, with all live jobs."""
    jobs = []
    for index in range(sizes.live):
        one = trace_job(live_uid(index), NAMES[index % len(NAMES)], now - 40_000 + index, GPUS_PER_NODE)
        node = index % sizes.nodes
        placed = Placement((node_name(node),), GPUS_PER_NODE, "h100" if node % 2 else "a100")
        running = {"status": Status.RUNNING, "placement": placed} if index < _running(sizes) else {}
        jobs.append(one.evolve(user=_owner(index)[0], **running))
    nodes = [
        Node(node_name(index), "h100" if index % 2 else "a100", GPUS_PER_NODE, 128, 1 << 40)
        for index in range(sizes.nodes)
    ]
    return Snapshot(now - 20, number, ROUND_SECONDS, tuple(nodes), tuple(jobs))


def _rounds(rounds: int, sizes: Sizes, now: float) -> Iterator[tuple[Any, ...]]:
    gpus = sizes.nodes * GPUS_PER_NODE
    summary = as_json({"jobs": sizes.live, "nodes": sizes.nodes, "capacity": {"a100": gpus // 2, "h100": gpus // 2}})
    for number in range(1, rounds + 1):
        yield number, now - 20 - (rounds - number) * ROUND_SECONDS, summary


def _decisions(rounds: int, sizes: Sizes) -> Iterator[tuple[Any, ...]]:
    runs_now = to_text(Reason.text("it has received the least service"))
    waits = to_text(Reason.text("fewer GPUs are free than the job needs"))
    each = max(1, sizes.runs // rounds)
    for run in range(sizes.runs // 3 * 3):
        number = min(rounds, 1 + run // each)
        yield (
            past_uid(run // 3),
            number,
            max(number, min(rounds - 1, number + 9)),
            _placement(run // 3, sizes),
            runs_now,
        )
    for index in range(sizes.live):
        number = max(1, rounds - index % 10)
        if index < _running(sizes):
            yield live_uid(index), max(1, number - 3), number - 1 or 1, None, waits
            yield live_uid(index), number, None, _placement(index, sizes), runs_now
        else:
            yield live_uid(index), number, None, None, waits


def _apps_state(now: float) -> dict[str, Any]:
    trials = {live_uid(index): {"submitted": now - 9000 + index, "attained": 400.0 * index} for index in range(1, 10)}
    why = to_json(Reason.text("its loss is in the worse half of the trials of its phase"))
    ended = {live_uid(index): why for index in (7, 8, 9)}
    return {
        "now": now,
        "live": [[now - 9000, 1]],
        "apps": {APP: {"first_submitted": now - 9000, "trials": trials, "ended": ended}},
    }


def _showcase(store: Store, rounds: int, now: float) -> None:
    """Insert the runs, reports, checkpoints, events and actions of the showcase job."""
    many, write = store._write_many, store._write  # noqa: SLF001
    sizes, begin, step = (1, 2, 4, 8, 4, 2, 4, 8), now - 36_000, 0
    for number, gpus in enumerate(sizes, 1):
        last = number == len(sizes)
        end = None if last else begin + 3600
        placement = placement_json(Placement((node_name(0),), gpus, "a100"))
        cause = None if last else ("preempted", "resized")[number % 2]
        until = now if end is None else end
        write(
            f"INSERT INTO runs ({_RUN_COLUMNS}, generation, sync_seconds, stall_seconds, steps_per_second, peak_bytes) "  # noqa: S608  constants
            f"VALUES ({_marks(_RUN_COLUMNS)}, ?, ?, ?, ?, ?)",
            [
                *(SHOWCASE, number, begin - 3, placement, begin, end, cause, begin + 45, until - begin - 90),
                *((until - begin) * 0.08, gpus, number, (until - begin) * 0.04, 20.0, gpus * 1.5, 31 * 2**30),
            ],
        )
        rows = []
        for index in range(40 if last else 100):
            step += 30 * gpus
            at = begin + 60 + index * 34
            loss = 0.4 + 7 * math.exp(-step / 25_000) + 0.08 * math.sin(index * 1.7)
            batch = 256 if number < 4 else 512  # noqa: PLR2004  the batch doubles at the fourth run
            rows.append(
                (
                    SHOWCASE,
                    number,
                    number,
                    at,
                    step,
                    30 * gpus,
                    30 * gpus * batch,
                    34.0,
                    loss,
                    gpus,
                    batch,
                    batch // gpus,
                    1,
                )
            )
        many(
            "INSERT INTO throughput (uid, run, generation, at, step, steps, samples, seconds, loss, world_size, "
            "global_batch, per_gpu_batch, accumulation) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            rows,
        )
        write(
            "INSERT INTO checkpoints (uid, generation, at, step, seconds, size, cause, stall_seconds) "
            "VALUES (?, ?, ?, ?, 12.5, ?, ?, 2.5)",
            [SHOWCASE, number, until, step, 4 * 2**30, "periodic" if last else "stop"],
        )
        write(
            "INSERT INTO events (at, uid, kind, text) VALUES (?, ?, 'note', ?)",
            [begin, SHOWCASE, f"run {number} began"],
        )
        write(
            "INSERT INTO actions (round, at, uid, kind, detail, outcome, latency_seconds) "
            "VALUES (?, ?, ?, ?, '{}', 'ok', 0.08)",
            [rounds, begin, SHOWCASE, "start"],
        )
        begin += 3900
    write(
        "UPDATE jobs SET total_steps = ?, progress_steps = ?, loss = 0.7, preemptions = 7 WHERE uid = ?",
        [step * 2, step, SHOWCASE],
    )


def _job_status(index: int, sizes: Sizes, now: float) -> JobStatus:
    user, account = _owner(index)
    running = index < _running(sizes)
    return JobStatus(
        uid=live_uid(index),
        slurm_job_id=str(900_000 + index),
        name=NAMES[index % len(NAMES)],
        user=USERS[0] if index < 10 else user,  # noqa: PLR2004  the app's owner
        account=account,
        status="running" if running else "held",
        gpus=GPUS_PER_NODE,
        min_gpus=1 if index == 0 else GPUS_PER_NODE,
        max_gpus=GPUS_PER_NODE,
        preempt="stop",
        reason="it has received the least service" if running else "fewer GPUs are free than the job needs",
        nodes={node_name(index % sizes.nodes): GPUS_PER_NODE} if running else {},
        gpu_type="a100" if running else None,
        submitted=now - 40_000 + index,
        run_started=now - 900 + index % 50 * 10 if running else None,
        runs=8 if index == 0 else int(running),
        preemptions=7 if index == 0 else 0,
        attained_service=100_000.0 if index == 0 else 7000.0 * running,
        ran_seconds=30_000.0 if index == 0 else 900.0 * running,
        waited_seconds=6000.0,
        alone_seconds=20_000.0 if running else None,
        left_seconds=10_000.0 if running else None,
        contention_before=0.0,
        progress_steps=24_000.0 if running else None,
        total_steps=48_000,
        steps_per_second=12.0 if running else None,
        loss=0.7 if running else None,
        world_sizes=(1, 2, 4, 8, 4, 2, 4, 8) if index == 0 else (8,) * running,
        forecast=_forecast(index, now, is_running=running),
        app=APP if 0 < index < 10 else None,  # noqa: PLR2004  the app's trials
    )


def _forecast(index: int, now: float, *, is_running: bool) -> JobForecastStatus:
    first = now + 600 + index % 100 * 90.0
    start = None if is_running else InstantStatus(first, 1.2 * (first - now) + now, 2 * (first - now) + now)
    return JobForecastStatus(
        now - 20, start, InstantStatus(first + 3600, first + 5000, first + 9000), "its own reports"
    )
