"""One HTTP POST to an address of the outside: no redirects, no private addresses, no endless answers."""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import socket
import ssl
import threading
from collections.abc import Mapping, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from urllib.parse import urlsplit

from metasched.core.errors import MetaschedError

STEP_SECONDS = 10.0
"""Longest wait for the connection, or for the next bytes of the answer."""
TOTAL_SECONDS = 30.0
"""Longest time of a whole delivery."""
_LONGEST_RETRY_AFTER = 3600.0
_PORTS = {"http": 80, "https": 443}
_SUCCESS = range(200, 300)
_REDIRECT = range(300, 400)


class DeliveryError(MetaschedError):
    """A message was not delivered.

    Attributes:
        retry_after: seconds to wait before the next try, as the receiver asks; None where it does not say.
    """

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        self.retry_after = retry_after
        super().__init__(message)


def post(
    url: str,
    body: bytes,
    headers: Mapping[str, str],
    allowed: Sequence[IPv4Network | IPv6Network] = (),
    *,
    step_seconds: float = STEP_SECONDS,
    total_seconds: float = TOTAL_SECONDS,
) -> None:
    """Send a body by POST, and wait for the receiver's consent.

    Args:
        url: of http or https.
        body: what to send.
        headers: of the request.
        allowed: networks besides the public ones that the host's address may belong to.
        step_seconds: as ``STEP_SECONDS``.
        total_seconds: as ``TOTAL_SECONDS``.

    Raises:
        DeliveryError: the address is refused, or the receiver cannot be reached, is too slow, redirects, or refuses.
    """
    parts = urlsplit(url)
    host, secure = parts.hostname or "", parts.scheme == "https"
    try:
        port = parts.port or _PORTS[parts.scheme]
        address = _address(host, port, allowed)
        connection = _PinnedConnection(host, port, address, step_seconds, secure=secure)
        # A receiver that sends a byte now and then would never meet the limit on a step.
        watchdog = threading.Timer(total_seconds, connection.abort)
        watchdog.daemon = True
        watchdog.start()
        try:
            path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            connection.request("POST", path, body, dict(headers))
            answer = connection.getresponse()
            status, where, after = answer.status, answer.getheader("Location", ""), answer.getheader("Retry-After", "")
        finally:
            watchdog.cancel()
            connection.close()
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise DeliveryError(f"{host}: {error or type(error).__name__}") from None
    if status in _REDIRECT:
        raise DeliveryError(f"{host} answers {status} with a redirect to {where[:200]!r}, which is not followed")
    if status not in _SUCCESS:
        raise DeliveryError(f"{host} answers {status}", _seconds(after))


class _PinnedConnection(http.client.HTTPConnection):
    """A connection to the very address that was checked: a second look-up of the name might give another one."""

    def __init__(self, host: str, port: int, address: str, seconds: float, *, secure: bool) -> None:
        super().__init__(host, port, timeout=seconds)
        self._address, self._secure = address, secure

    def connect(self) -> None:
        self.sock = socket.create_connection((self._address, self.port), self.timeout)
        if self._secure:
            self.sock = ssl.create_default_context().wrap_socket(self.sock, server_hostname=self.host)

    def abort(self) -> None:
        """End the connection, from another thread."""
        with contextlib.suppress(OSError, AttributeError):
            self.sock.shutdown(socket.SHUT_RDWR)


def _address(host: str, port: int, allowed: Sequence[IPv4Network | IPv6Network]) -> str:
    """The host's address, if all its addresses may be connected to."""
    try:
        found = {entry[4][0] for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
    except (OSError, UnicodeError) as error:
        raise DeliveryError(f"{host}: cannot be looked up ({error})") from None
    addresses = sorted(str(address) for address in found)
    for address in addresses:
        if not _may_connect(ipaddress.ip_address(address.partition("%")[0]), allowed):
            name = host if host == address else f"{host} is {address}, which"
            raise DeliveryError(f"{name} is no public address: add its network to allow_networks if this is meant")
    return addresses[0]


def _may_connect(address: IPv4Address | IPv6Address, allowed: Sequence[IPv4Network | IPv6Network]) -> bool:
    if isinstance(address, IPv6Address):
        address = address.ipv4_mapped or address.sixtofour or address
    if any(address in network for network in allowed):
        return True
    return address.is_global and not address.is_multicast and address not in _NAT64


_NAT64 = ipaddress.ip_network("64:ff9b::/96")
"""Addresses that stand for IPv4 addresses, private ones included."""


def _seconds(text: str | None) -> float | None:
    """The seconds of a header Retry-After; None for a date, which is rare, and for anything else."""
    return min(float(text), _LONGEST_RETRY_AFTER) if text and text.isascii() and text.isdigit() else None
