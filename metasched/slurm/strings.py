"""Small languages inside Slurm's records: GPU requests, array expressions, addresses."""

from __future__ import annotations

import re

_GPU = re.compile(
    r"(?:gres[:/])?gpu"
    r"(?:[:/](?P<type>[A-Za-z_.+][A-Za-z0-9_.+-]*|[0-9][A-Za-z0-9_.+-]*[A-Za-z_.+-][A-Za-z0-9_.+-]*|\(null\)))?"
    r"(?:[:=](?P<count>[0-9]{1,9}))?(?:\(.*\))?",
    re.ASCII,
)
_TASKS = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?(?::([0-9]{1,9}))?", re.ASCII)
_MAX_TASKS = 4_000_001
_ADDRESS = re.compile(r"[0-9]{1,10}(_[0-9]{1,10})?", re.ASCII)
_NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,253}", re.ASCII)
_COMMAS = re.compile(r",(?![^(]*\))")


def is_address(text: str) -> bool:
    """Whether it is ``123`` or ``123_4``."""
    return _ADDRESS.fullmatch(text) is not None


def is_node_name(text: str) -> bool:
    """Whether it can be the name of one node."""
    return _NODE_NAME.fullmatch(text) is not None


def gpus(text: str) -> dict[str, int]:
    """GPUs by type ("" for untyped) in a GRES or TRES text; anything else in it is left alone.

    Takes ``gres:gpu:v100:2``, ``gpu:2``, ``gres/gpu:a100=2``, ``gpu:v100:2(IDX:0-1)``, ``cpu=2,mem=1G,gres/gpu=4``.
    Where a total stands beside typed counts, the typed ones are kept.

    Raises:
        ValueError: a GPU request that cannot be read.
    """
    counts: dict[str, int] = {}
    for item in _COMMAS.split(text):
        if not re.match(r"(gres[:/])?gpu([:=/(]|$)", item):
            continue
        match = _GPU.fullmatch(item)
        if not match:
            raise ValueError(f"{item[:60]!r} is not a number of GPUs")
        kind = (match["type"] or "").replace("(null)", "")  # some releases spell out that there is no type
        counts[kind] = counts.get(kind, 0) + int(match["count"] or 1)
    if len(counts) > 1:
        counts.pop("", None)
    return counts


def array_tasks(text: str) -> list[int]:
    """Task numbers of ``1-5%2``, ``1-49:2``, ``1,3,7-9``.

    Raises:
        ValueError: not an array expression (also one that Slurm cut short with ``...``).
    """
    tasks: list[int] = []
    for part in text.partition("%")[0].split(","):
        match = _TASKS.fullmatch(part)
        if not match:
            raise ValueError(f"{part[:40]!r} is not a range of task numbers")
        first, step = int(match[1]), int(match[3] or 1)
        last = int(match[2] or first)
        if step < 1 or last < first or last >= _MAX_TASKS:
            raise ValueError(f"{part[:40]!r} is not a range of task numbers")
        tasks.extend(range(first, last + 1, step))
    return tasks
