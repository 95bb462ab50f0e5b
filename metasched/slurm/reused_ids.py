"""Nodes that Slurm drains because a controller that crashed has given a job's id away again. Pure.

A controller that is killed loses the last seconds of its state. It may then start a job on a node where a job with the
same id still runs. slurmd refuses that, and Slurm drains the node until an administrator returns it to service.
"""

from __future__ import annotations

import re
from collections.abc import Collection

_DUPLICATE = re.compile(r"duplicate job ?id", re.IGNORECASE)


def drained_by_reused_id(reason: str) -> bool:
    """Whether a node that accepts no jobs has that reason of Slurm."""
    return _DUPLICATE.search(reason) is not None


def resume_command(nodes: Collection[str]) -> str:
    """Return the administrator's command that returns the nodes to service."""
    return f"scontrol update nodename={','.join(sorted(nodes))} state=resume"
