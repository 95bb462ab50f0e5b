import numpy as np
import pytest

from metasched.throughput.goodput import BatchLimits, Goodput
from metasched.throughput.iteration_time import IterationParameters
from policies.pollux.speedup_table import MULTI_NODE, ONE_NODE, goodput_table, speedup_table

LINEAR = IterationParameters(0.0, 0.01)
SLOW_NETWORK = IterationParameters(0.05, 0.01, 0.02, 0.0, 1.0, 0.01, 1.0)
LIMITS = BatchLimits(32, 512, 64)
WIDEST = np.array([4])


def table(*jobs, most=16, gpus=16):
    goodput = goodput_table([{"t4": job} for job in jobs], ["t4"], WIDEST, most)
    return goodput, speedup_table(goodput, np.array([gpus]), WIDEST)


def test_goodput_is_the_best_of_each_allocation():
    """Eq. 13 for every number of GPUs, on one node and on several."""
    job = Goodput(SLOW_NETWORK, LIMITS, 300.0)
    goodput, _ = table(job)
    assert goodput.shape == (1, 1, 2, 17)
    assert goodput[0, 0, ONE_NODE, 3] == pytest.approx(job.best(3, multi_node=False).goodput)
    assert goodput[0, 0, MULTI_NODE, 12] == pytest.approx(job.best(12, multi_node=True).goodput)
    assert goodput[0, 0, MULTI_NODE, 2] < goodput[0, 0, ONE_NODE, 2]


def test_impossible_allocations_have_no_goodput():
    """No GPUs, more than a node has, one GPU on several nodes, more than samples in the batch."""
    goodput, _ = table(Goodput(LINEAR, BatchLimits(8, 8, 64), None))
    assert not goodput[0, 0, ONE_NODE, [0, 5, 16]].any()
    assert not goodput[0, 0, MULTI_NODE, [0, 1, 9, 16]].any()
    assert goodput[0, 0, MULTI_NODE, 8] > 0


def test_the_fair_share_has_the_speedup_one():
    """Eq. 15: four jobs on 16 GPUs have a fair share of 4."""
    _, speedups = table(*[Goodput(SLOW_NETWORK, LIMITS, 300.0)] * 4)
    assert speedups[0, 0, ONE_NODE, 4] == pytest.approx(1.0)


def test_a_share_below_one_gpu_is_a_part_of_the_time():
    """32 jobs on 16 GPUs: a whole GPU is twice the fair share."""
    _, speedups = table(*[Goodput(SLOW_NETWORK, LIMITS, 300.0)] * 32)
    assert speedups[:, 0, ONE_NODE, 1] == pytest.approx(2.0)


def test_a_share_between_two_numbers_of_gpus_is_interpolated():
    """Three jobs that scale linearly on 16 GPUs: the speed-up of 16 is three."""
    _, speedups = table(*[Goodput(LINEAR, BatchLimits(64, 64, 64), None)] * 3)
    assert speedups[0, 0, MULTI_NODE, 16] == pytest.approx(3.0, rel=0.05)


def test_a_share_beyond_what_a_job_can_use_is_its_best():
    """One job on 16 GPUs that can use eight."""
    _, speedups = table(Goodput(LINEAR, BatchLimits(8, 8, 64), None))
    assert speedups.max() == pytest.approx(1.0)


def test_a_job_that_cannot_run_has_no_speedup():
    """Its fair goodput is 0, which is no divisor."""
    _, speedups = table(Goodput(LINEAR, BatchLimits(8, 8, 64, 9), None), Goodput(LINEAR, LIMITS, 300.0))
    assert not speedups[0].any()
    assert speedups[1].any()


def test_the_fair_share_of_several_types_is_their_mean():
    """A type is as large a part of the fair share as it has GPUs; a type that a job cannot use is no part of it."""
    fast = Goodput(LINEAR, BatchLimits(64, 64, 64), None)
    slow = Goodput(LINEAR.scaled(3.0), BatchLimits(64, 64, 64), None)
    widest, gpus = np.array([4, 4]), np.array([8, 8])
    goodput = goodput_table([{"a": fast, "b": slow}, {"a": fast}] * 4, ["a", "b"], widest, 16)
    speedups = speedup_table(goodput, gpus, widest)
    assert speedups[0, 0, ONE_NODE, 2] == pytest.approx(1 / ((1 + 1 / 3) / 2))
    assert speedups[0, 1, ONE_NODE, 2] == pytest.approx(1 / ((1 + 1 / 3) / 2) / 3)
    assert speedups[1, 0, ONE_NODE, 1] == pytest.approx(1.0)
    assert not speedups[1, 1].any()
