"""Completions that shells ask for at the tab key: policies, states, and the jobs of the user who types."""

from __future__ import annotations

from typing import TYPE_CHECKING

from metasched.cli.paths import CommandPaths
from metasched.core.errors import MetaschedError

if TYPE_CHECKING:
    import click
    from click.shell_completion import CompletionItem

_MOST = 50


def policy_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001  click's
    """Return the installed policies whose names begin with what was typed."""
    from metasched.core.policy import installed_policies  # noqa: PLC0415  other completions need no policies

    return [name for name in installed_policies().names() if name.startswith(incomplete)]


def states(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001  click's
    """Return the states of live and of ended jobs that begin with what was typed."""
    from metasched.presentation.job_selection import KNOWN_STATES  # noqa: PLC0415  as above

    return [state for state in KNOWN_STATES if state.startswith(incomplete)]


def own_jobs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG001
    """Return Slurm job ids, or names, of the caller's live and latest ended jobs; none where no status can be read."""
    import click  # noqa: PLC0415
    from click.shell_completion import CompletionItem  # noqa: PLC0415  of completions alone

    from metasched.cli.caller import own_name  # noqa: PLC0415
    from metasched.presentation.formatting import clean  # noqa: PLC0415
    from metasched.shared_dir import published_status as published  # noqa: PLC0415

    parent = ctx.find_root().params.get("config")
    try:
        status = published.read(CommandPaths(parent).shared(ctx.params.get("shared")))
        user = own_name()
    except (MetaschedError, OSError, click.UsageError):
        return []
    mine = [job for job in (*status.jobs, *status.finished) if job.user == user]
    by_id = [CompletionItem(job.slurm_job_id, help=clean(f"{job.name}, {job.status}")) for job in mine]
    names = dict.fromkeys(job.name for job in mine if job.name.isprintable() and " " not in job.name)
    found = [*by_id, *(CompletionItem(name) for name in names if incomplete)]
    return [item for item in found if item.value.startswith(incomplete)][:_MOST]
