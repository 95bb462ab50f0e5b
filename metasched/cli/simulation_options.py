"""Options and output that the simulator's commands share."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from metasched.cli.completion import policy_names
from metasched.core.policy import installed_policies
from metasched.core.policy_text import PolicyTextError, parse_parameters

if TYPE_CHECKING:
    from metasched.simulator.results import Result
    from metasched.simulator.sweep import Case

# A simulation solves many small problems, for which threads cost more than they bring; a sweep uses processes.
os.environ.setdefault("OMP_NUM_THREADS", "1")

_HOUR = 3600.0
# The metrics of the table: heading, and the unit by which the value is divided.
SHOWN: Mapping[str, tuple[str, float]] = {
    "jct_mean": ("JCT MEAN h", _HOUR),
    "jct_median": ("MEDIAN h", _HOUR),
    "jct_p99": ("P99 h", _HOUR),
    "makespan": ("MAKESPAN h", _HOUR),
    "queueing_mean": ("QUEUEING h", _HOUR),
    "utilization": ("UTILISATION", 1.0),
    "rho_worst_pollux": ("WORST RHO", 1.0),
    "unfair_pollux": ("UNFAIR", 1.0),
    "preemptions_mean": ("PREEMPTIONS", 1.0),
    "cost": ("COST", 1.0),
    "unfinished": ("UNFINISHED", 1.0),
}


def policies_option(text: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return the decorator that adds --policy, which may be repeated, with the help ``text``."""
    return click.option(
        "--policy",
        "policies",
        multiple=True,
        required=True,
        metavar="NAME[:KEY=VALUE,...]",
        shell_complete=policy_names,
        help=text,
    )


def parse_policy(text: str) -> tuple[str, dict[str, Any]]:
    """Return a policy's name and parameters from ``NAME[:KEY=VALUE,...]``; values are JSON or plain words.

    Raises:
        click.BadParameter: the text has another form, or the policy refuses a parameter.
    """
    try:
        return parse_parameters(text, installed_policies())
    except PolicyTextError as error:
        raise click.BadParameter(str(error), param_hint="--policy") from None


def make_case(policy: str, load: float, seed: int) -> Case:
    """Return the sweep's case for one policy, ``NAME[:KEY=VALUE,...]``."""
    from metasched.simulator.sweep import Case  # noqa: PLC0415  `--help` needs none of this

    name, parameters = parse_policy(policy)
    return Case(name, parameters, load, seed)


def show_metrics(results: Sequence[Result]) -> None:
    """Print a row for each policy and load: each metric's mean over the seeds, with its standard deviation."""
    from metasched.cli.tables import console, row, table  # noqa: PLC0415  `--help` needs none of this

    names = [name for name in SHOWN if any(one.metrics.get(name) is not None for one in results)]
    headings = [SHOWN[name][0] for name in names]
    made = table("POLICY", "LOAD", "SEEDS", *headings, right=("LOAD", "SEEDS", *headings))
    for label, load in dict.fromkeys((one.label, one.load) for one in results):
        same = [one for one in results if (one.label, one.load) == (label, load)]
        cells = [_spread([one.metrics.get(name) for one in same], SHOWN[name][1]) for name in names]
        row(made, label, f"{load:g}", len(same), *cells)
    console().print(made)


def _spread(values: Sequence[float | None], unit: float) -> str:
    known = [value / unit for value in values if value is not None]
    if not known:
        return ""
    mean = statistics.fmean(known)
    return f"{mean:.4g}" if len(known) == 1 else f"{mean:.4g} ± {statistics.stdev(known):.2g}"
