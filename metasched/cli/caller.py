"""The user who calls, whose jobs `metasched status --me` shows."""

from __future__ import annotations

import os
import pwd

import click


def own_name() -> str:
    """Return the name of the user of this process.

    Raises:
        click.UsageError: the user id has no name here.
    """
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        raise click.UsageError(f"user id {os.getuid()} has no name on this host; give --user NAME") from None
