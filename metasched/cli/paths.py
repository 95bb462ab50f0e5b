"""Options for the shared directory and the state directory, and the paths that commands find without them."""

from __future__ import annotations

from pathlib import Path

import click

from metasched.configuration.command_paths import CommandPaths

__all__ = ["CommandPaths", "shared_option", "state_option"]

shared_option = click.option(
    "--shared",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Shared directory [default: that of --config, else $METASCHED_SHARED, else that of the default --config].",
)
state_option = click.option(
    "--state",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The daemon's state directory [default: that of the configuration].",
)
