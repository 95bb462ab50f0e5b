"""Imports of packages that would import more than is needed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def hidden_module(name: str) -> Iterator[None]:
    """Let imports of a module fail in this context as if it were not installed; one that is imported already stays.

    They fail in other threads, too. What is imported here may go without the module for the rest of the process.

    Args:
        name: of a module that the packages imported here do not need.
    """
    if name in sys.modules:
        yield
        return
    sys.modules[name] = None  # type: ignore[assignment]  # the import system's sign for a module that must not be found
    try:
        yield
    finally:
        sys.modules.pop(name, None)
