"""Problems of a file that a person wrote, in words, by key."""

from __future__ import annotations

import difflib

from pydantic import BaseModel, ValidationError


def explain(error: ValidationError, model: type[BaseModel], prefix: tuple[str, ...] = ()) -> list[str]:
    """One line for each problem: the key, its problem, and the known key that is nearest to it."""
    problems = []
    for item in error.errors():
        location = tuple(str(part) for part in item["loc"])
        path = prefix + location
        where = f"[{'.'.join(path[:-1])}] {path[-1]}" if len(path) > 1 else ".".join(path) or "the file"
        if item["type"] == "extra_forbidden":
            problems.append(f"{where}: no such key{_meant(model, location)}")
        elif item["type"] == "missing":
            problems.append(f"{where}: missing; add it")
        else:
            problems.append(f"{where}: {item['msg']} (found {item['input']!r})")
    return problems


def _meant(model: type[BaseModel], location: tuple[str, ...]) -> str:
    """The nearest known key: of a section that was left out, else of the same section."""
    *_, key = location
    sections = [name for name in model.model_fields if len(location) == 1 and key in _keys(model, (name,))]
    return f"; did you mean [{sections[0]}] {key}?" if sections else nearest(key, _keys(model, location[:-1]))


def _keys(model: type[BaseModel], location: tuple[str, ...]) -> list[str]:
    for part in location:
        field = model.model_fields.get(part)
        annotation = field.annotation if field is not None else None
        if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            return []
        model = annotation
    return list(model.model_fields)


def nearest(word: str, known: list[str]) -> str:
    """The known word that is nearest, or all known words, as a phrase; empty where there are none."""
    folded = {name.lower(): name for name in known}
    match = difflib.get_close_matches(word.lower(), folded, n=1, cutoff=0.5)
    if match:
        return f"; did you mean {folded[match[0]]!r}?"
    return f"; known: {', '.join(sorted(known))}" if known else ""
