"""The page Job: why it runs or waits, its runs over time, its loss and speed, the use of its time, and its records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from metasched.core.reason_words import counted, words
from metasched.core.reasons import from_text
from metasched.presentation.formatting import (
    duration,
    gpus_text,
    progress_text,
    reason_fields,
    size,
    text_fields,
    where,
)
from metasched.store import RunRecord
from metasched.store.job_queries import ThroughputPoint
from metasched.store.time_use import TimeUse
from metasched.web.charts.gantt import Steps, gpu_steps
from metasched.web.charts.line_chart import LineChart, line_chart
from metasched.web.charts.stacked_bar import Part, stacked_bar
from metasched.web.job_details import JobDetails, find_job
from metasched.web.pages.queue import public_fields, state_of
from metasched.web.site import API, Page, View, json_response, site_of, wants_fragment
from metasched.web.text import tone

MOST_ROWS = 100
"""Rows of one table at most."""


def job_of(request: Request) -> tuple[View, JobDetails]:
    """The job that a request asks for, as its viewer may see it.

    Raises:
        HTTPException: 404 where there is no such job, or none that the viewer may see.
    """
    site = site_of(request)
    view = site.view(request)
    found = find_job(request.path_params["uid"], view, site.database)
    if found is None:
        raise HTTPException(404)
    return view, found


def run_blocks(runs: Sequence[RunRecord], submitted: float, now: float) -> Steps | None:
    """The runs that started, from the submission to the end of the last one; None before the first start."""
    begun = [(run, run.started, now if run.ended is None else run.ended) for run in runs if run.started is not None]
    if not begun:
        return None
    begin = min(submitted, begun[0][1]) if runs[0].run == 1 else begun[0][1]
    end = max(until for _, _, until in begun)
    blocks = list[tuple[float, float, int, str, str]]()
    for run, started, until in begun:
        gpus = run.placement.gpus if run.placement else 0
        lasted = f"{counted(gpus, 'GPU')} for {duration(until - started)}"
        title = f"Run {run.run}: {lasted}, {run.cause or 'not ended'}"
        blocks.append((started, until, gpus, run.cause or "", title))
    return gpu_steps(blocks, begin, max(end, begin + 1))


def loss_chart(found: JobDetails) -> LineChart | None:
    """The loss over the job's progress in steps; None where it is not known."""
    if found.past is None:
        return None
    points = [(point.progress, point.loss) for point in _latest_progress(found.past.points)]
    if not any(loss is not None for _, loss in points):
        points = [(point.progress_steps, point.loss) for point in found.past.losses]
    return line_chart("Loss", "", points)


def goodput_chart(found: JobDetails) -> LineChart | None:
    """The progress per second of training over time, where a step is worth more or less than one at the first batch."""
    points = () if found.past is None else found.past.points
    rates, before = list[tuple[float, float]](), (0, 0.0)
    for point in points:
        steps = point.step - before[0]
        if steps > 0:
            rates.append((point.at, point.steps_per_second * (point.progress - before[1]) / steps))
        before = point.step, point.progress
    if all(point.progress == point.step for point in points):
        return None
    return line_chart("Goodput", "first steps/s", sorted(rates), of_time=True, from_zero=True)


def batch_chart(found: JobDetails) -> LineChart | None:
    """The global batch over time; None where it never changed."""
    points = () if found.past is None else found.past.points
    if len({point.global_batch for point in points}) < 2:  # noqa: PLR2004  one batch is a constant
        return None
    batches = sorted((point.at, float(point.global_batch)) for point in points)
    return line_chart("Global batch", "samples", batches, of_time=True, from_zero=True)


def charts_of(found: JobDetails) -> list[LineChart]:
    """The charts of what the job has reported."""
    made = (loss_chart(found), speed_chart(found), goodput_chart(found), batch_chart(found))
    return [chart for chart in made if chart is not None]


def speed_chart(found: JobDetails) -> LineChart | None:
    """The optimizer steps per second over time; None where they are not known."""
    if found.past is None:
        return None
    points = sorted((point.at, point.steps_per_second) for point in found.past.points)
    return line_chart("Throughput", "steps/s", points, of_time=True, from_zero=True)


def _latest_progress(points: Sequence[ThroughputPoint]) -> list[ThroughputPoint]:
    """The points without those whose steps were lost and done again."""
    kept = list[ThroughputPoint]()
    for point in points:
        while kept and kept[-1].progress >= point.progress:
            kept.pop()
        kept.append(point)
    return kept


