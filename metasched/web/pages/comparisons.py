"""The page Comparisons: results of `metasched compare` below a directory of the configuration."""

from __future__ import annotations

import csv
import io
import itertools
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, stdev

import structlog
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from metasched.web import query
from metasched.web.site import API, Page, json_response, site_of

TABLE = "summary.csv"
"""File in the directory of a comparison, with a row for each simulation."""
METRICS: Mapping[str, tuple[str, float]] = {
    "jct_mean": ("Mean JCT, h", 3600.0),
    "jct_median": ("Median JCT, h", 3600.0),
    "jct_p99": ("99th percentile, h", 3600.0),
    "makespan": ("Makespan, h", 3600.0),
    "queueing_mean": ("Mean wait, h", 3600.0),
    "utilization": ("Utilisation, %", 0.01),
    "rho_worst_pollux": ("Worst rho", 1.0),
    "unfair_pollux": ("Unfair jobs, %", 0.01),
    "preemptions_mean": ("Preemptions", 1.0),
    "cost": ("Cost", 1.0),
    "unfinished": ("Unfinished", 1.0),
}
"""Metrics that are shown: heading, and the unit as a factor."""
HIGHER_IS_BETTER = ("utilization",)
MOST_COMPARISONS = 100
_MOST_ROWS = 5000
_MOST_CHARACTERS = 4 << 20

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Value:
    """A metric's mean over the seeds, in the unit of its heading, its standard deviation, and if it is the best.

    ``spread`` is None for a single seed.
    """

    mean: float
    spread: float | None
    is_best: bool = False


@dataclass(frozen=True, slots=True)
class Compared:
    """One policy at one load: the number of seeds, and the metrics in the order of ``Comparison.metrics``."""

    policy: str
    load: str
    seeds: int
    values: tuple[Value | None, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """One comparison: its name, the metrics that it has, and a row for each policy and load."""

    name: str
    metrics: tuple[str, ...]
    rows: tuple[Compared, ...]


def names_below(directory: Path | None) -> list[str]:
    """The directories below a directory that hold a comparison, sorted; none where it cannot be read."""
    if directory is None:
        return []
    try:
        with os.scandir(directory) as entries:
            found = [one.name for one in entries if one.is_dir() and (Path(one) / TABLE).is_file()]
    except OSError as error:
        log.warning("comparisons_unreadable", path=str(directory), error=error.strerror)
        return []
    return sorted(found)[:MOST_COMPARISONS]


def read_comparison(path: Path) -> Comparison | None:
    """Read the table of a comparison, its first 4 MiB; None where it is something else."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            text = io.StringIO(file.read(_MOST_CHARACTERS))
        rows = list(itertools.islice(csv.DictReader(text), _MOST_ROWS))
        return _comparison(path.parent.name, rows)
    except (OSError, ValueError, KeyError, TypeError, csv.Error) as error:
        log.warning("comparison_unreadable", path=str(path), error=str(error))
        return None


def _comparison(name: str, rows: Sequence[Mapping[str, str]]) -> Comparison:
    metrics = tuple(one for one in METRICS if any(row.get(one) for row in rows))
    groups: dict[tuple[str, str], list[Mapping[str, str]]] = {}
    for row in rows:
        groups.setdefault((row["policy"], row["load"]), []).append(row)
    means = {
        key: {metric: _value([row[metric] for row in group], METRICS[metric][1]) for metric in metrics}
        for key, group in groups.items()
    }
    best = {(load, metric): _best(means, load, metric) for _, load in groups for metric in metrics}
    return Comparison(
        name,
        metrics,
        tuple(
            Compared(
                policy,
                load,
                len(group),
                tuple(_marked(means[policy, load][metric], best[load, metric]) for metric in metrics),
            )
            for (policy, load), group in groups.items()
        ),
    )


def _value(texts: Sequence[str], unit: float) -> Value | None:
    known = [float(text) / unit for text in texts if text]
    if not known or not all(map(math.isfinite, known)):
        return None
    return Value(fmean(known), stdev(known) if len(known) > 1 else None)


def _best(means: Mapping[tuple[str, str], Mapping[str, Value | None]], load: str, metric: str) -> float | None:
    """The best mean at a load; None where fewer than two policies have one."""
    known = [value.mean for (_, at), values in means.items() if at == load and (value := values[metric]) is not None]
    if len(known) < 2:  # noqa: PLR2004  one alone is not the best
        return None
    return max(known) if metric in HIGHER_IS_BETTER else min(known)


def _marked(value: Value | None, best: float | None) -> Value | None:
    return None if value is None else Value(value.mean, value.spread, value.mean == best)


def _found(request: Request) -> tuple[list[str], str, Comparison | None]:
    directory = site_of(request).settings.comparisons
    names = names_below(directory)
    chosen = query.choice(request, "name", names, names[0] if names else "")
    found = read_comparison(directory / chosen / TABLE) if directory is not None and chosen else None
    return names, chosen, found


def _page(request: Request) -> Response:
    site = site_of(request)
    view = site.view(request)
    names, chosen, found = _found(request)
    return site.render(
        request,
        "comparisons.html",
        view,
        names=names,
        chosen=chosen,
        found=found,
        headings={name: heading for name, (heading, _) in METRICS.items()},
        is_configured=site.settings.comparisons is not None,
    )


def _json(request: Request) -> Response:
    site_of(request).view(request)
    names, _, found = _found(request)
    data = {"names": names, "comparison": None if found is None else asdict(found)}
    return json_response(request, "comparisons", data)


PAGE = Page(
    routes=[Route("/policies/comparisons", _page, name="comparisons"), Route(f"{API}/policies/comparisons", _json)]
)
