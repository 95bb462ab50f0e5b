"""The process of the web page: its socket, whom it answers, its limits on slow clients, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import grp
import ipaddress
import os
import pwd
import signal
import socket
import stat
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import structlog
import uvicorn
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from metasched.core.errors import MetaschedError

log = structlog.get_logger()

REQUEST_SECONDS = 20.0
"""Longest time from a connection, or from the end of a response, to the next whole request head."""
RESPONSE_SECONDS = 60.0
"""Longest time from a request head to the end of its response, until which the client has to read it."""
CONNECTIONS = 600
"""Most connections at once; a further one is closed. Files of the process: below systemd's soft limit of 1,024."""
_SHUTDOWN_SECONDS = 5
_ENDING = (signal.SIGINT, signal.SIGTERM)


class WebStartError(MetaschedError):
    """The web page cannot listen where it was told to."""


def unix_socket(path: Path, mode: int, group: str = "") -> socket.socket:
    """A listening Unix socket; the socket of a process that has ended is replaced.

    Raises:
        WebStartError: the path is in use, cannot be written, or the group is not known.
    """
    if _is_answered(path):
        raise WebStartError(f"{path}: another process listens here; is `metasched web` running already?")
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o177)  # nobody else connects before the permissions are those of the configuration
    try:
        if path.is_socket():
            path.unlink()
        made.bind(str(path))
        if group:
            os.chown(path, -1, grp.getgrnam(group).gr_gid)
        path.chmod(mode)
        made.listen(256)
    except KeyError:
        made.close()
        raise WebStartError(f"[web] socket_group: there is no Unix group {group}; create it, or name another") from None
    except OSError as error:
        made.close()
        raise WebStartError(
            f"{path}: cannot listen ({error.strerror or error}); check [web] socket and who may write to its directory"
        ) from None
    finally:
        os.umask(mask)
    return made


def loopback_socket(listen: str) -> socket.socket:
    """A listening TCP socket at ``HOST:PORT``, where HOST is an address of this host alone.

    Raises:
        WebStartError: the address is wrong, in use, or other hosts could reach it.
    """
    host, _, port = listen.rpartition(":")
    host = {"": "127.0.0.1", "localhost": "127.0.0.1"}.get(host, host.strip("[]"))
    try:
        address, number = ipaddress.ip_address(host), int(port)
    except ValueError:
        raise WebStartError(f"--listen {listen}: give an address and a port, such as 127.0.0.1:8080") from None
    if not address.is_loopback:
        raise WebStartError(
            f"--listen {listen}: other hosts could reach this address, and nobody checks there who asks; "
            "leave out --listen, and let the site's web server pass requests to the Unix socket (docs/admin/WEB.md)"
        )
    made = socket.socket(socket.AF_INET6 if address.version == 6 else socket.AF_INET, socket.SOCK_STREAM)  # noqa: PLR2004  IPv6
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((str(address), number))
        made.listen(256)
    except (OSError, OverflowError) as error:
        made.close()
        raise WebStartError(f"--listen {listen}: cannot listen ({error}); choose another port") from None
    return made


def serve(application: ASGIApp, listener: socket.socket, *, root_path: str = "", peers: Sequence[str] = ()) -> None:
    """Answer requests until SIGTERM or SIGINT; then finish those that have begun, for some seconds.

    Args:
        application: the web page.
        listener: a listening socket; a Unix socket's file is removed at the end.
        root_path: the path below which the site's proxy shows the page.
        peers: Unix users whose processes may connect to a Unix socket; none for all.

    Raises:
        WebStartError: a peer is not a user of this host.
    """
    is_unix = listener.family is socket.AF_UNIX
    allowed = frozenset(map(_number_of, peers)) if is_unix and peers else None
    hosts = ["127.0.0.1", "localhost", "[::1]"]  # of TCP: another name here is another site's
    config = uvicorn.Config(
        application if is_unix else TrustedHostMiddleware(application, hosts, www_redirect=False),
        http=_protocol(allowed),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        root_path=root_path,
        h11_max_incomplete_event_size=32 * 1024,
        timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
    )
    path = Path(listener.getsockname()) if is_unix else None
    log.info("web_started", address=str(path or listener.getsockname()))
    try:
        _Server(config).run(sockets=[listener])
    finally:
        if path is not None:
            path.unlink(missing_ok=True)
        log.info("web_ended")


class _Server(uvicorn.Server):
    """A server that ends with success after a signal."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle the ending signals within the block, and send none of them again after it."""
        before = {number: signal.signal(number, self.handle_exit) for number in _ENDING}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class LimitedProtocol(H11Protocol):
    """One connection with HTTP/1.1, with limits on its time, for the processes of some users.

    Attributes:
        allowed: numbers of the Unix users whose processes may connect; None for all.
    """

    allowed: ClassVar[frozenset[int] | None] = None
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection, or close it at once."""
        super().connection_made(transport)
        if len(self.connections) > CONNECTIONS:
            log.warning("web_too_many_connections", most=CONNECTIONS)
            transport.abort()
        elif self.allowed is not None and (user := _peer(transport)) not in self.allowed:
            log.warning("web_peer_refused", user=user)
            transport.abort()
        else:
            self._expect(REQUEST_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget a connection that has ended."""
        self._expect(None)
        super().connection_lost(exc)

    def handle_events(self) -> None:
        """Handle what has arrived; a request that begins has the time of a response."""
        before = self.cycle
        super().handle_events()
        if self.cycle is not before:
            self._expect(RESPONSE_SECONDS)

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        self._expect(REQUEST_SECONDS)
        super().on_response_complete()

    def _expect(self, seconds: float | None) -> None:
        """Close the connection after some seconds, in place of an earlier deadline; None for never."""
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if seconds is not None:
            self._deadline = self.loop.call_later(seconds, self.transport.abort)


def _protocol(allowed: frozenset[int] | None) -> type[asyncio.Protocol]:
    return type("Protocol", (LimitedProtocol,), {"allowed": allowed})


def _peer(transport: asyncio.Transport) -> int:
    """The number of the Unix user whose process has connected."""
    found: Any = transport.get_extra_info("socket")
    credentials = found.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[1])


def _number_of(user: str) -> int:
    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError:
        raise WebStartError(f"[web] proxy_users: there is no Unix user {user}; create it, or name another") from None


def _is_answered(path: Path) -> bool:
    try:
        if not stat.S_ISSOCK(path.stat().st_mode):
            return False
    except OSError:
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True
