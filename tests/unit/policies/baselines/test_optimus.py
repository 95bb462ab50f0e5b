from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metasched.core import reason_words
from metasched.core.model import Preempt
from metasched.scheduling.engine import run_round
from policies.baselines.optimus import Optimus
from tests.builders import ByGpus, job, linear, nodes, running, snapshot

SATURATING = ByGpus(((1, 1.0), (2, 1.9), (3, 2.0), (4, 1.5)))


def amounts(jobs, the_nodes=None, **more):
    targets = run_round(snapshot(jobs, the_nodes, **more), Optimus(), None).targets
    return {uid: place.gpus for uid, place in targets.items()}


def test_each_gpu_goes_where_it_saves_the_most_time():
    """The longer of two equal jobs gets more GPUs, as far as its remaining time falls."""
    long = job("long", 1, 1, 8, left=1000, speed=linear(1.0))
    short = job("short", 1, 1, 8, left=10, speed=linear(1.0))
    assert amounts([long, short], nodes(1, 8)) == {"long": 7, "short": 1}


def test_all_jobs_get_their_minimum_first():
    """Even where another job would gain more."""
    long = job("long", 1, 1, 8, left=1e9, speed=linear(1.0))
    others = [job(f"s{i}", 1, left=1, speed=linear(1.0)) for i in range(3)]
    assert amounts([long, *others]) == {"long": 1, "s0": 1, "s1": 1, "s2": 1}


def test_no_job_gets_gpus_that_would_slow_it_down():
    """The GPUs stay idle instead."""
    assert amounts([job("a", 1, 1, 4, left=100, speed=SATURATING)]) == {"a": 3}


@pytest.mark.parametrize(("asks", "gpus"), [(1, 2), (3, 3), (4, 4)])
def test_an_amount_of_unknown_gain_is_assigned_only_up_to_the_request(asks, gpus):
    """A job of partly known speed gets no fewer GPUs than one of unknown speed."""
    assert amounts([job("a", asks, 1, 4, left=100, speed=ByGpus(((1, 1.0), (2, 2.0))))]) == {"a": gpus}


def test_a_gain_is_counted_for_each_gpu_of_a_step():
    """Beyond one node jobs grow by whole nodes."""
    two = ByGpus(((4, 4.0), (8, 8.0)))
    one = ByGpus(((1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0)))
    by_nodes = job("n", 4, 4, 8, left=400, speed=two)  # 100 s to 50 s: 12.5 s for each of 4
    by_gpus = job("g", 1, 1, 4, left=20, speed=one)  # 20 s to 10 s by the first
    assert amounts([by_nodes, by_gpus], nodes(2)) == {"n": 4, "g": 4}


def test_jobs_of_unknown_speed_grow_last_and_up_to_their_request():
    """They get their minimum as all jobs do."""
    unknown = job("u", 2, 1, 4)
    known = job("k", 1, 1, 2, left=100, speed=linear(1.0), submitted=1.0)
    result = run_round(snapshot([unknown, known], nodes(1, 8)), Optimus(), None)
    assert {uid: place.gpus for uid, place in result.targets.items()} == {"u": 2, "k": 2}
    assert "is not known" in reason_words.words(result.reasons["u"])


def test_small_jobs_are_placed_first():
    """Grants are in ascending order of GPUs."""
    jobs = [job("big", 4, left=9, speed=linear(1.0)), job("small", 1, left=9, speed=linear(1.0), submitted=1.0)]
    decision = run_round(snapshot(jobs, nodes(2)), Optimus(), None).decision
    assert [grant.uid for grant in decision.grants] == ["small", "big"]


def test_a_pinned_job_keeps_its_gpus():
    """It neither grows nor shrinks."""
    fixed = running(job("f", 2, 1, 4, left=1e9, speed=linear(1.0), preempt=Preempt.NO), "v100-0")
    assert amounts([fixed, job("a", 1, 1, 4, left=10, speed=linear(1.0))]) == {"f": 2, "a": 2}


def test_uneven_clusters_give_any_amount():
    """Where the cluster can realise it, a job has five GPUs on two nodes of four."""
    five = ByGpus(((1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0), (5, 5.0), (6, 1.0)))
    assert amounts([job("a", 1, 1, 8, left=9, speed=five)], nodes(2), uneven=True) == {"a": 5}
    assert amounts([job("a", 1, 1, 8, left=9, speed=five)], nodes(2)) == {"a": 4}


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 1000)), min_size=1, max_size=12))
def test_no_gpu_idles_by_which_a_job_would_gain(wanted):
    """Jobs that scale fill the cluster, or have all GPUs that they can use."""
    jobs = [job(f"j{i:02}", 1, 1, most, left=left, speed=linear(1.0)) for i, (most, left) in enumerate(wanted)]
    used = sum(amounts(jobs, nodes(1, 8)).values())
    assert used == min(8, sum(most for most, _ in wanted))
