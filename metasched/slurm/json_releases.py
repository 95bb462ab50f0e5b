"""What differs between Slurm releases in what their commands print, in one place.

22.05 (openapi v0.0.38) writes plain values and null. From 23.02 on (data_parser v0.0.39 and later) numbers that may be
unset are objects with ``set``, ``infinite`` and ``number``; states and flags are lists; exit codes and the nodes of an
allocation are objects of their own. Every reader here takes both.

A reader gets one JSON value and raises ValueError, TypeError or KeyError where it is neither form.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

OLDEST = (22, 5)
"""The oldest release that metasched works with."""
_NODES_BY_SCONTROL = (23, 2)

# Slurm's NO_VAL, NO_VAL16, NO_VAL64, INFINITE... appear where an old release forgot to translate them.
_SENTINELS = frozenset({0xFFFFFFFE, 0xFFFFFFFF, 0xFFFE, 0xFFFF, 2**64 - 2, 2**64 - 1})


def release(text: str) -> tuple[int, ...]:
    """(22, 5, 8) of ``slurm-wlm 22.05.8``; ValueError where there is no such number."""
    found = re.search(r"\b([0-9]{2})\.([0-9]{1,2})(?:\.([0-9]{1,3}))?", text, re.ASCII)
    if found is None:
        raise ValueError(f"no release of Slurm: {text[:80]!a}")
    return tuple(int(part) for part in found.groups(default="0"))


def nodes_command(slurm: tuple[int, ...]) -> list[str]:
    """What lists all nodes one by one: ``sinfo --json`` only until it began to group those that are alike (23.02)."""
    if slurm >= _NODES_BY_SCONTROL:
        return ["scontrol", "--all", "--json", "show", "nodes"]
    return ["sinfo", "--json", "-a"]


def number(value: Any) -> int | None:
    """A whole number; None for null, unset and infinite."""
    if isinstance(value, Mapping):
        if value.get("infinite") or not value.get("set"):
            return None
        value = value.get("number")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        if isinstance(value, float) and value.is_integer():
            return int(value)
        raise ValueError("not a whole number")
    return None if value in _SENTINELS else value


def text(value: Any) -> str:
    """A text; "" for null."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise TypeError("not a text")
    return value


def words(value: Any) -> tuple[str, ...]:
    """A comma list, or a JSON list of texts."""
    if isinstance(value, list):
        return tuple(text(item) for item in value)
    return tuple(filter(None, text(value).split(",")))


def flag(value: Any) -> bool:
    """A truth value; null is false."""
    if value is None or isinstance(value, (bool, int)):
        return bool(value)
    raise TypeError("neither true nor false")


def exit_code(value: Any) -> int | None:
    """The exit code as a shell would tell it (128 + signal after a signal)."""
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
    """Node name, cores or CPUs, and MiB of memory for each node of an allocation, in Slurm's order.

    22.05 tells cores, later releases CPUs: only their proportions are meant.
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
