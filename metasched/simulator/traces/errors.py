"""What a bad trace is refused with."""

from __future__ import annotations

from pathlib import Path

from metasched.core.errors import MetaschedError


class TraceError(MetaschedError):
    """A trace, or a file that goes with it, cannot be used as it is.

    Attributes:
        file: which file.
        line: its line, from 1; None where it is about the file as a whole.
        column: the name of the column or key; None where it is about the line as a whole.
        fault: what is wrong, in words.
        fix: what to do about it, in words.
    """

    def __init__(self, file: Path, line: int | None, column: str | None, fault: str, fix: str) -> None:
        where = f"{file}" if line is None else f"{file}, line {line}"
        super().__init__(f"{where if column is None else f'{where}, column {column!r}'}: {fault}; {fix}")
        self.file = file
        self.line = line
        self.column = column
        self.fault = fault
        self.fix = fix
