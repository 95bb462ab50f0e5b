"""Small languages inside Slurm's records: GPU requests, array expressions, addresses."""

from __future__ import annotations

import re

_GPU = re.compile(
    r"(?:gres[:/])?gpu"
    r"(?:[:/](?P<type>[A-Za-z_.+][A-Za-z0-9_.+-]*|[0-9][A-Za-z0-9_.+-]*[A-Za-z_.+-][A-Za-z0-9_.+-]*|\(null\)))?"
    r"(?:[:=](?P<count>[0-9]{1,9}))?(?:\(.*\))?",
    re.ASCII,
)
_SHARD = re.compile(
    r"(?:gres[:/])?shard(?:[:/](?P<type>[A-Za-z_.+][A-Za-z0-9_.+-]*|[0-9][A-Za-z0-9_.+-]*[A-Za-z_.+-][A-Za-z0-9_.+-]*"
    r"|\(null\)))?(?:[:=](?P<count>[0-9]{1,9}))?(?:\(.*\))?",
    re.ASCII,
)
_PARTS = re.compile(r"shard[^(),]*\((?P<parts>[0-9]+/[0-9]+(?:,[0-9]+/[0-9]+)*)\)", re.ASCII)
_INDICES = re.compile(r"(?:gpu|shard)[^(),]*\(IDX:(?P<indices>[0-9,-]+)\)", re.ASCII)
_TASKS = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?(?::([0-9]{1,9}))?", re.ASCII)
_MAX_TASKS = 4_000_001
_ADDRESS = re.compile(r"[0-9]{1,10}(_[0-9]{1,10})?", re.ASCII)
_NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,253}", re.ASCII)
_COMMAS = re.compile(r",(?![^(]*\))")
_FIELD = re.compile(r"(?:^|(?<=\s))([A-Za-z/]+)=(\S*)")


def fields(line: str) -> dict[str, str]:
    """What a line of ``scontrol -o`` says by name, the first of each name.

    What an admin or a user can write freely, a comment, comes last: the first is Slurm's own.
    """
    found: dict[str, str] = {}
    for name, value in _FIELD.findall(line):
        found.setdefault(name, value)
    return found


def is_slurm_job_id(text: str) -> bool:
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
    return _counts(text, "gpu", _GPU)


def shards(text: str) -> dict[str, int]:
    """Shards (parts of GPUs) by the GPUs' type in such a text.

    Raises:
        ValueError: a request for shards that cannot be read.
    """
    return _counts(text, "shard", _SHARD)


def gpu_indices(text: str) -> tuple[int, ...]:
    """Which GPUs of its node ``gpu:v100:2(IDX:0,2)`` or ``shard:1(IDX:3)`` means; empty where it does not say.

    Later releases write for shards how many of each GPU's, ``shard:1(0/2,1/2)``.

    Raises:
        ValueError: not numbers.
    """
    found = {index for match in _INDICES.finditer(text) for index in array_tasks(match["indices"])}
    for match in _PARTS.finditer(text):
        found.update(gpu for gpu, part in enumerate(match["parts"].split(",")) if not part.startswith("0/"))
    return tuple(sorted(found))


def _counts(text: str, what: str, pattern: re.Pattern[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for item in _COMMAS.split(text):
        if not re.match(rf"(gres[:/])?{what}([:=/(]|$)", item):
            continue
        match = pattern.fullmatch(item)
        if not match:
            raise ValueError(f"{item[:60]!r} is not a number of {'GPUs' if what == 'gpu' else 'shards'}")
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
