"""Validation errors of files that people write, as sentences that name the key."""

from __future__ import annotations

import difflib
from typing import get_args, get_origin

from pydantic import BaseModel, ValidationError


def explain(
    error: ValidationError, model: type[BaseModel], prefix: tuple[str, ...] = (), *, secret: bool = False
) -> list[str]:
    """The problems that pydantic found, as lines for the file's author.

    Args:
        error: the validation error.
        model: the model that was validated against.
        prefix: keys of the sections around the model.
        secret: whether the lines leave out the values that were found.

    Returns:
        a line for each problem: the key, what is wrong with it, and the known key that is most similar.
    """
    problems = []
    items = error.errors()
    for item in items:
        if item["type"] == "too_short" and any(_is_inside(other["loc"], item["loc"]) for other in items):
            continue  # pydantic does not count elements that have problems of their own
        location = tuple(str(part) for part in item["loc"])
        path = prefix + location
        where = f"[{'.'.join(path[:-1])}] {path[-1]}" if len(path) > 1 else ".".join(path) or "the file"
        if item["type"] == "extra_forbidden":
            problems.append(f"{where}: no such key{_meant(model, location)}")
        elif item["type"] == "missing":
            problems.append(f"{where}: missing; add it")
        else:
            found = "" if secret or isinstance(item["input"], dict) else f" (found {item['input']!r})"
            problems.append(f"{where}: {item['msg']}{found}")
    return problems


def _is_inside(location: tuple[int | str, ...], outer: tuple[int | str, ...]) -> bool:
    return len(location) > len(outer) and location[: len(outer)] == outer


def _meant(model: type[BaseModel], location: tuple[str, ...]) -> str:
    """A hint at the key that may have been meant, in the same section or in one that was left out; "" for none."""
    *_, key = location
    sections = [name for name in model.model_fields if len(location) == 1 and key in _keys(model, (name,))]
    return f"; did you mean [{sections[0]}] {key}?" if sections else nearest(key, _keys(model, location[:-1]))


def _keys(model: type[BaseModel], location: tuple[str, ...]) -> list[str]:
    for part in location:
        if part.isdecimal():  # an element of the list that the part before it names
            continue
        field = model.model_fields.get(part)
        annotation = field.annotation if field is not None else None
        if get_origin(annotation) is tuple:
            annotation = get_args(annotation)[0]
        if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            return []
        model = annotation
    return list(model.model_fields)


def nearest(word: str, known: list[str]) -> str:
    """A hint at the known word that is most similar, or at all known words; "" where none is known."""
    folded = {name.lower(): name for name in known}
    match = difflib.get_close_matches(word.lower(), folded, n=1, cutoff=0.5)
    if match:
        return f"; did you mean {folded[match[0]]!r}?"
    return f"; known: {', '.join(sorted(known))}" if known else ""
