"""Values of a query string: unknown keys are ignored, and values out of range become the nearest that can be shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from starlette.requests import Request

_Item = TypeVar("_Item")

_LONGEST = 200
_MOST_DIGITS = 9
_MOST_DIGITS_OF_INSTANT = 11


def text(request: Request, name: str) -> str:
    """The value of a key, shortened, without blanks at its ends; "" for a missing one."""
    return request.query_params.get(name, "")[:_LONGEST].strip()


def choice(request: Request, name: str, known: Sequence[str], default: str) -> str:
    """One of the known values; the default for any other."""
    value = request.query_params.get(name, default)
    return value if value in known else default


def number(request: Request, name: str, default: int, *, least: int = 1, most: int = 10**_MOST_DIGITS) -> int:
    """A whole number within a range; the default for what is no number, the nearest end for one outside."""
    value = request.query_params.get(name, "").strip()
    if not (value.isascii() and value.lstrip("-").isdigit()):
        return default
    if len(value) > _MOST_DIGITS:
        return least if value.startswith("-") else most
    return min(max(int(value), least), most)


def instant(request: Request, name: str) -> int | None:
    """An instant in whole unix seconds; None for what is none, or has too many digits."""
    value = request.query_params.get(name, "").strip()
    if not (value.isascii() and value.isdigit()) or len(value) > _MOST_DIGITS_OF_INSTANT:
        return None
    return int(value)


def page_of(items: Sequence[_Item], wanted: int, rows: int) -> tuple[Sequence[_Item], int, int]:
    """The rows of one page of a table, its number from 1, and the number of pages, at least 1.

    Args:
        items: all rows.
        wanted: the number that was asked for; the last page for one beyond it.
        rows: most rows of a page.
    """
    pages = max(1, -(-len(items) // rows))
    page = min(wanted, pages)
    return items[(page - 1) * rows : page * rows], page, pages
