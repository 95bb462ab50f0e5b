"""The file in which the process of shadow policies leaves its latest results for the daemon."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from metasched.core.errors import MetaschedError
from metasched.store import ShadowRecord

SHADOWS_FILE = "shadows.json"
"""Its name, in the state directory."""


class ShadowResultError(MetaschedError):
    """The file is not a result of this version."""


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
        ShadowResultError: it is something else.
    """
    try:
        return msgspec.json.decode(content, type=ShadowResult)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ShadowResultError(f"{SHADOWS_FILE} cannot be read: {error}") from None
