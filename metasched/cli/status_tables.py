"""The published status as rich tables, for the status command and the demo.

The values of a new column come from `shared_dir/published_status.py`, which `daemon/status_publisher.py` fills.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from metasched.cli.tables import NAME_WIDTH, LineTable, row, table
from metasched.core.reason_words import counted
from metasched.presentation.formatting import (
    advice_text,
    batch_text,
    clean,
    co_runner_text,
    duration,
    expected_text,
    gpus_text,
    hosts_text,
    node_note,
    planned_text,
    progress_text,
    runs_text,
    speed_up_text,
    where,
    world_sizes_text,
)
from metasched.presentation.job_explanation import is_stale
from metasched.presentation.job_selection import WAITING
from metasched.shared_dir.published_status import AppStatus, DeferredStatus, JobStatus, NodeStatus, Status
from metasched.slurm.leaked_gpus import CURE
from metasched.slurm.reused_ids import drained_by_reused_id, resume_command

_REASON_WIDTH = 60
_LOSS_WIDTH = 10
_HOSTS_WIDTH = 30
_NODE_ROWS = 8
_SUMMARY_ROWS = 12
_DEFERRED_LINES = 5
# Columns that narrow terminals do not show, the most important one last.
_OPTIONAL_OF_LIVE_JOBS = ("RUNS", "PLANNED", "SPEED-UP", "BATCH", "EXPECTED", "RAN", "WAITED", "PLACE", "PROGRESS")
_OPTIONAL_OF_ENDED_JOBS = ("SIZES", "RUNS", "WAITED", "PREEMPTED", "RAN")
FINISHED_ROWS = 10
"""Rows of the table of ended jobs; `metasched status --json` has all that are published."""
_STYLES = {"running": "green", "queued": "cyan", "stopping": "yellow", "suspended": "yellow"}


def overview(status: Status, now: float, limit: int, *, every_node: bool = False) -> RenderableType:
    """Return headline, table of nodes, and table of the first ``limit`` live jobs.

    Args:
        status: the published status, its live jobs in the order in which they are to be shown.
        now: the present instant, unix seconds.
        limit: rows of the table of live jobs at most.
        every_node: whether each node has a row; else alike nodes share a row.
    """
    advice = [Text(advice_text(one)) for one in status.advice]
    nodes = nodes_table(status.nodes) if every_node else folded_nodes_table(status.nodes)
    parts: list[RenderableType] = [headline(status, now), Text(), nodes, *advice, Text()]
    if status.jobs:
        parts.append(jobs_table(status.jobs[:limit], now))
    else:
        parts.append(Text("no jobs of metasched wait or run"))
    if len(status.jobs) > limit:
        rest = _by_state(status.jobs[limit:])
        parts.append(Text(f"and {len(status.jobs) - limit} more ({rest}); see --me, --state, --limit or --summary"))
    if status.apps:
        parts += [Text(), apps_table(status.apps[:limit])]
        if len(status.apps) > limit:
            parts.append(Text(f"and {len(status.apps) - limit} more"))
    if status.finished:
        parts += [Text(), finished_table(status.finished[:FINISHED_ROWS], now)]
    return Group(*parts)


def rows_without_jobs(status: Status, every_node: bool) -> int:  # noqa: FBT001  of one caller
    """Return the number of lines that stand before and directly below the rows of the live jobs."""
    nodes = len(status.nodes) if every_node else min(len(fold(status.nodes)), _NODE_ROWS) + 1
    return headline(status, status.published).plain.count("\n") + nodes + len(status.advice) + 6


def summary(status: Status, now: float) -> RenderableType:
    """Return the headline and counts: GPUs by type, live jobs by state, waiting jobs by reason, jobs by user."""
    gpus = table("TYPE", "NODES", "GPUs", "USED", "FREE", "NO NEW JOBS", right=("NODES", "GPUs", "USED", "FREE"))
    for gpu_type in dict.fromkeys(node.gpu_type for node in status.nodes):
        same = [node for node in status.nodes if node.gpu_type == gpu_type]
        free = sum(max(node.gpus - node.gpus_used, 0) for node in same if node.accepts)
        closed = [node.name for node in same if not node.accepts]
        total, used = sum(node.gpus for node in same), sum(node.gpus_used for node in same)
        row(gpus, gpu_type, len(same), total, used, free, hosts_text(closed, _HOSTS_WIDTH))
    told = Text(f"Live jobs: {_by_state(status.jobs) or 'none'}")
    parts: list[RenderableType] = [headline(status, now), Text(), gpus, Text(), told]
    waiting = Counter(job.reason_code for job in status.jobs if job.status in WAITING)
    if waiting:
        codes = ", ".join(f"{count} {clean(code)}" for code, count in waiting.most_common(_SUMMARY_ROWS))
        parts.append(Text(f"Waiting, by reason: {codes}"))
    parts += [Text(), _users_table(status.jobs)] if status.jobs else []
    return Group(*parts)


def _by_state(jobs: Sequence[JobStatus]) -> str:
    """Return the numbers of jobs by state, such as ``30 held, 2 running``."""
    states = Counter(job.status for job in jobs)
    return ", ".join(f"{count} {clean(state)}" for state, count in states.most_common())


def _users_table(jobs: Sequence[JobStatus]) -> Table:
    """Return the table of the users with the most GPUs, then the most waiting jobs."""
    numbers = ("GPUS USED", "RUNNING", "WAITING")
    made = table("USER", *numbers, right=numbers)
    gpus, running, waiting = Counter[str](), Counter[str](), Counter[str]()
    for job in jobs:
        gpus[job.user] += sum(job.nodes.values())
        (waiting if job.status in WAITING else running)[job.user] += 1
    users = sorted(gpus, key=lambda user: (-gpus[user], -waiting[user], user))
    for user in users[:_SUMMARY_ROWS]:
        row(made, clean(user, NAME_WIDTH), gpus[user], running[user], waiting[user])
    if len(users) > _SUMMARY_ROWS:
        rest = users[_SUMMARY_ROWS:]
        row(made, f"{len(rest)} more", *(sum(count[user] for user in rest) for count in (gpus, running, waiting)))
    return made


def headline(status: Status, now: float) -> Text:
    """Return lines on the policy, the next round, and whether daemon and Slurm answer."""
    line = Text(f"{clean(status.cluster)}: policy {clean(status.policy)}, round {status.round}")
    age = max(now - status.published, 0.0)
    if is_stale(status, now):
        line.append(
            f"\nSTALE: the daemon ({clean(status.host)}, pid {status.pid}) published nothing for {duration(age)}; "
            "it is stopped or hangs; running jobs continue without it",
            style="bold red",
        )
        return line
    if status.next_round is not None:
        line.append(f", next in {duration(status.next_round - now)}")
    line.append(f"; daemon on {clean(status.host)} (pid {status.pid}), {duration(age)} ago")
    if status.slurm != "ok":
        line.append(f"\nSlurm: {clean(status.slurm)}", style="bold red")
    if status.store != "ok":
        line.append(f"\nDatabase: {clean(status.store)}", style="bold red")
    for text in _what_an_admin_must_do(status.nodes):
        line.append(f"\n{text}", style="bold yellow")
    if status.degraded:
        count = counted(status.degraded_rounds, "such round")
        line.append(f"\nDEGRADED: {clean(status.degraded)}; {count} since the daemon's start", style="bold yellow")
    for told in _deferred_lines(status.deferred):
        line.append(f"\n{told}", style="yellow")
    line.append(_forecast_problem(status), style="yellow")
    if status.sharing:
        line.append("\nTwo jobs can share a GPU")
    for text in _what_is_missing(status):
        line.append(f"\n{text}", style="dim")
    return line


def _what_is_missing(status: Status) -> Iterator[str]:
    """Yield what the reader does not see, and what the cluster cannot do."""
    if status.jobs_are_private and status.seen != "all":
        yield "Other users' jobs are not shown (Slurm's PrivateData)"
    if status.sharing_note and not status.sharing:
        yield f"No two jobs share a GPU: {clean(status.sharing_note)}"


def _deferred_lines(deferred: Sequence[DeferredStatus]) -> Iterator[str]:
    """Yield which jobs are not taken in, by user and reason, in a few lines."""
    for one in deferred[:_DEFERRED_LINES]:
        yield f"{counted(one.jobs, 'job')} of {clean(one.user)} not taken in: {clean(one.reason)}"
    if rest := deferred[_DEFERRED_LINES:]:
        yield f"{counted(sum(one.jobs for one in rest), 'more job')} not taken in"


def _forecast_problem(status: Status) -> str:
    """Return a line that says why there is no new forecast; "" where there is no problem."""
    problem = "" if status.forecast is None else status.forecast.problem
    return f"\nNo new forecast: {clean(problem)}" if problem else ""


def _what_an_admin_must_do(nodes: Sequence[NodeStatus]) -> Iterator[str]:
    """Yield what Slurm did to nodes that only an administrator undoes, each with the command."""
    drained = [clean(node.name) for node in nodes if not node.accepts and drained_by_reused_id(node.reason)]
    if drained:
        yield (
            f"Slurm drained {', '.join(drained)} (Duplicate jobid), because slurmctld crashed and gave a job id away "
            f"again; an admin returns them to service: {resume_command(drained)}"
        )
    leaked = ", ".join(f"{node.gpus_leaked} of {clean(node.name)}" for node in nodes if node.gpus_leaked)
    if leaked:
        yield (
            f"Slurm counts GPUs as allocated that no job holds: {leaked}; metasched places nothing there; an admin "
            f"makes Slurm count again: {CURE}"
        )


def nodes_table(nodes: Sequence[NodeStatus]) -> Table:
    """Return the table of nodes: GPUs that metasched's jobs hold, and GPUs that they may use."""
    made = table("NODE", "TYPE", "GPUS USED", "", right=("GPUS USED",))
    for node in nodes:
        note = clean(node_note(node))
        row(
            made, node.name, node.gpu_type, f"{node.gpus_used}/{node.gpus}", note, style=None if node.accepts else "dim"
        )
    return made


