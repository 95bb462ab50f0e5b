"""The stamp: what metasched writes into a job's AdminComment, ``metasched:0123456789abcdef[:held] [words] [error]``."""

from __future__ import annotations

import re
from dataclasses import dataclass

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
        stamp = _STAMP.match(admin_comment)
        if stamp is None:
            return None
        words, _, error = admin_comment[stamp.end() :].partition(_ERROR)
        return cls(stamp[1], stamp[2] is not None, words.strip(), error or None)

    def __str__(self) -> str:
        held, error = ":held" if self.held else "", f"{_ERROR}{self.error}" if self.error else ""
        return " ".join(filter(None, (f"metasched:{self.uid}{held}", self.words, error)))
