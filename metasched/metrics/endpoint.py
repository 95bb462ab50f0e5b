"""A small HTTP endpoint that serves the file of metrics, for Prometheus."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import BoundedSemaphore, Thread
from typing import Any

import structlog

PATH = "/metrics"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
REQUEST_SECONDS = 10.0
MAX_REQUESTS = 8
"""Requests that are served at once; further ones are refused."""

log = structlog.get_logger()


def parse_address(text: str) -> tuple[str, int]:
    """Return host and port of ``127.0.0.1:9410`` or ``[::1]:9410``.

    Raises:
        ValueError: the text has another form.
    """
    match = re.fullmatch(r"(?:\[([0-9a-fA-F:]+)\]|([A-Za-z0-9.-]+)):([0-9]{1,5})", text, re.ASCII)
    if match is None or not 1 <= int(match[3]) <= 65535:  # noqa: PLR2004  the largest port
        raise ValueError("must be HOST:PORT, such as 127.0.0.1:9410")
    return match[1] or match[2], int(match[3])


@contextmanager
def endpoint(listen: str, file: Path) -> Iterator[None]:
    """Serve a file at ``/metrics`` while the context lasts; an address that cannot be used is logged, no error.

    Args:
        listen: host and port; "" for no endpoint.
        file: the file of metrics, which is replaced as a whole.
    """
    if not listen:
        yield
        return
    try:
        server = _Server(parse_address(listen), file)
    except (OSError, ValueError) as error:
        log.warning("metrics_not_served", listen=listen, error=str(error), effect="their file is still written")
        yield
        return
    thread = Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    log.info("metrics_served", listen=listen, path=PATH)
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join(REQUEST_SECONDS)


class _Server(ThreadingHTTPServer):
    """Serves one file to a few clients at once."""

    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], file: Path) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.file = file
        self._free = BoundedSemaphore(MAX_REQUESTS)
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a request in a thread of its own, unless many are being served."""
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve the request, then let another one in."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002  the library's signature
        """Log an error of one request; the daemon goes on."""
        log.debug("metrics_request_failed", client=str(client_address))


class _Handler(BaseHTTPRequestHandler):
    """Answers GET and HEAD of the one path."""

    server: _Server
    timeout = REQUEST_SECONDS
    server_version = "metasched"
    sys_version = ""

    def do_GET(self) -> None:
        """Send the file."""
        self._answer(body=True)

    def do_HEAD(self) -> None:
        """Send the headers of the file."""
        self._answer(body=False)

    def _answer(self, *, body: bool) -> None:
        if self.path.partition("?")[0] != PATH:
            self.send_error(HTTPStatus.NOT_FOUND, explain=f"The metrics are at {PATH}.")
            return
        try:
            content = self.server.file.read_bytes()
        except OSError as error:
            self.send_error(HTTPStatus.SERVICE_UNAVAILABLE, explain=f"No metrics yet: {error.strerror}.")
            return
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if body:
            self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the library's name
        """Log requests at the debug level only."""
        log.debug("metrics_request", text=format % args)
