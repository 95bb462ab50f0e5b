"""Writes a man page for each command of metasched into a directory: `python docs/site/man_pages.py build/man`."""

import sys
from importlib.metadata import version
from pathlib import Path

import click
from click_man.core import write_man_pages

from metasched.cli import main


def load_commands(group: click.Group) -> None:
    """Import all subcommands: click-man sees those alone that a group has loaded."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is not None:
            group.commands[name] = command
        if isinstance(command, click.Group):
            load_commands(command)


def write(directory: Path) -> list[Path]:
    """Write the pages and return their paths."""
    directory.mkdir(parents=True, exist_ok=True)
    load_commands(main)
    write_man_pages("metasched", main, version=version("metasched"), target_dir=str(directory))
    return sorted(directory.glob("metasched*.1"))


if __name__ == "__main__":
    sys.stdout.writelines(f"{path}\n" for path in write(Path(sys.argv[1])))
