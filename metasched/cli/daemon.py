"""`metasched daemon`."""

from __future__ import annotations

import os

import click

from metasched.cli.paths import CommandPaths
from metasched.presentation.formatting import clean


@click.command("daemon", short_help="Schedule the cluster.")
@click.option("--dry-run", is_flag=True, help="Print what a round would do now, and do nothing.")
@click.option(
    "--standby", is_flag=True, help="While another daemon runs, wait for its end, and continue from its state."
)
@click.pass_obj
def command(command_paths: CommandPaths, *, dry_run: bool, standby: bool) -> None:
    """Schedule the cluster until SIGTERM; SIGHUP reads the configuration again. Jobs outlive the daemon."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # the policies' matrices are small: threads cost more than they bring
    from metasched.daemon import process  # noqa: PLC0415  `--help` needs none of this
    from metasched.daemon.dry_run import planned_actions  # noqa: PLC0415

    if dry_run:
        for line in planned_actions(command_paths.config) or ["nothing to do: no job is here"]:
            click.echo(clean(line))
    else:
        process.run(command_paths.config, standby=standby)
