"""Meanings of configuration keys, read from the docstrings of the models that check them."""

from __future__ import annotations

import inspect


def meanings(model: type) -> dict[str, str]:
    """The texts of Google-style ``Attributes:`` sections by name: the class's own, and those of what it builds on."""
    found: dict[str, str] = {}
    for base in reversed(model.__mro__):
        if base.__doc__ is not None:
            found |= _own(inspect.cleandoc(base.__doc__))
    return found


def _own(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    inside, names = False, [""]
    for line in text.splitlines():
        if not line.startswith(" "):
            inside = line == "Attributes:" if line else inside
        elif inside and line.startswith("     "):
            found |= {name: f"{found[name]} {line.strip()}" for name in names}
        elif inside:
            head, _, meaning = line.strip().partition(":")
            names = [name.strip() for name in head.split(",")]
            found |= dict.fromkeys(names, meaning.strip())
    return found
