"""Plots of results as SVG files. This module alone needs matplotlib."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from metasched.core.errors import MetaschedError
from metasched.simulator.results import Result

HOUR = 3600.0


class NoMatplotlibError(MetaschedError):
    """matplotlib, which plots need, is not installed."""


def draw(results: Sequence[Result], directory: Path) -> list[Path]:
    """Draw JCT against load, CDFs of JCT and fairness, and the allocation over time; returns the files.

    Raises:
        NoMatplotlibError: matplotlib is not installed.
    """
    try:
        import matplotlib as mpl  # noqa: PLC0415  only plots need it, and it is slow to import
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ImportError as error:
        raise NoMatplotlibError("plots need matplotlib: pip install 'metasched[simulator]'") from error
    mpl.rcParams["svg.hashsalt"] = "metasched"  # the same results give the same file
    directory.mkdir(parents=True, exist_ok=True)
    labels = list(dict.fromkeys(one.label for one in results))
    loads = sorted({one.load for one in results})
    files = []

    def page(
        name: str, x: str, y: str, lines: Mapping[str, tuple[Sequence[float], Sequence[float]]], **style: Any
    ) -> None:
        figure = Figure(figsize=(6.4, 4.0), layout="constrained")
        axes = figure.add_subplot()
        for label, (xs, ys) in lines.items():
            if xs:
                axes.plot(xs, ys, label=label, **style)
        axes.set(xlabel=x, ylabel=y)
        axes.grid(visible=True, alpha=0.3)
        if axes.lines:
            axes.legend(fontsize="small")
        path = directory / f"{name}.svg"
        figure.savefig(path, metadata={"Date": None})
        files.append(path)

    if len(loads) > 1:
        page(
            "jct-against-load",
            "load",
            "mean JCT (hours)",
            {label: _against_load(results, label, loads) for label in labels},
            marker="o",
        )
    for load in loads:
        chosen = [one for one in results if one.load == load]
        end = f"-load-{load:g}" if len(loads) > 1 else ""
        jct = {label: _hours(chosen, label) for label in labels}
        rho = {label: _rho(chosen, label) for label in labels}
        page(
            f"jct{end}", "JCT (hours)", "fraction of jobs", {k: cdf(v) for k, v in jct.items()}, drawstyle="steps-post"
        )
        page(
            f"fairness{end}",
            "finish-time fairness (rho)",
            "fraction of jobs",
            {k: cdf(v) for k, v in rho.items()},
            drawstyle="steps-post",
        )
        first = {label: next((one for one in chosen if one.label == label), None) for label in labels}
        page(
            f"allocation{end}",
            "time (hours)",
            "GPUs held",
            {k: ([at / HOUR for at, _ in v.allocation], [n for _, n in v.allocation]) for k, v in first.items() if v},
            drawstyle="steps-post",
            linewidth=0.8,
        )
    return files


def cdf(values: Iterable[float]) -> tuple[list[float], list[float]]:
    """The cumulative distribution: values ascending, and for each the fraction of values up to it."""
    found = sorted(values)
    return found, [(i + 1) / len(found) for i in range(len(found))]


def _against_load(results: Sequence[Result], label: str, loads: Sequence[float]) -> tuple[list[float], list[float]]:
    means = {load: [h for one in results if one.load == load for h in _hours([one], label)] for load in loads}
    present = [load for load in loads if means[load]]
    return present, [statistics.fmean(means[load]) for load in present]


def _hours(results: Iterable[Result], label: str) -> list[float]:
    jobs = (job for one in results if one.label == label for job in one.jobs)
    return [(job.finished - job.submitted) / HOUR for job in jobs if job.finished is not None]


def _rho(results: Iterable[Result], label: str) -> list[float]:
    return [job.rho for one in results if one.label == label for job in one.jobs if job.rho is not None]
