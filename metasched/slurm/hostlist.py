"""Slurm's host lists: ``n[1-4,7],gpu-[08-12]`` to node names and back.

A user's ``#SBATCH --nodelist`` comes here, so that number and length of the names are bounded before they are made. The
libraries do not serve: ClusterShell's NodeSet expands ``n[1-99999999]`` until memory ends, takes ``@x`` and ``!`` for
groups and differences, and refuses ``n[001-3]``, which Slurm allows; python-hostlist bounds the number of names alone,
and its licence, the GPL, does not suit a program under the Apache License.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import groupby

_MAX_HOSTS = 100_000
_MAX_NAME = 255  # characters of one name
_MAX_CHARACTERS = 4 * 1024**2  # of all names together: 100,000 names of a real cluster have a fourth of that
_RANGE = re.compile(r"([0-9]{1,12})(?:-([0-9]{1,12}))?", re.ASCII)
_NUMBER_AT_END = re.compile(r"[0-9]{1,12}\Z", re.ASCII)


def expand(text: str) -> list[str]:
    """Expand a host list into node names, in the list's order.

    Raises:
        ValueError: the text is not a host list, names more than 100,000 hosts, has a name of over 255 characters, or
            names of over 4 MiB in all.
    """
    names: list[str] = []
    characters = 0
    for item in _items(text):
        expanded = _expand_item(item)
        names.extend(expanded)
        characters += sum(map(len, expanded))
        if len(names) > _MAX_HOSTS:
            raise ValueError(f"more than {_MAX_HOSTS} hosts")
        if characters > _MAX_CHARACTERS:
            raise ValueError(f"names of more than {_MAX_CHARACTERS} characters in all")
    return names


def compress(names: Iterable[str]) -> str:
    """Return one host list of all names, each once, with runs of numbers folded into ranges."""
    groups: dict[tuple[str, int], set[int]] = {}
    plain: dict[str, None] = {}
    for name in names:
        if number := _NUMBER_AT_END.search(name):
            digits = number[0]
            groups.setdefault((name[: number.start()], len(digits)), set()).add(int(digits))
        else:
            plain[name] = None
    return ",".join([*plain, *(_fold(prefix, width, sorted(group)) for (prefix, width), group in groups.items())])


def _items(text: str) -> list[str]:
    """Split a host list at the commas outside brackets."""
    if not text:
        return []
    items, depth, start = [], 0, 0
    for position, character in enumerate(text):
        if character == "[":
            depth += 1
        elif character == "]":
            depth -= 1
        elif character == "," and depth == 0:
            items.append(text[start:position])
            start = position + 1
        if not 0 <= depth <= 1:
            break
    if depth != 0:
        raise ValueError(f"unbalanced brackets in {text[:80]!r}")
    return [*items, text[start:]]


def _expand_item(item: str) -> list[str]:
    """Expand one item: the names of ``a[1-2]b[3,5]`` are all combinations of its brackets."""
    if not item:
        raise ValueError("an empty name")
    names = [""]
    for part in re.split(r"(\[[^\]]*\])", item):
        choices = _ranges(part[1:-1]) if part.startswith("[") else [part]
        if len(names) * len(choices) > _MAX_HOSTS:
            raise ValueError(f"more than {_MAX_HOSTS} hosts")
        longest = len(names[-1]) + max(map(len, choices))
        if longest > _MAX_NAME:
            raise ValueError(f"a name of more than {_MAX_NAME} characters")
        if len(names) * len(choices) * longest > _MAX_CHARACTERS:
            raise ValueError(f"names of more than {_MAX_CHARACTERS} characters in all")
        names = [name + choice for name in names for choice in choices]
    return names


def _ranges(text: str) -> list[str]:
    numbers: list[str] = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        if not match:
            raise ValueError(f"{part[:40]!r} is not a range of numbers")
        first, last = match[1], match[2] or match[1]
        if not 0 <= int(last) - int(first) < _MAX_HOSTS:
            raise ValueError(f"{part[:40]!r} is not a range of numbers")
        numbers.extend(str(number).zfill(len(first)) for number in range(int(first), int(last) + 1))
    return numbers


def _fold(prefix: str, width: int, numbers: Sequence[int]) -> str:
    parts = []
    for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):  # successive numbers have one difference
        members = [str(number).zfill(width) for _, number in run]
        parts.append(members[0] if len(members) == 1 else f"{members[0]}-{members[-1]}")
    if len(parts) == 1 and "-" not in parts[0]:
        return prefix + parts[0]
    return f"{prefix}[{','.join(parts)}]"
