"""`metasched db`: the daemon's database, read from outside; only `import` and `prune` write."""

from __future__ import annotations

import base64
import dataclasses
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import datetime, timedelta
from pathlib import Path

import click

from metasched.cli import history_tables, tables
from metasched.cli.command_group import SuggestingGroup
from metasched.cli.completion import own_jobs
from metasched.cli.json_output import COUNT, echo_json, json_option
from metasched.cli.paths import CommandPaths, shared_option, state_option
from metasched.cli.progress import progress_bar
from metasched.configuration.file_names import COPIES, DATABASE, LOCK
from metasched.core.errors import MetaschedError
from metasched.core.reason_words import counted
from metasched.daemon.failover import term_of_copy
from metasched.presentation.formatting import clean, listed, size, text_fields
from metasched.presentation.job_lookup import find_recorded
from metasched.shared_dir.lock import DaemonLock
from metasched.store import DamagedStoreError, Store
from metasched.store.connection import exists

_DAY = 86400.0
_IMPORTED_DAYS = 90
_SHOWN = 300
limit_option = click.option("--limit", type=COUNT, default=50, show_default=True, help="Rows at most.")


class SupersededStoreError(MetaschedError):
    """A daemon on another host has taken over: what is written to this host's database would be lost."""

    def __init__(self, path: Path, copy: Path) -> None:
        super().__init__(
            f"{path}: a daemon on another host went on from it, see {copy}, and what is written here would be lost; "
            "do this on that host, or start the daemon here and stop it again first: it takes the other's history over"
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Database:
    """Path of the database, and the source of the path of the shared directory."""

    path: Path
    command_paths: CommandPaths
    given_shared: Path | None

    def reading(self) -> Store:
        """Open the store for reading."""
        return Store.open(self.path, read_only=True)

    @contextmanager
    def writing(self) -> Iterator[Store]:
        """Open the store for writing; refused while a daemon writes, or after a daemon elsewhere has taken over."""
        shared = self.command_paths.shared(self.given_shared)
        self.reading().close()  # a missing database must not be made
        with DaemonLock(shared / LOCK), Store.open(self.path) as store:
            if term_of_copy(shared / COPIES) > store.term:
                raise SupersededStoreError(self.path, shared / COPIES / DATABASE)
            yield store


@click.group("db", cls=SuggestingGroup, short_help="Look into the daemon's database.")
@state_option
@shared_option
@click.pass_context
def command(ctx: click.Context, state: Path | None, shared: Path | None) -> None:
    """Read the daemon's database (on its host); only `import` and `prune` write."""
    command_paths = ctx.find_object(CommandPaths) or CommandPaths()
    ctx.obj = Database(command_paths.state(state) / DATABASE, command_paths, shared)


@command.command("path")
@json_option
@click.pass_obj
def path(database: Database, *, as_json: bool) -> None:
    """Print the path of the database."""
    if as_json:
        echo_json("db path", {"path": str(database.path), "exists": exists(database.path)})
    else:
        click.echo(str(database.path))


@command.command("sizes")
@json_option
@click.pass_obj
def sizes(database: Database, *, as_json: bool) -> None:
    """Print the number of rows of each table, and the size of the file."""
    with database.reading() as store:
        rows, total = store.table_sizes(), store.file_bytes()
    if as_json:
        echo_json("db sizes", {"rows": rows, "bytes": total})
        return
    made = tables.table("TABLE", "ROWS", right=("ROWS",))
    for name, count in rows.items():
        tables.row(made, name, count)
    tables.console().print(made)
    click.echo(f"{size(total)} on disk")


@command.command("check")
@json_option
@click.pass_obj
def check(database: Database, *, as_json: bool) -> None:
    """Let SQLite check the whole file; exit code 1 if it is damaged."""
    with database.reading() as store:
        problems = store.problems()
    if as_json:
        echo_json("db check", {"path": str(database.path), "problems": problems})
        sys.exit(bool(problems))
    if problems:
        raise DamagedStoreError(database.path, "; ".join(problems))
    click.echo(f"{database.path} is whole")


@command.command("events")
@click.option("--job", shell_complete=own_jobs, help="Only those of one job (Slurm job id, uid or name).")
@limit_option
@json_option
@click.pass_obj
def events(database: Database, *, job: str | None, limit: int, as_json: bool) -> None:
    """List the recorded events, the latest first."""
    with database.reading() as store:
        found = store.recent_job_events(limit, None if job is None else find_recorded(store, job).uid)
    if not as_json:
        tables.console().print(history_tables.job_events_table(found))
        return
    rows = []
    for one in found:
        fields = dataclasses.asdict(one)
        rows.append({**fields.pop("event"), **fields, **text_fields(one.event.text)})
    echo_json("db events", rows)


@command.command("runs")
@click.argument("job", shell_complete=own_jobs)
@json_option
@click.pass_obj
def runs(database: Database, *, job: str, as_json: bool) -> None:
    """List the runs of JOB (Slurm job id, uid or name): start, placement, duration, and why each ended."""
    with database.reading() as store:
        record = find_recorded(store, job)
        found = store.runs(record.uid)
    if as_json:
        echo_json("db runs", [dataclasses.asdict(run) for run in found])
    else:
        tables.console().print(history_tables.runs_table(found, time.time()))


@command.command("import")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False), required=False)
@click.option("--since", type=click.DateTime(), metavar="DATE", help="From here on [default: 90 days ago].")
@click.option("--until", type=click.DateTime(), metavar="DATE", help="Up to here [default: now].")
@click.option("--prometheus", metavar="URL", help="Import GPU use of known jobs from this Prometheus instead.")
@click.option(
    "--exporter",
    type=click.Choice(("dcgm", "jobstats")),
    default="dcgm",
    show_default=True,
    help="What that Prometheus scrapes.",
)
@json_option
@click.pass_obj
def import_(
    database: Database,
    *,
    file: Path | None,
    since: datetime | None,
    until: datetime | None,
    prometheus: str | None,
    exporter: str,
    as_json: bool,
) -> None:
    """Import past GPU jobs from Slurm's accounting, or from FILE with the output of sacct.

    Each job is imported once. With --prometheus, how much known jobs used their GPUs is imported instead, again and
    again. Refused while the daemon runs.
    """
    from metasched.history_import.prometheus_import import (  # noqa: PLC0415  `--help` needs none of this
        EXPORTERS,
        Prometheus,
        import_gpu_use,
    )
    from metasched.history_import.sacct_command import array_tasks, ask_sacct  # noqa: PLC0415
    from metasched.history_import.sacct_import import NEEDED, import_jobs  # noqa: PLC0415

    if file is not None and (since or until or prometheus):
        raise click.UsageError("--since, --until and --prometheus are for what is asked: leave them out with a file")
    begin = since or datetime.now() - timedelta(days=_IMPORTED_DAYS)  # noqa: DTZ005  sacct's are local times
    with database.writing() as store, progress_bar("Importing") as progress:
        if prometheus is not None:
            server = Prometheus(prometheus, os.environ.get("PROMETHEUS_TOKEN", ""))
            end = time.time() if until is None else until.timestamp()
            found = import_gpu_use(store, server, EXPORTERS[exporter], begin.timestamp(), end, progress, array_tasks)
        elif file is not None:
            found = import_jobs(store, file, progress=progress)
        else:
            with ask_sacct(("AdminComment", *NEEDED), begin, until) as (path, delimiter):
                found = import_jobs(store, path, delimiter, progress)
    if as_json:
        first = None if found.unreadable is None else str(found.unreadable)
        counts = {"read": found.read, "imported": found.jobs, "skipped": dict(found.skipped)}
        echo_json("db import", {**counts, "unreadable": first})
        return
    noun = "job" if prometheus is None else "window"
    click.echo(f"read {counted(found.read, noun)}, imported {found.jobs}")
    for why, count in found.skipped.most_common():
        click.echo(f"skipped {count}: {why}")
    if found.unreadable is not None:
        click.echo(f"first unreadable record: {clean(str(found.unreadable), _SHOWN)}")


