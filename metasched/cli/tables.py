"""The console and the tables that all commands print: cells are cleaned and shown without markup."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from metasched.presentation.formatting import clean

NAME_WIDTH = 32
"""Characters of the name of a job or a user in a table."""
_PIPE_WIDTH = 200
_GAP = 2  # characters between two columns


def console() -> Console:
    """Return a console on standard output; wide where it is no terminal, so that lines for scripts are not folded."""
    probe = Console()
    return probe if probe.is_terminal or "COLUMNS" in probe._environ else Console(width=_PIPE_WIDTH)  # noqa: SLF001


def table(*headings: str, title: str | None = None, right: Sequence[str] = ()) -> Table:
    """Return an empty table; columns named in ``right`` are aligned to the right."""
    made = Table(title=title, title_justify="left", box=None, padding=(0, _GAP, 0, 0), header_style="bold")
    for heading in headings:
        made.add_column(heading, justify="right" if heading in right else "left", overflow="fold")
    return made


def row(made: Table, *cells: object, style: str | None = None) -> None:
    """Add a row; cells are cleaned and shown without markup, None as an empty cell."""
    made.add_row(*(cell if isinstance(cell, Text) else Text(_cell(cell)) for cell in cells), style=style)


class LineTable:
    """A table with one line a row on a terminal: it leaves out columns that do not fit, and cuts the last column.

    Elsewhere it has all columns, whose cells are folded.

    Args:
        headings: the columns' headings.
        right: those that are aligned to the right.
        optional: those that may be left out, the most important one last.
        last_width: characters of the last column that the optional columns leave at least.
    """

    def __init__(self, *headings: str, right: Sequence[str], optional: Sequence[str], last_width: int) -> None:
        self._headings = headings
        self._right = right
        self._optional = optional
        self._last_width = last_width
        self._rows: list[tuple[list[Text], str | None]] = []

    def row(self, *cells: object, style: str | None = None) -> None:
        """Add a row, as the function `row` does; on a terminal a cell of the last column that has a style is folded."""
        self._rows.append(([cell if isinstance(cell, Text) else Text(_cell(cell)) for cell in cells], style))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the table, and a line that names the columns that are left out."""
        shown = self._fitting(options.max_width) if console.is_terminal else list(self._headings)
        made = table(*shown, right=self._right)
        places = [self._headings.index(heading) for heading in shown]
        for column in made.columns[:-1] if console.is_terminal else ():
            column.no_wrap, column.overflow = True, "ellipsis"
        for cells, style in self._rows:
            *kept, last = (cells[place] for place in places)
            if console.is_terminal and not last.style:
                last = Text(last.plain, no_wrap=True, overflow="ellipsis")
            row(made, *kept, last, style=style)
        yield made
        if missing := [heading for heading in self._headings if heading not in shown]:
            yield Text(f"A wider terminal also shows {', '.join(missing)}", style="dim")

    def _fitting(self, width: int) -> list[str]:
        """Return the headings of the columns that are shown in so many characters."""
        widths = {
            heading: _GAP + max([len(heading), *(cells[place].cell_len for cells, _ in self._rows)])
            for place, heading in enumerate(self._headings)
        }
        widths[self._headings[-1]] = min(widths[self._headings[-1]], self._last_width + _GAP)
        left = width - sum(needed for heading, needed in widths.items() if heading not in self._optional)
        missing = set()
        for heading in reversed(self._optional):
            if widths.get(heading, 0) <= left:
                left -= widths.get(heading, 0)
            else:
                missing.add(heading)
        return [heading for heading in self._headings if heading not in missing]


def _cell(value: object) -> str:
    return "" if value is None else clean(str(value))
