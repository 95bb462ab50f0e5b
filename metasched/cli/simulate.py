"""`metasched simulate`: one scenario under one policy."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from metasched.cli.completion import policy_names
from metasched.cli.json_output import echo_json, json_option
from metasched.cli.progress import progress_bar
from metasched.cli.simulation_options import make_case, show_metrics
from metasched.presentation.formatting import duration


@click.command("simulate", short_help="Simulate a workload under one policy.")
@click.argument("scenario", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--policy",
    default="fifo",
    show_default=True,
    metavar="NAME[:KEY=VALUE,...]",
    shell_complete=policy_names,
    help="The policy, with parameters other than its defaults.",
)
@click.option(
    "--load",
    default=1.0,
    show_default=True,
    type=click.FloatRange(min=0, min_open=True),
    help="Factor on the rate of arrivals.",
)
@click.option("--seed", default=0, show_default=True, help="Of the generator, of failures, of all chance.")
@click.option("--plots", type=click.Path(path_type=Path, file_okay=False), metavar="DIR", help="Draw plots into DIR.")
@json_option
def command(*, scenario: Path, policy: str, load: float, seed: int, plots: Path | None, as_json: bool) -> None:
    """Run the workload of a scenario file on its simulated cluster with the daemon's engine, and print the metrics."""
    from metasched.simulator.plots import draw  # noqa: PLC0415  `--help` needs none of this
    from metasched.simulator.scenario import load_scenario  # noqa: PLC0415
    from metasched.simulator.sweep import run_case  # noqa: PLC0415

    case = make_case(policy, load, seed)
    with progress_bar("Simulating") as progress:
        result = run_case(load_scenario(scenario), case, progress=progress)
    if plots is not None:
        draw([result], plots)
    if as_json:
        echo_json("simulate", asdict(result))
        return
    show_metrics([result])
    own, engine, whole = result.seconds
    click.echo(f"Simulated in {duration(whole)}: {own:.2f} s in the policy, {engine:.2f} s in the engine besides.")
