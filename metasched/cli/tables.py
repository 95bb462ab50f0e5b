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
_LEAST_WIDTH = 8  # characters that a shrinkable column keeps, as in squeue, while the last column can shrink


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
    made.add_row(*map(_text, cells), style=style)


class LineTable:
    """A table with one line a row on a terminal; elsewhere it has all columns, whose cells are folded.

    On a terminal, optional columns that do not fit are left out. Cells of the last column are cut to the terminal's
    width. Those of shrinkable columns are cut where not even the mandatory columns fit.

    Args:
        headings: the columns' headings.
        right: those that are aligned to the right.
        optional: those that may be left out, the most important one last.
        shrinkable: those whose cells may be cut.
        last_width: characters of the last column that the optional columns leave at least.
    """

    def __init__(
        self,
        *headings: str,
        right: Sequence[str],
        optional: Sequence[str],
        shrinkable: Sequence[str] = (),
        last_width: int,
    ) -> None:
        self._headings = headings
        self._right = right
        self._optional = optional
        self._shrinkable = shrinkable
        self._last_width = last_width
        self._rows: list[tuple[list[Text], str | None]] = []

    def row(self, *cells: object, style: str | None = None) -> None:
        """Add a row, as the function `row` does; on a terminal a cell of the last column that has a style is folded."""
        self._rows.append((list(map(_text, cells)), style))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the table, and a line that names the columns that are left out."""
        in_lines = console.is_terminal
        shown = self._fitting(options.max_width) if in_lines else dict.fromkeys(self._headings)
        made = table(*shown, right=self._right)
        places = [self._headings.index(heading) for heading in shown]
        if in_lines:
            for column, width in zip(made.columns[:-1], shown.values(), strict=False):
                column.no_wrap, column.overflow, column.width = True, "ellipsis", width
        for cells, style in self._rows:
            *kept, last = (cells[place] for place in places)
            if in_lines and not last.style:
                last = Text(last.plain, no_wrap=True, overflow="ellipsis")
            row(made, *kept, last, style=style)
        yield made
        if missing := [heading for heading in self._headings if heading not in shown]:
            yield Text(f"A wider terminal also shows {', '.join(missing)}", style="dim")

    def _fitting(self, width: int) -> dict[str, int]:
        """Return the columns that are shown in so many characters, each with its width."""
        widths = {
            heading: max([len(heading), *(cells[place].cell_len for cells, _ in self._rows)])
            for place, heading in enumerate(self._headings)
        }
        last = self._headings[-1]
        widths[last] = min(widths[last], self._last_width)
        left = width - sum(needed + _GAP for heading, needed in widths.items() if heading not in self._optional)
        for heading in reversed(self._optional):
            if heading in widths and widths[heading] + _GAP <= left:
                left -= widths[heading] + _GAP
            else:
                widths.pop(heading, None)
        excess = _shrink(widths, self._shrinkable, _LEAST_WIDTH, -left)
        excess = _shrink(widths, [last], len(last), excess)
        _shrink(widths, self._shrinkable, 1, excess)
        return widths


def _shrink(widths: dict[str, int], headings: Sequence[str], least: int, excess: int) -> int:
    """Take excess characters from columns, the widest first, and return the excess that remains."""
    while headings and excess > 0 and widths[widest := max(headings, key=widths.__getitem__)] > least:
        widths[widest] -= 1
        excess -= 1
    return excess


def _text(cell: object) -> Text:
    return cell if isinstance(cell, Text) else Text("" if cell is None else clean(str(cell)))
