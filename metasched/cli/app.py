"""The top command: imports a subcommand only when it is asked for, and shows errors of metasched as one message."""

from __future__ import annotations

import errno
import importlib
import io
import os
import sys
from pathlib import Path
from typing import Any

import click

from metasched.cli.command_group import SuggestingGroup
from metasched.cli.paths import CommandPaths
from metasched.core.errors import MetaschedError
from metasched.presentation.formatting import clean

# Each subcommand's module has an attribute `command`; importing all modules would make `metasched status` slow.
COMMANDS = (
    "status",
    "explain",
    "submit",
    "history",
    "health",
    "init",
    "check",
    "daemon",
    "web",
    "policies",
    "replay",
    "simulate",
    "compare",
    "what-if",
    "forecast",
    "shadow",
    "db",
    "schema",
    "devcluster",
    "demo",
)

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class Commands(SuggestingGroup):
    """Group whose subcommands are imported when they are asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  click's signature
        """Return the names of the subcommands, in the order of the help text."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:  # noqa: ARG002  click's signature
        """Import the module of one subcommand and return its command; None for an unknown name."""
        if name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"metasched.cli.{name.replace('-', '_')}").command
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run one subcommand; errors of metasched are shown without a traceback, with exit code 1."""
        try:
            return super().invoke(ctx)
        except MetaschedError as error:
            # The message may quote what a user wrote.
            raise click.ClickException("\n".join(clean(line) for line in str(error).split("\n"))) from None
        except OSError as error:
            if error.errno not in _FULL:
                raise
            # Buffered output would fail again when Python ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise click.ClickException(
                f"{error.filename or 'the output'} cannot be written: {error.strerror}"
            ) from None


@click.command(
    cls=Commands,
    short_help="Schedule deep-learning training on Slurm.",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(package_name="metasched", message="metasched %(version)s")
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    help="Configuration file [default: $METASCHED_CONFIG, else /etc/metasched/metasched.toml].",
)
@click.pass_context
def main(ctx: click.Context, config: Path | None) -> None:
    """Schedule deep-learning training on Slurm in rounds, under a policy of your choice."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # users' names need not fit the terminal's encoding
    ctx.obj = CommandPaths(config)
