"""Progress bars of long commands: on standard error, and on a terminal alone."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress_bar(label: str) -> Iterator[Callable[[int, int], None]]:
    """Yield a function that is told what is done, and of how many; it does nothing where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield _nothing
        return
    from rich.console import Console  # noqa: PLC0415  scripts need no rich
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(label, total=None)
        yield lambda done, total: shown.update(task, completed=done, total=total)


def _nothing(done: int, total: int) -> None:
    """Show nothing."""
