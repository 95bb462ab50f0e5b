"""The web page as an ASGI application: pages, static files, errors and security."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Sequence

import jinja2
import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from metasched.core.errors import MetaschedError
from metasched.web import pages, text
from metasched.web.access import Access, UnknownViewerError
from metasched.web.database import DatabaseReader
from metasched.web.published import PublishedStatus
from metasched.web.security import ReadingMethods, SecurityHeaders
from metasched.web.settings import WebSettings
from metasched.web.site import API, STATIC, Page, Site, local_path, site_of, version_of
from metasched.web.what_if_runs import WhatIfRuns

log = structlog.get_logger()

_MESSAGES = {
    400: "The address of this page cannot be understood.",
    403: "You may not see this page.",
    404: "There is nothing at this address, or nothing that you may see.",
    405: "This page can only be read.",
}
_ONE_YEAR = 365 * 24 * 3600


def create_application(settings: WebSettings) -> Starlette:
    """The application of one web page. It opens no file before the first request."""
    found = all_pages()
    site = Site(
        settings=settings,
        published=PublishedStatus(settings.shared),
        database=DatabaseReader(settings.database),
        access=Access(settings),
        what_ifs=WhatIfRuns(settings.state, settings.database, settings.simulation, settings.simulated_jobs),
        templates=_templates(),
        static_version=version_of(STATIC),
        navigation=[page for page in found if page.label],
    )
    routes = [route for page in found for route in page.routes]
    static = Mount(f"/static/{site.static_version}", _StaticFiles(directory=STATIC))
    application = Starlette(
        routes=[*routes, static],
        middleware=[
            Middleware(SecurityHeaders, frame_ancestors=settings.frame_ancestors),
            Middleware(ReadingMethods, routes=routes),
            Middleware(GZipMiddleware, minimum_size=1000, compresslevel=5),
            Middleware(_Failures),
        ],
        exception_handlers={
            HTTPException: _http_error,
            UnknownViewerError: _unknown_viewer,
            MetaschedError: _unavailable,
        },
    )
    application.state.site = site
    application.router.redirect_slashes = False  # a redirect would name the Host that the client sent
    return application


@functools.cache
def _templates() -> jinja2.Environment:
    """The templates; all applications of a process share them, so that each template is compiled once."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("metasched.web"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    text.register(environment)
    return environment


def all_pages() -> Sequence[Page]:
    """The pages of ``metasched/web/pages/``, in the order of the navigation."""
    names = sorted(module.name for module in pkgutil.iter_modules(pages.__path__))
    found: list[Page] = [importlib.import_module(f"{pages.__name__}.{name}").PAGE for name in names]
    return sorted(found, key=lambda page: page.order)


class _StaticFiles(StaticFiles):
    """Static files, which never change at an address: the address has a hash of all of them."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        """A file, to be kept by browsers and proxies."""
        response = await super().get_response(path, scope)
        response.headers["Cache-Control"] = f"public, max-age={_ONE_YEAR}, immutable"
        return response


class _Failures:
    """Answers 500 where a page fails, inside the security headers, and logs the error."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        began = False

        async def noting(message: Message) -> None:
            """Send a message of the response, and note that the response has begun: a second one cannot be sent."""
            nonlocal began
            began = True
            await send(message)

        try:
            await self._app(scope, receive, noting)
        except Exception as error:
            if began or scope["type"] != "http":
                raise
            request = Request(scope, receive)
            log.exception("page_failed", path=local_path(request)[:200], error=type(error).__name__)
            response = _error(request, 500, "The page failed. Its administrator finds the reason in its log.")
            await response(scope, receive, send)


def _http_error(request: Request, error: Exception) -> Response:
    code = error.status_code if isinstance(error, HTTPException) else 500
    headers = error.headers if isinstance(error, HTTPException) else None
    return _error(request, code, _MESSAGES.get(code, "The page cannot be shown."), headers)


def _unknown_viewer(request: Request, error: Exception) -> Response:
    log.warning("viewer_unknown", error=str(error), path=local_path(request)[:200])
    return _error(request, 403, getattr(error, "public", _MESSAGES[403]))


def _unavailable(request: Request, error: Exception) -> Response:
    log.warning("page_unavailable", error=str(error), path=local_path(request)[:200])
    return _error(request, 503, "The history cannot be read now. The page's administrator finds the reason in its log.")


def _error(request: Request, code: int, message: str, headers: object = None) -> Response:
    kept = dict(headers) if isinstance(headers, dict) else None
    if local_path(request).startswith(f"{API}/"):
        return JSONResponse({"error": message}, code, kept)
    response = site_of(request).render(request, "error.html", code=code, status_code=code, message=message)
    response.headers.update(kept or {})
    return response
