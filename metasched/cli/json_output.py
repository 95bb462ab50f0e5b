"""What several commands share of click: the option ``--json``, its output, and counts of rows."""

from __future__ import annotations

import json
from typing import Any

import click

COUNT = click.IntRange(1, 10**9)  # of rows; SQLite's integers have 64 bits
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def echo_json(data: Any) -> None:
    """Print a value as one JSON document."""
    click.echo(json.dumps(data, indent=1, default=str))
