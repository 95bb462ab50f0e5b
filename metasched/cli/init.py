"""`metasched init`."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import click

from metasched.cli.json_output import echo_json, json_option
from metasched.cli.paths import CommandPaths
from metasched.core.errors import MetaschedError

DEFAULT_STATE = Path("/var/lib/metasched")
_NEXT = (("check",), ("daemon", "--dry-run"))


class CannotWriteError(MetaschedError):
    """The configuration file cannot be written."""

    def __init__(self, path: Path, error: OSError) -> None:
        fix = "remove it, or name another file" if isinstance(error, FileExistsError) else "name another file"
        super().__init__(f"{path}: {error.strerror}; {fix} by --config")


@click.command("init", short_help="Write a configuration to begin with.")
@click.option(
    "--shared",
    type=click.Path(path_type=Path),
    metavar="DIR",
    required=True,
    help="Directory that all nodes see, for mailbox, reports and status.",
)
@click.option(
    "--state",
    type=click.Path(path_type=Path),
    metavar="DIR",
    default=DEFAULT_STATE,
    show_default=True,
    help="Directory on this host's own disk, for the database.",
)
@json_option
@click.pass_obj
def command(command_paths: CommandPaths, *, shared: Path, state: Path, as_json: bool) -> None:
    """Read Slurm's settings and write a configuration with every key explained; an existing file is never changed."""
    from metasched.installation.template import template  # noqa: PLC0415  imports for this command alone
    from metasched.slurm.command_line_client import CommandLineClient  # noqa: PLC0415

    client = CommandLineClient()
    try:
        text = template(client.settings(), client.nodes(), state.absolute(), shared.absolute())
    finally:
        client.close()
    path = command_paths.config
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644), "w") as file:
            file.write(text)
    except OSError as error:
        raise CannotWriteError(path, error) from None
    if as_json:
        config = ["metasched", "--config", str(path)]
        echo_json("init", {"path": str(path), "next": [shlex.join([*config, *words]) for words in _NEXT]})
        return
    click.echo(f"{path} is written. Next, as the user that the daemon will run as:")
    click.echo("  metasched check              # what is missing, and how to mend it")
    click.echo("  metasched daemon --dry-run   # what a round would do now")