def time_parts(use: TimeUse | None) -> tuple[Part, ...]:
    """The use of the job's time on its resources, seconds."""
    if use is None:
        return ()
    known = [use.trained, use.data, use.sync, use.starting, use.stalled]
    rest = use.held - sum(amount for amount in known if amount is not None)
    parts = [
        ("trained", "training", use.trained),
        ("data", "waiting for data", use.data),
        ("sync", "waiting for other ranks", use.sync),
        ("starting", "starting", use.starting),
        ("stalled", "stopped for checkpoints", use.stalled),
        ("rest", "not reported", max(0.0, rest)),
    ]
    return stacked_bar(parts, use.held)


def _runs_table(runs: Sequence[RunRecord], now: float, *, detailed: bool) -> list[dict[str, Any]]:
    return [
        {
            "run": run.run,
            "started": run.started,
            "ran": None if run.started is None else duration(run.seconds_at(now)),
            "where": "" if (held := run.placement or run.released) is None else where(dict(held.node_gpus)),
            "gpus": None if held is None else held.gpus,
            "ended": "runs now" if run.ended is None and run.started is not None else run.cause or "not started yet",
            "init": None if run.init_seconds is None or not detailed else f"{run.init_seconds:.1f} s",
        }
        for run in reversed(runs[-MOST_ROWS:])
    ]


def _page(request: Request) -> Response:
    view, found = job_of(request)
    past = found.past
    fragment = wants_fragment(request)
    runs = past.runs if past else ()
    values: dict[str, Any] = {
        "job": found.job,
        "found": found,
        "state": state_of(found.job),
        "tone": tone(found.job.uid),
        "gpus": gpus_text(found.job),
        "progress": progress_text(found.job),
        "blocks": run_blocks(runs, found.job.submitted, view.now),
        "app": found.job.app if _is_listed_app(view, found.job.app) else None,
    }
    charts = charts_of(found)
    return site_of(request).render(
        request,
        "job_now.html" if fragment else "job.html",
        view,
        runs=_runs_table(runs, view.now, detailed=found.is_detailed),
        charts_list=charts,
        charts_are_live=bool(charts) or (found.is_detailed and found.job.finished is None),
        chart_every=lambda chart: -(-len(chart.rows) // MOST_ROWS),
        size=size,
        parts=time_parts(found.use),
        words_of=words,
        text_of=lambda text: words(from_text(text)),
        **values,
    )


def _is_listed_app(view: View, app: str | None) -> bool:
    return view.status is not None and any(one.uid == app for one in view.status.apps)


def _json(request: Request) -> Response:
    view, found = job_of(request)
    past = found.past
    data: dict[str, Any] = {
        "published": view.status.published if view.status else None,
        "problem": view.warning,
        "job": public_fields(found.job),
        "words": [*found.words, *found.story, *found.use_words],
        "history": past is not None,
    }
    if past is not None:
        data |= {
            "runs": [asdict(run) if found.is_detailed else public_run(run) for run in past.runs],
            "decisions": [{**asdict(one), **reason_fields(one.reason)} for one in past.decisions],
            "actions": [
                {"at": one.at, "round": one.round, "kind": one.kind, "outcome": one.outcome} for one in past.actions
            ],
            "events": [{"at": one.at, "kind": one.kind, **text_fields(one.text)} for one in past.events],
            "time_use": None if found.use is None else asdict(found.use),
            "batches": [asdict(one) for one in past.batches],
            "checkpoints": [asdict(one) for one in past.checkpoints],
            "forecasts": [{**asdict(one), "covered": one.covered} for one in past.forecasts],
        }
    return json_response(request, "job", data)


def public_run(run: RunRecord) -> dict[str, Any]:
    """What everybody who may see a job sees of a run: where and when, and why it ended."""
    placement = None if run.placement is None else asdict(run.placement)
    facts = {"run": run.run, "placement": placement, "started": run.started, "ended": run.ended, "cause": run.cause}
    return {**facts, "suspended_seconds": run.suspended_seconds, "renewals": run.renewals}


def _series(request: Request) -> Response:
    """The lines of the charts, for the script that draws them; empty where the viewer may not see them."""
    _, found = job_of(request)
    offset = datetime.now(UTC).astimezone().utcoffset() or timedelta()
    return json_response(
        request,
        "job-series",
        {
            chart.key: {
                "name": chart.name,
                "unit": chart.unit,
                "of_time": chart.of_time,
                "utc_offset": offset.total_seconds(),
                "points": list(chart.rows),
            }
            for chart in charts_of(found)
        },
    )


PAGE = Page(
    routes=[
        Route("/job/{uid}", _page, name="job"),
        Route(f"{API}/job/{{uid}}", _json),
        Route(f"{API}/job/{{uid}}/series", _series),
    ]
)
