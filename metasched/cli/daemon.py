"""`metasched daemon`."""

from __future__ import annotations

import os

import click

from metasched.cli.formatting import clean
from metasched.cli.paths import CommandPaths


@click.command("daemon", short_help="Schedule the cluster.")
@click.option("--dry-run", is_flag=True, help="Print what a round would do now, and do nothing.")
@click.option("--standby", is_flag=True, help="While another daemon runs, wait for its end, and go on from there.")
@click.pass_obj
def command(command_paths: CommandPaths, *, dry_run: bool, standby: bool) -> None:
    """Schedule the cluster until SIGTERM; SIGHUP reads the configuration again. Jobs outlive the daemon."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # its matrices are small: threads cost more than they bring
    # The scheduler's imports are for this command alone.
    from metasched.daemon import dry_run as read_only  # noqa: PLC0415
    from metasched.daemon import process  # noqa: PLC0415

    if dry_run:
        for line in read_only.planned_actions(command_paths.config) or ["nothing to do: no job is here"]:
            click.echo(clean(line))
    else:
        process.run(command_paths.config, standby=standby)
