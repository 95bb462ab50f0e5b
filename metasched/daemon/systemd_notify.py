"""What a service manager wants to hear (systemd's notification protocol); without one, nothing is said."""

from __future__ import annotations

import contextlib
import os
import socket

_HEARTBEAT = "WATCHDOG=1"


def tell(*words: str) -> None:
    """Send assignments (``READY=1``, ``STATUS=...``), each of which counts as a sign of life as well.

    Nobody listening is no error: see sd_notify(3).
    """
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):
        address = f"\0{address[1:]}"  # an abstract one
    message = "\n".join((*words, _HEARTBEAT)).encode()
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.sendto(message, socket.MSG_DONTWAIT, address)