@command.command("prune")
@click.option(
    "--before",
    type=click.FloatRange(0),
    required=True,
    metavar="DAYS",
    help="Delete what ended more than DAYS days ago.",
)
@json_option
@click.pass_obj
def prune(database: Database, *, before: float, as_json: bool) -> None:
    """Delete the details (rounds, actions, events, reports) of jobs that ended long ago; jobs and runs stay.

    Imported jobs are deleted whole, as are speeds that no job has measured since. Refused while the daemon runs.
    """
    with database.writing() as store:
        deleted = store.prune(time.time() - before * _DAY)
    if as_json:
        echo_json("db prune", {"rows": deleted})
    else:
        gone = [f"{count} {name}" for name, count in deleted.items() if count]
        click.echo(f"deleted {listed(gone, len(gone))}" if gone else "nothing is that old")


@command.command("export")
@click.pass_obj
def export(database: Database) -> None:
    """Write every row as a line of JSON, {"table": ..., its columns ...}, to standard output; bytes in base64.

    The rows come from a temporary copy, so that a slow reader of the output does not make the daemon's files grow.
    """
    with tempfile.TemporaryDirectory(prefix="metasched-export-") as scratch:
        copy = Path(scratch) / DATABASE
        with database.reading() as store:
            store.copy_to(copy)
        with Store.open(copy, read_only=True) as store, closing(store.every_row()) as rows:
            for table, row in rows:
                click.echo(json.dumps({"table": table, **row}, default=_base64))


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
