"""Hostile variants of good inputs: values of JSON replaced, and texts cut, repeated and spliced."""

from __future__ import annotations

import copy
import json
from random import Random
from typing import Any

VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    2**31,
    2**64,
    10**400,
    -(10**400),
    1.5,
    1e308,
    float("nan"),
    float("inf"),
    "",
    "\0",
    "\u202e",
    "\ud800",
    "9" * 5000,
    "a" * 70_000,
    "[1-99999]",
    [],
    [[]],
    {},
    {"": {}},
    {"set": True, "number": {}},
)
TOKENS = (b"", *(bytes([char]) for char in b"\0[]{},-=|\n\t\"'%()\xff"))
WORDS = (b"9" * 5000, b"0-4000000", b"[0-99999]", b"1e999", b"nan", b"-1", b"gres/gpu=" + b"9" * 5000, b"[" * 2000)


def mutated(data: bytes, rng: Random) -> bytes:
    """One hostile variant of an input."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return _mutated_text(data, rng)
    if not isinstance(value, dict | list) or rng.random() < 0.3:
        return _mutated_text(data, rng)
    for _ in range(rng.choice((1, 1, 2, 3))):
        _replace(value, rng)
    return json.dumps(value).encode("utf-8", "surrogatepass")


def _replace(value: Any, rng: Random) -> None:
    """Replace, remove or rename one value somewhere inside a JSON value."""
    while True:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        if not keys:
            return
        key = rng.choice(keys)
        if isinstance(value[key], dict | list) and value[key] and rng.random() < 0.7:
            value = value[key]
            continue
        if rng.random() < 0.15:
            del value[key]
        else:
            value[key] = copy.deepcopy(rng.choice(VALUES))
        return


def _mutated_text(data: bytes, rng: Random) -> bytes:
    """A variant with a part removed, repeated, or replaced by a hostile word."""
    for _ in range(rng.choice((1, 1, 2, 4))):
        start = rng.randrange(len(data) + 1)
        end = min(start + rng.choice((0, 1, 1, 2, 8)), len(data))
        part = rng.choice((rng.choice(TOKENS), rng.choice(WORDS), data[start:end] * rng.choice((2, 50))))
        data = data[:start] + part + data[end:]
    return data
