"""Deliveries: how a message reaches each kind of destination."""

from __future__ import annotations

import json
import re
from urllib.parse import quote

from metasched.core.errors import MetaschedError
from metasched.notify.messages import Message
from metasched.notify.rules import Destination
from metasched.notify.webhook import DeliveryError, post

_SLACK_CHARACTERS = 3500
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")


class NoAppriseError(MetaschedError):
    """A destination is Apprise's, which is not installed."""


def check_channels(destinations: tuple[Destination, ...]) -> None:
    """Check that each destination can be used here, as far as that is known without a message.

    Raises:
        NoAppriseError: Apprise is needed and not installed.
        DeliveryError: Apprise does not know the kind of an URL.
    """
    for destination in destinations:
        if destination.apprise is not None:
            _apprise_of(destination, "user")


def deliver(destination: Destination, message: Message) -> None:
    """Deliver a message, or fail within some time.

    Raises:
        DeliveryError: the message was not delivered.
    """
    if destination.apprise is not None:
        _by_apprise(destination, message)
        return
    headers = {"User-Agent": "metasched", "Content-Type": "application/json", "Idempotency-Key": message.id}
    if destination.slack is not None:
        post(destination.slack, _json({"text": _for_slack(message)}), headers, destination.allow_networks)
    elif destination.webhook is not None:
        names = ("id", "subject", "text", "count", "events")
        body = _json({"version": 1, **{name: getattr(message, name) for name in names}})
        post(destination.webhook, body, {**headers, **destination.headers}, destination.allow_networks)


def _json(value: object) -> bytes:
    return json.dumps(value).encode()


def _for_slack(message: Message) -> str:
    """The text with the three characters escaped by which Slack would take users' words for links and mentions."""
    text = f"{message.subject}\n{message.text}"[:_SLACK_CHARACTERS]
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _by_apprise(destination: Destination, message: Message) -> None:
    from apprise import NotifyFormat  # noqa: PLC0415  optional

    sender = _apprise_of(destination, message.user)
    if not sender.notify(body=message.text, title=message.subject, body_format=NotifyFormat.TEXT):
        raise DeliveryError("Apprise could not deliver it; its log lines say why")


def _apprise_of(destination: Destination, user: str):  # type: ignore[no-untyped-def]  # noqa: ANN202  Apprise is optional
    try:
        from apprise import Apprise  # noqa: PLC0415
    except ImportError:
        raise NoAppriseError(
            f"destination {destination.name}: Apprise is not installed: pip install 'metasched[notify]'"
        ) from None
    if destination.per_user and not _USER.fullmatch(user):
        raise DeliveryError(f"no mail can be addressed to a user named {user!r}")
    sender = Apprise()
    if not sender.add((destination.apprise or "").replace("{user}", quote(user))):
        raise DeliveryError(
            f"destination {destination.name}: Apprise does not know this kind of URL, or cannot read it"
        )
    return sender
