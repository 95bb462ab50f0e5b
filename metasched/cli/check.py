"""`metasched check`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import click

from metasched.cli.json_output import echo_json, json_option
from metasched.cli.paths import CommandPaths
from metasched.cli.progress import progress_bar
from metasched.presentation.formatting import clean
from metasched.slurm.hostlist import compress

if TYPE_CHECKING:
    from metasched.installation.checks import Finding
    from metasched.installation.facts import Facts

MARKS = {"ok": "ok     ", "warning": "warning", "error": "ERROR  "}


@click.command("check", short_help="Say what keeps metasched from working here.")
@click.option("--nodes", is_flag=True, help="Also check every node with GPUs, by a short job on each.")
@json_option
@click.pass_context
def command(ctx: click.Context, *, nodes: bool, as_json: bool) -> None:
    """Check every permission, path and Slurm setting that metasched needs, and say how to mend what is wrong.

    Run it as the user that the daemon runs as. Nothing is changed. Exit code 1 if a finding keeps metasched
    from working.
    """
    from metasched.configuration.config import load  # noqa: PLC0415  imports for this command alone
    from metasched.core.policy import installed_policies  # noqa: PLC0415
    from metasched.installation.checks import check  # noqa: PLC0415
    from metasched.installation.facts import gather  # noqa: PLC0415
    from metasched.slurm.command_line_client import CommandLineClient  # noqa: PLC0415

    command_paths = ctx.find_object(CommandPaths) or CommandPaths()
    config = load(command_paths.config, installed_policies())
    client = CommandLineClient(timeout=config.slurm.timeout_seconds)
    try:
        facts = gather(config, client)
    finally:
        client.close()
    of_site = check(facts)
    of_nodes = list(_check_nodes(facts)) if nodes else []
    found = [*of_site, *of_nodes]
    if as_json:
        echo_json("check", [dataclasses.asdict(finding) for finding in found])
    else:
        _print([*of_site, *_folded(of_nodes)])
    if any(finding.level == "error" for finding in found):
        ctx.exit(1)


def _folded(of_nodes: Iterable[Finding]) -> Iterator[Finding]:
    """Yield the findings of nodes; those that differ in the node alone are one, of a host list."""
    alike: dict[Finding, list[str]] = {}
    for finding in of_nodes:
        alike.setdefault(dataclasses.replace(finding, subject=""), []).append(finding.subject)
    for finding, names in alike.items():
        yield dataclasses.replace(finding, subject=compress(names) if len(names) > 1 else names[0])


def _print(found: Iterable[Finding]) -> None:
    for finding in found:
        click.echo(clean(f"{MARKS[finding.level]} {finding.subject}: {finding.text}"))
        if finding.fix:
            click.echo(clean(f"          mend: {finding.fix}"))


def _check_nodes(facts: Facts) -> Iterator[Finding]:
    from metasched.installation.checks import Finding  # noqa: PLC0415  as above
    from metasched.installation.facts import Slurm, on_nodes  # noqa: PLC0415
    from metasched.slurm.errors import SlurmError  # noqa: PLC0415

    nodes = [node for node in (facts.slurm.nodes if isinstance(facts.slurm, Slurm) else ()) if node.gpus]
    shared = None if facts.shared.missing else facts.shared.path
    with progress_bar("Checking nodes") as progress:
        checked = []
        for one in on_nodes(nodes, shared):
            checked.append(one)
            progress(len(checked), len(nodes))
    for name, faults in checked:
        if isinstance(faults, SlurmError):
            yield Finding("warning", name, f"could not be checked: {faults}", "try again when it has a CPU free")
        elif faults:
            fix = "mount the shared directory there, and put metasched-run and Python on jobs' PATH"
            yield Finding("error", name, "; ".join(faults), fix)
        else:
            yield Finding("ok", name, "has what jobs need")
