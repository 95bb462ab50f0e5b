from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metasched.capacity.shapes import ClusterShapes
from metasched.core.model import Node
from tests.builders import job


def shape(one, *gpus, uneven=True):
    """The shape of a job on nodes with that many GPUs."""
    nodes = [Node(f"n{number}", "v100", count, 64, 1 << 40) for number, count in enumerate(gpus)]
    return ClusterShapes(nodes, [one], uneven=uneven).of(one)


@pytest.mark.parametrize(
    ("limits", "gpus", "found"),
    [
        ({}, 5, (4, 1)),
        ({}, 9, None),
        ({"max_nodes": 1}, 5, None),
        ({"max_nodes": 2}, 5, (4, 1)),
        ({"max_nodes": 2}, 6, (3, 3)),
        ({"nodes": 2}, 5, (4, 1)),
        ({"nodes": 2}, 2, (1, 1)),
        ({"nodes": 2}, 1, None),
        ({"nodes": 3}, 5, None),
    ],
)
def test_uneven_placements_on_the_fewest_nodes_keep_the_limits_on_nodes(limits, gpus, found):
    """Two nodes of four GPUs; even placements are preferred where the number of nodes is limited."""
    assert shape(job("a", gpus, **limits), 4, 4).consolidated("v100", gpus) == found


def test_three_nodes_each_have_a_gpu_of_a_job_for_three_nodes():
    """The job asks for exactly three nodes."""
    assert shape(job("a", 7, nodes=3), 8, 4, 4).consolidated("v100", 7) == (5, 1, 1)


@pytest.mark.parametrize(
    ("limits", "gpus", "found"),
    [
        ({}, 5, (2, 2, 1)),
        ({}, 8, (3, 3, 2)),
        ({}, 12, (6, 4, 2)),
        ({"max_nodes": 2}, 5, (3, 2)),
        ({"nodes": 2}, 5, (3, 2)),
        ({}, 13, None),
    ],
)
def test_uneven_placements_on_the_most_nodes_are_as_even_as_possible(limits, gpus, found):
    """Three nodes of six, four and two GPUs."""
    assert shape(job("a", gpus, **limits), 6, 4, 2).scattered("v100", gpus) == found


@given(
    st.lists(st.integers(0, 8), min_size=1, max_size=5),
    st.integers(1, 24),
    st.sampled_from([{}, {"nodes": 2}, {"nodes": 3}, {"max_nodes": 2}]),
)
def test_placements_fit_on_the_nodes(sizes, gpus, limits):
    """All GPUs, no node beyond its GPUs, and the limits on nodes; what even placements hold, uneven ones do."""
    one = job("a", gpus, **limits)
    even, uneven = (shape(one, *sizes, uneven=allowed) for allowed in (False, True))
    for found in (uneven.consolidated("v100", gpus), uneven.scattered("v100", gpus)):
        if found is None:
            assert even.consolidated("v100", gpus) is None
        else:
            assert sum(found) == gpus
            assert list(found) == sorted(found, reverse=True)
            assert all(0 < part <= size for part, size in zip(found, sorted(sizes, reverse=True), strict=False))
            assert len(found) <= min(len(sizes), limits.get("max_nodes", 5))
            assert limits.get("nodes") in (None, len(found))
    assert (uneven.consolidated("v100", gpus) is None) == (uneven.scattered("v100", gpus) is None)
