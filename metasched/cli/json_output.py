"""What several commands share of click: the option ``--json``, its output, and counts of rows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import click

COUNT = click.IntRange(1, 10**9)  # of rows; SQLite's integers have 64 bits
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")

VERSIONS: Mapping[str, int] = {}
"""Versions of JSON documents by command, where they are not 1."""


def schema_name(command: str, version: int) -> str:
    """Return the name of a JSON document: ``metasched/db/events/1``."""
    return f"metasched/{command.replace(' ', '/')}/{version}"


def echo_json(command: str, data: Mapping[str, Any] | Sequence[Any]) -> None:
    """Print one JSON document, each row of a list on a line; `metasched schema` prints its schema.

    Args:
        command: the command's words, such as ``db events``.
        data: the document's properties; a sequence becomes the property ``rows``.
    """
    given = data if isinstance(data, Mapping) else {"rows": data}
    named = {"schema": schema_name(command, VERSIONS.get(command, 1)), **given}
    properties = (f" {json.dumps(name)}: {_encoded(value)}" for name, value in named.items())
    click.echo("{\n" + ",\n".join(properties) + "\n}")


def _encoded(value: Any) -> str:
    """Return a property's JSON: a list of objects with a line for each, which grep finds and diff compares."""
    if isinstance(value, Sequence) and value and all(isinstance(row, Mapping) for row in value):
        return "[\n  " + ",\n  ".join(json.dumps(row, default=str) for row in value) + "\n ]"
    return json.dumps(value, indent=1, default=str).replace("\n", "\n ")
