"""`metasched shadow`: what the shadow policies would have decided, round by round, beside the live policy."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import click

from metasched.cli.json_output import COUNT, echo_json, json_option
from metasched.cli.paths import CommandPaths, state_option
from metasched.configuration.file_names import DATABASE
from metasched.presentation.formatting import clean, duration
from metasched.store import ShadowRecord, Store

_ERROR_WIDTH = 60


@click.command("shadow", short_help="Show what shadow policies would have decided.")
@click.option("--policy", metavar="NAME", help="Only this shadow policy, as [shadow] policies names it.")
@click.option("--limit", default=20, show_default=True, type=COUNT, metavar="N", help="Rows at most, the newest first.")
@state_option
@json_option
@click.pass_obj
def command(command_paths: CommandPaths, *, policy: str | None, limit: int, state: Path | None, as_json: bool) -> None:
    """Show what the shadow policies ([shadow] policies) would have decided in the latest rounds.

    For each round: the GPUs that they would have given to other jobs, the jobs that they would have run or not run, and
    by simulation of the queue, the mean job completion time and the worst finish-time fairness, with the live policy's
    in brackets.
    """
    with Store.open(command_paths.state(state) / DATABASE, read_only=True) as store:
        found = store.recent_shadows(limit, policy)
    if as_json:
        echo_json("shadow", [dataclasses.asdict(one) for one in found])
        return
    if not found:
        click.echo("No shadow policy has decided a round; name some in [shadow] policies.")
        return
    _print(found)


def _print(found: Sequence[ShadowRecord]) -> None:
    from metasched.cli.tables import console, row, table  # noqa: PLC0415  --json needs no rich

    right = ("ROUND", "OTHER GPUS", "WOULD RUN", "WOULD NOT RUN", "MEAN JCT", "WORST RHO")
    made = table("ROUND", "POLICY", *right[1:], "ERROR", right=right)
    for one in found:
        row(
            made,
            one.round,
            clean(one.policy),
            "" if one.gpus is None else one.gpus,
            "" if one.gpus is None else len(one.would_run),
            "" if one.gpus is None else len(one.would_not_run),
            _with_live(duration(one.jct), duration(one.live_jct)),
            _with_live(_number(one.worst_rho), _number(one.live_worst_rho)),
            clean(one.error or "", _ERROR_WIDTH),
        )
    console().print(made)


def _with_live(shadow: str, live: str) -> str:
    return f"{shadow or '?'} ({live or '?'})" if shadow or live else ""


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"