def fold(nodes: Sequence[NodeStatus]) -> dict[tuple[str | None, int, int, bool, str], list[str]]:
    """Return the names of alike nodes by GPU type, GPUs, used GPUs, acceptance and reason.

    Nodes that accept no jobs come last, larger groups first.
    """
    groups: dict[tuple[str | None, int, int, bool, str], list[str]] = {}
    for node in nodes:
        key = (node.gpu_type, node.gpus, node.gpus_used, node.accepts, node.reason)
        groups.setdefault(key, []).append(node.name)
    return dict(sorted(groups.items(), key=lambda group: (not group[0][3], -len(group[1]))))


def folded_nodes_table(nodes: Sequence[NodeStatus]) -> Table:
    """Return the table of nodes with a row for each group of alike nodes, at most ``_NODE_ROWS`` groups."""
    numbers = ("NODES", "GPUS USED")
    made = table("NODE", "NODES", "TYPE", "GPUS USED", "", right=numbers)
    groups = list(fold(nodes).items())
    for (gpu_type, gpus, used, accepts, reason), names in groups[:_NODE_ROWS]:
        why = f": {clean(reason, _REASON_WIDTH)}" if reason else ""
        note = None if accepts else f"takes no new jobs{why}"
        each = " each" if len(names) > 1 else ""
        cells = (hosts_text(names, _HOSTS_WIDTH), len(names), gpu_type, f"{used}/{gpus}{each}", note)
        row(made, *cells, style=None if accepts else "dim")
    if rest := groups[_NODE_ROWS:]:
        row(made, "others (--nodes lists all)", sum(len(names) for _, names in rest), style="dim")
    return made


