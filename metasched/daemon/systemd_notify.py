"""Notifications to a service manager by systemd's protocol, sd_notify(3); without one, nothing is sent."""

from __future__ import annotations

import contextlib
import os
import socket

_HEARTBEAT = "WATCHDOG=1"


def notify(*assignments: str) -> None:
    """Send a heartbeat for the watchdog, with further assignments (``READY=1``, ``STATUS=...``) if there are any.

    A service manager that does not listen is not an error.
    """
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):
        address = f"\0{address[1:]}"  # an abstract socket
    message = "\n".join((*assignments, _HEARTBEAT)).encode()
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.sendto(message, socket.MSG_DONTWAIT, address)
