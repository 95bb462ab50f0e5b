"""Lines of a trace as rows: typed fields by column, and errors that name the line and the column."""

from __future__ import annotations

import csv
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from metasched.simulator.traces.errors import TraceError

SHOWN = 5  # known names in the message about an unknown one


class Row:
    """One line of a file.

    Attributes:
        file: the file.
        line: the number of the line, from 1.
        values: the fields as written, by column.
    """

    def __init__(self, file: Path, line: int, values: Mapping[str, str]) -> None:
        self.file = file
        self.line = line
        self.values = values

    def refusal(self, column: str | None, fault: str, fix: str) -> TraceError:
        """An error that names this line; ``column`` is None for a fault of the whole line."""
        return TraceError(self.file, self.line, column, fault, fix)

    def text(self, column: str) -> str:
        """A field that must not be empty.

        Raises:
            TraceError: it is empty.
        """
        found = self.values[column].strip()
        if not found:
            raise self.refusal(column, "is empty", "give a value")
        return found

    def number(self, column: str, *, least: float = 0.0) -> float:
        """A finite number.

        Raises:
            TraceError: it is not a finite number, or is below ``least``.
        """
        text = self.text(column)
        try:
            found = float(text)
        except ValueError:
            raise self.refusal(column, f"{text!r} is not a number", "give a number") from None
        if not math.isfinite(found):
            raise self.refusal(column, f"{text!r} is not finite", "give a finite number")
        if found < least:
            raise self.refusal(column, f"{text} is below {least:g}", f"give {least:g} or more")
        return found

    def whole(self, column: str, *, least: int = 0, most: int | None = None) -> int:
        """A whole number.

        Raises:
            TraceError: it is not a whole number, or is below ``least`` or above ``most``.
        """
        found = self.number(column, least=least)
        if not found.is_integer():
            raise self.refusal(column, f"{found:g} is not whole", "give a whole number")
        if most is not None and found > most:
            raise self.refusal(column, f"{found:g} is above {most}", f"give {most} or fewer")
        return int(found)

    def gpus(self, column: str, most_gpus: int | None) -> int:
        """The GPUs of one job, at least 1.

        Raises:
            TraceError: it is not a whole number from 1 to ``most_gpus``.
        """
        found = self.whole(column, least=1)
        if most_gpus is not None and found > most_gpus:
            raise self.refusal(
                column,
                f"asks for {found} GPUs, and the cluster can give one job {most_gpus}",
                "use a larger cluster, or leave the job out",
            )
        return found

    def one_of(self, column: str, known: Collection[str]) -> str:
        """One of the known names.

        Raises:
            TraceError: it is not a known name.
        """
        found = self.text(column)
        if found not in known:
            names = sorted(known)
            shown = ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
            raise self.refusal(column, f"{found!r} is not known", f"known: {shown}")
        return found


def plain_rows(path: Path, columns: Sequence[str], *, delimiter: str = "\t") -> Iterator[Row]:
    """The rows of a file without a header line; blank lines are skipped.

    Raises:
        TraceError: the file cannot be read, or a line has not one field for each column.
    """
    for line, fields in _lines(path, delimiter):
        if len(fields) != len(columns):
            missing = columns[len(fields)] if len(fields) < len(columns) else None
            raise TraceError(
                path,
                line,
                missing,
                f"the line has {len(fields)} fields, not {len(columns)}",
                f"give {', '.join(columns)}",
            )
        yield Row(path, line, dict(zip(columns, fields, strict=True)))


def named_rows(path: Path, columns: Sequence[str], *, delimiter: str = ",") -> Iterator[Row]:
    """The rows of a file whose first line names its columns; it may have more than ``columns``.

    Raises:
        TraceError: the file cannot be read, lacks one of ``columns``, or has a line with another number of fields.
    """
    lines = _lines(path, delimiter)
    header_line, header = next(lines, (1, []))
    for column in columns:
        if column not in header:
            raise TraceError(path, header_line, column, "the column is missing", f"give {', '.join(columns)}")
    for line, fields in lines:
        if len(fields) != len(header):
            missing = header[len(fields)] if len(fields) < len(header) else None
            raise TraceError(
                path,
                line,
                missing,
                f"the line has {len(fields)} fields, not {len(header)}",
                "give one field for each column",
            )
        yield Row(path, line, dict(zip(header, fields, strict=True)))


def _lines(path: Path, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """The fields of each line that is not blank, with its number."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            # Tab-separated traces hold shell commands, whose quotes are part of the field.
            shell = delimiter == "\t"
            reader = csv.reader(file, delimiter=delimiter, quoting=csv.QUOTE_NONE if shell else csv.QUOTE_MINIMAL)
            for fields in reader:
                if any(field.strip() for field in fields):
                    yield reader.line_num, fields
    except OSError as error:
        raise TraceError(path, None, None, f"cannot be read ({error.strerror})", "give a file that can") from error
    except UnicodeDecodeError:
        raise TraceError(path, None, None, "is not UTF-8 text", "give a text file") from None
    except csv.Error as error:
        raise TraceError(path, reader.line_num, None, f"is not a table ({error})", "mend the line") from None