def apps_table(apps: Sequence[AppStatus]) -> Table:
    """Return the table of apps: their tuners, phases and numbers of trials."""
    made = table("APP", "USER", "TUNER", "PHASE", "LIVE", "ENDED", "", right=("LIVE", "ENDED"))
    for app in apps:
        name = app.name if app.uid.startswith("app:") else f"{app.name} (array)"
        phases = ", ".join(f"{phase} of {phases}" for phase, phases in app.phases)
        problem = Text(clean(app.problem), style="bold red") if app.problem else None
        names = clean(name, NAME_WIDTH), clean(app.user, NAME_WIDTH)
        row(made, *names, clean(app.tuner) or "none", phases, app.live, app.ended, problem)
    return made


def jobs_table(jobs: Sequence[JobStatus], now: float) -> LineTable:
    """Return the table of live jobs, without the optional columns that no job fills."""

    def filled(columns: Mapping[str, Callable[[JobStatus], str]]) -> dict[str, Callable[[JobStatus], str]]:
        return {name: text for name, text in columns.items() if any(map(text, jobs))}

    numbers = ("WAITED", "RAN", "RUNS")
    shown = filled(
        {
            "PLACE": lambda job: "" if job.place is None else str(job.place),
            "BATCH": batch_text,
            "SPEED-UP": speed_up_text,
            "PLANNED": lambda job: planned_text(job.planned, now),
            "EXPECTED": lambda job: expected_text(job, now),
        }
    )
    last = filled({"PROGRESS": progress_text})
    headings = ("JOB", "NAME", "USER", "STATE", "GPUS", "WHERE", *shown, *numbers, *last, "REASON")
    made = LineTable(
        *headings,
        right=(*shown, *numbers),
        optional=_OPTIONAL_OF_LIVE_JOBS,
        shrinkable=("NAME", "USER", "WHERE"),
        last_width=_REASON_WIDTH // 2,
    )
    for job in jobs:
        made.row(
            job.slurm_job_id,
            clean(job.name, NAME_WIDTH),
            clean(job.user, NAME_WIDTH),
            Text(clean(job.status), style=_STYLES.get(job.status, "")),
            gpus_text(job),
            " ".join(part for part in (where(job.nodes), job.gpu_type, co_runner_text(job)) if part),
            *(text(job) for text in shown.values()),
            duration(job.waited_seconds),
            duration(job.ran_seconds),
            runs_text(job),
            *(text(job) for text in last.values()),
            Text(clean(job.error), style="bold red") if job.error else job.reason,
        )
    return made


def finished_table(jobs: Sequence[JobStatus], now: float) -> LineTable:
    """Return the table of the jobs that ended last."""
    numbers = ("WAITED", "RAN", "RUNS", "PREEMPTED")
    headings = ("FINISHED", "NAME", "USER", "STATE", "ENDED", *numbers, "SIZES", "LOSS")
    made = LineTable(
        *headings,
        right=(*numbers, "LOSS"),
        optional=_OPTIONAL_OF_ENDED_JOBS,
        shrinkable=("NAME", "USER"),
        last_width=_LOSS_WIDTH,
    )
    for job in jobs:
        made.row(
            job.slurm_job_id,
            clean(job.name, NAME_WIDTH),
            clean(job.user, NAME_WIDTH),
            job.status,
            None if job.finished is None else f"{duration(now - job.finished)} ago",
            duration(job.waited_seconds),
            duration(job.ran_seconds),
            job.runs,
            job.preemptions,
            world_sizes_text(job.world_sizes),
            None if job.loss is None else f"{job.loss:.4g}",
            style="dim",
        )
    return made
