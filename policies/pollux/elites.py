"""The fittest allocations of a search as small JSON-compatible data, to begin the next search with."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from policies.pollux.allocation_problem import Ints

MOST_BYTES = 64 * 1024


def encode_elites(allocations: Sequence[Ints], keys: Sequence[str], nodes: Sequence[str]) -> dict[str, Any]:
    """The first allocations, as many as fit into ``MOST_BYTES`` of JSON.

    Args:
        allocations: GPUs by job and node, the fittest first.
        keys: the jobs' keys.
        nodes: the nodes' names.

    Returns:
        ``jobs`` and ``nodes``, the names of those that occur, and ``elites``, for each allocation a flat list of job,
        node (both as indices of these names) and GPUs.
    """
    found: dict[str, Any] = {"jobs": [], "nodes": [], "elites": []}
    job_index: dict[str, int] = {}
    node_index: dict[str, int] = {}
    size = len(_json(found))
    for allocation in allocations:
        more_jobs, more_nodes = dict(job_index), dict(node_index)
        elite: list[int] = []
        for job, node in np.argwhere(allocation).tolist():
            elite.append(more_jobs.setdefault(keys[job], len(more_jobs)))
            elite.append(more_nodes.setdefault(nodes[node], len(more_nodes)))
            elite.append(int(allocation[job, node]))
        names = [*list(more_jobs)[len(job_index) :], *list(more_nodes)[len(node_index) :]]
        size += len(_json(elite)) + len(_json(names)) + 1
        if size > MOST_BYTES:
            break
        job_index, node_index = more_jobs, more_nodes
        found["elites"].append(elite)
    return {"jobs": list(job_index), "nodes": list(node_index), "elites": found["elites"]}


def decode_elites(data: Mapping[str, Any], keys: Sequence[str], nodes: Sequence[str]) -> list[Ints]:
    """The allocations that ``encode_elites`` wrote, without jobs and nodes that there are no longer.

    Args:
        data: what ``encode_elites`` returned.
        keys: the jobs' keys now.
        nodes: the nodes' names now.

    Returns:
        GPUs by job and node, which may be infeasible by now.
    """
    job_now = {key: number for number, key in enumerate(keys)}
    node_now = {name: number for number, name in enumerate(nodes)}
    jobs = [job_now.get(key) for key in data["jobs"]]
    places = [node_now.get(name) for name in data["nodes"]]
    found = []
    for elite in data["elites"]:
        allocation = np.zeros((len(keys), len(nodes)), dtype=np.int64)
        for job, node, gpus in zip(elite[::3], elite[1::3], elite[2::3], strict=True):
            if jobs[job] is not None and places[node] is not None:
                allocation[jobs[job], places[node]] = gpus
        found.append(allocation)
    return found


def _json(data: Any) -> str:
    return json.dumps(data)
