"""The window of time that a page of the past shows, read from a query string."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

from metasched.web import query

SPANS: Mapping[str, float] = {"1h": 3600.0, "6h": 21_600.0, "1d": 86_400.0, "7d": 604_800.0, "30d": 2_592_000.0}
"""Lengths of windows in seconds, by their names in addresses."""
_EARLIEST = 1  # 1970: earlier instants are nobody's


@dataclass(frozen=True, slots=True)
class Window:
    """One window.

    Attributes:
        span: its length, one of ``SPANS``.
        begin: unix seconds.
        end: unix seconds.
        is_latest: whether the window ends now.
    """

    span: str
    begin: float
    end: float
    is_latest: bool

    @classmethod
    def of(cls, request: Request, now: float, default: str, names: tuple[str, ...]) -> Window:
        """The window of a query string; one that would end in the future ends now."""
        span = query.choice(request, "span", names, default)
        asked = query.instant(request, "end")
        end = now if asked is None else min(max(asked, _EARLIEST), now)
        return cls(span, end - SPANS[span], end, end >= now)

    def query(self, **changes: Any) -> dict[str, Any]:
        """The query of this window with some values changed."""
        end = None if self.is_latest else int(self.end)
        return {"span": self.span, "end": end, **changes}

    @property
    def earlier(self) -> dict[str, Any]:
        """The query of the window before."""
        return self.query(end=int(self.begin))

    def later(self, now: float) -> dict[str, Any] | None:
        """The query of the window after; None for the latest window."""
        if self.is_latest:
            return None
        end = self.end + SPANS[self.span]
        return self.query(end=None if end >= now else int(end))
