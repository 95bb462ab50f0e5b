"""`metasched health`: one line and an exit code for monitors, by the convention of Nagios plugins."""

from __future__ import annotations

import enum
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from metasched.cli.json_output import echo_json, json_option
from metasched.cli.paths import CommandPaths, shared_option
from metasched.core.errors import MetaschedError
from metasched.core.reason_words import counted
from metasched.presentation.formatting import clean, duration
from metasched.presentation.job_explanation import STALE_SECONDS
from metasched.shared_dir import published_status as published
from metasched.shared_dir.published_status import Status
from metasched.slurm.reused_ids import drained_by_reused_id

_SHOWN = 300
_LEAST_FREE = 0.05
_LEAST_FREE_CRITICAL = 0.01


class Level(enum.IntEnum):
    """The exit code: that of a Nagios plugin."""

    OK = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, in words."""

    level: Level
    text: str


@click.command("health", short_help="Say in one line, and by exit code, whether the daemon works.")
@shared_option
@click.option(
    "--warning",
    type=click.FloatRange(min=0, min_open=True),
    default=STALE_SECONDS,
    show_default=True,
    metavar="SECONDS",
    help="Age of the published status from which on it is a warning.",
)
@click.option(
    "--critical",
    type=click.FloatRange(min=0, min_open=True),
    default=4 * STALE_SECONDS,
    show_default=True,
    metavar="SECONDS",
    help="Age of the published status from which on it is critical.",
)
@json_option
@click.pass_obj
def command(
    command_paths: CommandPaths, *, shared: Path | None, warning: float, critical: float, as_json: bool
) -> None:
    """Print one line for a monitor: exit code 0 for ok, 1 for a warning, 2 for critical, 3 for unknown.

    Only the published status and the free space of the shared directory are read, so that every user on every node can
    ask.
    """
    if critical < warning:
        raise click.UsageError("--critical has to be at least --warning")
    now = time.time()
    status: Status | None = None
    try:
        directory = command_paths.shared(shared)
        status = published.read(directory)
        found = [*findings(status, now, warning, critical), *_disk(directory)]
    except MetaschedError as error:
        found = [Finding(Level.UNKNOWN, str(error))]
    level = max((finding.level for finding in found), default=Level.OK)
    texts = [clean(finding.text, _SHOWN) for finding in sorted(found, key=lambda one: -one.level)]
    if as_json:
        numbers = {} if status is None else _numbers(status, now)
        named = level.name.lower()
        echo_json("health", {"level": named, "code": int(level), "findings": texts, "numbers": numbers})
    else:
        told = "; ".join(texts) if status is None or texts else _told(status)
        performance = "" if status is None else " | " + " ".join(f"{k}={v:g}" for k, v in _numbers(status, now).items())
        click.echo(f"METASCHED {level.name} - {told.replace('|', '/')}{performance}")
    sys.exit(int(level))


def findings(status: Status, now: float, warning: float, critical: float) -> Iterator[Finding]:
    """Yield what is wrong with the daemon, Slurm, the database and the nodes.

    Args:
        status: the published status.
        now: the present instant, unix seconds.
        warning: age of the status, in seconds, from which on it is a warning; three polls are always allowed.
        critical: age from which on it is critical.
    """
    age = now - status.published
    if age > max(warning, 3 * status.poll_seconds):
        level = Level.CRITICAL if age > max(critical, 3 * status.poll_seconds) else Level.WARNING
        yield Finding(level, f"the daemon on {status.host} (pid {status.pid}) published nothing for {duration(age)}")
    if status.slurm != "ok":
        yield Finding(Level.CRITICAL, f"Slurm: {status.slurm}")
    if status.store != "ok":
        level = Level.CRITICAL if status.next_round is None else Level.WARNING
        yield Finding(level, f"database: {status.store}")
    if status.degraded:
        yield Finding(Level.WARNING, f"degraded: {status.degraded}")
    drained = sum(not node.accepts and drained_by_reused_id(node.reason) for node in status.nodes)
    if drained:
        yield Finding(Level.WARNING, f"{counted(drained, 'node')} drained for a duplicate job id: metasched status")
    if leaked := sum(node.gpus_leaked for node in status.nodes):
        yield Finding(Level.WARNING, f"{counted(leaked, 'GPU')} allocated without a job: metasched status")


def _disk(shared: Path) -> Iterator[Finding]:
    """Yield a finding where the file system of the shared directory is almost full."""
    try:
        found = os.statvfs(shared)
    except OSError as error:
        yield Finding(Level.UNKNOWN, f"{shared}: {error.strerror}")
        return
    free = found.f_bavail / found.f_blocks if found.f_blocks else 1.0
    if free < _LEAST_FREE:
        level = Level.CRITICAL if free < _LEAST_FREE_CRITICAL else Level.WARNING
        yield Finding(level, f"{shared}: {free:.1%} of the file system is free")


def _told(status: Status) -> str:
    jobs = f"{counted(sum(bool(job.nodes) for job in status.jobs), 'job')} of {len(status.jobs)} with GPUs or nodes"
    return f"{status.cluster}: policy {status.policy}, round {status.round}, {jobs}"


def _numbers(status: Status, now: float) -> dict[str, float]:
    """Return the numbers that a monitor may plot; the age is in seconds."""
    return {
        "age": round(max(now - status.published, 0.0), 1),
        "jobs": len(status.jobs),
        "running": sum(bool(job.nodes) for job in status.jobs),
        "gpus": sum(node.gpus for node in status.nodes),
        "gpus_used": sum(node.gpus_used for node in status.nodes),
    }
