"""`metasched status`: the cluster, its nodes and jobs, from the published status."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import click

from metasched.cli.json_output import echo_json, json_option
from metasched.cli.paths import CommandPaths, shared_option
from metasched.presentation.job_explanation import is_stale
from metasched.shared_dir import published_status as published


@click.command("status", short_help="Show the cluster, its nodes and jobs.")
@shared_option
@click.option("--user", metavar="NAME", help="Only jobs of this user.")
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=200,
    show_default=True,
    metavar="N",
    help="Live jobs in the table at most.",
)
@json_option
@click.pass_obj
def command(command_paths: CommandPaths, *, shared: Path | None, user: str | None, limit: int, as_json: bool) -> None:
    """Show the cluster, its nodes and every job: which jobs run where, which jobs wait, and why."""
    status = published.read(command_paths.shared(shared))
    if user is not None:
        status = dataclasses.replace(
            status,
            jobs=tuple(job for job in status.jobs if job.user == user),
            apps=tuple(app for app in status.apps if app.user == user),
            finished=tuple(job for job in status.finished if job.user == user),
            deferred=tuple(one for one in status.deferred if one.user == user),
        )
    now = time.time()
    if as_json:
        found = dataclasses.asdict(status)
        echo_json({**found, "age_seconds": now - status.published, "stale": is_stale(status, now)})
    else:
        from metasched.cli import status_tables, tables  # noqa: PLC0415  --json needs no rich

        tables.console().print(status_tables.overview(status, now, limit))
