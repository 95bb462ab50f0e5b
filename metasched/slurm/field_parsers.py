"""Parsers of texts inside Slurm's records: ``key=value`` lines, GRES, array expressions, job ids, node names."""

from __future__ import annotations

import re
from collections.abc import Iterator

# A name that is not a number alone, which would be a count.
_TYPE = r"[A-Za-z_.+][A-Za-z0-9_.+-]*|[0-9][A-Za-z0-9_.+-]*[A-Za-z_.+-][A-Za-z0-9_.+-]*|\(null\)"
_COUNTED = r"(?:gres[:/])?%s(?:[:/](?P<type>" + _TYPE + r"))?(?:[:=](?P<count>[0-9]{1,9}))?(?:\(.*\))?"
_GPU = re.compile(_COUNTED % "gpu", re.ASCII)
_SHARD = re.compile(_COUNTED % "shard", re.ASCII)
_PARTS = re.compile(r"shard[^(),]*\((?P<parts>[0-9]+/[0-9]+(?:,[0-9]+/[0-9]+)*)\)", re.ASCII)
_INDICES = re.compile(r"(?:gpu|shard)[^(),]*\(IDX:(?P<indices>[0-9,-]+)\)", re.ASCII)
_TASKS = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?(?::([0-9]{1,9}))?", re.ASCII)
_MAX_TASK = 4_000_000  # the highest task number that MaxArraySize allows
_MAX_TASKS = 100_000  # in one expression
_ADDRESS = re.compile(r"[0-9]{1,10}(_[0-9]{1,10})?", re.ASCII)
_NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,253}", re.ASCII)
_ITEM = re.compile(r"(?:[^,(]|\([^()]*\)|\()+")  # commas inside brackets do not separate items
_MAX_ITEM = 1000  # characters
_FIELD = re.compile(r"(?:^|(?<=\s))([A-Za-z/_:]+)=(\S*)")


def fields(line: str) -> dict[str, str]:
    """Parse a line of ``key=value`` pairs, as ``scontrol -o`` prints it; of equal keys the first counts.

    Free text (a comment) comes last in Slurm's lines, so a user's text cannot replace Slurm's own fields.
    """
    found: dict[str, str] = {}
    for name, value in _FIELD.findall(line):
        found.setdefault(name, value)
    return found


def is_slurm_job_id(text: str) -> bool:
    """Whether the text is a job id: ``123``, or ``123_4`` for a task of an array."""
    return _ADDRESS.fullmatch(text) is not None


def is_node_name(text: str) -> bool:
    """Whether the text can be the name of one node (letters, digits, ``.``, ``_`` and ``-``)."""
    return _NODE_NAME.fullmatch(text) is not None


def gpus(text: str) -> dict[str, int]:
    """Parse the GPUs of a GRES or TRES text: counts by type ("" for untyped); other resources are skipped.

    Reads ``gres:gpu:v100:2``, ``gpu:2``, ``gres/gpu:a100=2``, ``gpu:v100:2(IDX:0-1)``, ``cpu=2,mem=1G,gres/gpu=4``.
    An untyped total next to typed counts is dropped.

    Raises:
        ValueError: a GPU request that cannot be read, or is longer than 1,000 characters.
    """
    return _counts(text, "gpu", _GPU)


def shards(text: str) -> dict[str, int]:
    """Parse the shards (parts of GPUs) of a GRES or TRES text: counts by type of GPU ("" for untyped).

    Raises:
        ValueError: a request for shards that cannot be read, or is longer than 1,000 characters.
    """
    return _counts(text, "shard", _SHARD)


def gpu_indices(text: str) -> tuple[int, ...]:
    """Parse the indices of GPUs in ``gpu:v100:2(IDX:0,2)`` or ``shard:1(IDX:3)``, sorted; empty where there are none.

    Later releases print shards as held and total for each GPU: ``shard:1(0/2,1/2)``.

    Raises:
        ValueError: the indices are no numbers, or an item is longer than 1,000 characters.
    """
    found: set[int] = set()
    for item in _items(text):
        _check_length(item)
        if match := _INDICES.search(item):
            found.update(array_tasks(match["indices"]))
        if match := _PARTS.search(item):
            found.update(gpu for gpu, part in enumerate(match["parts"].split(",")) if not part.startswith("0/"))
    return tuple(sorted(found))


def _counts(text: str, what: str, pattern: re.Pattern[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for item in _items(text):
        if not re.match(rf"(gres[:/])?{what}([:=/(]|$)", item):
            continue
        _check_length(item)
        match = pattern.fullmatch(item)
        if not match:
            raise ValueError(f"{item[:60]!r} is not a number of {'GPUs' if what == 'gpu' else 'shards'}")
        kind = (match["type"] or "").replace("(null)", "")  # some releases spell out that there is no type
        counts[kind] = counts.get(kind, 0) + int(match["count"] or 1)
    if len(counts) > 1:
        counts.pop("", None)
    return counts


def _items(text: str) -> Iterator[str]:
    """The items of a list that commas separate, in a time proportional to the text's length."""
    return (match[0] for match in _ITEM.finditer(text))


def _check_length(item: str) -> None:
    """Raise ValueError for an item whose length may make the time of a pattern grow by the square."""
    if len(item) > _MAX_ITEM:
        raise ValueError(f"{item[:60]!r}... has more than {_MAX_ITEM} characters")


def array_tasks(text: str) -> list[int]:
    """Parse an array expression (``1-5%2``, ``1-49:2``, ``1,3,7-9``) into task numbers.

    Raises:
        ValueError: not an array expression (also one that Slurm cut short with ``...``), or more than 100,000 tasks.
    """
    tasks: list[int] = []
    for part in text.partition("%")[0].split(","):
        match = _TASKS.fullmatch(part)
        if not match:
            raise ValueError(f"{part[:40]!r} is not a range of task numbers")
        first, step = int(match[1]), int(match[3] or 1)
        last = int(match[2] or first)
        if step < 1 or last < first or last > _MAX_TASK:
            raise ValueError(f"{part[:40]!r} is not a range of task numbers")
        found = range(first, last + 1, step)
        if len(tasks) + len(found) > _MAX_TASKS:
            raise ValueError(f"more than {_MAX_TASKS} tasks")
        tasks.extend(found)
    return tasks
