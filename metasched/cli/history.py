"""`metasched history`: GPU hours, waits, preemptions and fairness by user, account, month or GPU type."""

from __future__ import annotations

import csv
import dataclasses
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from metasched.cli.json_output import echo_json, json_option
from metasched.cli.paths import CommandPaths, state_option
from metasched.configuration.file_names import DATABASE
from metasched.presentation.formatting import duration

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from metasched.store.usage import Grouping, Usage

_DAY = 86400.0
_DAYS = 30
_GROUPINGS = ("user", "account", "month", "gpu_type")
_FORMULA = ("=", "+", "-", "@")  # with which spreadsheets begin a formula


@click.command("history", short_help="Sum up GPU hours, waits and preemptions.")
@state_option
@click.option(
    "--by", "grouping", type=click.Choice(_GROUPINGS), default="user", show_default=True, help="What a row is."
)
@click.option("--since", type=click.DateTime(), metavar="DATE", help=f"From here on  [default: {_DAYS} days ago].")
@click.option("--until", type=click.DateTime(), metavar="DATE", help="Up to here  [default: now].")
@click.option("--imported", is_flag=True, help="Count jobs that `metasched db import` imported, too.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV, with a row of headings.")
@json_option
@click.pass_obj
def command(
    command_paths: CommandPaths,
    *,
    state: Path | None,
    grouping: Grouping,
    since: datetime | None,
    until: datetime | None,
    imported: bool,
    as_csv: bool,
    as_json: bool,
) -> None:
    """Sum up what users, accounts or months got, from the daemon's database (on its host).

    GPU hours are those held in the window, without suspensions. Waits are from submission to the first start.
    """
    if as_csv and as_json:
        raise click.UsageError("give --csv or --json, not both")
    end = time.time() if until is None else until.timestamp()
    begin = end - _DAYS * _DAY if since is None else since.timestamp()
    if begin >= end:
        raise click.UsageError("--since has to be before --until")
    from metasched.store import Store  # noqa: PLC0415  `--help` needs no database

    with Store.open(command_paths.state(state) / DATABASE, read_only=True) as store:
        usage = store.usage(grouping, begin, end, imported=imported)
    if as_json:
        rows = [dataclasses.asdict(one) for one in usage]
        echo_json("history", {"by": grouping, "since": begin, "until": end, "rows": rows})
    elif as_csv:
        _print_csv(grouping, usage)
    else:
        _print_table(grouping, usage)


def _print_csv(grouping: str, usage: Sequence[Usage]) -> None:
    from metasched.store.usage import Usage  # noqa: PLC0415  as above

    names = [field.name for field in dataclasses.fields(Usage)]
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow([grouping, *names[1:]])
    for one in usage:
        group = f"'{one.group}" if one.group.startswith(_FORMULA) else one.group
        writer.writerow([group, *(getattr(one, name) for name in names[1:])])


def _print_table(grouping: str, usage: Sequence[Usage]) -> None:
    from metasched.cli.tables import console, row, table  # noqa: PLC0415  as above

    columns: dict[str, Callable[[Usage], object]] = {
        "JOBS": lambda one: one.jobs,
        "COMPLETED": lambda one: one.completed,
        "FAILED": lambda one: one.failed,
        "GPU HOURS": lambda one: f"{one.gpu_hours:.1f}",
        "PREEMPTIONS": lambda one: one.preemptions,
        "WAIT MEAN": lambda one: duration(one.wait_mean),
        "MEDIAN": lambda one: duration(one.wait_median),
        "P90": lambda one: duration(one.wait_p90),
    }
    if grouping == "gpu_type":
        columns = {heading: columns[heading] for heading in ("JOBS", "GPU HOURS", "PREEMPTIONS")}
    if any(one.rho_mean is not None for one in usage):
        columns |= {"RHO MEAN": lambda one: _ratio(one.rho_mean), "WORST": lambda one: _ratio(one.rho_worst)}
    made = table(grouping.upper().replace("_", " "), *columns, right=list(columns))
    for one in usage:
        row(made, one.group, *(cell(one) for cell in columns.values()))
    console().print(made)


def _ratio(rho: float | None) -> str:
    return "" if rho is None else f"{rho:.2f}"
