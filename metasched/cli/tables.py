"""The console and the tables that all commands print: cells are cleaned and shown without markup."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from metasched.presentation.formatting import clean

_PIPE_WIDTH = 200


def console() -> Console:
    """Return a console on standard output; wide where it is no terminal, so that lines for scripts are not folded."""
    probe = Console()
    return probe if probe.is_terminal or "COLUMNS" in probe._environ else Console(width=_PIPE_WIDTH)  # noqa: SLF001


def table(*headings: str, title: str | None = None, right: Sequence[str] = ()) -> Table:
    """Return an empty table; columns named in ``right`` are aligned to the right."""
    made = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0), header_style="bold")
    for heading in headings:
        made.add_column(heading, justify="right" if heading in right else "left", overflow="fold")
    return made


def row(made: Table, *cells: object, style: str | None = None) -> None:
    """Add a row; cells are cleaned and shown without markup, None as an empty cell."""
    made.add_row(*(cell if isinstance(cell, Text) else Text(_cell(cell)) for cell in cells), style=style)


def _cell(value: object) -> str:
    return "" if value is None else clean(str(value))
