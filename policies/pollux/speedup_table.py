"""Tables of goodput and of speed-up over the fair share (Pollux, OSDI 2021, section 4.2, Eq. 15)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from metasched.throughput.goodput import Goodput

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

ONE_NODE, MULTI_NODE = 0, 1
"""Indices of the third axis of a table: all GPUs on one node, or GPUs on several nodes."""


def most_gpus_of_a_node(node_gpus: Ints, node_types: Ints, types: int) -> Ints:
    """For each GPU type, the most GPUs of a node.

    Args:
        node_gpus: GPUs by node.
        node_types: the index of the GPU type, by node.
        types: the number of GPU types.
    """
    return np.array([node_gpus[node_types == number].max(initial=0) for number in range(types)], dtype=np.int64)


def goodput_table(jobs: Sequence[Mapping[str, Goodput]], types: Sequence[str], widest: Ints, most: int) -> Floats:
    """The highest goodput of each job on each allocation (Eq. 13).

    Args:
        jobs: for each job, its goodput by GPU type; types on which it cannot run are left out.
        types: the GPU types of the cluster.
        widest: for each type, the most GPUs of a node.
        most: the largest number of GPUs.

    Returns:
        Goodput by job, type, placement (``ONE_NODE``, ``MULTI_NODE``) and GPUs from 0 to ``most``; 0 where the job
        cannot run.
    """
    table = np.zeros((len(jobs), len(types), 2, most + 1))
    for job, by_type in enumerate(jobs):
        for number, gpu_type in enumerate(types):
            if gpu_type in by_type:
                table[job, number] = _goodput_rows(by_type[gpu_type], int(widest[number]), most)
    return table


def _goodput_rows(goodput: Goodput, widest: int, most: int) -> Floats:
    largest = min(most, goodput.limits.most_gpus())
    local, several = np.arange(1, min(widest, largest) + 1), np.arange(2, largest + 1)
    multi_node = np.arange(len(local) + len(several)) >= len(local)
    found = goodput.best_of(np.concatenate([local, several]), multi_node).goodput
    rows = np.zeros((2, most + 1))
    rows[ONE_NODE, 1 : len(local) + 1] = found[: len(local)]
    rows[MULTI_NODE, 2 : len(several) + 2] = found[len(local) :]
    return rows


def speedup_table(goodput: Floats, gpus: Ints, widest: Ints) -> Floats:
    """The speed-ups over the fair share, an exclusive 1/J of the GPUs that a job can use (Eq. 15).

    The goodput of a share between two numbers of GPUs is interpolated. A share of less than the fewest GPUs on which a
    job runs counts as that part of the time on these. Over several GPU types the fair goodput is their mean, weighted
    by GPUs.

    Args:
        goodput: what ``goodput_table`` returns.
        gpus: for each GPU type, the GPUs of the cluster.
        widest: for each GPU type, the most GPUs of a node.

    Returns:
        Speed-ups in the shape of ``goodput``; 0 where the job cannot run.
    """
    found = np.zeros_like(goodput)
    for job, table in enumerate(goodput):
        fair = _fair_goodput(table, gpus, widest, len(goodput))
        if fair > 0:
            found[job] = table / fair
    return found


def _fair_goodput(table: Floats, gpus: Ints, widest: Ints, jobs: int) -> float:
    usable = np.flatnonzero(table.any(axis=(1, 2)) & (gpus > 0))
    if not len(usable):
        return 0.0
    share = gpus[usable].sum() / jobs
    fair = []
    for number in usable:
        split = int(widest[number]) + 1
        consolidated = np.concatenate([table[number, ONE_NODE, :split], table[number, MULTI_NODE, split:]])
        sizes = np.flatnonzero(consolidated)
        fair.append(np.interp(share, [0, *sizes], [0.0, *consolidated[sizes]]))
    return float(np.average(fair, weights=gpus[usable]))
