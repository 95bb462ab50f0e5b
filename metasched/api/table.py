"""Tables of records: sequences that notebooks show as HTML, and that become pandas data frames."""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, overload

import msgspec

from metasched.core.errors import MetaschedError
from metasched.core.reasons import Reason
from metasched.presentation.formatting import clean, reason_fields

if TYPE_CHECKING:
    import pandas as pd

Record = TypeVar("Record")

_SHOWN_ROWS = 60
_SHOWN_CHARACTERS = 120


class MissingExtraError(MetaschedError, ImportError):
    """A method needs a package that an extra of metasched installs; the message names the extra."""

    def __init__(self, what: str, package: str, extra: str) -> None:
        super().__init__(f"{what} needs {package}, which is not installed: pip install 'metasched[daemon,{extra}]'")


def fields_of(record: Any) -> dict[str, Any]:
    """Return a record's fields as values of a data frame's row.

    A reason becomes the columns ``reason`` (in words), ``reason_code``, ``reason_facts`` and ``reason_also``; nested
    records become dictionaries.
    """
    row: dict[str, Any] = {}
    for name in _names(type(record)):
        value = getattr(record, name)
        if isinstance(value, Reason):
            row |= reason_fields(value)
        else:
            row[name] = msgspec.to_builtins(value, enc_hook=str)
    return row


def _names(kind: Any) -> Sequence[str]:
    """Return the names of the fields of a kind of records."""
    if dataclasses.is_dataclass(kind):
        return [one.name for one in dataclasses.fields(kind)]
    return [one.name for one in msgspec.structs.fields(kind)]


class Table(Sequence[Record]):
    """An immutable sequence of records.

    Args:
        records: the records, in order.
        row: returns a record's columns by name; by default the record's fields.
        shown: the columns that a notebook shows; all where it is empty. ``to_pandas`` always has all.
    """

    def __init__(
        self,
        records: Iterable[Record],
        *,
        row: Callable[[Record], Mapping[str, Any]] = fields_of,
        shown: Sequence[str] = (),
    ) -> None:
        self._records = tuple(records)
        self._row = row
        self._shown = tuple(shown)

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[Record]:
        return iter(self._records)

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> Table[Record]: ...
    def __getitem__(self, index: int | slice) -> Record | Table[Record]:
        if isinstance(index, slice):
            return Table(self._records[index], row=self._row, shown=self._shown)
        return self._records[index]

    def __repr__(self) -> str:
        return f"<Table of {len(self._records)} rows>"

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return a dictionary of plain values for each record, as ``to_pandas`` has its rows."""
        return [dict(self._row(record)) for record in self._records]

    def to_pandas(self) -> pd.DataFrame:
        """Return the records as a data frame, one row each; an empty table has the columns that notebooks show.

        Raises:
            MissingExtraError: pandas is not installed.
        """
        try:
            import pandas as pd  # noqa: PLC0415  an optional dependency
        except ImportError:
            raise MissingExtraError("Table.to_pandas", "pandas", "pandas") from None
        rows = self.to_dicts()
        return pd.DataFrame(rows) if rows else pd.DataFrame(columns=list(self._shown))

    def _repr_html_(self) -> str:
        """Return the first rows as an HTML table, for notebooks; everything in it is escaped."""
        rows = [self._row(record) for record in self._records[:_SHOWN_ROWS]]
        columns = [name for name in (self._shown or (rows[0] if rows else ())) if not rows or name in rows[0]]
        head = "".join(f"<th>{_escaped(name)}</th>" for name in columns)
        body = "".join(
            "<tr>" + "".join(f"<td>{_escaped(row.get(name))}</td>" for name in columns) + "</tr>" for row in rows
        )
        left = len(self._records) - len(rows)
        more = f"<p>and {left} more rows; to_pandas() has all rows and columns</p>" if left else ""
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def _escaped(value: Any) -> str:
    """Return a value as HTML text: users choose names, and a notebook runs whatever script its HTML has."""
    if value is None:
        return ""
    text = f"{value:.6g}" if isinstance(value, float) and abs(value) < 1e6 else str(value)  # noqa: PLR2004  not instants
    return html.escape(clean(text, _SHOWN_CHARACTERS))
