"""The published status as rich tables, for the status command and the demo.

The values of a new column come from `shared_dir/published_status.py`, which `daemon/status_publisher.py` fills.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from metasched.cli.formatting import (
    advice_text,
    batch_text,
    clean,
    co_runner_text,
    duration,
    expected_text,
    gpus_text,
    planned_text,
    progress_text,
    runs_text,
    speed_up_text,
    where,
    world_sizes_text,
)
from metasched.cli.job_explanation import is_stale
from metasched.cli.tables import row, table
from metasched.core.reason_words import counted
from metasched.shared_dir.published_status import AppStatus, JobStatus, NodeStatus, Status
from metasched.slurm.leaked_gpus import CURE
from metasched.slurm.reused_ids import drained_by_reused_id, resume_command

_NAME_WIDTH = 32
_REASON_WIDTH = 60
_STYLES = {"running": "green", "queued": "cyan", "stopping": "yellow", "suspended": "yellow"}


def overview(status: Status, now: float, limit: int) -> RenderableType:
    """Return headline, table of nodes and table of at most ``limit`` live jobs, those with an allocation first."""
    advice = [Text(advice_text(one)) for one in status.advice]
    parts: list[RenderableType] = [headline(status, now), Text(), nodes_table(status.nodes), *advice, Text()]
    if status.jobs:
        parts.append(jobs_table(sorted(status.jobs, key=lambda job: not job.nodes)[:limit], now))
    else:
        parts.append(Text("no jobs of metasched wait or run"))
    if len(status.jobs) > limit:
        parts.append(Text(f"and {len(status.jobs) - limit} more"))
    if status.apps:
        parts += [Text(), apps_table(status.apps[:limit])]
    if status.finished:
        parts += [Text(), finished_table(status.finished, now)]
    return Group(*parts)


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
    for one in status.deferred:
        told = f"{counted(one.jobs, 'job')} of {clean(one.user)} not taken in: {clean(one.reason)}"
        line.append(f"\n{told}", style="yellow")
    line.append(_forecast_problem(status), style="yellow")
    if status.sharing:
        line.append("\nTwo jobs can share a GPU")
    elif status.sharing_note:
        line.append(f"\nNo two jobs share a GPU: {clean(status.sharing_note)}", style="dim")
    return line


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
        why = f": {clean(node.reason, _REASON_WIDTH)}" if node.reason else ""
        note = None if node.accepts else f"takes no new jobs{why}"
        row(
            made, node.name, node.gpu_type, f"{node.gpus_used}/{node.gpus}", note, style=None if node.accepts else "dim"
        )
    return made


def apps_table(apps: Sequence[AppStatus]) -> Table:
    """Return the table of apps: their tuners, phases and numbers of trials."""
    made = table("APP", "USER", "TUNER", "PHASE", "LIVE", "ENDED", "", right=("LIVE", "ENDED"))
    for app in apps:
        name = app.name if app.uid.startswith("app:") else f"{app.name} (array)"
        phases = ", ".join(f"{phase} of {phases}" for phase, phases in app.phases)
        problem = Text(clean(app.problem), style="bold red") if app.problem else None
        names = clean(name, _NAME_WIDTH), clean(app.user, _NAME_WIDTH)
        row(made, *names, clean(app.tuner) or "none", phases, app.live, app.ended, problem)
    return made


def jobs_table(jobs: Sequence[JobStatus], now: float) -> Table:
    """Return the table of live jobs; batch, speed-up and planned run have a column where any job has them."""
    numbers = ("WAITED", "RAN", "RUNS")
    optional: dict[str, Callable[[JobStatus], str]] = {
        "BATCH": batch_text,
        "SPEED-UP": speed_up_text,
        "PLANNED": lambda job: planned_text(job.planned, now),
        "EXPECTED": lambda job: expected_text(job.forecast, now),
    }
    shown = {name: text for name, text in optional.items() if any(map(text, jobs))}
    headings = ("JOB", "NAME", "USER", "STATE", "GPUS", "WHERE", *shown, *numbers, "PROGRESS", "REASON")
    made = table(*headings, right=(*shown, *numbers))
    for job in jobs:
        row(
            made,
            job.slurm_job_id,
            clean(job.name, _NAME_WIDTH),
            clean(job.user, _NAME_WIDTH),
            Text(clean(job.status), style=_STYLES.get(job.status, "")),
            gpus_text(job),
            " ".join(part for part in (where(job.nodes), job.gpu_type, co_runner_text(job)) if part),
            *(text(job) for text in shown.values()),
            duration(job.waited_seconds),
            duration(job.ran_seconds),
            runs_text(job),
            progress_text(job),
            Text(clean(job.error), style="bold red") if job.error else job.reason,
        )
    return made


def finished_table(jobs: Sequence[JobStatus], now: float) -> Table:
    """Return the table of the jobs that ended last."""
    numbers = ("WAITED", "RAN", "RUNS", "PREEMPTED")
    made = table("FINISHED", "NAME", "USER", "STATE", "ENDED", *numbers, "SIZES", "LOSS", right=(*numbers, "LOSS"))
    for job in jobs:
        row(
            made,
            job.slurm_job_id,
            clean(job.name, _NAME_WIDTH),
            clean(job.user, _NAME_WIDTH),
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
