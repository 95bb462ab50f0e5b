"""`metasched what-if`: the live queue under other policies."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

import click

from metasched.cli.json_output import echo_json, json_option
from metasched.cli.paths import CommandPaths
from metasched.cli.progress import progress_bar
from metasched.cli.simulation_options import parse_policy, policies_option
from metasched.presentation.formatting import duration, planned_text
from metasched.store import GpuUse

_USE_SECONDS = 30 * 86400.0


@click.command("what-if", short_help="Simulate the live queue under other policies.")
@policies_option("A policy to compare with the configured one; repeat it for more.")
@click.option(
    "--assume-hours",
    default=4.0,
    show_default=True,
    type=click.FloatRange(min=0, min_open=True),
    help="Duration of a job that nothing is known of.",
)
@click.option(
    "--speed-up",
    default=0.9,
    show_default=True,
    type=click.FloatRange(0, 1),
    help="Exponent of the growth of speed with the number of GPUs, beyond the sizes that were measured.",
)
@click.option(
    "--restart-seconds",
    default=60.0,
    show_default=True,
    type=click.FloatRange(min=0),
    help="From getting its GPUs to a job's first step, where no restart was measured.",
)
@json_option
@click.pass_obj
def command(
    command_paths: CommandPaths,
    *,
    policies: tuple[str, ...],
    assume_hours: float,
    speed_up: float,
    restart_seconds: float,
    as_json: bool,
) -> None:
    """Simulate the present queue and cluster from now on, under the configured policy and under others.

    Nothing is changed. For each job the table shows when it would end, and the source of the estimate of its work: its
    fitted goodput where its batch size may change, its own reports, earlier jobs of its user and name, its time limit,
    or an assumption.
    """
    from metasched.core.policy import installed_policies  # noqa: PLC0415
    from metasched.daemon.dry_run import read_only_controller  # noqa: PLC0415  `--help` needs none of this
    from metasched.simulator.records import Settings  # noqa: PLC0415
    from metasched.simulator.what_if import estimate_all, forecast  # noqa: PLC0415

    registry = installed_policies()
    chosen = {}
    for text in policies:
        name, parameters = parse_policy(text)
        found = registry.get(name)
        chosen[text] = found(found.Parameters.model_validate(parameters))
    with read_only_controller(command_paths.config) as (controller, store):
        snapshot = controller.current_snapshot(fits_iterations=True)
        current = controller.policy
        schedule = controller.config.schedule
        estimates = estimate_all(store, snapshot.jobs, assume_hours * 3600, speed_up)
        settings = Settings(
            round_seconds=schedule.round_seconds,
            min_round_seconds=schedule.min_round_seconds,
            start_seconds=restart_seconds,
            restart_seconds=restart_seconds,
        )
        now = f"{current.name} (now)"
        compared = {now: current, **chosen}
        states = {name: store.policy_state(policy.name) for name, policy in compared.items()}
        with progress_bar("Simulating") as progress:
            rows = forecast(snapshot, estimates, compared, settings, states, store.apps_state(), progress)
        planned = store.planned_runs()
        uses = {
            one.job.uid: store.gpu_use(one.job.uid) or store.gpu_use_of_earlier(one.job.user, one.job.name)
            for one in rows
        }
        use_of_all = store.gpu_use_since(snapshot.now - _USE_SECONDS)
    columns = [now, *chosen]
    if as_json:
        echo_json("what-if", [_plain(row, planned.get(row.job.uid), uses[row.job.uid]) for row in rows])
        return
    from metasched.cli.tables import console, row, table  # noqa: PLC0415

    right = [*(f"ENDS {name}" for name in columns), *(f"DIFFERENCE {name}" for name in chosen)]
    plan = {uid: planned_text(run, snapshot.now) for uid, run in planned.items()}
    shown = [*(["PLANNED"] if any(plan.values()) else []), *(["GPU USE"] if any(uses.values()) else [])]
    headings = ("JOB", "NAME", "USER", "WORK FROM", *shown)
    made = table(*headings, *right, right=right)
    for one in rows:
        left = {name: None if end is None else end - snapshot.now for name, end in one.ends.items()}
        ends = [_end(left[name], one.ended.get(name), snapshot.now) for name in columns]
        row(
            made,
            one.job.slurm_job_id,
            one.job.name,
            one.job.user,
            one.how,
            *([plan.get(one.job.uid, "")] if "PLANNED" in shown else []),
            *([_use_text(uses[one.job.uid])] if "GPU USE" in shown else []),
            *ends,
            *(_gap(left, now, n) for n in chosen),
        )
    out = console()
    out.print(made)
    for name in columns:
        known = [end - one.job.submitted for one in rows if (end := one.ends[name]) is not None]
        stops = sum(one.preemptions[name] for one in rows)
        mean = duration(sum(known) / len(known)) if known else "none"
        lost = sum(name in one.ended for one in rows)
        by_tuners = f", {lost} ended by tuners" if lost else ""
        never = len(rows) - len(known) - lost
        click.echo(f"{name}: mean JCT {mean}, {stops} preemptions{by_tuners}, {never} jobs never end")
    if use_of_all is not None:
        click.echo(f"GPU use of all jobs in the last 30 days, as imported: {_use_text(use_of_all)}")
    click.echo(f"Simulated from {time.strftime('%H:%M:%S', time.localtime(snapshot.now))} on; nothing was changed.")


def _use_text(use: GpuUse | None) -> str:
    return "" if use is None else f"{use.busy:.0%} busy, {use.idle:.0%} of the time idle"


def _end(left: float | None, ended: float | None, now: float) -> str:
    """When a job completes, in seconds from now, or is ended by its tuner, in words."""
    if left is not None:
        return f"in {duration(left)}"
    return "never" if ended is None else f"ended in {duration(ended - now)}"


def _gap(left: dict[str, float | None], now: str, name: str) -> str:
    before, after = left[now], left[name]
    if before is None or after is None:
        return ""
    gap = after - before
    return f"{'-' if gap < 0 else '+'}{duration(abs(gap))}" if round(gap) else "same"


def _plain(one: Any, planned: Any, use: GpuUse | None) -> dict[str, Any]:
    return {
        "uid": one.job.uid,
        "slurm_job_id": one.job.slurm_job_id,
        "name": one.job.name,
        "user": one.job.user,
        "work_from": one.how,
        "ends": dict(one.ends),
        "ended_by_tuner": dict(one.ended),
        "preemptions": dict(one.preemptions),
        "planned": None if planned is None else asdict(planned),
        "gpu_use": None if use is None else asdict(use),
    }
