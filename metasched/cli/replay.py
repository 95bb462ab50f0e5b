"""`metasched replay`: decide recorded rounds again, and show the differences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from metasched.cli.completion import policy_names
from metasched.cli.json_output import COUNT, echo_json, json_option
from metasched.cli.paths import CommandPaths, state_option
from metasched.configuration.file_names import DATABASE
from metasched.core.batching import BatchPlan
from metasched.core.model import Placement
from metasched.core.policy import Policy, installed_policies
from metasched.core.reason_words import words
from metasched.presentation.formatting import clean, reason_fields
from metasched.replay.replay import Difference, Replayed, replay
from metasched.store import Store

DIFFERENT = 3


@click.command("replay", short_help="Decide past rounds again, and compare.")
@state_option
@click.option("--last", default=100, show_default=True, type=COUNT, help="How many rounds.")
@click.option(
    "--policy",
    "name",
    metavar="NAME",
    shell_complete=policy_names,
    help="Decide by this policy, with its default parameters, instead.",
)
@json_option
@click.pass_obj
def command(command_paths: CommandPaths, *, state: Path | None, last: int, name: str | None, as_json: bool) -> None:
    """Decide the latest rounds again from their recorded snapshots, and compare with the recorded decisions.

    Nothing is changed. Under the recorded policy a difference means that this version of metasched decides otherwise:
    the exit code is then 3. With --policy the differences show what that policy would have done.
    """
    registry = installed_policies()
    other: Policy | None = registry.get(name)() if name else None
    with Store.open(command_paths.state(state) / DATABASE, read_only=True) as store:
        rounds = list(replay(store, registry, last, other))
        names = {d.uid: store.find_jobs(d.uid, limit=1) for found in rounds for d in found.differences}
    if as_json:
        echo_json("replay", [_plain(found) for found in rounds])
    else:
        for found in rounds:
            for difference in found.differences:
                job = names[difference.uid][0].slurm_job_id if names[difference.uid] else difference.uid
                why = "" if difference.reason is None else words(difference.reason)
                moved = f"{_stored_text(difference)} -> {_replayed_text(difference)}"
                click.echo(clean(f"round {found.record.round}: job {job}: {moved}: {why}"))
        different = sum(1 for found in rounds if found.differences)
        decided = sum(found.jobs for found in rounds)
        click.echo(f"{len(rounds)} rounds, {decided} decisions, {different} rounds with differences")
    if other is None and any(found.differences for found in rounds):
        raise SystemExit(DIFFERENT)


def _stored_text(difference: Difference) -> str:
    return _decision_text(difference.stored, difference.stored_batch)


def _replayed_text(difference: Difference) -> str:
    return _decision_text(difference.replayed, difference.replayed_batch)


def _decision_text(placement: Placement | None, batch: BatchPlan | None) -> str:
    if placement is None:
        return "waits"
    nodes = ",".join(f"{node}:{gpus}" for node, gpus in placement.node_gpus)
    return nodes if batch is None else f"{nodes} ({batch.per_gpu} samples x {batch.accumulation} passes)"


def _plain(found: Replayed) -> dict[str, Any]:
    return {
        "round": found.record.round,
        "at": found.record.at,
        "policy": found.record.policy,
        "jobs": found.jobs,
        "differences": [
            {
                "uid": d.uid,
                "stored": _stored_text(d),
                "replayed": _replayed_text(d),
                **reason_fields(d.reason),
            }
            for d in found.differences
        ],
    }
