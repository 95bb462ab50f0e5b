"""`metasched what-if`: the live queue under other policies."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from metasched.cli.json_output import echo_json, json_option
from metasched.cli.paths import CommandPaths
from metasched.cli.progress import progress_bar
from metasched.cli.simulation_options import parse_policy, policies_option
from metasched.core.reason_words import counted
from metasched.presentation.formatting import clean, duration, planned_text
from metasched.simulator.live_settings import START_SECONDS

if TYPE_CHECKING:
    from metasched.api.what_if import WhatIf
    from metasched.simulator.what_if import Forecast
    from metasched.store import GpuUse

_IDLE = 0.1
"""Part of the time for which a job's GPUs were idle, from which on the job is named."""
_IDLERS = 10


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
    default=START_SECONDS,
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
    from metasched.api.what_if import what_if  # noqa: PLC0415  `--help` needs none of this

    for text in policies:
        parse_policy(text)
    with progress_bar("Simulating") as progress:
        found = what_if(
            policies,
            config=command_paths.config,
            assume_hours=assume_hours,
            speed_up=speed_up,
            restart_seconds=restart_seconds,
            progress=progress,
        )
    rows, planned, uses, now = found.forecasts, found.planned, found.gpu_use, found.current
    columns = [now, *found.others]
    if as_json:
        echo_json("what-if", [_plain(found, row) for row in rows])
        return
    if not rows:
        click.echo("No job waits or runs: there is nothing to simulate.")
        return
    from metasched.cli.tables import NAME_WIDTH, console, row, table  # noqa: PLC0415

    right = [*(f"ENDS {name}" for name in columns), *(f"DIFFERENCE {name}" for name in found.others)]
    plan = {uid: planned_text(run, found.now) for uid, run in planned.items()}
    shown = [*(["PLANNED"] if any(plan.values()) else []), *(["GPU USE"] if uses else [])]
    headings = ("JOB", "NAME", "USER", "WORK FROM", *shown)
    made = table(*headings, *right, right=right)
    for one in rows:
        left = {name: None if end is None else end - found.now for name, end in one.ends.items()}
        ends = [_end(left[name], one.ended.get(name), found.now) for name in columns]
        row(
            made,
            one.job.slurm_job_id,
            clean(one.job.name, NAME_WIDTH),
            clean(one.job.user, NAME_WIDTH),
            one.how,
            *([plan.get(one.job.uid, "")] if "PLANNED" in shown else []),
            *([_use_text(uses.get(one.job.uid))] if "GPU USE" in shown else []),
            *ends,
            *(_gap(left, now, n) for n in found.others),
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
        endless = f"{counted(never, 'job')} never {'ends' if never == 1 else 'end'}"
        click.echo(f"{name}: mean JCT {mean}, {counted(stops, 'preemption')}{by_tuners}, {endless}")
    if uses:
        _print_idle(found)
    if found.gpu_use_of_all is not None:
        click.echo(f"GPU use of all jobs in the last 30 days, as imported: {_use_text(found.gpu_use_of_all)}")
    click.echo(f"Simulated from {time.strftime('%H:%M:%S', time.localtime(found.now))} on; nothing was changed.")


def _print_idle(found: WhatIf) -> None:
    """Name the jobs that leave most GPUs idle, with their idle GPU hours to come under each policy."""
    from metasched.cli.tables import NAME_WIDTH, console, row, table  # noqa: PLC0415  as above

    names = (found.current, *found.others)
    hours = [(one, idle) for one in found.forecasts if (idle := found.idle_gpu_hours(one)) is not None]
    idlers = [(one, idle) for one, idle in hours if found.gpu_use[one.job.uid].idle >= _IDLE]
    idlers.sort(key=lambda pair: -pair[1][found.current])
    if idlers:
        columns = [f"IDLE GPU HOURS {name}" for name in names]
        made = table("JOB", "NAME", "USER", "IDLE", *columns, right=["IDLE", *columns])
        for one, idle in idlers[:_IDLERS]:
            part = f"{found.gpu_use[one.job.uid].idle:.0%}"
            names_of_job = (clean(text, NAME_WIDTH) for text in (one.job.name, one.job.user))
            row(made, one.job.slurm_job_id, *names_of_job, part, *(f"{idle[name]:.1f}" for name in names))
        click.echo("\nIdle GPUs, if jobs go on to use theirs as measured:")
        console().print(made)
        if len(idlers) > _IDLERS:
            click.echo(f"and {len(idlers) - _IDLERS} more")
    for name in names:
        total = sum(one.gpu_seconds[name] for one, _ in hours) / 3600
        lost = sum(idle[name] for _, idle in hours)
        click.echo(f"{name}: {lost:.1f} of the {total:.1f} GPU hours of {counted(len(hours), 'measured job')} are idle")


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


def _plain(found: WhatIf, one: Forecast) -> dict[str, Any]:
    from metasched.api.what_if import named  # noqa: PLC0415  as above

    planned, use = found.planned.get(one.job.uid), found.gpu_use.get(one.job.uid)
    return {
        **named(one),
        "ends": dict(one.ends),
        "ended_by_tuner": dict(one.ended),
        "preemptions": dict(one.preemptions),
        "planned": None if planned is None else asdict(planned),
        "gpu_use": None if use is None else asdict(use),
        "gpu_hours": one.gpu_hours,
        "idle_gpu_hours": found.idle_gpu_hours(one),
    }
