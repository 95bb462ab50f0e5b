"""The page What-if: the live queue under other policies, simulated from the latest round when an admin asks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any
from urllib.parse import parse_qsl

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from metasched.core.errors import MetaschedError
from metasched.core.policy import installed_policies
from metasched.core.policy_text import PolicyTextError, parse_parameters
from metasched.forecast.what_if_result import WhatIfJob, WhatIfResult
from metasched.store.window_queries import JobLabel
from metasched.web import csrf, query
from metasched.web.site import API, Page, Site, View, address, json_response, site_of, wants_fragment
from metasched.web.what_if_runs import WhatIfError

PATH = "/policies/what-if"
ROWS = 50
"""Jobs of one page."""
MOST_POLICIES = 6
_MOST_BODY = 16 * 1024
_MOST_FIELDS = 100
_ACTION = "what-if"


@dataclass(frozen=True, slots=True)
class WhatIfView:
    """One kept what-if as a viewer may see it.

    Attributes:
        number: its number.
        result: the result, with the jobs that the viewer may see alone.
        labels: these jobs, by uid.
        hidden: jobs that the viewer may not see.
        rows: the jobs of this page.
        page: the page's number, from 1.
        pages: number of pages.
    """

    number: int
    result: WhatIfResult
    labels: Mapping[str, JobLabel]
    hidden: int
    rows: Sequence[WhatIfJob]
    page: int
    pages: int


def read_what_if(request: Request, site: Site, view: View, kept: Sequence[int]) -> WhatIfView | None:
    """The what-if that a request asks for by its number, else the latest one; None where there is none."""
    if not kept:
        return None
    asked = query.number(request, "number", kept[0])
    number = asked if asked in kept else kept[0]
    result = site.what_ifs.result(number)
    if result is None:
        return None
    try:
        with site.database.reading() as store:
            labels = store.job_labels({job.uid for job in result.jobs})
    except MetaschedError:
        labels = {}
    seen = {uid: label for uid, label in labels.items() if view.viewer.may_see(label)}
    shown = tuple(job for job in result.jobs if job.uid in seen)
    rows, page, pages = query.page_of(shown, query.number(request, "page", 1), ROWS)
    hidden = len(result.jobs) - len(shown)
    return WhatIfView(number, replace(result, jobs=shown), seen, hidden, rows, page, pages)


def _page(request: Request, *, problem: str = "", chosen: Sequence[str] = (), code: int = 200) -> Response:
    site = site_of(request)
    view = site.view(request)
    kept = site.what_ifs.kept()
    may_start = view.viewer.is_admin and site.settings.state is not None
    fragment = wants_fragment(request)
    return site.render(
        request,
        "what_if_now.html" if fragment else "what_if.html",
        view,
        code=code,
        kept=kept,
        running=site.what_ifs.running,
        found=read_what_if(request, site, view, kept),
        may_start=may_start,
        token=csrf.token(view.viewer.user, _ACTION) if may_start and not fragment else "",
        token_field=csrf.FIELD,
        installed=installed_policies().names() if may_start else (),
        most=MOST_POLICIES,
        problem=problem,
        chosen=chosen,
    )


def _show(request: Request) -> Response:
    return _page(request)


async def _start(request: Request) -> Response:
    """Start a what-if, and lead to the page; an admin's mistake is shown with the form."""
    site = site_of(request)
    view = site.view(request)
    if not view.viewer.is_admin:
        raise HTTPException(403)
    fields = await _fields(request)
    token = next((value for name, value in fields if name == csrf.FIELD), "")
    if not csrf.is_valid(token, view.viewer.user, _ACTION):
        return _page(request, problem="This form is too old, or not from this page. Send it again.", code=403)
    chosen = tuple(dict.fromkeys(value for name, value in fields if name == "policy" and value))
    written = (value.strip() for name, value in fields if name == "policies" for value in value.split(";"))
    asked = tuple(dict.fromkeys((*chosen, *(text for text in written if text))))
    try:
        _check(asked)
        site.what_ifs.start(asked, view.viewer.user)
    except (WhatIfError, PolicyTextError) as error:
        return _page(request, problem=str(error), chosen=chosen, code=409)
    return RedirectResponse(address(request, PATH), 303)


def _check(asked: Sequence[str]) -> None:
    if not asked:
        raise WhatIfError("Choose at least one policy.")
    if len(asked) > MOST_POLICIES:
        raise WhatIfError(f"Choose at most {MOST_POLICIES} policies.")
    registry = installed_policies()
    for text in asked:
        parse_parameters(text, registry)


async def _fields(request: Request) -> list[tuple[str, str]]:
    """The fields of a form that a browser sends.

    Raises:
        HTTPException: 400 where the body is too long or no form.
    """
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _MOST_BODY:
            raise HTTPException(400)
    try:
        return parse_qsl(body.decode("ascii"), keep_blank_values=True, max_num_fields=_MOST_FIELDS)
    except ValueError:
        raise HTTPException(400) from None


def _json(request: Request) -> Response:
    site = site_of(request)
    view = site.view(request)
    kept = site.what_ifs.kept()
    running, found = site.what_ifs.running, read_what_if(request, site, view, kept)
    data: dict[str, Any] = {
        "running": None if running is None else asdict(running),
        "kept": kept,
        "number": None if found is None else found.number,
        "result": None if found is None else asdict(replace(found.result, jobs=tuple(found.rows))),
        "page": 1 if found is None else found.page,
        "pages": 1 if found is None else found.pages,
        "hidden_jobs": 0 if found is None else found.hidden,
    }
    return json_response(request, "what-if", data)


PAGE = Page(
    routes=[
        Route(PATH, _show, name="what-if"),
        Route(PATH, _start, methods=["POST"]),
        Route(f"{API}{PATH}", _json),
    ]
)
