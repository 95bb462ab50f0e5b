"""`metasched explain`: why a job runs or waits, in words."""

from __future__ import annotations

import dataclasses
import difflib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from metasched.cli.completion import own_jobs
from metasched.cli.json_output import echo_json, json_option
from metasched.cli.paths import CommandPaths, shared_option, state_option
from metasched.configuration.file_names import DATABASE
from metasched.core.errors import MetaschedError
from metasched.core.reasons import from_json
from metasched.presentation.formatting import clean, listed, reason_fields, text_fields
from metasched.presentation.job_explanation import explanation, fairness_words, history, time_use_words
from metasched.shared_dir import published_status as published
from metasched.shared_dir.published_status import JobStatus, Status

if TYPE_CHECKING:  # importing the store imports the policies' mathematics
    from metasched.store import ActionRecord, DecisionRecord, EventRecord, RunRecord
    from metasched.store.fairness import FairnessRecord

_LATEST = 10
_LISTED_IDS = 20
_COMPARED = 64  # characters of names


class JobNotFoundError(MetaschedError):
    """No job, or more than one, has that Slurm job id, uid or name."""


@dataclass(frozen=True, slots=True)
class Past:
    """The records of one job in the database: runs in order, all others latest first."""

    runs: Sequence[RunRecord]
    decisions: Sequence[DecisionRecord]
    actions: Sequence[ActionRecord]
    events: Sequence[EventRecord]
    fairness: FairnessRecord | None = None


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
    sentences = [*explanation(found, status, now), *history(found, now)]
    if past is not None:
        from metasched.store.time_use import time_use  # noqa: PLC0415  as in _past

        sentences += time_use_words(time_use(past.runs, now))
        if past.fairness is not None:
            sentences += fairness_words(past.fairness)
    if as_json:
        details = {} if past is None else _plain(past)
        echo_json("explain", {"job": dataclasses.asdict(found), "words": sentences, **details})
        return
    for sentence in sentences:
        click.echo(clean(sentence))
    if past is not None:
        _print(past, now)


def find(status: Status, asked: str) -> JobStatus:
    """Return the job of that Slurm job id or uid, else of that name; a live job before a finished one.

    Raises:
        JobNotFoundError: no job or several jobs are found, or an array, whose tasks are jobs of their own.
    """
    for jobs in (status.jobs, status.finished):
        for job in jobs:
            if asked in (job.slurm_job_id, job.uid):
                return job
    for jobs in (status.jobs, status.finished):
        named = [job for job in jobs if job.name == asked]
        if len(named) > 1:
            ids = listed([job.slurm_job_id for job in named], _LISTED_IDS)
            raise JobNotFoundError(f"several jobs are named {asked!r}: ask by Slurm job id, one of {ids}")
        if named:
            return named[0]
    for deferred in status.deferred:
        if asked.partition("_")[0] in deferred.job_ids and (asked in deferred.job_ids or "_" in asked):
            raise JobNotFoundError(f"job {asked} is not taken in yet: {clean(deferred.reason)}")
    ids_now = (job.slurm_job_id for job in (*status.jobs, *status.finished))
    if tasks := [slurm_job_id for slurm_job_id in ids_now if slurm_job_id.startswith(f"{asked}_")]:
        raise JobNotFoundError(f"job {asked} is an array: ask by task, one of {listed(tasks, _LISTED_IDS)}")
    raise JobNotFoundError(
        f"metasched knows no job {asked!r} (by Slurm job id, uid or name); {_near_misses(status, asked)}"
    )


def _near_misses(status: Status, asked: str) -> str:
    """Return the names of jobs that are spelled almost like ``asked``, else where to look."""
    names = {job.name[:_COMPARED]: job.slurm_job_id for job in (*status.finished, *status.jobs)}
    near = difflib.get_close_matches(asked[:_COMPARED], names, n=3)
    if not near:
        return "is it tagged? see `metasched status`"
    return f"did you mean {listed([f'{name!r} ({names[name]})' for name in near])}?"


def _past(command_paths: CommandPaths, given: Path | None, uid: str) -> Past | None:
    """Return the records of the job; None where the database cannot be read and --state was not given."""
    try:
        path = command_paths.state(given) / DATABASE
        if given is None and not os.access(path, os.R_OK):
            return None
        from metasched.store import Store  # noqa: PLC0415  most hosts have no database, and importing it takes long

        with Store.open(path, read_only=True) as store:
            return Past(
                runs=store.runs(uid),
                decisions=store.recent_decisions(uid, _LATEST),
                actions=store.recent_actions(_LATEST, uid),
                events=store.recent_events(_LATEST, uid),
                fairness=store.fairness(uid),
            )
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
        (past.events, shown.events_table(past.events, title="Latest events")),
    ):
        if rows:
            out.print()
            out.print(made)
