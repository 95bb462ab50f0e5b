"""How many nodes would suit the jobs: advice for clusters whose size can change (Pollux, OSDI 2021, section 5.4.1).

The utility of the nodes of a GPU type is the sum of the speed-ups of the jobs there over one GPU each, divided by the
GPUs: the part of perfect scaling that is reached, where an idle GPU counts, too. For one job that has all nodes, it is
the paper's max GOODPUT(a) / (SUM(a) max GOODPUT(1)).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from metasched.core.model import NodeAdvice
from policies.pollux.allocation_problem import AllocationProblem, Bools, Floats, Ints
from policies.pollux.direct_search import relaxed_amounts
from policies.pollux.round_problem import RoundProblem
from policies.pollux.speedup_table import MULTI_NODE, ONE_NODE, most_gpus_of_a_node, speedup_table

GROW_ABOVE, SHRINK_BELOW = 2 / 3, 1 / 2
"""The utilities beyond which another number of nodes is advised: U and L of the paper."""

MOST_GROWTH = 2
"""At most this many times the present nodes are advised: a job, too, may have twice what it ever had."""


def node_advice(found: RoundProblem, allocation: Ints) -> tuple[NodeAdvice, ...]:
    """The advised number of nodes of each GPU type; the other types keep theirs.

    Where the utility is above ``GROW_ABOVE`` or below ``SHRINK_BELOW``, it is the largest number of nodes, up to
    ``MOST_GROWTH`` times the present ones and 1 at least, at which the predicted utility is ``SHRINK_BELOW`` or more.
    Nodes that accept no jobs do not count.

    Args:
        found: the problem of the round.
        allocation: GPUs by job and node.
    """
    if not found.nodes:
        return ()
    problem = found.problem
    accepts = np.array([node.accepts for node in found.nodes], dtype=bool)
    counted = np.where(accepts, allocation, 0)
    sizes = np.where(accepts, problem.node_gpus, 0)
    gains = _gains(problem, counted)
    advice = []
    for number, gpu_type in enumerate(found.types):
        here = problem.node_types == number
        gpus, nodes = int(sizes[here].sum()), int((accepts & here).sum())
        if not gpus:
            continue
        utility = float(gains[_types(problem, counted) == number].sum()) / gpus
        size = _Size(nodes, utility)
        if utility > GROW_ABOVE:
            size = max(size, _largest_useful(problem, accepts, number, MOST_GROWTH * nodes), key=lambda one: one.nodes)
        elif utility < SHRINK_BELOW:
            size = min(size, _largest_useful(problem, accepts, number, nodes), key=lambda one: one.nodes)
        advice.append(NodeAdvice(gpu_type, nodes, size.nodes, utility, size.utility))
    return tuple(advice)


@dataclass(frozen=True, slots=True)
class _Size:
    """A number of nodes of one GPU type, with its utility."""

    nodes: int
    utility: float


def _largest_useful(problem: AllocationProblem, accepts: Bools, gpu_type: int, most: int) -> _Size:
    """The largest number of nodes of a type, from 1 to ``most``, at which the utility is at least ``SHRINK_BELOW``.

    It is predicted from amounts of GPUs alone, as if they could be placed on any nodes. Fewer nodes hardly give the
    jobs more, so a number of nodes that is too large tells the next one to try.
    """
    nodes = most
    while True:
        resized = _resized(problem, accepts, gpu_type, nodes)
        types, gpus = relaxed_amounts(resized)
        gained = float(_amount_gains(resized, types, gpus)[types == gpu_type].sum())
        each = int(resized.node_gpus[-1])
        utility = gained / (nodes * each)
        if utility >= SHRINK_BELOW or nodes == 1:
            return _Size(nodes, utility)
        nodes = max(min(int(gained / (SHRINK_BELOW * each)), nodes - 1), 1)


def _resized(problem: AllocationProblem, accepts: Bools, gpu_type: int, count: int) -> AllocationProblem:
    """The problem on a cluster with another number of nodes of one type, which begins without any allocation.

    The nodes of the type are like the most frequent one that accepts jobs.
    """
    others = np.flatnonzero(accepts & (problem.node_types != gpu_type))
    here = np.flatnonzero(accepts & (problem.node_types == gpu_type))
    sizes, counts = np.unique(problem.node_gpus[here], return_counts=True)
    typical = here[np.argmax(problem.node_gpus[here] == sizes[np.argmax(counts)])]
    columns = np.concatenate([others, np.repeat(typical, count)])
    node_gpus, node_types = problem.node_gpus[columns], problem.node_types[columns]
    types = problem.speedups.shape[1]
    gpus = np.bincount(node_types, weights=node_gpus, minlength=types).astype(np.int64)
    held = problem.present.sum(axis=1)
    fixed = problem.pinned & (held > 0)
    return replace(
        problem,
        speedups=speedup_table(problem.speedups, gpus, most_gpus_of_a_node(node_gpus, node_types, types)),
        node_gpus=node_gpus,
        node_types=node_types,
        node_limits=problem.node_limits[:, columns],
        present=np.zeros((len(problem.keys), len(columns)), dtype=np.int64),
        factors=np.ones(len(problem.keys)),
        least_gpus=np.where(fixed, held, problem.least_gpus),
        most_gpus=np.where(fixed, held, problem.most_gpus),
        pinned=np.zeros(len(problem.keys), dtype=bool),
    )


def _gains(problem: AllocationProblem, allocation: Ints) -> Floats:
    """J, each job's goodput over that on one GPU of the same type; 0 for a job without GPUs."""
    gpus, nodes = allocation.sum(axis=1), np.count_nonzero(allocation, axis=1)
    tables = problem.speedups[np.arange(len(problem.keys)), _types(problem, allocation)]
    form = np.where(nodes > 1, MULTI_NODE, ONE_NODE)
    return _over_one_gpu(tables, tables[np.arange(len(tables)), form, np.minimum(gpus, tables.shape[2] - 1)])


def _amount_gains(problem: AllocationProblem, types: Ints, gpus: Ints) -> Floats:
    """The same for amounts of GPUs, on one node where that is better and a node has so many."""
    tables = problem.speedups[np.arange(len(problem.keys)), types]
    every = np.arange(len(tables))
    widest = most_gpus_of_a_node(problem.node_gpus, problem.node_types, problem.speedups.shape[1])
    local = np.where(gpus <= widest[types], tables[every, ONE_NODE, gpus], 0.0)
    return _over_one_gpu(tables, np.maximum(local, tables[every, MULTI_NODE, gpus]))


def _over_one_gpu(tables: Floats, reached: Floats) -> Floats:
    """Speed-ups over one GPU, for each job's table by placement and GPUs, and the entry that is reached.

    A job that needs several GPUs is taken to scale perfectly up to the fewest on which it can run.
    """
    best = tables.max(axis=1)
    fewest = np.argmax(best > 0, axis=1)
    base = best[np.arange(len(best)), fewest]
    return np.asarray(np.where(base > 0, reached * fewest / np.where(base > 0, base, 1.0), 0.0))


def _types(problem: AllocationProblem, allocation: Ints) -> Ints:
    """J, the index of the GPU type of each job that has GPUs."""
    return np.asarray(problem.node_types[np.argmax(allocation > 0, axis=1)])
