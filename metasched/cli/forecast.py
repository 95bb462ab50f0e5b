"""`metasched forecast`: what was forecast of starts and ends, against what came."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from metasched.cli.json_output import echo_json, json_option
from metasched.cli.paths import CommandPaths, state_option
from metasched.configuration.file_names import DATABASE
from metasched.presentation.formatting import duration
from metasched.store import ForecastRecord, Store

_DAY = 86400.0
_KINDS = (("start", "starts"), ("end", "ends"))


@click.command("forecast", short_help="Compare forecasts of starts and ends with what came.")
@click.option(
    "--days",
    default=7.0,
    show_default=True,
    type=click.FloatRange(min=0, min_open=True, max=1e6),
    help="Starts and ends of the last days.",
)
@state_option
@json_option
@click.pass_obj
def command(command_paths: CommandPaths, *, days: float, state: Path | None, as_json: bool) -> None:
    """Compare the forecasts of jobs' starts and ends with what came: how many 80 % ranges held the true instant.

    Of each job the first forecast counts, and the one halfway to the first one's median. The forecasts of live jobs are
    shown by `metasched status` and `metasched explain`.
    """
    now = time.time()
    with Store.open(command_paths.state(state) / DATABASE, read_only=True) as store:
        found = store.forecast_outcomes(now - days * _DAY)
        factors = {kind: store.forecast_calibration(kind) for kind, _ in _KINDS}
    summary = {
        kind: {which: coverage(_of(found, kind, halfway=which == "halfway")) for which in ("first", "halfway")}
        for kind, _ in _KINDS
    }
    if as_json:
        known = {
            kind: None if one is None else dict(zip(("below", "above", "outcomes", "steps"), one, strict=True))
            for kind, one in factors.items()
        }
        rows = [{**dataclasses.asdict(one), "covered": one.covered} for one in found]
        echo_json("forecast", {"days": days, "coverage": summary, "calibration": known, "rows": rows})
        return
    from metasched.cli.tables import console, row, table  # noqa: PLC0415  --json needs no rich

    right = ("OUTCOMES", "IN RANGE", "EARLIER", "LATER", "MEDIAN WIDTH")
    made = table("FORECASTS OF", "WHICH", *right, right=right)
    for kind, name in _KINDS:
        for which, one in summary[kind].items():
            share = "" if one["share"] is None else f"{one['share']:.0%}"
            row(made, name, which, one["outcomes"], share, one["early"], one["late"], duration(one["median_width"]))
    console().print(made)
    if not found:
        click.echo(f"No start or end of the last {days:g} days was forecast before it came.")


def coverage(found: Sequence[ForecastRecord]) -> dict[str, Any]:
    """Return how many ranges held the truth, JSON-compatible; ``share`` and ``median_width`` are None without any.

    ``early`` and ``late`` count the truths before and after their ranges; ``median_width`` is in seconds.
    """
    widths = sorted(one.high - one.low for one in found if one.high is not None)
    held = sum(one.covered is True for one in found)
    early = sum(one.truth is not None and one.truth < one.low for one in found)
    return {
        "outcomes": len(found),
        "share": held / len(found) if found else None,
        "early": early,
        "late": len(found) - held - early,
        "median_width": widths[len(widths) // 2] if widths else None,
    }


def _of(found: Sequence[ForecastRecord], kind: str, *, halfway: bool) -> list[ForecastRecord]:
    return [one for one in found if one.kind == kind and one.halfway is halfway]
