"""`metasched daemon`."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING, Any

import click

from metasched.cli.json_output import echo_json, json_option
from metasched.cli.paths import CommandPaths
from metasched.presentation.formatting import clean, reason_fields

if TYPE_CHECKING:
    from metasched.daemon.dry_run import PlannedAction


@click.command("daemon", short_help="Schedule the cluster.")
@click.option("--dry-run", is_flag=True, help="Print what a round would do now, and do nothing.")
@click.option(
    "--standby", is_flag=True, help="While another daemon runs, wait for its end, and continue from its state."
)
@json_option
@click.pass_obj
def command(command_paths: CommandPaths, *, dry_run: bool, standby: bool, as_json: bool) -> None:
    """Schedule the cluster until SIGTERM; SIGHUP reads the configuration again. Jobs outlive the daemon."""
    if as_json and not dry_run:
        raise click.UsageError("--json is for --dry-run: the daemon's log is JSON already where it is no terminal")
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # the policies' matrices are small: threads cost more than they bring
    from metasched.daemon import process  # noqa: PLC0415  `--help` needs none of this
    from metasched.daemon.dry_run import planned_actions  # noqa: PLC0415

    if dry_run:
        planned = planned_actions(command_paths.config)
        if as_json:
            echo_json("daemon", [_plain(one) for one in planned])
            return
        for line in [one.text for one in planned] or ["nothing to do: no job is here"]:
            click.echo(clean(line))
    else:
        process.run(command_paths.config, standby=standby)


def _plain(planned: PlannedAction) -> dict[str, Any]:
    """Return a planned action, JSON-compatible."""
    place = None if planned.placement is None else dataclasses.asdict(planned.placement)
    names = ("action", "uid", "slurm_job_id", "text")
    return {**{name: getattr(planned, name) for name in names}, "placement": place, **reason_fields(planned.reason)}
