"""What the pages of one running web page share: status, database, access and templates."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote, urlencode

import jinja2
import structlog
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import BaseRoute

from metasched.presentation.formatting import duration
from metasched.presentation.job_explanation import is_stale
from metasched.shared_dir.published_status import Status
from metasched.web import text
from metasched.web.access import Access, Viewer
from metasched.web.database import DatabaseReader
from metasched.web.published import Publication, PublishedStatus
from metasched.web.settings import WebSettings
from metasched.web.visible_jobs import VisibleJobs
from metasched.web.what_if_runs import WhatIfRuns

log = structlog.get_logger()

STATIC = Path(__file__).parent / "static"
_CLOCK_SECONDS = 60.0  # difference of clocks that is not worth a warning
_OK = 200
API = "/api/v1"
"""Path below which the pages' data are JSON; its number changes when a client must change."""


@dataclass(frozen=True, slots=True)
class Page:
    """What a module of ``metasched/web/pages/`` exports as ``PAGE``.

    Attributes:
        routes: the page's routes, its fragments and its JSON.
        label: the page's name in the navigation; "" for a page that is only linked from others.
        path: the address that the navigation leads to.
        order: place in the navigation.
    """

    routes: Sequence[BaseRoute]
    label: str = ""
    path: str = ""
    order: int = 0


@dataclass(frozen=True, slots=True)
class View:
    """One request as a page sees it: the viewer, and the published status of one instant.

    Attributes:
        viewer: the user who asks.
        publication: the published status.
        jobs: the publication's jobs as the viewer may see them.
        now: the present instant, unix seconds.
    """

    viewer: Viewer
    publication: Publication
    jobs: VisibleJobs
    now: float

    @property
    def status(self) -> Status | None:
        """The published status; None where there is none. ``jobs`` has its jobs as the viewer may see them."""
        return self.publication.status

    @property
    def trouble(self) -> str:
        """Why the status may not be the present one, in a word; "" for a status of now."""
        status = self.status
        if status is None:
            return "missing"
        if self.publication.problem:
            return "unreadable"
        if status.published > self.now + _CLOCK_SECONDS:
            return "future"
        return "old" if is_stale(status, self.now) else ""

    @property
    def warning(self) -> str:
        """The same in sentences for people."""
        status, trouble = self.status, self.trouble
        if status is None:
            return "No status of the daemon can be read. It may not be running, or the page may have no access to it."
        if trouble == "unreadable":
            return (
                f"The newest status cannot be read. What you see was published {text.ago(status.published, self.now)}."
            )
        if trouble == "future":
            return "The newest status comes from the future: the clock of this host or the daemon's was set."
        if trouble == "old":
            return (
                f"The daemon has published nothing for {duration(self.now - status.published)}. "
                "It is stopped or hangs. Running jobs continue without it."
            )
        return ""


class Troubles:
    """Logs once when the status ceases to be the present one, or is so again."""

    def __init__(self) -> None:
        self._last = ""

    def note(self, view: View) -> None:
        """Compare a request's view with the one before."""
        if view.trouble != self._last:
            self._last = view.trouble
            if view.trouble:
                log.warning("status_not_present", trouble=view.trouble, told=view.warning)
            else:
                log.info("status_present")


@dataclass(frozen=True, slots=True)
class Site:
    """What requests share; ``site_of(request)`` finds it."""

    settings: WebSettings
    published: PublishedStatus
    database: DatabaseReader
    access: Access
    what_ifs: WhatIfRuns
    templates: jinja2.Environment
    static_version: str
    navigation: Sequence[Page] = field(default_factory=tuple)
    troubles: Troubles = field(default_factory=Troubles)

    def view(self, request: Request) -> View:
        """The viewer and the present status of a request.

        Raises:
            UnknownViewerError: the request names no user that can be believed.
        """
        publication = self.published.current()
        private = publication.status is not None and publication.status.jobs_are_private
        viewer = self.access.viewer(request, jobs_private=private)
        view = View(viewer, publication, VisibleJobs(publication, viewer), time.time())
        self.troubles.note(view)
        return view

    def render(
        self, request: Request, template: str, view: View | None = None, *, code: int = 200, **values: Any
    ) -> Response:
        """A page or a fragment, with an ETag.

        Templates have the ``values``, ``view``, ``path(PATH, **query)`` for an address of this site, ``static(FILE)``,
        ``here`` (the request's path) and ``navigation``.
        """

        def path(target: str, /, **query: Any) -> str:
            return address(request, target, **query)

        rendered = self.templates.get_template(template).render(
            view=view,
            path=path,
            static=lambda name: path(f"/static/{self.static_version}/{name}"),
            here=local_path(request),
            navigation=self.navigation,
            **values,
        )
        return tagged(request, HTMLResponse(rendered, code))


def wants_fragment(request: Request) -> bool:
    """Whether htmx asks for the part of a page that changes, and not for the whole page."""
    return bool(request.headers.get("hx-request"))


def site_of(request: Request) -> Site:
    """The site that a request is for."""
    return cast("Site", request.app.state.site)


def address(request: Request, target: str, /, **query: Any) -> str:
    """An address of this site for links, below the proxy's path and escaped; empty query values are left out."""
    given = {name: str(value) for name, value in query.items() if value is not None and value != ""}
    root = request.scope.get("root_path", "")
    return quote(f"{root}{target}") + (f"?{urlencode(given)}" if given else "")


def local_path(request: Request) -> str:
    """The request's path below the proxy's path."""
    path: str = request.scope["path"]
    root: str = request.scope.get("root_path", "")
    return path.removeprefix(root) or "/"


def json_response(request: Request, kind: str, data: Mapping[str, Any]) -> Response:
    """Data as a JSON object with an ETag; ``kind`` says which, as ``metasched.KIND/1``."""
    return tagged(request, JSONResponse({"format": f"metasched.{kind}/1", **data}))


def tagged(request: Request, response: Response) -> Response:
    """The response with an ETag, or 304 without content where the client has the same already."""
    tag = f'W/"{hashlib.blake2b(bytes(response.body), digest_size=12).hexdigest()}"'
    response.headers["ETag"] = tag
    if response.status_code == _OK and tag in _tags(request.headers.getlist("if-none-match")):
        return Response(status_code=304, headers={"ETag": tag})
    return response


def _tags(headers: Iterable[str]) -> set[str]:
    return {tag.strip() for header in headers for tag in header.split(",")}


def version_of(directory: Path) -> str:
    """A short hash of all files in a directory: a new address for static files whenever one of them changes."""
    digest = hashlib.blake2b(digest_size=6)
    for file in sorted(path for path in directory.rglob("*") if path.is_file()):
        digest.update(json.dumps(str(file.relative_to(directory))).encode() + file.read_bytes())
    return digest.hexdigest()
