"""Advice on the number of nodes: the utility of a cluster, and the size at which it would be right."""

import dataclasses

import numpy as np
import pytest

from metasched.core.batching import BatchControl, Batching, BatchPlan, GradientNoise
from metasched.core.model import Preempt
from metasched.throughput.goodput import Goodput
from metasched.throughput.iteration_time import IterationParameters
from metasched.throughput.job_goodput import batch_limits
from policies.pollux.autoscaling import GROW_ABOVE, MOST_GROWTH, SHRINK_BELOW, node_advice
from policies.pollux.round_problem import round_problem
from tests.builders import job, node, nodes, running, snapshot

THETA = (0.02, 0.001, 0.01, 0.001, 0.05, 0.002, 1.5)
BATCHING = Batching(64, BatchControl.SCHEDULER, BatchPlan(64), 64, max_batch=16384, min_per_gpu=8, max_per_gpu=256)


def adaptive(uid="a", *, noise=1e6, most=64, **fields):
    known = {"batching": BATCHING, "noise": GradientNoise(1.0, noise), "iteration_parameters": {"v100": THETA}}
    return job(uid, 1, 1, 64, adaptive_batch=True, most_gpus=most, **known | fields)


def advice(jobs, the_nodes, rows):
    """The advice for jobs with GPUs by uid and node."""
    found = round_problem(
        snapshot(jobs, the_nodes), p=-1.0, avoid_interference=True, restart_seconds=30.0, growth=MOST_GROWTH
    )
    return node_advice(found, found.matrix(rows))


def whole(uid, the_nodes):
    return {uid: {one.name: one.gpus for one in the_nodes}}


def test_the_utility_of_one_job_is_that_of_the_paper():
    """The best goodput on all GPUs, over that on one times the GPUs (section 5.4.1)."""
    one, here = adaptive(), nodes(4)
    goodput = Goodput(IterationParameters(*THETA), batch_limits(one.batching), 1e6)
    best, single = goodput.best(16, multi_node=True), goodput.best(1, multi_node=False)
    (found,) = advice([one], here, whole("a", here))
    assert found.utility == pytest.approx(best.goodput / single.goodput / 16)


@pytest.mark.parametrize("noise", [1e2, 1e3, 1e4, 1e6, 1e8])
def test_the_advised_size_is_the_largest_with_a_utility_of_a_half(noise):
    """At the advised nodes the job has that utility, and with one node more it has less; within the band nothing."""
    one, here = adaptive(noise=noise), nodes(8)
    (found,) = advice([one], here, whole("a", here))
    assert (found.gpu_type, found.nodes) == ("v100", 8)
    if SHRINK_BELOW <= found.utility <= GROW_ABOVE:
        assert (found.advised, found.predicted) == (8, found.utility)
        return

    def utility(count):
        some = nodes(count)
        return advice([one], some, whole("a", some))[0].utility

    assert (found.utility > GROW_ABOVE) == (found.advised > 8)
    assert found.advised == 1 or utility(found.advised) >= SHRINK_BELOW
    assert found.predicted == pytest.approx(utility(found.advised))
    assert found.advised == MOST_GROWTH * 8 or utility(found.advised + 1) < SHRINK_BELOW


def test_a_queue_asks_for_more_nodes_and_idle_nodes_for_fewer():
    """Jobs that wait count as soon as they could run; at most twice the nodes are advised, and one at least."""
    many = [adaptive(f"j{i}", most=1) for i in range(40)]
    (busy,) = advice(many, nodes(2), {f"j{i}": {f"v100-{i // 4}": 1} for i in range(8)})
    assert (busy.utility, busy.advised) == (1.0, 4)
    (idle,) = advice([adaptive("a", most=1)], nodes(8), {"a": {"v100-0": 2}})
    assert (idle.nodes, idle.advised) == (8, 1)
    (empty,) = advice([], nodes(8), {})
    assert (empty.utility, empty.advised) == (0.0, 1)


def test_jobs_that_cannot_use_fewer_nodes_keep_them():
    """A gang of eight GPUs, and one that must not be stopped, count as perfectly scaled."""
    gang = job("g", 8)
    (found,) = advice([gang], nodes(6), {"g": {"v100-0": 4, "v100-1": 4}})
    assert (found.advised, found.predicted) == (4, 0.5)
    pinned = running(job("p", 8, preempt=Preempt.NO), "v100-0", "v100-1")
    (found,) = advice([pinned], nodes(6), {"p": {"v100-0": 4, "v100-1": 4}})
    assert (found.advised, found.predicted) == (4, 0.5)


def test_each_gpu_type_is_advised_by_itself():
    """Nodes that accept no jobs do not count, nor does a type without any that does."""
    closed = node("v100-9", 4, "v100", 64, 1 << 40, accepts=False)
    the_nodes = (*nodes(2), closed, *nodes(4, 4, "k80"), node("off", 4, "t4", accepts=False))
    one = adaptive("a", most=4, gpu_types=("v100",))
    found = {each.gpu_type: each for each in advice([one], the_nodes, {"a": {"v100-0": 4, "v100-1": 4}})}
    assert found.keys() == {"v100", "k80"}
    assert (found["v100"].nodes, found["k80"].advised) == (2, 1)
    assert found["v100"].utility > 0
    assert found["k80"].utility == 0.0


def test_advice_is_plain_numbers():
    """It is stored as JSON."""
    (found,) = advice([adaptive()], nodes(2), {"a": {"v100-0": 4}})
    assert all(type(value) in {str, int, float} for value in dataclasses.astuple(found))
    assert not isinstance(found.utility, np.floating)
