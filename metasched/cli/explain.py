"""`metasched explain`: why a job runs or waits, in words."""

from __future__ import annotations

import dataclasses
import os
import time
from pathlib import Path
from typing import Any

import click

from metasched.cli.completion import own_jobs
from metasched.cli.json_output import echo_json, json_option
from metasched.cli.paths import CommandPaths, shared_option, state_option
from metasched.configuration.file_names import DATABASE
from metasched.core.errors import MetaschedError
from metasched.core.reasons import from_json
from metasched.presentation.formatting import clean, reason_fields, text_fields
from metasched.presentation.job_lookup import find
from metasched.presentation.job_past import Past, read_past, sentences
from metasched.shared_dir import published_status as published


@click.command("explain", short_help="Say in words why a job runs or waits.")
@click.argument("job", shell_complete=own_jobs)
@shared_option
@state_option
@json_option
@click.pass_obj
def command(command_paths: CommandPaths, *, job: str, shared: Path | None, state: Path | None, as_json: bool) -> None:
    """Say in words why JOB (Slurm job id, uid or name) runs or waits, what it waits for, and what happened to it.

    On the daemon's host, for those who may read its database, the latest decisions, actions and events follow.
    """
    status = published.read(command_paths.shared(shared))
    found = find(status, job)
    past = _past(command_paths, state, found.uid)
    now = time.time()
    words = sentences(found, status, past, now)
    if as_json:
        details = {} if past is None else _plain(past)
        echo_json("explain", {"job": published.job_fields(found), "words": words, **details})
        return
    for sentence in words:
        click.echo(clean(sentence))
    if past is not None:
        _print(past, now)


def _past(command_paths: CommandPaths, given: Path | None, uid: str) -> Past | None:
    """Return the records of the job; None where the database cannot be read and --state was not given."""
    try:
        path = command_paths.state(given) / DATABASE
        return None if given is None and not os.access(path, os.R_OK) else read_past(path, uid)
    except (MetaschedError, OSError):
        if given is not None:
            raise
        return None


def _plain(past: Past) -> dict[str, Any]:
    """Return the records, JSON-compatible, with every reason in words and as code and facts."""
    return {
        "runs": [dataclasses.asdict(run) for run in past.runs],
        "decisions": [{**dataclasses.asdict(one), **reason_fields(one.reason)} for one in past.decisions],
        "actions": [
            {
                **dataclasses.asdict(one),
                "detail": {**one.detail, **reason_fields(from_json(one.detail.get("reason", "")))},
            }
            for one in past.actions
        ],
        "fairness": None if past.fairness is None else dataclasses.asdict(past.fairness),
        "events": [{**dataclasses.asdict(event), **text_fields(event.text)} for event in past.events],
    }


def _print(past: Past, now: float) -> None:
    from metasched.cli import history_tables as shown  # noqa: PLC0415  --json needs no rich
    from metasched.cli.tables import console  # noqa: PLC0415

    out = console()
    for rows, made in (
        (past.runs, shown.runs_table(past.runs, now)),
        (past.decisions, shown.decisions_table(past.decisions)),
        (past.actions, shown.actions_table(past.actions)),
        (past.events, shown.events_table(past.events)),
    ):
        if rows:
            out.print()
            out.print(made)
