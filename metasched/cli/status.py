"""`metasched status`: the cluster, its nodes and jobs, from the published status."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from metasched.cli import completion
from metasched.cli.caller import own_name
from metasched.cli.json_output import echo_json, json_option
from metasched.cli.paths import CommandPaths, shared_option
from metasched.presentation.formatting import clean
from metasched.presentation.job_explanation import is_stale
from metasched.presentation.job_selection import ORDERS, Selection, UnknownStateError, in_order
from metasched.shared_dir import published_status as published

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from metasched.shared_dir.published_status import Status

PIPED_JOBS = 200
_SCREEN_JOBS = 10
_WATCH_SECONDS = 2.0


@dataclasses.dataclass(frozen=True, slots=True)
class _View:
    """What is shown of a status: the selected jobs, their order and number, and all nodes or a summary alone."""

    selection: Selection
    order: str
    limit: int | None
    every_node: bool
    summary: bool

    def of(self, status: Status, now: float, out: Console) -> RenderableType:
        from metasched.cli import status_tables  # noqa: PLC0415  --json needs no rich

        chosen = _selected(status, self.selection)
        if self.summary:
            return status_tables.summary(chosen, now)
        chosen = dataclasses.replace(chosen, jobs=tuple(in_order(chosen.jobs, self.order)))
        limit = self.limit
        if limit is None:
            rows = max(out.height - status_tables.rows_without_jobs(chosen, self.every_node), _SCREEN_JOBS)
            limit = rows if out.is_terminal else PIPED_JOBS
        return status_tables.overview(chosen, now, limit, every_node=self.every_node)


@click.command("status", short_help="Show the cluster, its nodes and jobs.")
@shared_option
@click.option("--user", metavar="NAME", help="Only jobs of this user.")
@click.option("--me", is_flag=True, help="Only jobs of the user who calls.")
@click.option("--account", metavar="NAME", help="Only jobs of this account.")
@click.option(
    "--state",
    "states",
    multiple=True,
    metavar="STATE",
    shell_complete=completion.states,
    help="Only jobs in this state, such as running, waiting or failed; repeat it for more.",
)
@click.option(
    "--sort",
    "order",
    type=click.Choice(list(ORDERS)),
    default="state",
    show_default=True,
    help="Order of the live jobs; numbers and times descend.",
)
@click.option(
    "--limit",
    type=click.IntRange(1),
    metavar="N",
    help=f"Live jobs in the table at most  [default: what fits the terminal, elsewhere {PIPED_JOBS}].",
)
@click.option("--nodes", "every_node", is_flag=True, help="A row for each node, alike ones too.")
@click.option("--summary", is_flag=True, help="Only numbers: jobs by state, reason and user, GPUs by type.")
@click.option(
    "--watch",
    type=click.FloatRange(0.2),
    is_flag=False,
    flag_value=_WATCH_SECONDS,
    metavar="SECONDS",
    help=f"Show the status anew every SECONDS (without a number: {_WATCH_SECONDS:g}), until Ctrl-C.",
)
@json_option
@click.pass_obj
def command(
    command_paths: CommandPaths,
    *,
    shared: Path | None,
    user: str | None,
    me: bool,
    account: str | None,
    states: tuple[str, ...],
    order: str,
    limit: int | None,
    every_node: bool,
    summary: bool,
    watch: float | None,
    as_json: bool,
) -> None:
    """Show the cluster, its nodes and every job: which jobs run where, which jobs wait, and why."""
    if me and user is not None:
        raise click.UsageError("give --me or --user, not both")
    directory = command_paths.shared(shared)
    selection = Selection(own_name() if me else user, account, states)
    if as_json:
        if watch is not None or summary:
            raise click.UsageError("--json prints the whole document once: leave out --watch and --summary")
        status = _selected(published.read(directory), selection)
        now = time.time()
        found = dataclasses.asdict(dataclasses.replace(status, jobs=(), finished=()))
        found["jobs"] = [published.job_fields(job) for job in in_order(status.jobs, order)]
        found["finished"] = [published.job_fields(job) for job in status.finished]
        echo_json("status", {**found, "age_seconds": now - status.published, "stale": is_stale(status, now)})
        return
    from metasched.cli import tables  # noqa: PLC0415  --json needs no rich

    out = tables.console()
    view = _View(selection, order, limit, every_node, summary)
    if watch is None:
        out.print(view.of(published.read(directory), time.time(), out))
    elif out.is_terminal:
        _watch(out, directory, view, watch)
    else:
        raise click.UsageError("--watch needs a terminal: leave it out where the output goes to a file or a program")


def _selected(status: Status, selection: Selection) -> Status:
    try:
        return selection.of(status)
    except UnknownStateError as error:
        raise click.BadParameter(str(error), param_hint="--state") from None


def _watch(out: Console, directory: Path, view: _View, seconds: float) -> None:
    """Show the status in the terminal's second screen until Ctrl-C; an unreadable status is shown as its message."""
    from rich.live import Live  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    with Live(console=out, screen=True, auto_refresh=False) as live:
        try:
            while True:
                try:
                    shown = view.of(published.read(directory), time.time(), out)
                except published.StatusError as error:
                    shown = Text(clean(str(error)), style="bold red")
                live.update(shown, refresh=True)
                time.sleep(seconds)
        except KeyboardInterrupt:
            return
