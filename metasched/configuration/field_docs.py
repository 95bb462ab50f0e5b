"""Meanings of configuration keys, read from the docstrings of the models that check them."""

from __future__ import annotations

import inspect


def meanings(model: type) -> dict[str, str]:
    """The meaning of each field by its name, from the ``Attributes:`` sections of the class and of its base classes."""
    found: dict[str, str] = {}
    for base in reversed(model.__mro__):
        if base.__doc__ is not None:
            found |= _attributes(inspect.cleandoc(base.__doc__))
    return found


def _attributes(text: str) -> dict[str, str]:
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
