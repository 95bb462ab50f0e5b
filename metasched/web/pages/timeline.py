"""The page Timeline: which jobs were on each node, or where each job ran, in a window of time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from metasched.core.reason_words import counted
from metasched.presentation.formatting import duration, where
from metasched.store.window_queries import JobLabel, RunSpan
from metasched.web import query
from metasched.web.access import Viewer
from metasched.web.charts.gantt import Gantt, Span, gantt
from metasched.web.site import API, Page, Site, View, address, json_response, site_of
from metasched.web.text import plain, tone
from metasched.web.time_window import Window

ROWS = 32
"""Nodes or jobs of one page."""
MOST_RUNS = 4000
"""Runs that are read for one window; of more, the longest."""
MOST_BARS = 800
"""Bars of one page; of more, the longest."""
MOST_MARKS = 96
TABLE_ROWS = 100
SUBJECTS = ("nodes", "jobs")
_SPANS = ("1h", "6h", "1d", "7d")


@dataclass(frozen=True, slots=True)
class SeenRun:
    """A run of the window as a viewer may see it; ``label`` is None for another user's job, which is hidden."""

    run: RunSpan
    label: JobLabel | None


@dataclass(frozen=True, slots=True)
class Timeline:
    """One page of the timeline.

    Attributes:
        window: the window of time.
        by: one of ``SUBJECTS``.
        rows: names of the rows of this page; of jobs, their uids.
        runs: the runs of this page, by start.
        rounds: instants of rounds.
        left_out: runs of the window that are not among ``runs`` because there are too many.
        page: number of the page.
        pages: number of pages.
    """

    window: Window
    by: str
    rows: Sequence[str]
    runs: Sequence[SeenRun]
    rounds: Sequence[float]
    left_out: int
    page: int
    pages: int


def read_timeline(request: Request, site: Site, view: View) -> Timeline:
    """The part of the timeline that a request asks for.

    Raises:
        StoreError: the database cannot be read.
    """
    window = Window.of(request, view.now, "6h", _SPANS)
    by = query.choice(request, "by", SUBJECTS, "nodes")
    with site.database.reading() as store:
        found = store.runs_between(window.begin, window.end, view.now, MOST_RUNS)
        labels = store.job_labels({run.uid for run in found.runs})
        rounds = [at for _, at in store.round_instants(window.begin, window.end, MOST_MARKS)]
    seen = [SeenRun(run, _visible(labels.get(run.uid), view.viewer)) for run in found.runs]
    names = _nodes(view, seen) if by == "nodes" else _jobs(seen)
    rows, page, pages = query.page_of(names, query.number(request, "page", 1), ROWS)
    shown = [one for one in seen if not set(rows).isdisjoint(_rows_of(one, by))]
    longest = sorted(shown, key=lambda one: -_held(one.run, window, view.now))[:MOST_BARS]
    kept = sorted(longest, key=lambda one: (one.run.started, one.run.uid))
    return Timeline(window, by, rows, kept, rounds, found.left_out + len(shown) - len(kept), page, pages)


def _visible(label: JobLabel | None, viewer: Viewer) -> JobLabel | None:
    return label if label is not None and viewer.may_see(label) else None


def _nodes(view: View, seen: Sequence[SeenRun]) -> list[str]:
    """The nodes of the status in their order, then those of the runs that are gone."""
    known = [node.name for node in view.status.nodes] if view.status else []
    gone = {node for one in seen for node in one.run.placement.nodes} - set(known)
    return known + sorted(gone)


def _jobs(seen: Sequence[SeenRun]) -> list[str]:
    """The visible jobs, by their first start in the window."""
    return list(dict.fromkeys(one.run.uid for one in seen if one.label is not None))


def _rows_of(one: SeenRun, by: str) -> Sequence[str]:
    return one.run.placement.nodes if by == "nodes" else (one.run.uid,)


def _held(run: RunSpan, window: Window, now: float) -> float:
    return min(now if run.ended is None else run.ended, window.end) - max(run.started, window.begin)


def chart_of(request: Request, timeline: Timeline, now: float) -> Gantt:
    """The chart of one page."""
    spans: dict[str, list[Span]] = {row: [] for row in timeline.rows}
    names: dict[str, tuple[str, str]] = {row: (row, "") for row in timeline.rows}
    for one in timeline.runs:
        span = _span(request, one, timeline, now)
        for row in _rows_of(one, timeline.by):
            if row in spans:
                spans[row].append(span)
        if timeline.by == "jobs" and one.label is not None and one.run.uid in names:
            link = address(request, f"/job/{one.run.uid}")
            names[one.run.uid] = (f"{one.label.slurm_job_id} {one.label.name}", link)
    rows = [(*names[row], spans[row]) for row in timeline.rows]
    return gantt(rows, timeline.window.begin, timeline.window.end, timeline.rounds)


def _span(request: Request, one: SeenRun, timeline: Timeline, now: float) -> Span:
    run, label = one.run, one.label
    end = now if run.ended is None else run.ended
    lasted = f"{counted(run.placement.gpus, 'GPU')} for {duration(end - run.started)}"
    ended = "not ended" if run.ended is None else str(run.cause or "ended")
    if label is None:
        return Span(run.started, end, "", f"another user's job: {lasted}", open=run.ended is None)
    name = label.slurm_job_id if timeline.by == "nodes" else f"{run.placement.gpus} GPU"
    return Span(
        begin=run.started,
        end=end,
        label=name,
        title=f"{label.slurm_job_id} {plain(label.name, 60)} of {label.user}, run {run.run}: {lasted}, {ended}",
        tone=tone(run.uid),
        href=address(request, f"/job/{run.uid}"),
        open=run.ended is None,
        cause=str(run.cause or ""),
    )


def public_row(one: SeenRun) -> Mapping[str, Any]:
    """A run as the table and JSON have it; a hidden job has no names."""
    run, label = one.run, one.label
    return {
        "uid": label.uid if label else None,
        "slurm_job_id": label.slurm_job_id if label else None,
        "name": label.name if label else None,
        "user": label.user if label else None,
        "run": run.run if label else None,
        "gpus": run.placement.gpus,
        "nodes": dict(run.placement.node_gpus),
        "started": run.started,
        "ended": run.ended,
        "cause": run.cause if label else None,
    }


def _page(request: Request) -> Response:
    site = site_of(request)
    view = site.view(request)
    timeline = read_timeline(request, site, view)
    return site.render(
        request,
        "timeline.html",
        view,
        timeline=timeline,
        chart=chart_of(request, timeline, view.now),
        rows=[public_row(one) for one in timeline.runs[:TABLE_ROWS]],
        later=timeline.window.later(view.now),
        spans=_SPANS,
        where=where,
        tone=tone,
    )


def _json(request: Request) -> Response:
    site = site_of(request)
    view = site.view(request)
    timeline = read_timeline(request, site, view)
    return json_response(
        request,
        "timeline",
        {
            "begin": timeline.window.begin,
            "end": timeline.window.end,
            "by": timeline.by,
            "page": timeline.page,
            "pages": timeline.pages,
            "left_out": timeline.left_out,
            "rounds": list(timeline.rounds),
            "runs": [public_row(one) for one in timeline.runs],
        },
    )


PAGE = Page(
    routes=[Route("/timeline", _page, name="timeline"), Route(f"{API}/timeline", _json)],
    label="Timeline",
    path="/timeline",
    order=30,
)
