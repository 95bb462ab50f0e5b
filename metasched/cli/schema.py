"""`metasched schema`: the JSON Schema of what a command prints with --json."""

from __future__ import annotations

import json

import click

from metasched.presentation.job_selection import suggestion


@click.command("schema", short_help="Print the JSON Schema of a command's --json.")
@click.argument("command", nargs=-1, metavar="[COMMAND]...")
def command(*, command: tuple[str, ...]) -> None:
    """Print the JSON Schema of what COMMAND, such as `db events`, prints with --json; without it, list the commands."""
    from metasched.cli.json_documents import DOCUMENTS, schema  # noqa: PLC0415  `--help` needs none of this

    asked = " ".join(command)
    if not asked:
        for name in DOCUMENTS:
            click.echo(name)
        return
    if asked not in DOCUMENTS:
        raise click.UsageError(f"`metasched {asked}` prints no JSON document; {suggestion(asked, list(DOCUMENTS))}")
    click.echo(json.dumps(schema(asked), indent=1))
