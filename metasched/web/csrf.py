"""Tokens that tie a form to the viewer who was shown it, so that no other site can have a browser send it."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time

_KEY = secrets.token_bytes(32)  # of this process: a restart makes older forms stale, and the page is loaded again
_SECONDS = 12 * 3600.0
FIELD = "csrf"
"""Name of the form's hidden field."""


def token(user: str, action: str, *, now: float | None = None) -> str:
    """A token for one user and one action, valid for half a day; never the same twice, so compression tells nothing.

    Args:
        user: the viewer's name.
        action: the form's purpose, such as ``what-if``.
        now: unix seconds; the present by default.
    """
    at = int(time.time() if now is None else now)
    salt = secrets.token_hex(8)
    return f"{at}.{salt}.{_signature(user, action, at, salt)}"


def is_valid(given: str, user: str, action: str, *, now: float | None = None) -> bool:
    """Whether a token was made for this user and action, less than half a day ago."""
    parts = given.split(".")
    try:
        at, salt, signature = int(parts[0]), parts[1], parts[2]
    except (IndexError, ValueError):
        return False
    present = time.time() if now is None else now
    expected = _signature(user, action, at, salt)
    return hmac.compare_digest(signature.encode(), expected.encode()) and 0 <= present - at + 1 < _SECONDS


def _signature(user: str, action: str, at: int, salt: str) -> str:
    message = "\0".join((user, action, str(at), salt)).encode()
    return hmac.new(_KEY, message, hashlib.sha256).hexdigest()
