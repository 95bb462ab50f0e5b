"""The stamp: what metasched writes into a job's AdminComment, ``metasched:0123456789abcdef[:held] [words] [error]``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

_STAMP = re.compile(r"metasched:([0-9a-f]{16})(:held)?(?:\s|$)")
_ERROR = "not scheduled: "


@dataclass(frozen=True, slots=True)
class Stamp:
    """The AdminComment of a job that metasched schedules; ``str`` gives the text.

    Attributes:
        uid: the job's identity, 16 hexadecimal digits; the tasks of an array share the array's.
        held: whether the job was submitted with ``--hold``.
        words: the text that others wrote into AdminComment; "" if none.
        error: why the job cannot be scheduled, for its owner; None if it can.
    """

    uid: str
    held: bool = False
    words: str = ""
    error: str | None = None

    @classmethod
    def read(cls, admin_comment: str) -> Stamp | None:
        """Read a stamp from an AdminComment; None where the text does not begin with a stamp."""
        return _read(admin_comment)

    def __str__(self) -> str:
        held, error = ":held" if self.held else "", f"{_ERROR}{self.error}" if self.error else ""
        return " ".join(filter(None, (f"metasched:{self.uid}{held}", self.words, error)))


@lru_cache(maxsize=32_768)  # the same jobs come at every poll
def _read(admin_comment: str) -> Stamp | None:
    stamp = _STAMP.match(admin_comment)
    if stamp is None:
        return None
    words, _, error = admin_comment[stamp.end() :].partition(_ERROR)
    return Stamp(stamp[1], stamp[2] is not None, words.strip(), error or None)
