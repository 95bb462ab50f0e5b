"""Slurm's network topology, as ``scontrol show topology`` prints it, read as the rack of each node. Pure.

- ``topology/tree``: a node's rack is its leaf switch (``SwitchName=s1 Level=0 LinkSpeed=1 Nodes=n[1-2]``). Switches of
  higher levels are left out. A node below several leaf switches belongs to the first.
- ``topology/block`` (Slurm 23.11 and later): a node's rack is its block (``BlockName=b1 BlockIndex=0 Nodes=n[1-2]
  BlockSize=2``). Aggregated blocks are left out.
- ``topology/flat`` and ``topology/default``: scontrol prints nothing, and no node has a rack.
- Units of other kinds (such as ``RingName=``) are no racks.

Formats: scontrol of 22.05 for the tree, Slurm's topology guide (https://slurm.schedmd.com/topology.html) for blocks.
"""

from __future__ import annotations

from collections.abc import Mapping

from metasched.slurm import field_parsers, hostlist
from metasched.slurm.errors import MalformedOutputError


def parse_racks(text: str) -> Mapping[str, str]:
    """Read the output of ``scontrol show topology``: the name of each node's leaf switch or block, by node name.

    Returns:
        Nodes in no leaf switch and in no block are missing; empty where Slurm has no topology.

    Raises:
        MalformedOutputError: the level or the nodes of a switch or block cannot be read.
    """
    racks: dict[str, str] = {}
    for line in text.splitlines():
        fields = field_parsers.fields(line)
        unit = next(iter(fields), "")
        if unit == "BlockName" or (unit == "SwitchName" and _level(fields) == 0):
            for node in _nodes(unit, fields):
                racks.setdefault(node, fields[unit])
    return racks


def _level(fields: Mapping[str, str]) -> int:
    level = fields.get("Level", "")
    if not (level.isascii() and level.isdigit() and len(level) < 10):  # noqa: PLR2004  any number that a switch can have
        raise MalformedOutputError(_label("SwitchName", fields), "Level", f"not a number ({level!a:.80})")
    return int(level)


def _nodes(unit: str, fields: Mapping[str, str]) -> list[str]:
    text = fields.get("Nodes", "").replace("(null)", "")
    try:
        return hostlist.expand(text)
    except ValueError as error:
        raise MalformedOutputError(_label(unit, fields), "Nodes", str(error)) from error


def _label(unit: str, fields: Mapping[str, str]) -> str:
    return f"{'block' if unit == 'BlockName' else 'switch'} {fields[unit]!a:.60}"
