"""Meanings of configuration keys and policies' parameters: the docstrings of their models' fields."""

from __future__ import annotations

from pydantic.fields import FieldInfo


def meaning(field: FieldInfo) -> str:
    """Return the meaning of a field in one line; "" for a field without a docstring."""
    return " ".join((field.description or "").split())
