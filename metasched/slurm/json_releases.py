"""Readers of the JSON values whose form differs between Slurm releases, and the commands that differ.

Support for a new Slurm release belongs here. Run ``squeue --json`` and ``scontrol --json show nodes`` of that release.
Where a value has a new form, extend the reader of its kind (``number``, ``text``, ``words``, ``flag``, ``exit_code``,
``allocation``) so that it reads the new form as well as the old ones, and add a record of that release to
tests/unit/slurm/test_json_parser.py. Where a command has other options, add a function like ``nodes_command``.
``json_parser`` maps fields to records. It changes where Slurm renames a field, or adds a state of jobs or nodes
(``_STATES``, ``_USABLE``).

22.05 (openapi v0.0.38) writes plain values and null. From 23.02 on (data_parser v0.0.39 and later) numbers that may be
unset are objects with ``set``, ``infinite`` and ``number``; states and flags are lists; exit codes and the nodes of an
allocation are objects of their own. Every reader takes both forms.

A reader gets one JSON value, and raises ValueError, TypeError or KeyError for a value of neither form.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

OLDEST = (22, 5)
"""The oldest release that metasched works with."""
PRINTS_SINGLE_JOBS = (23, 2)
"""The oldest release whose squeue prints the JSON of the jobs that it is asked for, and not that of all jobs."""
_NODES_BY_SCONTROL = (23, 2)

# Slurm's NO_VAL, NO_VAL16, NO_VAL64, INFINITE... appear where an old release forgot to translate them.
_SENTINELS = frozenset({0xFFFFFFFE, 0xFFFFFFFF, 0xFFFE, 0xFFFF, 2**64 - 2, 2**64 - 1})
_BEYOND = 2**64  # Slurm's numbers have at most 64 bits


def release(text: str) -> tuple[int, ...]:
    """Parse a release: (22, 5, 8) of ``slurm-wlm 22.05.8``; raises ValueError where the text has none."""
    found = re.search(r"\b([0-9]{2})\.([0-9]{1,2})(?:\.([0-9]{1,3}))?", text, re.ASCII)
    if found is None:
        raise ValueError(f"no release of Slurm: {text[:80]!a}")
    return tuple(int(part) for part in found.groups(default="0"))


def nodes_command(slurm: tuple[int, ...]) -> list[str]:
    """Return the command that prints every node as JSON; ``sinfo --json`` groups equal nodes since 23.02."""
    if slurm >= _NODES_BY_SCONTROL:
        return ["scontrol", "--all", "--json", "show", "nodes"]
    return ["sinfo", "--json", "-a"]


def number(value: Any) -> int | None:
    """Read a whole number; None for null, unset and infinite."""
    if isinstance(value, Mapping):
        if value.get("infinite") or not value.get("set"):
            return None
        value = value.get("number")
    if value is None:
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) >= _BEYOND:
        raise ValueError(f"not a whole number below {_BEYOND}")
    return None if value in _SENTINELS else value


def text(value: Any) -> str:
    """Read a text; "" for null."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise TypeError("not a text")
    return value


def words(value: Any) -> tuple[str, ...]:
    """Read a list of words, from a comma list or a JSON list of texts."""
    if isinstance(value, list):
        return tuple(text(item) for item in value)
    return tuple(filter(None, text(value).split(",")))


def flag(value: Any) -> bool:
    """Read a truth value; null is false."""
    if value is None or isinstance(value, (bool, int)):
        return bool(value)
    raise TypeError("neither true nor false")


def exit_code(value: Any) -> int | None:
    """Read an exit code as a shell reports it (128 + signal after a signal); None where there is none."""
    if isinstance(value, Mapping) and ("return_code" in value or "signal" in value):
        killer = value.get("signal") or {}
        if not isinstance(killer, Mapping):
            raise ValueError("the signal is not an object")
        by_signal = number(killer.get("id", killer.get("signal_id")))
        return 128 + by_signal if by_signal else number(value.get("return_code"))
    status = number(value)
    if status is None:
        return None
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def allocation(resources: Any) -> list[tuple[str, int, int]]:
    """Read an allocation: (node name, cores or CPUs, MiB of memory) for each node, in Slurm's order.

    22.05 prints cores, later releases CPUs: only the proportions between nodes are meaningful.
    """
    if not isinstance(resources, Mapping):
        raise TypeError("not an object")
    nodes = resources.get("nodes")
    if isinstance(nodes, Mapping):
        return [
            (
                text(node["name"]),
                number(node["cpus"]["count"]) or 0,
                number(node["memory"]["allocated"]) or 0,
            )
            for node in nodes.get("allocation") or []
        ]
    return [
        (
            text(node["nodename"]),
            sum(len(socket["cores"]) for socket in node["sockets"].values()),
            number(node["memory_allocated"]) or 0,
        )
        for node in resources.get("allocated_nodes") or []
    ]
