"""`metasched demo`."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from metasched.cli.completion import policy_names
from metasched.cli.json_output import echo_json, json_option
from metasched.core.errors import MetaschedError
from metasched.presentation.formatting import clean, duration, where, world_sizes_text
from metasched.shared_dir.published_status import JobStatus, Status

if TYPE_CHECKING:
    from rich.console import Console

    from metasched.demo.outcomes import Outcome


class DemoShortfallError(MetaschedError):
    """The demo ended without showing all that it should show."""


@click.command("demo", short_help="Watch real training jobs share a private cluster.")
@click.option("--keep", is_flag=True, help="Keep the files: outputs, logs, database.")
@click.option(
    "--seconds-per-step",
    type=click.FloatRange(0.08, 0.3),
    default=0.1,
    show_default=True,
    help="Pause in each training step, in place of a larger model.",
)
@click.option(
    "--policy",
    metavar="NAME[:KEY=VALUE,...]",
    shell_complete=policy_names,
    help="The policy, which may be your own  [default: las, with a threshold that shows preemptions].",
)
@click.option("--hold", is_flag=True, help="Keep cluster and web page running after the jobs' ends, until Ctrl-C.")
@json_option
def command(*, keep: bool, seconds_per_step: float, policy: str | None, hold: bool, as_json: bool) -> None:
    """Watch real training jobs share a private Slurm cluster on this host: preempted, resized, resumed, finished.

    The address of a web page that shows the demo live is printed first. The demo takes a minute or two and needs
    Debian's Slurm packages (they are fetched where they are missing); everything is removed at the end. Exit code 1 if
    a job did not finish, or if nothing was preempted or resized: under another policy than the default one, only if a
    job did not finish.
    """
    from metasched.cli.simulation_options import parse_policy  # noqa: PLC0415
    from metasched.cli.tables import console  # noqa: PLC0415  `--help` needs none of this
    from metasched.demo import demo_run  # noqa: PLC0415
    from metasched.demo.jobs import LAS  # noqa: PLC0415

    chosen = LAS if policy is None else parse_policy(policy)
    out = console()
    began = time.monotonic()
    click.echo(
        "Starting a private Slurm cluster (4 nodes with 4 fake GPUs each) and the metasched daemon ...", err=as_json
    )
    base = Path(tempfile.mkdtemp(prefix="metasched-demo-"))
    try:
        with nullcontext(_nothing) if as_json else _screen(out) as show:
            result = demo_run.run(
                show,
                base,
                lambda page: _announce(page, out, as_json=as_json),
                keep=keep,
                hold=hold,
                seconds_per_step=seconds_per_step,
                policy=chosen,
            )
    finally:
        if keep:
            click.echo(f"The files are kept in {base}", err=as_json)
    seconds = time.monotonic() - began
    if as_json:
        rows = [_plain(one) for one in result.outcomes]
        counts = {"rounds": result.rounds, "seconds": seconds, "problems": list(result.problems)}
        echo_json("demo", {**counts, "rows": rows})
    else:
        _report(out, result.outcomes)
        click.echo(f"{result.rounds} rounds were decided, and replayed.")
        click.echo(f"Done in {duration(seconds)}; all processes of the demo have ended.")
    if result.problems:
        for log in result.logs:
            click.echo("\n".join(clean(line) for line in log.split("\n")), err=True)
        raise DemoShortfallError("the demo did not show all that it should: " + "; ".join(result.problems))


def _announce(page: str | None, out: Console, *, as_json: bool) -> None:
    """Print the address of the web page: before the live status, where there is one."""
    if page is None:
        text = "There is no web page: its packages are not installed (the extra `web` has them)."
    else:
        text = f"The web page is at {page}"
    if as_json:
        click.echo(text, err=True)
    else:
        out.print(text, highlight=False, soft_wrap=True)


def _nothing(status: Status) -> None:
    """Show nothing of a status: the output is one JSON document."""


def _plain(outcome: Outcome) -> dict[str, Any]:
    return {**asdict(outcome), "preemptions": outcome.preemptions, "resizes": outcome.resizes}


@contextmanager
def _screen(out: Console) -> Iterator[Callable[[Status], None]]:
    """Yield the function that shows a status: redrawn on a terminal, elsewhere a line for each change."""
    if not out.is_terminal:
        yield Changes().show
        return
    from rich.live import Live  # noqa: PLC0415

    from metasched.cli.status_tables import overview  # noqa: PLC0415
    from metasched.presentation.job_selection import in_order  # noqa: PLC0415

    with Live(console=out, auto_refresh=False, transient=True) as live:

        def show(status: Status) -> None:
            in_state_order = replace(status, jobs=tuple(in_order(status.jobs, "state")))
            live.update(overview(in_state_order, time.time(), len(status.jobs)), refresh=True)

        yield show


class Changes:
    """Prints the differences from one published status to the next."""

    def __init__(self) -> None:
        self._before: dict[str, str] = {}
        self._began = time.monotonic()

    def show(self, status: Status) -> None:
        """Print a line for each job whose state or nodes differ from the last status."""
        for job in (*status.jobs, *status.finished):
            situation = _situation(job)
            if self._before.get(job.uid) != situation:
                self._before[job.uid] = situation
                at = time.monotonic() - self._began
                click.echo(f"{at:6.1f} s  {clean(job.name):<8} {situation:<20} {clean(job.reason)}")


def _situation(job: JobStatus) -> str:
    return f"{job.status} {where(job.nodes)}".strip()


def _report(out: Console, found: list[Outcome]) -> None:
    from metasched.cli.tables import row, table  # noqa: PLC0415

    numbers = ("CODE", "WAITED", "RAN", "RUNS", "PREEMPTED", "RESIZED")
    made = table("JOB", "NAME", "STATE", *numbers, "WORLD SIZES", "FINAL LOSS", right=(*numbers, "FINAL LOSS"))
    for job in found:
        row(
            made,
            job.slurm_job_id,
            job.name,
            job.state,
            job.exit_code,
            duration(job.waited_seconds),
            duration(job.ran_seconds),
            len(job.world_sizes),
            job.preemptions,
            job.resizes,
            world_sizes_text(job.world_sizes),
            None if job.loss is None else f"{job.loss:.4f}",
        )
    out.print()
    out.print(made)
