"""`metasched compare`: one scenario under many policies, loads and seeds."""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import asdict
from pathlib import Path

import click

from metasched.cli.json_output import echo_json, json_option
from metasched.cli.progress import progress_bar
from metasched.cli.simulation_options import make_case, policies_option, show_metrics
from metasched.slurm.command_runner import sbatch


@click.command("compare", short_help="Simulate a workload under many policies, loads and seeds.")
@click.argument("scenario", type=click.Path(path_type=Path, dir_okay=False))
@policies_option("A policy; repeat it for more.")
@click.option(
    "--load",
    "loads",
    multiple=True,
    type=click.FloatRange(min=0, min_open=True),
    default=(1.0,),
    help="Factor on the rate of arrivals; repeat it for more.  [default: 1]",
)
@click.option("--seeds", default=1, show_default=True, type=click.IntRange(min=1), help="How many seeds, from 0.")
@click.option("--processes", type=click.IntRange(min=1), help="At a time.  [default: one for each CPU]")
@click.option(
    "--out",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Directory for results; those that are there already are not made again.",
)
@click.option("--plots", is_flag=True, help="Draw plots into DIR.")
@click.option(
    "--slurm",
    metavar="OPTIONS",
    help="Hand the simulations to Slurm as a job array, with these options of sbatch, and end.",
)
@click.option(
    "--only", type=click.IntRange(min=0), metavar="N", help="Simulate nothing but the Nth combination, from 0, and end."
)
@json_option
def command(
    *,
    scenario: Path,
    policies: tuple[str, ...],
    loads: tuple[float, ...],
    seeds: int,
    processes: int | None,
    out: Path,
    plots: bool,
    slurm: str | None,
    only: int | None,
    as_json: bool,
) -> None:
    """Simulate every combination of policies, loads and seeds, in parallel processes, and compare.

    Each result is written to DIR as soon as it is complete, so that an interrupted sweep resumes where it stopped.
    DIR/summary.csv has one row for each simulation.
    """
    from metasched.simulator.plots import draw  # noqa: PLC0415  `--help` needs none of this
    from metasched.simulator.results import write_table  # noqa: PLC0415
    from metasched.simulator.scenario import load_scenario  # noqa: PLC0415
    from metasched.simulator.sweep import sweep  # noqa: PLC0415

    found = load_scenario(scenario)
    cases = [make_case(policy, load, seed) for policy in policies for load in loads for seed in range(seeds)]
    if only is not None and only >= len(cases):
        raise click.UsageError(f"--only {only}: there are {len(cases)} combinations, from 0 to {len(cases) - 1}")
    if slurm is not None:
        again = ["compare", str(scenario.resolve()), "--out", str(out.resolve()), "--seeds", str(seeds)]
        again += [part for policy in policies for part in ("--policy", policy)]
        again += [part for load in loads for part in ("--load", repr(load))]
        click.echo(_submit(again, out.resolve(), len(cases), shlex.split(slurm)))
        return
    if only is not None:
        sweep(found, cases[only : only + 1], out, 1, lambda _: None)
        return
    with progress_bar("Simulating") as progress:
        count = len(cases)
        results = sweep(found, cases, out, processes or os.cpu_count() or 1, lambda done: progress(done, count))
    write_table(out / "summary.csv", results)
    files = draw(results, out / "plots") if plots else []
    if as_json:
        echo_json("compare", [asdict(result) for result in results])
        return
    show_metrics(results)
    for path in files:
        click.echo(path)


def _submit(arguments: list[str], out: Path, count: int, options: list[str]) -> str:
    """Submit a Slurm array with one task for each case, and return the array's id; raises SlurmError."""
    line = shlex.join([sys.executable, "-m", "metasched", *arguments])
    script = f'#!/bin/bash\nexec {line} --only "$SLURM_ARRAY_TASK_ID"\n'
    out.mkdir(parents=True, exist_ok=True)
    array = [f"--array=0-{count - 1}", "--job-name=metasched-compare", f"--output={out}/slurm-%a.log"]
    return sbatch([*array, *options], script=script)[0]
