"""The page Policies: what the shadow policies would have decided, round by round, beside the live policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from metasched.core.errors import MetaschedError
from metasched.store import ShadowRecord
from metasched.store.window_queries import JobLabel
from metasched.web import query
from metasched.web.charts.line_chart import ComparisonChart, comparison_chart
from metasched.web.site import API, Page, Site, View, json_response, site_of, wants_fragment

ROUNDS = 100
"""Rounds of a shadow policy that are shown, the latest."""
_MOST_POLICIES = 20
_LATEST = 400  # rows that are looked through for the names of shadow policies
_LISTED = 20
_HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class ShadowView:
    """Shadow policies as a viewer may see them.

    Attributes:
        latest: the latest row of each shadow policy, by name.
        chosen: the policy whose rounds are shown; "" where there is none.
        rounds: its rounds, newest first.
        labels: jobs that the viewer may see, by uid, of those that its latest decision names.
        readable: whether the database could be read.
    """

    latest: Mapping[str, ShadowRecord]
    chosen: str
    rounds: Sequence[ShadowRecord]
    labels: Mapping[str, JobLabel]
    readable: bool = True

    def jobs(self, uids: Sequence[str]) -> tuple[list[JobLabel], int]:
        """The first jobs of a list that may be seen, and the number of all others."""
        seen = [self.labels[uid] for uid in uids if uid in self.labels][:_LISTED]
        return seen, len(uids) - len(seen)


def read_shadows(request: Request, site: Site, view: View) -> ShadowView:
    """The shadow policies, and the rounds of the one that a request asks for."""
    try:
        with site.database.reading() as store:
            latest: dict[str, ShadowRecord] = {}
            for one in store.recent_shadows(_LATEST):
                if len(latest) < _MOST_POLICIES:
                    latest.setdefault(one.policy, one)
            chosen = query.choice(request, "shadow", tuple(latest), next(iter(sorted(latest)), ""))
            rounds = store.recent_shadows(ROUNDS, chosen) if chosen else []
            named = {uid for one in rounds[:1] for uid in (*one.would_run, *one.would_not_run)}
            labels = store.job_labels(named)
    except MetaschedError:
        return ShadowView({}, "", (), {}, readable=False)
    seen = {uid: label for uid, label in labels.items() if view.viewer.may_see(label)}
    return ShadowView(dict(sorted(latest.items())), chosen, rounds, seen)


def charts_of(rounds: Sequence[ShadowRecord]) -> list[ComparisonChart]:
    """Mean job completion time in hours and worst rho by round: of the shadow policy, and of the live one beside it."""
    old = sorted(rounds, key=lambda one: one.at)
    if not old:
        return []
    lines = (old[-1].policy, f"{old[-1].live} (live)")
    hours = [(one.at, _hours(one.jct), _hours(one.live_jct)) for one in old]
    rhos = [(one.at, one.worst_rho, one.live_worst_rho) for one in old]
    made = (comparison_chart("Mean JCT in hours", lines, hours), comparison_chart("Worst rho", lines, rhos))
    return [chart for chart in made if chart is not None]


def _hours(seconds: float | None) -> float | None:
    return None if seconds is None else seconds / _HOUR


def _page(request: Request) -> Response:
    site = site_of(request)
    view = site.view(request)
    shadows = read_shadows(request, site, view)
    fragment = wants_fragment(request)
    return site.render(
        request,
        "policies_now.html" if fragment else "policies.html",
        view,
        shadows=shadows,
        charts_list=charts_of(shadows.rounds),
        problem=view.status.shadow_problem if view.status else "",
    )


def _json(request: Request) -> Response:
    site = site_of(request)
    view = site.view(request)
    shadows = read_shadows(request, site, view)
    return json_response(
        request,
        "policies",
        {
            "policy": view.status.policy if view.status else None,
            "problem": view.warning,
            "shadow_problem": view.status.shadow_problem if view.status else "",
            "readable": shadows.readable,
            "latest": [_public(one, shadows) for one in shadows.latest.values()],
            "shadow": shadows.chosen,
            "rounds": [_public(one, shadows) for one in shadows.rounds],
        },
    )


def _public(one: ShadowRecord, shadows: ShadowView) -> dict[str, Any]:
    """A row as JSON: of jobs that the viewer may not see, their number alone."""
    return {
        "round": one.round,
        "at": one.at,
        "policy": one.policy,
        "live": one.live,
        "gpus": one.gpus,
        "would_run": len(one.would_run),
        "would_not_run": len(one.would_not_run),
        "would_run_jobs": [uid for uid in one.would_run if uid in shadows.labels],
        "would_not_run_jobs": [uid for uid in one.would_not_run if uid in shadows.labels],
        "jct": one.jct,
        "worst_rho": one.worst_rho,
        "live_jct": one.live_jct,
        "live_worst_rho": one.live_worst_rho,
        "error": one.error,
    }


PAGE = Page(
    routes=[Route("/policies", _page, name="policies"), Route(f"{API}/policies", _json)],
    label="Policies",
    path="/policies",
    order=60,
)
