"""`metasched devcluster`: a private, real Slurm cluster on this host."""

from __future__ import annotations

import dataclasses
import re
import shlex
from pathlib import Path

import click

from metasched.cli.json_output import echo_json, json_option
from metasched.devcluster import DevCluster, NodeGroup, Settings
from metasched.devcluster.script_paths import slurm_script

_GROUP = re.compile(r"([1-9][0-9]{0,3})x([0-9]{1,2})(?:x(.+))?")

base_option = click.option(
    "--base",
    type=click.Path(path_type=Path),
    default=Path(".devcluster"),
    show_default=True,
    metavar="DIR",
    help="Directory of the cluster; removed by `down`.",
)


def _group(text: str) -> NodeGroup:
    match = _GROUP.fullmatch(text)
    if match is None:
        raise click.BadParameter(f"{text!r}: write NODESxGPUSxTYPE, such as 2x4xv100 (or 2x0 for nodes without GPUs)")
    count, gpus, gpu_type = match.groups(default="v100")
    return NodeGroup(int(count), int(gpus), gpu_type)


@click.group("devcluster", short_help="Run a private Slurm cluster on this host.")
def command() -> None:
    """Run a private, real Slurm cluster with fake GPUs on this host: no root, no system file, loopback only."""


@command.command("up")
@base_option
@click.option("--nodes", type=click.IntRange(1, 1000), help="Nodes that are all alike [default: 4].")
@click.option("--gpus", type=click.IntRange(0, 64), help="GPUs (v100) of each of those [default: 4].")
@click.option(
    "--type",
    "groups",
    type=_group,
    metavar="NODESxGPUS[xTYPE]",
    multiple=True,
    help="Nodes of one type instead; repeatable.",
)
@click.option(
    "--shards",
    type=click.IntRange(0, 64),
    default=0,
    show_default=True,
    help="Parts into which Slurm may give each GPU away; with 2, two jobs can share one.",
)
@json_option
def up(
    *, base: Path, nodes: int | None, gpus: int | None, groups: tuple[NodeGroup, ...], shards: int, as_json: bool
) -> None:
    """Start the cluster and print how to use it."""
    if groups and (nodes is not None or gpus is not None):
        raise click.UsageError("--type says nodes and GPUs already: leave out --nodes and --gpus")
    if not groups:
        groups = (NodeGroup(4 if nodes is None else nodes, 4 if gpus is None else gpus),)
    groups = tuple(dataclasses.replace(group, shards=shards if group.gpus else 0) for group in groups)
    cluster = DevCluster.up(base, Settings(groups), job_submit=slurm_script("job_submit.lua"))
    if as_json:
        names = list(cluster.nodes)
        echo_json("devcluster up", {"base": str(cluster.base), "nodes": names, "environment": cluster.changes})
        return
    click.echo(
        f"# {len(cluster.nodes)} nodes are up: {', '.join(cluster.nodes)}. To use them, run these lines in your shell:"
    )
    for line in cluster.shell_lines:
        click.echo(line)
    click.echo(f"# and to end them: metasched devcluster down --base {shlex.quote(str(cluster.base))}")


@command.command("down")
@base_option
def down(*, base: Path) -> None:
    """End the cluster and its jobs, and remove its files; also after a crash."""
    DevCluster.attach(base).down()
    click.echo(f"{base} is down")


@command.command("status")
@base_option
@json_option
def status(*, base: Path, as_json: bool) -> None:
    """Show which of the cluster's daemons run, and its nodes' states."""
    found = DevCluster.attach(base).status()
    if as_json:
        echo_json("devcluster status", found)
        return
    for name, pid in found["daemons"].items():
        state = found["nodes"].get(name, "")
        click.echo(f"{name:<12} {'not running' if pid is None else f'pid {pid}':<14} {state}".rstrip())
