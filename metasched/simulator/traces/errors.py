"""The error of the trace readers."""

from __future__ import annotations

from pathlib import Path

from metasched.core.errors import MetaschedError


class TraceError(MetaschedError):
    """A trace, or a file that goes with it, cannot be used as it is.

    Attributes:
        file: the file.
        line: the number of the line, from 1; None for a fault of the whole file.
        column: the column or key; None for a fault of the whole line.
        fault: the fault, in words.
        fix: the remedy, in words.
    """

    def __init__(self, file: Path, line: int | None, column: str | None, fault: str, fix: str) -> None:
        where = f"{file}" if line is None else f"{file}, line {line}"
        super().__init__(f"{where if column is None else f'{where}, column {column!r}'}: {fault}; {fix}")
        self.file = file
        self.line = line
        self.column = column
        self.fault = fault
        self.fix = fix
