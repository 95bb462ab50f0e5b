"""Security of every response: headers, and methods that change nothing."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.datastructures import MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.routing import BaseRoute, Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_READING = ("GET", "HEAD")


class SecurityHeaders:
    """Adds the security headers, and ``Cache-Control: private`` where a response has no other.

    Scripts, styles, images and data come from this site alone, and none of them stands in the page itself.
    """

    def __init__(self, app: ASGIApp, *, frame_ancestors: Sequence[str]) -> None:
        self._app = app
        ancestors = " ".join(frame_ancestors) or "'none'"
        self._headers = {
            "Content-Security-Policy": (
                "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
                f"form-action 'self'; base-uri 'none'; frame-ancestors {ancestors}"
            ),
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "same-origin",
            "Cross-Origin-Opener-Policy": "same-origin",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
        }
        if not frame_ancestors:
            self._headers["X-Frame-Options"] = "DENY"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in self._headers.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "private, no-cache")
            await send(message)

        await self._app(scope, receive, send_with_headers)


class ReadingMethods:
    """Answers 405 to every method but GET and HEAD, and POST where a route takes it."""

    def __init__(self, app: ASGIApp, *, routes: Sequence[BaseRoute]) -> None:
        self._app = app
        self._posts = [route for route in routes if isinstance(route, Route) and "POST" in (route.methods or ())]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "http" and scope["method"] not in _READING and not self._is_known_post(scope):
            refusal = PlainTextResponse("This page can only be read.\n", 405, {"Allow": ", ".join(_READING)})
            await refusal(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _is_known_post(self, scope: Scope) -> bool:
        return scope["method"] == "POST" and any(route.matches(scope)[0] is Match.FULL for route in self._posts)
