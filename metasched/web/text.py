"""Texts, numbers and instants on a page: what users write is shortened, escaped and isolated."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import jinja2
from markupsafe import Markup

from metasched.presentation.formatting import clean, duration

NAME_LENGTH = 48
"""Most characters of a name in a table."""
TEXT_LENGTH = 400
"""Most characters of a sentence that users' text is part of."""


def foreign(text: str | None, limit: int = NAME_LENGTH) -> Markup:
    """Text that users wrote: control and format characters visible, shortened, and isolated from what is around it."""
    if text is None:
        return Markup("")
    shown = clean(text[: 4 * limit], limit)
    if len(text) > limit:
        return Markup('<bdi title="{}">{}</bdi>').format(clean(text[:TEXT_LENGTH], TEXT_LENGTH), shown)
    return Markup("<bdi>{}</bdi>").format(shown)


def plain(text: str | None, limit: int = TEXT_LENGTH) -> str:
    """The same as plain text, for attributes and sentences."""
    return "" if text is None else clean(text[: 4 * limit], limit)


def instant(at: float | None) -> Markup:
    """An instant as local date and time, in an element that programs read; "" if not known."""
    if at is None:
        return Markup("")
    try:
        local = datetime.fromtimestamp(at, UTC).astimezone()
    except (OverflowError, OSError, ValueError):
        return Markup("")
    return Markup('<time datetime="{}">{}</time>').format(
        local.isoformat(timespec="seconds"), local.strftime("%Y-%m-%d %H:%M")
    )


def ago(at: float | None, now: float) -> str:
    """How long ago an instant is: ``3 min 20 s ago``; "" if not known."""
    return "" if at is None else f"{duration(now - at)} ago"


def tone(uid: str) -> int:
    """A job's colour, 0 to 7, the same on every page. A colour stands beside the job's id, never alone."""
    return sum(map(ord, uid)) % 8


def register(environment: jinja2.Environment) -> None:
    """Give the templates these functions as filters."""
    environment.filters |= {
        "foreign": foreign,
        "plain": plain,
        "instant": instant,
        "duration": duration,
        "ago": lambda at, now=None: ago(at, time.time() if now is None else now),
        "tone": tone,
    }
