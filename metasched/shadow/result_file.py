"""The file in which the process of shadow policies leaves its latest results for the daemon."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from metasched.forecast.result_file import decode
from metasched.store import ShadowRecord

SHADOWS_FILE = "shadows.json"
"""Its name, in the state directory."""


@dataclass(frozen=True, slots=True)
class ShadowResult:
    """The result of the work on one round.

    Attributes:
        records: what each shadow policy would have decided.
        problem: why there are none, in words; "" for no problem.
    """

    records: tuple[ShadowRecord, ...] = ()
    problem: str = ""


def encode_shadows(result: ShadowResult) -> bytes:
    """Return the content of the file."""
    return msgspec.json.encode(result)


def decode_shadows(content: bytes) -> ShadowResult:
    """Return the result in a file's content.

    Raises:
        ResultError: it is something else.
    """
    return decode(content, ShadowResult, SHADOWS_FILE)
